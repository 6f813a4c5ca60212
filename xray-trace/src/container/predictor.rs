//! The expectation of the next call event of a block. Encoder and decoder have the same one.
//!
//! Most events of a real program repeat. An exit belongs to the function that was entered last, and
//! a given sibling in a given caller is followed by the same function as last time. An expected
//! event does not have to contain its function. Both sides make the same changes to the same state,
//! which begins empty in every block.

use crate::model::{CallKind, FunctionId};

/// The size of the table of functions to be entered next.
const CONTEXTS: usize = 1 << CONTEXT_BITS;
const CONTEXT_BITS: u32 = 11;

/// The number of frames in the stack of open calls. Deeper ones push out the outermost.
const FRAMES: usize = 256;

#[derive(Debug, Clone)]
pub(super) struct Predictor {
    /// By context: the generation that wrote it in the upper half, the function in the lower half.
    /// An entry of another generation is empty, so a new block needs no clearing.
    next: [u64; CONTEXTS],
    /// The open calls, as a ring with `top` as its index: function + 1, or 0 for no call.
    frames: [u64; FRAMES],
    /// The index of the innermost frame.
    top: u8,
    /// The function + 1 that returned last into the innermost frame; 0 right after an entry.
    sibling: u64,
    /// The block's number, in the upper half. Never 0.
    generation: u64,
}

// === impl Predictor ===

impl Predictor {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            next: [0; CONTEXTS],
            frames: [0; FRAMES],
            top: 0,
            sibling: 0,
            generation: 1 << 32,
        })
    }

    /// Resets the state for the next block.
    pub(super) fn reset(&mut self) {
        self.frames = [0; FRAMES];
        self.top = 0;
        self.sibling = 0;
        self.generation = self.generation.wrapping_add(1 << 32);
        if self.generation == 0 {
            self.next = [0; CONTEXTS];
            self.generation = 1 << 32;
        }
    }

    /// The function that is expected next, if this context occurred before.
    #[inline]
    pub(super) fn next_entry(&self) -> Option<FunctionId> {
        let entry = self.next[self.context()];
        (entry >> 32 == self.generation >> 32).then(|| FunctionId(low_half(entry)))
    }

    /// The function of the innermost open call.
    #[inline]
    pub(super) fn innermost(&self) -> Option<FunctionId> {
        self.frames[usize::from(self.top)]
            .checked_sub(1)
            .map(|function| FunctionId(low_half(function)))
    }

    /// Applies an entry of the expected function, if there is one, and returns it.
    #[inline]
    pub(super) fn enter_expected(&mut self) -> Option<FunctionId> {
        let entry = self.next[self.context()];
        if (entry ^ self.generation) >> 32 != 0 {
            return None;
        }
        self.top = self.top.wrapping_add(1);
        self.frames[usize::from(self.top)] = u64::from(low_half(entry)) + 1;
        self.sibling = 0;
        Some(FunctionId(low_half(entry)))
    }

    /// Applies an exit of the innermost open call, if there is one, and returns its function.
    #[inline]
    pub(super) fn exit_expected(&mut self) -> Option<FunctionId> {
        let frame = &mut self.frames[usize::from(self.top)];
        let function = frame.checked_sub(1)?;
        self.sibling = *frame;
        *frame = 0;
        self.top = self.top.wrapping_sub(1);
        Some(FunctionId(low_half(function)))
    }

    /// Applies an entry. Returns whether it was expected.
    #[inline]
    pub(super) fn enter(&mut self, function: FunctionId) -> bool {
        let context = self.context();
        let entry = self.generation | u64::from(function.0);
        let expected = self.next[context] == entry;
        self.next[context] = entry;
        self.top = self.top.wrapping_add(1);
        self.frames[usize::from(self.top)] = u64::from(function.0) + 1;
        self.sibling = 0;
        expected
    }

    /// Applies an exit if it belongs to the innermost open call. Otherwise returns false, and
    /// changes nothing.
    #[inline]
    pub(super) fn exit_innermost(&mut self, function: FunctionId) -> bool {
        let frame = &mut self.frames[usize::from(self.top)];
        let expected = *frame == u64::from(function.0) + 1;
        if expected {
            self.sibling = *frame;
            *frame = 0;
            self.top = self.top.wrapping_sub(1);
        }
        expected
    }

    /// Applies an exit that does not belong to the innermost open call. Closes the open calls down
    /// to a call of that function, or none if that function is not open.
    #[cold]
    pub(super) fn exit_other(&mut self, function: FunctionId) {
        let wanted = u64::from(function.0) + 1;
        let mut at = self.top;
        for above in 0..FRAMES {
            let frame = self.frames[usize::from(at)];
            if frame == 0 {
                break;
            }
            if frame == wanted {
                for _ in 0..=above {
                    self.frames[usize::from(self.top)] = 0;
                    self.top = self.top.wrapping_sub(1);
                }
                break;
            }
            at = at.wrapping_sub(1);
        }
        self.sibling = wanted;
    }

    /// Applies the end of calls without an exit.
    #[cold]
    pub(super) fn unwind(&mut self, calls: u64) {
        for _ in 0..calls.min(FRAMES as u64) {
            let frame = &mut self.frames[usize::from(self.top)];
            if *frame == 0 {
                break;
            }
            *frame = 0;
            self.top = self.top.wrapping_sub(1);
        }
    }

    /// Applies a call event. Returns whether it was expected.
    pub(super) fn follow(&mut self, function: FunctionId, kind: CallKind) -> bool {
        match kind {
            CallKind::Enter => self.enter(function),
            CallKind::Exit | CallKind::TailExit => {
                let expected = self.exit_innermost(function);
                if !expected {
                    self.exit_other(function);
                }
                expected
            }
        }
    }

    /// The entry of the table for the caller and the previous sibling.
    #[inline]
    fn context(&self) -> usize {
        let caller = low_half(self.frames[usize::from(self.top)]);
        let sibling = low_half(self.sibling);
        let hash = caller.wrapping_mul(0x9e37_79b1) ^ sibling.wrapping_mul(0x85eb_ca77);
        (hash >> (u32::BITS - CONTEXT_BITS)) as usize
    }
}

