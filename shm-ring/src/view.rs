//! The view: a moment and a stretch of the stack, to which call words are relative. Words
//! themselves are in `word.rs`.
//!
//! A call word has 19 bits for the time and 13 for the place on the stack, in units of 8 bytes:
//!
//! ```text
//!  63                     45 44         32 31             0
//! ┌─────────────────────────┬─────────────┬────────────────┐
//! │ ticks - since           │ (sp-base)/8 │ site           │
//! └─────────────────────────┴─────────────┴────────────────┘
//! ```
//!
//! `since` and `base` come from the latest sync word and the latest stack word. The slow path
//! writes both together: at the start of each chunk, and where an event is too late or its stack
//! too far away. So a thread that calls all the time writes a pair of them every 2^19 ticks, about
//! a fifth of a millisecond.

/// Bits of a call word's high half for the place on the stack, below those for the time.
pub const PLACE_BITS: u32 = 13;
/// log2 of the unit of places.
pub const PLACE_SHIFT: u32 = 3;
/// A call is less than this many ticks after `since`.
pub const TICKS: u64 = 1 << (32 - PLACE_BITS);
/// The stack of a call is less than this many bytes above `base`.
pub const WINDOW_BYTES: u64 = 1 << (PLACE_BITS + PLACE_SHIFT);
/// `since` is a multiple of this.
pub const SINCE_STEP: u64 = 256;
/// `base` is a multiple of this. The step is wide, since the stack of a thread moves up and down
/// where it stays for long.
pub const BASE_STEP: u64 = WINDOW_BYTES / 2;

/// A moment and a stretch of the stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct View {
    /// The counter at the moment; a multiple of [`SINCE_STEP`].
    pub since: u64,
    /// The lowest address of the stretch.
    pub base: u64,
}

// === impl View ===

impl View {
    /// The view for an event at this moment and place. The place is in the middle half of the
    /// window.
    pub const fn around(ticks: u64, sp: u64) -> Self {
        Self {
            since: ticks & !(SINCE_STEP - 1),
            base: (sp.wrapping_add(BASE_STEP / 2) & !(BASE_STEP - 1)).wrapping_sub(BASE_STEP),
        }
    }

    /// True if `ticks` are not before `since` and not too late.
    pub const fn has_ticks(self, ticks: u64) -> bool {
        ticks.wrapping_sub(self.since) < TICKS
    }

    /// True if `sp` lies within the window.
    pub const fn has_sp(self, sp: u64) -> bool {
        sp.wrapping_sub(self.base) < WINDOW_BYTES
    }

    /// The high half of a call word for ticks and a place that are in the view.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "19 and 13 bits, where the view has both"
    )]
    pub const fn pack(self, ticks: u64, sp: u64) -> u32 {
        let place = sp.wrapping_sub(self.base) >> PLACE_SHIFT;
        (ticks.wrapping_sub(self.since) << PLACE_BITS | place) as u32
    }

    /// The ticks and the place in a call word's high half.
    #[inline]
    pub const fn unpack(self, packed: u32) -> (u64, u64) {
        let place = packed & ((1 << PLACE_BITS) - 1);
        let ticks = self.since.wrapping_add((packed >> PLACE_BITS) as u64);
        (ticks, self.base.wrapping_add((place as u64) << PLACE_SHIFT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_words_are_unpacked() {
        for ticks in [0, 255, 256, 1 << 40, u64::MAX - 5] {
            for sp in [1 << 20, 0x7fff_ffff_fff8, 0x7fff_1234_4000, 1 << 55] {
                let view = View::around(ticks, sp);
                assert!(view.has_ticks(ticks) && view.has_sp(sp));
                assert_eq!(view.unpack(view.pack(ticks, sp)), (ticks, sp));
                // A quarter of the window on each side.
                for near in [sp - BASE_STEP / 2, sp + BASE_STEP / 2 - 8] {
                    assert!(view.has_sp(near), "{sp:#x} {near:#x}");
                    assert_eq!(view.unpack(view.pack(ticks, near)).1, near);
                }
                assert!(!view.has_sp(sp - WINDOW_BYTES) && !view.has_sp(sp + WINDOW_BYTES));
                assert!(!view.has_ticks(view.since.wrapping_sub(1)));
                assert!(!view.has_ticks(view.since.wrapping_add(TICKS)));
                let last = view.since.wrapping_add(TICKS - 1);
                assert_eq!(view.unpack(view.pack(last, sp)).0, last);
            }
        }
    }
}
