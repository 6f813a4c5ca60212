//! Memory that is taken away while it is mapped: the mapping breaks, and the process lives.
#![cfg(all(target_os = "linux", not(miri), not(loom)))]
#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::fs::File;

use nix::sys::memfd::{MFdFlags, memfd_create};
use shm_ring::{Half, Mapping, SharedMemory as _};

const BYTES: u64 = 64 << 12;

fn file() -> File {
    let file = File::from(memfd_create(c"rings", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(BYTES).unwrap();
    file
}

#[test]
fn a_mapping_whose_file_shrinks_is_broken_and_reads_as_zero() {
    let (file, other) = (file(), file());
    let mapping = Mapping::new(&file, 4096, BYTES - 4096).unwrap();
    let whole = Mapping::new(&other, 0, BYTES).unwrap();
    for mapping in [&mapping, &whole] {
        mapping.store(0, 1);
        mapping.store(40 << 12, 2);
    }
    file.set_len(2 << 12).unwrap();
    // The first page is still there.
    assert_eq!(mapping.load(0), 1);
    assert!(!mapping.is_broken());
    assert_eq!(mapping.load(40 << 12), 0);
    assert!(mapping.is_broken());
    assert_eq!(mapping.load(0), 0);
    mapping.store(0, 7);
    mapping.zero(0, BYTES - 4096);
    assert_eq!(mapping.find_word(0, u64::MAX), None);
    assert_eq!((whole.load(0), whole.load(40 << 12)), (1, 2));
    assert!(!whole.is_broken());
}

#[test]
fn every_kind_of_access_survives() {
    let accesses: [fn(&Mapping); 7] = [
        |mapping| mapping.store(0, 1),
        |mapping| mapping.zero(0, BYTES),
        |mapping| _ = mapping.set_bits(8, 1),
        |mapping| _ = mapping.load_words(0, &mut [0; 4096]),
        |mapping| mapping.copy_words(0, &mut [0; 4096]),
        |mapping| _ = mapping.find_word(0, u64::MAX),
        |mapping| mapping.store_half(0, Half::Low, 3),
    ];
    for access in accesses {
        let file = file();
        let mapping = Mapping::new(&file, 0, BYTES).unwrap();
        file.set_len(0).unwrap();
        // On several threads at once, which meet in the same pages.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| access(&mapping));
            }
        });
        assert!(mapping.is_broken());
    }
}

#[test]
fn registrations_are_used_again() {
    let (file, gone) = (file(), file());
    for round in 0..5000 {
        let mapping = Mapping::new(&gone, 0, BYTES).unwrap();
        assert!(!mapping.is_broken());
        if round % 1000 == 0 {
            gone.set_len(0).unwrap();
            mapping.load(0);
            assert!(mapping.is_broken());
            gone.set_len(BYTES).unwrap();
        }
    }
    let mappings: Vec<Mapping> = (0..100)
        .map(|_| Mapping::new(&file, 0, 4096).unwrap())
        .collect();
    assert!(mappings.iter().all(|mapping| mapping.load(0) == 0));
}