#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower half is what is asked for"
)]
fn low_half(word: u64) -> u32 {
    word as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_pattern_is_expected_the_second_time() {
        let mut predictor = Predictor::new();
        let round = |predictor: &mut Predictor| {
            [
                (1, CallKind::Enter),
                (2, CallKind::Enter),
                (2, CallKind::Exit),
                (1, CallKind::TailExit),
            ]
            .map(|(function, kind)| predictor.follow(FunctionId(function), kind))
        };
        assert_eq!(round(&mut predictor), [false, false, true, true]);
        // The first round had no sibling before it.
        assert_eq!(round(&mut predictor), [false, true, true, true]);
        assert_eq!(round(&mut predictor), [true, true, true, true]);
        predictor.reset();
        assert_eq!(round(&mut predictor), [false, false, true, true]);
    }

    #[test]
    fn an_exit_further_out_closes_what_is_inside() {
        let mut predictor = Predictor::new();
        for function in [1, 2, 3] {
            predictor.enter(FunctionId(function));
        }
        assert!(!predictor.follow(FunctionId(9), CallKind::Exit));
        assert_eq!(predictor.innermost(), Some(FunctionId(3)));
        assert!(!predictor.follow(FunctionId(1), CallKind::Exit));
        assert_eq!(predictor.innermost(), None);
    }

    #[test]
    fn recursion_deeper_than_the_ring_forgets_the_outermost() {
        let mut predictor = Predictor::new();
        for function in 0..300 {
            predictor.enter(FunctionId(function));
        }
        for function in (44..300).rev() {
            assert!(predictor.exit_innermost(FunctionId(function)));
        }
        assert_eq!(predictor.innermost(), None);
        assert!(!predictor.follow(FunctionId(43), CallKind::Exit));
    }

    #[test]
    fn unwound_calls_are_forgotten() {
        let mut predictor = Predictor::new();
        for function in [1, 2, 3] {
            predictor.enter(FunctionId(function));
        }
        predictor.unwind(2);
        assert_eq!(predictor.innermost(), Some(FunctionId(1)));
        predictor.unwind(u64::MAX);
        assert_eq!(predictor.innermost(), None);
        predictor.enter(FunctionId(4));
        assert_eq!(predictor.innermost(), Some(FunctionId(4)));
    }

    #[test]
    fn function_ids_at_the_limit_are_distinguished_from_nothing() {
        let mut predictor = Predictor::new();
        predictor.enter(FunctionId(u32::MAX));
        assert_eq!(predictor.innermost(), Some(FunctionId(u32::MAX)));
        assert!(predictor.exit_innermost(FunctionId(u32::MAX)));
    }

    #[test]
    fn generations_wrap_without_seeing_old_entries() {
        let mut predictor = Predictor::new();
        predictor.generation = u64::MAX << 32;
        predictor.enter(FunctionId(5));
        predictor.reset();
        assert_eq!(predictor.generation, 1 << 32);
        assert_eq!(predictor.next_entry(), None);
    }
}
