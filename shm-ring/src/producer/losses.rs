//! Events that the reference producer does not record, and the places where it counts them.

use super::{Outcome, Recording, Step, Target, finish::FinishStep, parked, waiting::WaitStep};
use crate::{
    layout::{PROBES, bucket, control, rings, slot},
    memory::SharedMemory,
    sync::Ordering,
};

/// The steps of an event that is not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LossStep {
    Robbed,
    NoteClosed,
    CloseTable,
    LeaveSlot,
    PutBackAsWas,
    PutBack,
    CountFull,
    Repark,
    CountLoss,
    TellLoss,
    TellStuck,
    NoSlot,
    Bucket,
    TakeBucket,
    CountInBucket,
    CountForAll,
}

// === impl Recording ===

impl Recording {
    /// Makes one access for an event that is not recorded.
    pub(super) fn loss_step<M: SharedMemory>(
        &mut self,
        step: LossStep,
        target: &Target<'_, M>,
    ) -> Step {
        let g = target.geometry;
        let slot = target.table.slot(self.index);
        match step {
            LossStep::Robbed => {
                slot.view.fetch_add(1, Ordering::Relaxed);
                slot.since.store(0, Ordering::Relaxed);
                self.outcome = Outcome::Robbed;
                Step::Done
            }
            LossStep::NoteClosed => {
                target.table.note_closed(self.ticks);
                Step::Loss(LossStep::CloseTable)
            }
            LossStep::CloseTable => {
                target.table.set_live(false);
                Step::Loss(LossStep::LeaveSlot)
            }
            LossStep::LeaveSlot => {
                if slot.tid.load(Ordering::Relaxed) == self.tid {
                    slot.tid.store(slot::PAUSED, Ordering::Relaxed);
                }
                Step::Loss(LossStep::PutBackAsWas)
            }
            LossStep::PutBackAsWas | LossStep::PutBack => {
                let head = slot.head.load(Ordering::Relaxed);
                let is_full = step == LossStep::PutBack && self.cursor & slot::PARKED == 0;
                let back = match is_full {
                    true => g.ring_offset(self.index) + g.ring_bytes(),
                    false => self.cursor,
                };
                if parked(head) != self.parked() {
                    Step::Loss(LossStep::CountFull)
                } else if self.exchange_head(target, head, back) {
                    Step::Wait(WaitStep::Asked)
                } else {
                    Step::Loss(step)
                }
            }
            LossStep::CountFull => {
                self.count_loss(target);
                Step::Finish(FinishStep::Idle)
            }
            LossStep::Repark => {
                self.exchange_head(target, self.head, parked(self.head));
                Step::Loss(LossStep::CountLoss)
            }
            LossStep::CountLoss => {
                self.count_loss(target);
                Step::Loss(LossStep::TellLoss)
            }
            LossStep::TellLoss => {
                target.rings.store(rings::ACTIVITY, self.lost);
                Step::Loss(LossStep::TellStuck)
            }
            LossStep::TellStuck => {
                target.rings.store(rings::CHUNK, self.lost);
                Step::Done
            }
            LossStep::NoSlot => {
                self.index = self.tid & (g.buckets() - 1);
                self.probes = PROBES;
                if self.tid == 0 {
                    Step::Loss(LossStep::CountForAll)
                } else {
                    Step::Loss(LossStep::Bucket)
                }
            }
            LossStep::Bucket => {
                let owner = target.rings.load(g.bucket_offset(self.index) + bucket::TID);
                match owner {
                    0 => Step::Loss(LossStep::TakeBucket),
                    owner if owner == u64::from(self.tid) => Step::Loss(LossStep::CountInBucket),
                    _ => {
                        self.index = (self.index + 1) & (g.buckets() - 1);
                        self.probes -= 1;
                        if self.probes == 0 {
                            Step::Loss(LossStep::CountForAll)
                        } else {
                            Step::Loss(LossStep::Bucket)
                        }
                    }
                }
            }
            LossStep::TakeBucket => {
                // The count is first: a handler may leave by a jump before the bucket is taken.
                increment(target.rings, rings::BUCKETS_TAKEN);
                let place = g.bucket_offset(self.index) + bucket::TID;
                target.rings.store(place, self.tid.into());
                Step::Loss(LossStep::CountInBucket)
            }
            LossStep::CountInBucket => {
                let place = g.bucket_offset(self.index) + bucket::LOST;
                increment(target.rings, place);
                self.outcome = Outcome::Lost;
                Step::Done
            }
            LossStep::CountForAll => {
                increment(target.rings, rings::NO_SLOT);
                self.outcome = Outcome::Lost;
                Step::Done
            }
        }
    }

    fn count_loss<M: SharedMemory>(&mut self, target: &Target<'_, M>) {
        let line = target.line(self.index, control::LOST);
        self.lost = increment(target.rings, line);
        self.outcome = Outcome::Lost;
    }
}

/// Adds one, and returns the sum. It wraps as the trampolines' counter does: the memory may hold
/// any value.
fn increment<M: SharedMemory>(memory: &M, place: u64) -> u64 {
    let sum = memory.load(place).wrapping_add(1);
    memory.store(place, sum);
    sum
}
