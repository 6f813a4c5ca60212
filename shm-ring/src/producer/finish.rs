//! The end of the reference producer's slow path: it reports losses in a gap word, writes the event
//! and gives the head back.

use super::{
    Outcome, Recording, Step, Target, event::lower, losses::LossStep, oldest_chunk::OldestStep,
    parked, writing::Written,
};
use crate::{
    layout::{GUARD_BYTES, control, rings},
    memory::SharedMemory,
    sync::Ordering,
    word,
};

/// The steps from a chunk and a view to the recorded event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FinishStep {
    Losses,
    LookForLosses,
    Report,
    Waits,
    LookForWaits,
    ReportWaits,
    Content,
    SlowWords,
    Unpark,
    CallWord,
    Idle,
    Tell,
}

// === impl Recording ===

impl Recording {
    /// Makes one access for the words of the event.
    pub(super) fn finish_step<M: SharedMemory>(
        &mut self,
        step: FinishStep,
        target: &Target<'_, M>,
    ) -> Step {
        let g = target.geometry;
        let slot = target.table.slot(self.index);
        match step {
            FinishStep::Losses => {
                self.reported = slot.reported.load(Ordering::Relaxed);
                let lost = target.rings.load(target.line(self.index, control::LOST));
                let news = lost.wrapping_sub(self.reported);
                self.news = news.min(u64::from(u32::MAX));
                if news == 0 {
                    Step::Finish(FinishStep::Waits)
                } else {
                    Step::Finish(FinishStep::LookForLosses)
                }
            }
            FinishStep::LookForLosses if self.is_robbed(target) => Step::Loss(LossStep::Robbed),
            FinishStep::LookForLosses => Step::Finish(FinishStep::Report),
            FinishStep::Report => {
                let report = slot.reported.compare_exchange(
                    self.reported,
                    self.reported + self.news,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                if report.is_ok() {
                    self.words.push_back((word::GAP, lower(self.news)));
                    Step::Finish(FinishStep::Waits)
                } else {
                    Step::Finish(FinishStep::Losses)
                }
            }
            FinishStep::Waits => {
                self.news = slot.waited.load(Ordering::Relaxed).into();
                if self.news == 0 {
                    Step::Finish(FinishStep::Content)
                } else {
                    Step::Finish(FinishStep::LookForWaits)
                }
            }
            FinishStep::LookForWaits if self.is_robbed(target) => Step::Loss(LossStep::Robbed),
            FinishStep::LookForWaits => Step::Finish(FinishStep::ReportWaits),
            FinishStep::ReportWaits => {
                let waited = lower(self.news);
                let report =
                    slot.waited
                        .compare_exchange(waited, 0, Ordering::Relaxed, Ordering::Relaxed);
                if report.is_ok() {
                    self.words.push_back((word::WAIT, waited));
                    Step::Finish(FinishStep::Content)
                } else {
                    Step::Finish(FinishStep::Waits)
                }
            }
            FinishStep::Content => {
                // Filler in the guard of a new chunk: the event's words end where the guard ends.
                let event = self.cursor + 8 * self.words.len() as u64;
                let guard = (self.cursor & !(g.chunk_bytes() - 1)) + GUARD_BYTES;
                self.push_filler(guard.saturating_sub(event + 8 * self.event.words(g)) / 8);
                self.words.extend(self.event.content_words(g));
                if self.words.is_empty() {
                    Step::Finish(FinishStep::Unpark)
                } else {
                    Step::Finish(FinishStep::SlowWords)
                }
            }
            FinishStep::SlowWords => match self.put_word(target) {
                Written::Some => Step::Finish(FinishStep::SlowWords),
                Written::All => Step::Finish(FinishStep::Unpark),
                Written::Robbed => Step::Loss(LossStep::Robbed),
            },
            FinishStep::Unpark => {
                let head = slot.head.load(Ordering::Relaxed);
                if parked(head) != self.parked() {
                    Step::Loss(LossStep::Robbed)
                } else if self.exchange_head(target, head, self.cursor + 8) {
                    self.push_call();
                    Step::Finish(FinishStep::CallWord)
                } else {
                    Step::Finish(FinishStep::Unpark)
                }
            }
            FinishStep::CallWord => {
                if self.write_half(target) {
                    self.outcome = Outcome::Recorded;
                    Step::Finish(FinishStep::Idle)
                } else {
                    Step::Finish(FinishStep::CallWord)
                }
            }
            FinishStep::Idle => {
                let line = target.line(self.index, control::BUSY);
                target.rings.exchange(line, self.parked(), 0);
                Step::Finish(FinishStep::Tell)
            }
            FinishStep::Tell => {
                let news = match self.outcome {
                    Outcome::Recorded => self.cursor,
                    _ => self.lost,
                };
                target.rings.store(rings::ACTIVITY, news);
                Step::Oldest(OldestStep::Keep)
            }
        }
    }
}
