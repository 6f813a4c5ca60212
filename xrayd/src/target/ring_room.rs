//! The memory that the rings of a process may take.
//!
//! Pages of rings are charged to the process that writes them first: the target, inside its
//! trampolines. If its control group has no room for a page, the kernel's OOM killer kills. If the
//! kernel does not overcommit memory (`vm.overcommit_memory` is 2), a mapping counts in full from
//! the start, and the other programs of the machine get less. So rings take only a share of the
//! memory that is left.

use std::{fs, path::Path};

use super::memory_limit::{MemoryGroup, MemoryRoom};

/// Rings may take one part in this many of the memory that is left.
const SHARE: u64 = 2;

/// The room that one limit leaves for rings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RingRoom {
    /// The rings' share in bytes.
    pub(crate) bytes: u64,
    /// The limit and its rest, in words.
    pub(crate) limit: String,
    /// True if memory counts when it is mapped, not when it is written.
    pub(crate) counts_mapped: bool,
}

/// The limits on the rings of a process. `promised` bytes of a group are not left any more. The
/// `written` bytes that the rings take already count as left.
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

/// The memory that the kernel can still commit; `None` unless it does not overcommit.
fn commit_room() -> Option<RingRoom> {
    if !overcommit_is_strict() {
        return None;
    }
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    // An unreadable value leaves nothing.
    let left = left_to_promise(&memory).unwrap_or(0);
    let limit = format!(
        "vm.overcommit_memory is 2 and the kernel can commit {} KiB more",
        left >> 10
    );
    Some(RingRoom {
        bytes: left / SHARE,
        limit,
        counts_mapped: true,
    })
}

/// True if every mapping counts in full, with `MAP_NORESERVE` or without.
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
