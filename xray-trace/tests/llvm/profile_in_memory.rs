//! ProfileTest: paths with numbers, blocks of threads, and merged profiles.

use xray_trace::llvm::profile::{Measured, Profile, Reader};
use xray_trace::llvm::{ByteOrder, Mode};

use crate::profile::{block, file_header};

fn measured(calls: u64, ticks: u64) -> Measured {
    Measured { calls, ticks }
}

/// Threads, each with its paths and their calls and time.
type Threads = Vec<(u64, Vec<(Vec<i32>, Measured)>)>;

fn contents(profile: &Profile) -> Threads {
    let threads = profile.threads().map(|(thread, paths)| {
        let mut paths = paths
            .iter()
            .map(|(path, measured)| (profile.expand(*path), *measured))
            .collect::<Vec<_>>();
        paths.sort_by(|a, b| a.0.cmp(&b.0));
        (thread, paths)
    });
    threads.collect()
}

/// One call of 1000 ticks on each of these paths of threads.
fn profile(paths: &[(u64, [i32; 2])]) -> Profile {
    let mut profile = Profile::default();
    for (thread, path) in paths {
        profile.add(*thread, path, measured(1, 1000));
    }
    profile
}

#[test]
fn create_profile() {
    assert_eq!(contents(&Profile::default()), []);
}

#[test]
fn intern_path() {
    let mut profile = Profile::default();
    let path = profile.intern(&[3, 2, 1]).unwrap();
    assert_eq!(profile.intern(&[3, 2, 1]), Some(path));
    // A part of the first path, so it exists already.
    let caller = profile.intern(&[2, 1]).unwrap();
    assert_ne!(path, caller);
    assert_eq!(profile.intern(&[]), None);
}

#[test]
fn expand_path() {
    let mut profile = Profile::default();
    for functions in [&[3, 2, 1][..], &[2, 1], &[1, 1]] {
        let path = profile.intern(functions).unwrap();
        assert_eq!(profile.expand(path), functions);
        assert!(Profile::default().expand(path).is_empty());
    }
}

/// Blocks cannot be empty here, because their content creates them. A file gives the same.
#[test]
fn add_blocks() {
    let mut profile = Profile::default();
    profile.add(1, &[], measured(1, 1));
    assert_eq!(contents(&profile), []);
    profile.add(1, &[2, 1], measured(1, 1000));
    profile.add(1, &[3, 2, 1], measured(10, 100));
    let expected = vec![
        (vec![2, 1], measured(1, 1000)),
        (vec![3, 2, 1], measured(10, 100)),
    ];
    assert_eq!(contents(&profile), [(1, expected.clone())]);
    let order = ByteOrder::Little;
    let paths = [(vec![2, 1], 1, 1000), (vec![3, 2, 1], 10, 100)];
    let bytes = [file_header(order), block(0, 1, &paths, order)].concat();
    let read = Profile::read(&mut Reader::new(&bytes[..], Mode::Strict).unwrap()).unwrap();
    assert_eq!(contents(&read), [(1, expected)]);
}

#[test]
fn copy_profile_and_move_profile() {
    let profile = profile(&[(1, [2, 1]), (2, [3, 1])]);
    let expected = contents(&profile);
    let copy = profile.clone();
    let moved = profile;
    assert_eq!(contents(&copy), expected);
    assert_eq!(contents(&moved), expected);
}

/// The two profiles of MergeProfilesByThread, and their sum.
fn by_thread() -> (Profile, Profile, Threads) {
    let one = profile(&[(1, [2, 1]), (1, [4, 1]), (2, [3, 1])]);
    let other = profile(&[(1, [2, 1]), (2, [3, 1]), (2, [4, 1])]);
    let paths = |twice: i32| {
        let mut paths = vec![
            (vec![twice, 1], measured(2, 2000)),
            (vec![4, 1], measured(1, 1000)),
        ];
        paths.sort_by(|a, b| a.0.cmp(&b.0));
        paths
    };
    (one, other, vec![(1, paths(2)), (2, paths(3))])
}

#[test]
fn merge_profiles_by_thread() {
    let (one, other, expected) = by_thread();
    assert_eq!(contents(&one.clone().merged_by_thread(&other)), expected);
    assert_eq!(contents(&other.merged_by_thread(&one)), expected);
}

#[test]
fn merge_profiles_by_thread_accumulate() {
    let (one, other, expected) = by_thread();
    let merged = [one, other]
        .iter()
        .fold(Profile::default(), |all, next| all.merged_by_thread(next));
    assert_eq!(contents(&merged), expected);
}

/// The threads are dropped. Counts saturate.
#[test]
fn merge_profiles_by_stack() {
    let (mut one, mut other) = (profile(&[(1, [2, 1])]), profile(&[(2, [2, 1])]));
    let both = vec![(vec![2, 1], measured(2, 2000))];
    assert_eq!(contents(&one.merged_by_stack(&other)), [(0, both.clone())]);
    one.add(3, &[4], measured(u64::MAX, 1));
    other.add(4, &[4], measured(1, 1));
    let most = [both, vec![(vec![4], measured(u64::MAX, 2))]].concat();
    assert_eq!(contents(&one.merged_by_stack(&other)), [(0, most)]);
}

#[test]
fn merge_profiles_by_stack_accumulate() {
    let profiles = [1, 2, 3].map(|thread| profile(&[(thread, [2, 1])]));
    let merged = profiles
        .iter()
        .fold(Profile::default(), |all, next| all.merged_by_stack(next));
    let expected = vec![(vec![2, 1], measured(3, 3000))];
    assert_eq!(contents(&merged), [(0, expected)]);
}
