//! Where the thread library keeps a thread's own id, as an offset from the thread pointer.
//!
//! Found by looking for the id in the stopped thread's control block. More than one place may hold the number by chance; the others are
//! excluded by looking into the control blocks of other threads, whose places the kernel tells (their robust lists lie in them).

use crate::{
    pid::{Pid, TargetAddr, Tid},
    sys::{Memory, robust_list},
    target::Threads,
};

/// How much of the control block is searched: glibc keeps the id at 0x2d0 (2.36), musl at 0x30 (1.2).
const SEARCHED: u64 = 0x800;
/// Threads looked at to exclude chance.
const WITNESSES: usize = 64;
/// Offsets preferred when chance cannot be excluded: glibc from 2.4 on, musl 1.2, musl 1.1.
const KNOWN: [i32; 4] = [0x2d0, 0x30, 0x38, 0x48];

/// The offset, given the thread pointer of one thread.
pub(super) fn find(memory: &Memory, pid: Pid, tid: Tid, thread_pointer: u64) -> Option<i32> {
    if thread_pointer == 0 {
        return None;
    }
    let mut block = Vec::new();
    // The block may end before a mapping does; read what is there, a page at most twice.
    for length in [SEARCHED, 0x400, 0x300, 0x100, 0x60] {
        block.resize(usize::try_from(length).ok()?, 0);
        if memory.read(TargetAddr(thread_pointer), &mut block).is_ok() {
            break;
        }
        block.clear();
    }
    let id = Threads::inner_id(pid, tid)?;
    let mut candidates: Vec<i32> = (0i32..)
        .step_by(4)
        .zip(block.as_chunks::<4>().0)
        .filter(|(_, word)| u32::from_le_bytes(**word) == id)
        .map(|(offset, _)| offset)
        .collect();
    if candidates.len() > 1
        && let Ok(Some(head)) = robust_list(tid)
    {
        let to_pointer = thread_pointer.wrapping_sub(head.0);
        candidates.retain(|&offset| {
            Threads::of(pid).into_iter().take(WITNESSES).all(|other| {
                let Ok(Some(head)) = robust_list(other) else {
                    return true;
                };
                let place = head
                    .0
                    .wrapping_add(to_pointer)
                    .wrapping_add_signed(i64::from(offset));
                let found = memory.read_u32(TargetAddr(place)).ok();
                // A thread that starts or ends just now proves nothing.
                found.is_none() || Threads::inner_id(pid, other).is_none_or(|id| found == Some(id))
            })
        });
    }
    KNOWN
        .into_iter()
        .find(|known| candidates.contains(known))
        .or_else(|| candidates.first().copied())
}

/// True if the thread's id can be found.
pub(crate) fn finds_thread_id(memory: &Memory, pid: Pid, tid: Tid, thread_pointer: u64) -> bool {
    find(memory, pid, tid, thread_pointer).is_some()
}
