//! Finds where the thread library keeps a thread's own id, as an offset from the thread pointer.
//!
//! The search looks for the id in the stopped thread's control block. The same number may stand at
//! other offsets by chance. The control blocks of other threads exclude those offsets. Their
//! addresses follow from the robust lists, which lie in the control blocks and which the kernel
//! reports.

use crate::{
    pid::{Pid, TargetAddr, Tid},
    sys::{Memory, robust_list},
    target::Threads,
};

/// Bytes of the control block that are searched. glibc keeps the id at 0x2d0 (2.36), musl at 0x30
/// (1.2).
const SEARCHED: u64 = 0x800;
/// Threads that are read to exclude chance.
const WITNESSES: usize = 64;
/// Offsets preferred when chance cannot be excluded, as for a single thread whose id is 1: musl
/// 1.2, musl 1.1, glibc from 2.4 on. musl's control block ends before glibc's offset, and any
/// memory follows it. glibc's control block has no id at musl's offsets, and never the number 1.
const KNOWN_OF_MUSL: [i32; 3] = [0x30, 0x38, 0x48];
const KNOWN_OF_GLIBC: [i32; 1] = [0x2d0];

/// Finds the offset, given the thread pointer of one thread.
pub(super) fn find(memory: &Memory, pid: Pid, tid: Tid, thread_pointer: u64) -> Option<i32> {
    if thread_pointer == 0 {
        return None;
    }
    let mut block = Vec::new();
    // The mapping may end within the block: then less is read.
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
                // A thread that is just starting or ending proves nothing.
                found.is_none() || Threads::inner_id(pid, other).is_none_or(|id| found == Some(id))
            })
        });
    }
    preferred(&block, thread_pointer, &candidates)
}

/// The likeliest of several offsets at which the id stands.
fn preferred(block: &[u8], thread_pointer: u64, candidates: &[i32]) -> Option<i32> {
    let known: &[i32] = match is_glibc(block, thread_pointer) {
        true => &KNOWN_OF_GLIBC,
        false => &KNOWN_OF_MUSL,
    };
    known
        .iter()
        .find(|known| candidates.contains(known))
        .or_else(|| candidates.first())
        .copied()
}

/// glibc's `tcbhead_t` has its own address at 0 and at 0x10, and a small number at 0x18
/// (sysdeps/x86_64/nptl/tls.h). musl's `struct pthread` has its own address at 0. At 0x10 and 0x18
/// are the links of the list of all threads, which are its own address too if there is only one
/// thread. Before 1.2, zeroes stand there (src/internal/pthread_impl.h).
fn is_glibc(block: &[u8], thread_pointer: u64) -> bool {
    let word = |at: usize| {
        let bytes = block.get(at..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    };
    word(0x10) == Some(thread_pointer) && word(0x18) != Some(thread_pointer)
}

/// True if the thread's id can be found.
pub(crate) fn finds_thread_id(memory: &Memory, pid: Pid, tid: Tid, thread_pointer: u64) -> bool {
    find(memory, pid, tid, thread_pointer).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTER: u64 = 0x7f00_1234_5740;

    fn block(words: &[(usize, u64)]) -> Vec<u8> {
        let mut block = vec![0; 0x400];
        for &(at, word) in words {
            block[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        block
    }

    /// The first process of a container has the id 1, and so have many words.
    #[test]
    fn the_id_of_the_only_thread_is_found_where_its_c_library_keeps_it() {
        let glibc = block(&[(0, POINTER), (0x10, POINTER), (0x18, 1)]);
        let musl = block(&[(0, POINTER), (0x10, POINTER), (0x18, POINTER)]);
        let old_musl = block(&[(0, POINTER)]);
        let rows = [
            (&glibc, vec![0x18, 0x38, 0x2d0], 0x2d0),
            (&musl, vec![0x30, 0x2d0], 0x30),
            (&musl, vec![0x20, 0x30, 0x34, 0x38], 0x30),
            (&old_musl, vec![0x38, 0x40, 0x2d0], 0x38),
            // At none of the known offsets of musl.
            (&old_musl, vec![0x64, 0x2d0], 0x64),
        ];
        for (block, candidates, expected) in rows {
            let found = preferred(block, POINTER, &candidates);
            assert_eq!(found, Some(expected), "{candidates:x?}");
        }
        assert_eq!(preferred(&musl, POINTER, &[]), None);
    }
}
