//! Which files are removed: those that are too old, and the oldest ones where there are too many
//! bytes, of a policy or of all, or too little room on the disk. A file that is still written
//! stays.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

use crate::store::{Found, Store, free_bytes};
use crate::utc;

/// How much is kept of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    pub(crate) bytes: u64,
    pub(crate) age: Option<Duration>,
}

/// How much is kept of all policies together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeepAll {
    pub(crate) bytes: u64,
    /// Bytes of the disk that stay free.
    pub(crate) leave: u64,
}

/// The age at which kept sums are removed, once their process is not recorded any more.
const SUMS_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Removes files. Policies that are not among `policies` keep their files as long as there is room.
pub(crate) fn apply(
    store: &Store,
    policies: &BTreeMap<String, Keep>,
    all: KeepAll,
) -> io::Result<()> {
    let mut files = store.files()?;
    let free = free_bytes(store.root())?;
    let removed = to_remove(&mut files, policies, all, (utc::now(), free));
    for file in &removed {
        match fs::remove_file(&file.path) {
            // Somebody has removed it.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(file = %file.path.display(), %error, "cannot remove a file");
                continue;
            }
            _ => store
                .counters
                .change(&file.policy, |numbers| numbers.removed += 1),
        }
        // The folder of a day goes with its last file.
        if let Some(day) = file.path.parent() {
            let _ = fs::remove_dir(day);
        }
    }
    if !removed.is_empty() {
        tracing::info!(files = removed.len(), "removed the oldest recordings");
    }
    store.remove_old_sums(utc::now().saturating_sub(SUMS_AGE))?;
    let mut kept = BTreeMap::<&str, u64>::new();
    for file in &files {
        *kept.entry(&file.policy).or_default() += file.bytes;
    }
    for policy in removed.iter().map(|file| file.policy.as_str()) {
        kept.entry(policy).or_default();
    }
    for (policy, bytes) in kept {
        store
            .counters
            .change(policy, |numbers| numbers.kept_bytes = bytes);
    }
    Ok(())
}

/// The files to remove, which are not in `files` any more.
fn to_remove(
    files: &mut Vec<Found>,
    policies: &BTreeMap<String, Keep>,
    all: KeepAll,
    (now, free): (Duration, u64),
) -> Vec<Found> {
    files.sort_by(|one, other| (one.modified, &one.path).cmp(&(other.modified, &other.path)));
    let mut removed = Vec::new();
    let mut remove = |files: &mut Vec<Found>, goes: &mut dyn FnMut(&Found) -> bool| {
        removed.extend(files.extract_if(.., |file| !file.is_part() && goes(file)));
    };
    remove(files, &mut |file| {
        let keep = policies.get(&file.policy);
        let age = keep.and_then(|keep| keep.age);
        age.is_some_and(|age| file.modified + age < now)
    });
    // The bytes beyond what is kept, of each policy. The oldest files come first.
    let mut beyond = BTreeMap::<String, u64>::new();
    for file in files.iter().filter(|file| !file.is_part()) {
        *beyond.entry(file.policy.clone()).or_default() += file.bytes;
    }
    for (policy, bytes) in &mut beyond {
        let keep = policies.get(policy).map_or(u64::MAX, |keep| keep.bytes);
        *bytes = bytes.saturating_sub(keep);
    }
    remove(files, &mut |file| {
        take(beyond.entry(file.policy.clone()).or_default(), file.bytes)
    });
    let whole = files.iter().filter(|file| !file.is_part());
    let total: u64 = whole.map(|file| file.bytes).sum();
    let lacking = all.leave.saturating_sub(free);
    let mut beyond = total.saturating_sub(all.bytes).max(lacking);
    remove(files, &mut |file| take(&mut beyond, file.bytes));
    removed
}

/// True if bytes are still to go, of which a file takes its part.
fn take(beyond: &mut u64, bytes: u64) -> bool {
    let goes = *beyond > 0;
    if goes {
        *beyond = beyond.saturating_sub(bytes);
    }
    goes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(policy: &str, name: &str, bytes: u64, modified: u64) -> Found {
        Found {
            policy: policy.to_owned(),
            path: format!("/{policy}/d/{name}").into(),
            bytes,
            modified: Duration::from_secs(modified),
        }
    }

    fn left(
        mut files: Vec<Found>,
        keep: Keep,
        all: KeepAll,
        free: u64,
    ) -> (Vec<String>, Vec<String>) {
        let policies = BTreeMap::from([("a".to_owned(), keep)]);
        let now = Duration::from_secs(100);
        let removed = to_remove(&mut files, &policies, all, (now, free));
        let names = |files: &[Found]| files.iter().map(Found::name).collect();
        (names(&files), names(&removed))
    }

    const ALL: KeepAll = KeepAll {
        bytes: 1000,
        leave: 10,
    };

    #[test]
    fn the_oldest_files_go_first() {
        let files = vec![
            file("a", "3.xtrace", 10, 30),
            file("a", "1.xtrace", 10, 10),
            file("b", "0.xtrace", 10, 0),
            file("a", "2.xtrace", 10, 20),
        ];
        let keep = |bytes, age: Option<u64>| Keep {
            bytes,
            age: age.map(Duration::from_secs),
        };
        let names = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| format!("{name}.xtrace")).collect()
        };
        let rows: [(Keep, KeepAll, u64, &[&str]); 6] = [
            (keep(100, None), ALL, 100, &[]),
            (keep(20, None), ALL, 100, &["1"]),
            (keep(15, None), ALL, 100, &["1", "2"]),
            (keep(100, Some(75)), ALL, 100, &["1", "2"]),
            (
                keep(100, None),
                KeepAll { bytes: 15, ..ALL },
                100,
                &["0", "1", "2"],
            ),
            // The disk is full.
            (keep(100, None), ALL, 0, &["0"]),
        ];
        for (keep, all, free, expected) in rows {
            let (_, removed) = left(files.clone(), keep, all, free);
            assert_eq!(removed, names(expected), "{keep:?} {all:?} {free}");
        }
    }

    #[test]
    fn a_file_that_is_written_stays() {
        let files = vec![
            file("a", "1.xtrace.part", 50, 10),
            file("a", "2.xtrace", 10, 20),
        ];
        let keep = Keep {
            bytes: 5,
            age: Some(Duration::from_secs(1)),
        };
        let (kept, removed) = left(files, keep, ALL, 0);
        assert_eq!(
            (kept, removed),
            (
                vec!["1.xtrace.part".to_owned()],
                vec!["2.xtrace".to_owned()]
            )
        );
    }
}
