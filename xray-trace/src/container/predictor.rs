//! What encoder and decoder both expect the next call event of a block to be.
//!
//! Most events of a real program repeat: an exit belongs to the function entered last, and after a given sibling in a
//! given caller comes the same function as the time before. An event that is as expected need not name its function.
//! Both sides make the same moves on the same state, which begins empty in every block.

use crate::model::{CallKind, FunctionId};

/// Entries of the table that says which function is entered next.
const CONTEXTS: usize = 1 << CONTEXT_BITS;
const CONTEXT_BITS: u32 = 11;

/// Frames that the stack of open calls remembers; deeper ones push out the outermost.
const FRAMES: usize = 256;

#[derive(Debug, Clone)]
pub(super) struct Predictor {
    /// Per context: the generation that wrote it in the upper half, the function in the lower. An entry of another
    /// generation is empty; so a new block costs no clearing.
    next: [u64; CONTEXTS],
    /// The open calls, as a ring that `top` runs around in: function + 1, or 0 where nothing is open.
    frames: [u64; FRAMES],
    /// Which frame is the innermost.
    top: u8,
    /// The function that returned last into the innermost frame, + 1; 0 right after an entry.
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

    /// Forgets everything, for the next block.
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

    /// The function that is entered next, if this context was met before.
    #[inline]
    pub(super) fn next_entry(&self) -> Option<FunctionId> {
        let entry = self.next[self.context()];
        (entry >> 32 == self.generation >> 32).then(|| FunctionId(low_half(entry)))
    }

    /// The function that the innermost open call is in.
    #[inline]
    pub(super) fn innermost(&self) -> Option<FunctionId> {
        self.frames[usize::from(self.top)]
            .checked_sub(1)
            .map(|function| FunctionId(low_half(function)))
    }

    /// Takes note of an entry of the function that is expected, if one is.
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

    /// Takes note of an exit of the innermost open call, if there is one.
    #[inline]
    pub(super) fn exit_expected(&mut self) -> Option<FunctionId> {
        let frame = &mut self.frames[usize::from(self.top)];
        let function = frame.checked_sub(1)?;
        self.sibling = *frame;
        *frame = 0;
        self.top = self.top.wrapping_sub(1);
        Some(FunctionId(low_half(function)))
    }

    /// Takes note of an entry, and says whether it was expected.
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

    /// Takes note of an exit if it is of the innermost open call; otherwise says no, and nothing has changed.
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

    /// Takes note of an exit that is not of the innermost open call: closes the open calls down to that function's,
    /// or none if that function is not open.
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

    /// Takes note of calls that ended without an exit.
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

    /// Takes note of an event of which only kind and function matter, and says whether it was expected.
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

    /// Which entry of the table the caller and the sibling before choose.
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
    fn what_is_unwound_is_forgotten() {
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
    fn function_ids_at_the_limit_are_told_apart_from_nothing() {
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
