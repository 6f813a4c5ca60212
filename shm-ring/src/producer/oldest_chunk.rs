//! The oldest chunk of a full ring that keeps the newest events: the reference producer empties it
//! and gives it back itself. `newest.rs` of this crate reads such a ring.

use super::{Recording, Step, Target};
use crate::{
    layout::{control, rings},
    memory::SharedMemory,
    sync::Ordering,
    word,
};

/// The steps that take the oldest chunk back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OldestStep {
    Keep,
    ReadBegun,
    Take,
    KeepStill,
    Marked,
    Empty,
    GiveBack,
}

// === impl Recording ===

impl Recording {
    /// Makes one access for the oldest chunk.
    pub(super) fn oldest_step<M: SharedMemory>(
        &mut self,
        step: OldestStep,
        target: &Target<'_, M>,
    ) -> Step {
        let g = target.geometry;
        let slot = target.table.slot(self.index);
        match step {
            OldestStep::Keep if target.rings.load(rings::KEEP_NEWEST) == 0 => Step::Done,
            OldestStep::Keep => {
                self.started = slot.started.load(Ordering::Relaxed);
                Step::Oldest(OldestStep::ReadBegun)
            }
            OldestStep::ReadBegun => {
                let line = target.line(self.index, control::RELEASED);
                self.released = target.rings.load(line);
                let full = self.started.wrapping_sub(self.released) >= g.chunks();
                if full && self.released & control::TAKING == 0 {
                    Step::Oldest(OldestStep::Take)
                } else {
                    Step::Done
                }
            }
            OldestStep::Take => {
                let line = target.line(self.index, control::RELEASED);
                let before = target.rings.set_bits(line, control::TAKING);
                self.seen = before | control::TAKING;
                // A handler may have taken the chunk meanwhile.
                if before == self.released {
                    Step::Oldest(OldestStep::KeepStill)
                } else if before & control::TAKING != 0 {
                    Step::Done
                } else {
                    self.released = before;
                    Step::Oldest(OldestStep::GiveBack)
                }
            }
            OldestStep::KeepStill if target.rings.load(rings::KEEP_NEWEST) == 0 => {
                Step::Oldest(OldestStep::GiveBack)
            }
            OldestStep::KeepStill => {
                let place = (self.released & (g.chunks() - 1)) * g.chunk_bytes();
                self.cursor = g.ring_offset(self.index) + place;
                self.released = self.released.wrapping_add(1);
                Step::Oldest(OldestStep::Marked)
            }
            OldestStep::Marked => {
                let line = target.line(self.index, control::RELEASED);
                if target.rings.load(line) == self.seen {
                    Step::Oldest(OldestStep::Empty)
                } else {
                    Step::Done
                }
            }
            OldestStep::Empty => {
                let empty = word::empty(self.released);
                target.rings.store(self.cursor, empty);
                self.cursor += 8;
                if self.cursor.is_multiple_of(g.chunk_bytes()) {
                    Step::Oldest(OldestStep::GiveBack)
                } else if self.cursor.is_multiple_of(64) {
                    Step::Oldest(OldestStep::Marked)
                } else {
                    Step::Oldest(OldestStep::Empty)
                }
            }
            OldestStep::GiveBack => {
                let line = target.line(self.index, control::RELEASED);
                target.rings.exchange(line, self.seen, self.released);
                Step::Done
            }
        }
    }
}
