//! The view of an event in the reference producer's slow path: it lasts, or another one begins.

use super::{
    Recording, Step, Target,
    event::{lower, upper},
    finish::FinishStep,
    losses::LossStep,
    writing::Written,
};
use crate::{memory::SharedMemory, sync::Ordering, view::View, word};

/// The steps to a view that the event fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ViewStep {
    CompareSince,
    CompareBase,
    SetView,
    SetSince,
    ClearBase,
    SetBase,
}

// === impl Recording ===

impl Recording {
    /// Makes one access for the view.
    pub(super) fn view_step<M: SharedMemory>(
        &mut self,
        step: ViewStep,
        target: &Target<'_, M>,
    ) -> Step {
        let slot = target.table.slot(self.index);
        match step {
            ViewStep::CompareSince => {
                self.view.since = slot.since.load(Ordering::Relaxed);
                if self.view.has_ticks(self.ticks) {
                    Step::View(ViewStep::CompareBase)
                } else {
                    Step::View(ViewStep::SetView)
                }
            }
            ViewStep::CompareBase => {
                self.view.base = slot.base.load(Ordering::Relaxed);
                if self.view.has_sp(self.event.sp) {
                    Step::Finish(FinishStep::Losses)
                } else {
                    Step::View(ViewStep::SetView)
                }
            }
            ViewStep::SetView => {
                slot.view.fetch_add(1, Ordering::Relaxed);
                self.view = View::around(self.ticks, self.event.sp);
                Step::View(ViewStep::SetSince)
            }
            ViewStep::SetSince => match self.store_field(target, &slot.since, self.view.since) {
                Written::Some => Step::View(ViewStep::SetSince),
                Written::All => Step::View(ViewStep::ClearBase),
                Written::Robbed => Step::Loss(LossStep::Robbed),
            },
            ViewStep::ClearBase => {
                slot.base.store(0, Ordering::Relaxed);
                Step::View(ViewStep::SetBase)
            }
            ViewStep::SetBase => match self.store_field(target, &slot.base, self.view.base) {
                Written::Some => Step::View(ViewStep::SetBase),
                Written::All => {
                    let words = word::begin_view(self.view);
                    self.words
                        .extend(words.map(|word| (lower(word), upper(word))));
                    Step::Finish(FinishStep::Losses)
                }
                Written::Robbed => Step::Loss(LossStep::Robbed),
            },
        }
    }
}
