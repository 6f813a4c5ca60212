//! The reference producer's way into the slow path: it finds or claims the thread's slot, and parks
//! the head, so that only one context of the thread is there.

use super::{Outcome, Recording, Step, Target, chunk::ChunkStep, losses::LossStep};
use crate::{
    layout::{Geometry, PROBES, control, slot},
    memory::SharedMemory,
    sync::Ordering,
};

/// The steps into the slow path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EnterStep {
    Live,
    LeaveHome,
    Filler,
    Probe,
    Paused,
    TakeBack,
    Claim,
    Found,
    Busy,
    Mark,
    Park,
}

// === impl Recording ===

impl Recording {
    /// Makes one access on the way into the slow path.
    pub(super) fn enter_step<M: SharedMemory>(
        &mut self,
        step: EnterStep,
        target: &Target<'_, M>,
        now: u64,
    ) -> Step {
        let g = target.geometry;
        let slot = target.table.slot(self.index);
        match step {
            EnterStep::Live if !target.table.is_live() => {
                self.index = self.tid & (g.slots() - 1);
                Step::Enter(EnterStep::LeaveHome)
            }
            EnterStep::LeaveHome => {
                if self.tid != 0 && slot.tid.load(Ordering::Relaxed) == self.tid {
                    slot.tid.store(slot::PAUSED, Ordering::Relaxed);
                }
                self.outcome = Outcome::Untraced;
                Step::Done
            }
            EnterStep::Live if self.words.is_empty() => self.first_probe(g),
            EnterStep::Live => Step::Enter(EnterStep::Filler),
            EnterStep::Filler => {
                if self.write_half(target) {
                    self.first_probe(g)
                } else {
                    Step::Enter(EnterStep::Filler)
                }
            }
            EnterStep::Probe => match slot.tid.load(Ordering::Acquire) {
                owner if owner == self.tid => Step::Enter(EnterStep::Found),
                0 => Step::Enter(EnterStep::Claim),
                slot::CLOSED => Step::Loss(LossStep::NoSlot),
                slot::PAUSED => Step::Enter(EnterStep::Paused),
                _ => self.next_probe(g),
            },
            EnterStep::Paused => {
                let line = target.line(self.index, control::OWNER);
                if target.rings.load(line) == u64::from(self.tid) {
                    Step::Enter(EnterStep::TakeBack)
                } else {
                    self.next_probe(g)
                }
            }
            EnterStep::TakeBack => {
                slot.tid.store(self.tid, Ordering::Relaxed);
                Step::Enter(EnterStep::Probe)
            }
            EnterStep::Claim => {
                let claim =
                    slot.tid
                        .compare_exchange(0, self.tid, Ordering::AcqRel, Ordering::Relaxed);
                if claim.is_ok() {
                    Step::Enter(EnterStep::Found)
                } else {
                    Step::Enter(EnterStep::Probe)
                }
            }
            EnterStep::Found => {
                self.head = slot.head.load(Ordering::Relaxed);
                if self.head & slot::PARKED == 0 {
                    Step::Enter(EnterStep::Mark)
                } else {
                    Step::Enter(EnterStep::Busy)
                }
            }
            EnterStep::Busy => match target.rings.load(target.line(self.index, control::BUSY)) {
                0 => Step::Enter(EnterStep::Mark),
                // Left by the attempt before, during which the head has changed.
                busy if busy == self.parked() => Step::Enter(EnterStep::Mark),
                _ if self.in_vain => Step::Loss(LossStep::Repark),
                _ => Step::Loss(LossStep::CountLoss),
            },
            EnterStep::Mark => {
                let line = target.line(self.index, control::BUSY);
                target.rings.store(line, self.parked());
                Step::Enter(EnterStep::Park)
            }
            EnterStep::Park => {
                if self.exchange_head(target, self.head, self.parked()) {
                    self.cursor = self.head;
                    self.ticks = now;
                    Step::Chunk(ChunkStep::Deadline)
                } else {
                    Step::Enter(EnterStep::Found)
                }
            }
        }
    }

    fn next_probe(&mut self, geometry: Geometry) -> Step {
        self.index = (self.index + 1) & (geometry.slots() - 1);
        self.probes -= 1;
        if self.probes == 0 {
            Step::Loss(LossStep::NoSlot)
        } else {
            Step::Enter(EnterStep::Probe)
        }
    }

    /// Begins the search for the thread's slot.
    pub(super) fn first_probe(&mut self, geometry: Geometry) -> Step {
        self.probes = PROBES;
        self.index = self.tid & (geometry.slots() - 1);
        if self.tid == 0 {
            Step::Loss(LossStep::NoSlot)
        } else {
            Step::Enter(EnterStep::Probe)
        }
    }
}
