//! Finds instructions in the target that a borrowed thread can use, since nothing of ours is in the
//! target yet.
//!
//! They are taken from text that is never unloaded. A program can still rewrite that text between
//! our look and the moment when the thread gets there. So each call is checked when the thread
//! enters it (`sys/ptrace/call.rs`), and not here.

use crate::{
    pid::TargetAddr,
    sys::Memory,
    target::{Maps, Target, lasting_text},
};

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const RET: u8 = 0xc3;
/// Instructions before the `syscall` in a C library's `sa_restorer`: `mov $15, %rax` (glibc), `mov
/// $15, %eax` (musl). 15 is rt_sigreturn(2).
const NUMBERS: [&[u8]; 2] = [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0], &[0xb8, 0x0f, 0, 0, 0]];
/// Bytes that are read at a time. Pieces overlap by more than the longest gadget.
const PIECE: u64 = 1 << 16;
const OVERLAP: u64 = 16;

/// Addresses of the instructions in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gadgets {
    /// A `syscall`. If there is a way back, a `ret` follows it.
    pub(super) syscall: u64,
    /// A call of `rt_sigreturn`, which restores the state in a signal frame. The stack pointer must
    /// point behind the frame's return address. Programs without a C library have no such call.
    pub(super) way_back: Option<u64>,
}

// === impl Gadgets ===

impl Gadgets {
    /// Searches lasting text, the smallest mappings first: the loader and the C library are seldom
    /// the largest.
    pub(super) fn find(target: &Target, memory: &Memory, maps: &Maps) -> Option<Self> {
        let mut found = Found::default();
        let mut piece = Vec::new();
        for entry in lasting_text(target.pid(), maps) {
            let mut start = entry.range.start;
            while start < entry.range.end && !found.is_complete() {
                let length = (entry.range.end - start).min(PIECE);
                piece.resize(usize::try_from(length).ok()?, 0);
                if memory.read(TargetAddr(start), &mut piece).is_ok() {
                    found.look(start, &piece);
                }
                start += PIECE - OVERLAP;
            }
        }
        match found {
            Found {
                returning: Some(syscall),
                way_back: Some(way_back),
                ..
            } => Some(Self {
                syscall,
                way_back: Some(way_back),
            }),
            Found { any, .. } => any.map(|syscall| Self {
                syscall,
                way_back: None,
            }),
        }
    }

    /// True if the instructions can still be read. Memory that was opened before an `exec` is the
    /// memory of the old program (P49). So if it can be read while a thread stands still, that
    /// thread executes the program that was searched.
    pub(super) fn are_there(&self, memory: &Memory) -> bool {
        let mut bytes = [0; SYSCALL.len()];
        memory.read(TargetAddr(self.syscall), &mut bytes).is_ok()
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    any: Option<u64>,
    returning: Option<u64>,
    way_back: Option<u64>,
}

// === impl Found ===

impl Found {
    fn is_complete(&self) -> bool {
        self.returning.is_some() && self.way_back.is_some()
    }

    fn look(&mut self, start: u64, piece: &[u8]) {
        let calls = piece
            .windows(SYSCALL.len())
            .enumerate()
            .filter(|(_, window)| *window == SYSCALL);
        for (at, _) in calls {
            let address = start + at as u64;
            self.any = self.any.or(Some(address));
            if piece.get(at + SYSCALL.len()) == Some(&RET) {
                self.returning = self.returning.or(Some(address));
            }
            let before = &piece[..at];
            if let Some(number) = NUMBERS.iter().find(|number| before.ends_with(number)) {
                self.way_back = self.way_back.or(Some(address - number.len() as u64));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gadgets_are_found_anywhere_in_a_piece_and_nothing_else_is() {
        let mut found = Found::default();
        found.look(0x1000, &[0x0f, 0x05, 0x90, 0x0f]);
        assert_eq!((found.any, found.is_complete()), (Some(0x1000), false));
        found.look(0x2000, &[0x90, 0x0f, 0x05, 0xc3]);
        assert_eq!(found.returning, Some(0x2001));
        found.look(0x3000, &[0xb8, 0x0f, 0, 0, 0, 0x90, 0x0f, 0x05]);
        assert_eq!(found.way_back, None);
        found.look(0x4000, &[0x90, 0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]);
        assert_eq!(found.way_back, Some(0x4001));
        assert!(found.is_complete());
        let mut glibc = Found::default();
        glibc.look(0x5000, &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]);
        assert_eq!(glibc.way_back, Some(0x5000));
    }
}
