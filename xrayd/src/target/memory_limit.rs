//! The memory that the control group of a process can still take before the kernel's OOM killer
//! kills.

use std::fs;
use std::path::{Path, PathBuf};

use crate::pid::Pid;

/// The memory that a process may still take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryRoom {
    /// Bytes: the limit less the memory that cannot be reclaimed.
    pub(crate) bytes: u64,
    /// The directory of the group whose limit it is.
    pub(crate) group: PathBuf,
}

/// Version 1 of control groups shows a missing limit as the largest number of pages that it can
/// count, in bytes.
const NO_LIMIT: u64 = 1 << 62;

/// The names of files and fields in one version of control groups.
#[derive(Debug)]
struct Hierarchy {
    root: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Fields of `memory.stat` with memory that the kernel takes back before it kills.
    reclaimable: [&'static str; 2],
}

const V1: Hierarchy = Hierarchy {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};
const V2: Hierarchy = Hierarchy {
    root: "/sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
};

/// The room in the tightest of a process's control groups. `None` if there is no limit, or none is
/// visible from here.
pub(crate) fn memory_room(pid: Pid) -> Option<MemoryRoom> {
    MemoryGroup::of(pid)?.room(|_| 0, 0)
}

/// The control group to which a process's memory is charged.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    hierarchy: &'static Hierarchy,
    directory: PathBuf,
}

// === impl MemoryGroup ===

impl MemoryGroup {
    /// The group of a process. `None` if it is not visible from here.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let (hierarchy, group) = memory_group(&groups)?;
        let directory = Path::new(hierarchy.root).join(group.trim_start_matches('/'));
        Some(Self {
            hierarchy,
            directory,
        })
    }

    /// The directory of the group.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The room in the tightest of this group and its ancestors. The `promised` bytes of each group
    /// are taken off, and `exempt` bytes of the usage count as free. `None` if there is no limit.
    pub(crate) fn room(&self, promised: impl Fn(&Path) -> u64, exempt: u64) -> Option<MemoryRoom> {
        let root = Path::new(self.hierarchy.root);
        let groups = self.directory.ancestors();
        let groups = groups.take_while(|directory| directory.starts_with(root));
        let rooms = groups.filter_map(|directory| {
            let room = self.hierarchy.room(directory, exempt)?;
            Some(MemoryRoom {
                bytes: room.bytes.saturating_sub(promised(directory)),
                ..room
            })
        });
        rooms.min_by_key(|room| room.bytes)
    }
}

/// The group to which a process's memory is charged, from its `/proc/<pid>/cgroup`.
fn memory_group(groups: &str) -> Option<(&'static Hierarchy, &str)> {
    let lines = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        Some((fields.next()?, fields.next()?, fields.next()?))
    });
    let mut unified = None;
    for (number, controllers, group) in lines {
        // The group is not visible from here.
        if group.split('/').any(|name| name == "..") {
            continue;
        }
        if controllers.split(',').any(|name| name == "memory") {
            return Some((&V1, group));
        }
        if number == "0" && controllers.is_empty() {
            unified = Some((&V2, group));
        }
    }
    unified
}

// === impl Hierarchy ===

impl Hierarchy {
    fn room(&self, group: &Path, exempt: u64) -> Option<MemoryRoom> {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok();
        // "max" is not a number: there is no limit.
        let limit: u64 = read(self.limit)?.trim().parse().ok()?;
        if limit >= NO_LIMIT {
            return None;
        }
        let usage: u64 = read(self.usage)?.trim().parse().ok()?;
        let reclaimable = self.reclaimable_of(&read("memory.stat")?);
        let kept = usage.saturating_sub(reclaimable).saturating_sub(exempt);
        Some(MemoryRoom {
            bytes: limit.saturating_sub(kept),
            group: group.to_owned(),
        })
    }

    fn reclaimable_of(&self, stat: &str) -> u64 {
        let fields = stat.lines().filter_map(|line| line.split_once(' '));
        fields
            .filter(|(name, _)| self.reclaimable.contains(name))
            .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
            .fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_either_version_is_found() {
        let root = |groups| memory_group(groups).map(|(hierarchy, group)| (hierarchy.root, group));
        assert_eq!(
            root("5:cpu:/a\n4:memory,hugetlb:/b/c:d\n0::/e\n"),
            Some((V1.root, "/b/c:d"))
        );
        assert_eq!(root("0::/e/f\n"), Some((V2.root, "/e/f")));
        assert_eq!(root("5:cpu:/a\n"), None);
        assert_eq!(root("0::/../elsewhere\n"), None);
        assert_eq!(root("nonsense"), None);
    }

    #[test]
    fn the_most_pages_that_can_be_counted_are_no_limit() {
        let group = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(group.path().join(name), text).unwrap();
        write(V1.usage, "100\n");
        write("memory.stat", "");
        let room = |exempt| V1.room(group.path(), exempt).map(|room| room.bytes);
        for (limit, expected) in [("9223372036854771712\n", None), ("1000\n", Some(900))] {
            write(V1.limit, limit);
            assert_eq!(room(0), expected, "{limit}");
        }
        // Never more than the limit.
        assert_eq!([30, 100, 500].map(room), [930, 1000, 1000].map(Some));
    }

    #[test]
    fn caches_of_files_are_given_back() {
        let stat = "anon 100\nfile 70\ninactive_file 20\nactive_file 30\nshmem 20\n";
        assert_eq!(V2.reclaimable_of(stat), 50);
        assert_eq!(V1.reclaimable_of(stat), 0);
        assert_eq!(
            V1.reclaimable_of("inactive_file 1\ntotal_inactive_file 5\n"),
            5
        );
    }
}
