//! How much memory the rings of a process may take.
//!
//! Pages of rings are charged to the process that writes them first: the target, inside its
//! trampolines. Where its control group has no room for one, the kernel's OOM killer comes. Where
//! the kernel promises no memory twice (`vm.overcommit_memory` is 2), a mapping counts in full from
//! the start, and the programs of the machine get less. So rings take a share of what is left, no
//! more.

use std::{fs, path::Path};

use super::memory_limit::{MemoryGroup, MemoryRoom};

/// Rings may take one part in so many of what is left.
const SHARE: u64 = 2;

/// What one limit leaves for rings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RingRoom {
    /// The rings' share in bytes.
    pub(crate) bytes: u64,
    /// The limit and what is left of it, in words.
    pub(crate) limit: String,
    /// Memory counts when it is mapped, not when it is written.
    pub(crate) counts_mapped: bool,
}

/// What limits the rings of a process, if what is `promised` of a group is not left any more. What
/// the rings themselves take already, `written` bytes, counts as left.
pub(crate) fn ring_rooms(
    group: Option<&MemoryGroup>,
    promised: impl Fn(&Path) -> u64,
    written: u64,
) -> Vec<RingRoom> {
    let room = group.and_then(|group| group.room(promised, written));
    room.map(RingRoom::from)
        .into_iter()
        .chain(commit_room())
        .collect()
}

/// What the kernel has left to promise; `None` unless it promises no memory twice.
fn commit_room() -> Option<RingRoom> {
    if !overcommit_is_strict() {
        return None;
    }
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    // What cannot be read leaves nothing.
    let left = left_to_promise(&memory).unwrap_or(0);
    let limit = format!(
        "vm.overcommit_memory is 2 and the kernel has {} KiB left to promise",
        left >> 10
    );
    Some(RingRoom {
        bytes: left / SHARE,
        limit,
        counts_mapped: true,
    })
}

/// True if every mapping counts in full, `MAP_NORESERVE` or not.
pub(crate) fn overcommit_is_strict() -> bool {
    fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
}

/// `CommitLimit` less `Committed_AS`, in bytes, from `/proc/meminfo`.
fn left_to_promise(memory: &str) -> Option<u64> {
    let kib = |name: &str| -> Option<u64> {
        let mut lines = memory.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    let left = kib("CommitLimit")?.saturating_sub(kib("Committed_AS")?);
    Some(left.saturating_mul(1024))
}

// === impl RingRoom ===

impl From<MemoryRoom> for RingRoom {
    fn from(room: MemoryRoom) -> Self {
        let limit = format!(
            "control group {} has room for {} KiB",
            room.group.display(),
            room.bytes >> 10
        );
        Self {
            bytes: room.bytes / SHARE,
            limit,
            counts_mapped: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_to_promise_is_read() {
        let memory = "MemTotal: 100 kB\nCommitLimit:    12000 kB\nCommitted_AS:     2000 kB\n";
        assert_eq!(left_to_promise(memory), Some(10_000 * 1024));
        let over = "CommitLimit: 1 kB\nCommitted_AS: 2 kB\n";
        assert_eq!(left_to_promise(over), Some(0));
        assert_eq!(left_to_promise("CommitLimit: 1 kB\n"), None);
        assert_eq!(
            left_to_promise("CommitLimit: x\nCommitted_AS: 2 kB\n"),
            None
        );
    }
}
