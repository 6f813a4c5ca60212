//! The hot path of the reference producer: it reserves the words of an event in the chunk under
//! way, and writes them. Where that fails, `enter.rs` goes on.

use super::{Outcome, Recording, Step, Target, enter::EnterStep};
use crate::{memory::SharedMemory, sync::Ordering};

/// The steps of the hot path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HotStep {
    Home,
    Counter,
    ViewBefore,
    Since,
    Base,
    Head,
    Limit,
    Swap,
    Reserve,
    Reservation,
    ViewAfter,
    HotWords,
}

// === impl Recording ===

impl Recording {
    /// Makes one access of the hot path.
    pub(super) fn hot_step<M: SharedMemory>(
        &mut self,
        step: HotStep,
        target: &Target<'_, M>,
        now: u64,
    ) -> Step {
        let g = target.geometry;
        let slot = target.table.slot(self.index);
        match step {
            HotStep::Home => {
                self.index = self.tid & (g.slots() - 1);
                let owner = target.table.owner(self.index);
                if owner == self.tid {
                    Step::Hot(HotStep::Counter)
                } else {
                    Step::Enter(EnterStep::Live)
                }
            }
            HotStep::Counter => {
                self.ticks = now;
                Step::Hot(HotStep::ViewBefore)
            }
            HotStep::ViewBefore => {
                self.views = slot.view.load(Ordering::Relaxed);
                Step::Hot(HotStep::Since)
            }
            HotStep::Since => {
                self.view.since = slot.since.load(Ordering::Relaxed);
                if self.view.has_ticks(self.ticks) {
                    Step::Hot(HotStep::Base)
                } else {
                    Step::Enter(EnterStep::Live)
                }
            }
            HotStep::Base => {
                self.view.base = slot.base.load(Ordering::Relaxed);
                if !self.view.has_sp(self.event.sp) {
                    Step::Enter(EnterStep::Live)
                } else if self.event.has_payload() {
                    Step::Hot(HotStep::Head)
                } else {
                    Step::Hot(HotStep::Reserve)
                }
            }
            HotStep::Head => {
                self.cursor = slot.head.load(Ordering::Relaxed);
                Step::Hot(HotStep::Limit)
            }
            HotStep::Limit => {
                let limit = slot.limit.load(Ordering::Relaxed);
                let left = g.chunk_bytes() - self.cursor % g.chunk_bytes();
                let fits = self.cursor < limit
                    && !g.in_guard(self.cursor)
                    && 8 * self.event.words(g) <= left;
                if fits {
                    Step::Hot(HotStep::Swap)
                } else {
                    Step::Enter(EnterStep::Live)
                }
            }
            HotStep::Swap => {
                let end = self.cursor + 8 * self.event.words(g);
                let swapped = slot.head.compare_exchange(
                    self.cursor,
                    end,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                match swapped {
                    Ok(_) => Step::Hot(HotStep::ViewAfter),
                    // A handler has recorded meanwhile.
                    Err(_) => Step::Hot(HotStep::Counter),
                }
            }
            HotStep::Reserve => {
                self.cursor = slot.head.load(Ordering::Relaxed);
                slot.head
                    .store(self.cursor + 8 * self.event.words(g), Ordering::Relaxed);
                Step::Hot(HotStep::Reservation)
            }
            HotStep::Reservation => {
                let limit = slot.limit.load(Ordering::Relaxed);
                self.in_vain = self.cursor >= limit || g.in_guard(self.cursor);
                if self.in_vain {
                    Step::Enter(EnterStep::Live)
                } else {
                    Step::Hot(HotStep::ViewAfter)
                }
            }
            HotStep::ViewAfter => {
                let place = self.cursor % g.chunk_bytes();
                let left = (g.chunk_bytes() - place) / 8;
                let same = slot.view.load(Ordering::Relaxed) == self.views;
                if same && self.event.words(g) <= left {
                    self.words.extend(self.event.content_words(g));
                    self.push_call();
                    Step::Hot(HotStep::HotWords)
                } else {
                    self.push_filler(left.min(self.event.words(g)));
                    Step::Enter(EnterStep::Live)
                }
            }
            HotStep::HotWords => {
                if self.write_half(target) {
                    self.outcome = Outcome::Recorded;
                    Step::Done
                } else {
                    Step::Hot(HotStep::HotWords)
                }
            }
        }
    }
}
