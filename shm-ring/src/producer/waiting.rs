//! The wait of the reference producer for room in a full ring.
//!
//! The context has put the head back, and takes its mark away before it waits. So handlers that
//! interrupt it take the slow path, and wait likewise. After the wait it begins the slow path anew.

use super::{Recording, Step, Target, losses::LossStep};
use crate::{
    layout::{control, rings},
    memory::SharedMemory,
    sync::Ordering,
};

/// The steps of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitStep {
    Asked,
    Leave,
    Again,
    Counter,
    Live,
    Deadline,
    Room,
    Bound,
    AddWait,
    AddVainWait,
    Expire,
}

// === impl Recording ===

impl Recording {
    /// Makes one access of the wait for room.
    pub(super) fn wait_step<M: SharedMemory>(
        &mut self,
        step: WaitStep,
        target: &Target<'_, M>,
        now: u64,
    ) -> Step {
        let g = target.geometry;
        let slot = target.table.slot(self.index);
        let line = |field| target.line(self.index, field);
        let lost = Step::Loss(LossStep::CountFull);
        match step {
            WaitStep::Asked if target.rings.load(rings::WAIT) == 0 => lost,
            WaitStep::Asked => Step::Wait(WaitStep::Leave),
            WaitStep::Leave => {
                let parked = self.parked();
                target.rings.exchange(line(control::BUSY), parked, 0);
                Step::Wait(WaitStep::Again)
            }
            WaitStep::Again => {
                let released = target.rings.load(line(control::RELEASED));
                match slot.expired.load(Ordering::Relaxed) == expired_at(released) {
                    true => lost,
                    false => Step::Wait(WaitStep::Counter),
                }
            }
            WaitStep::Counter => {
                self.wait_begun = now;
                Step::Wait(WaitStep::Live)
            }
            WaitStep::Live if !target.table.is_live() => lost,
            WaitStep::Live => Step::Wait(WaitStep::Deadline),
            WaitStep::Deadline => {
                self.ticks = now;
                match target.rings.load(rings::DEADLINE) {
                    end if end.wrapping_sub(1) < now => lost,
                    _ => Step::Wait(WaitStep::Room),
                }
            }
            WaitStep::Room => {
                let started = slot.started.load(Ordering::Relaxed);
                // Pairs with the collector's store of RELEASED after it emptied the chunk.
                self.released = target.rings.load(line(control::RELEASED));
                match started.wrapping_sub(self.released) < g.chunks() {
                    true => Step::Wait(WaitStep::AddWait),
                    false => Step::Wait(WaitStep::Bound),
                }
            }
            WaitStep::Bound => {
                let bound = target.rings.load(rings::WAIT);
                match self.ticks.wrapping_sub(self.wait_begun) < bound {
                    true => Step::Wait(WaitStep::Live),
                    false => Step::Wait(WaitStep::AddVainWait),
                }
            }
            WaitStep::AddWait | WaitStep::AddVainWait => {
                let ticks = self.ticks.wrapping_sub(self.wait_begun);
                self.waited = self.waited.wrapping_add(ticks);
                let before = slot.waited.load(Ordering::Relaxed);
                let ticks = u32::try_from(ticks).unwrap_or(u32::MAX);
                slot.waited
                    .store(before.saturating_add(ticks), Ordering::Relaxed);
                match step {
                    WaitStep::AddWait => self.first_probe(g),
                    _ => Step::Wait(WaitStep::Expire),
                }
            }
            WaitStep::Expire => {
                // The number that showed the ring full: a chunk may have been given back since.
                slot.expired
                    .store(expired_at(self.released), Ordering::Relaxed);
                lost
            }
        }
    }
}

/// The mark of a wait that ended in vain while so many chunks had been given back.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the low half of the number, which is compared for equality"
)]
const fn expired_at(released: u64) -> u32 {
    (released as u32).wrapping_add(1)
}
