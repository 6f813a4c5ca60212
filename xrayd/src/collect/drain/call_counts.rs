//! Counts of calls, and numbers of calls that a filter has left out: what trampolines write beside
//! rings. Events in rings are not read here.

use xray_trace::model::{FunctionId, ThreadId, Ticks};

use super::rings::Rings;
use crate::sys::ticks_now;

/// The most counts that are read, of all threads together. Counts beyond them are not known.
const MOST_COUNTS: usize = 1 << 23;

/// Numbers of calls. `None` stands for sites without a function.
pub(super) type Counted = Vec<(Option<FunctionId>, u64)>;

impl Rings {
    /// Clears the open calls in the trampolines' filter pages. Calls that waited there for their
    /// duration count as left out.
    pub(super) fn renew_filters(&mut self) {
        self.slots.filtered = true;
        let waited = self
            .order
            .iter()
            .map(|index| self.slots.renew_filter(*index));
        let waited = waited.fold(0, u64::saturating_add);
        self.output.counters.add_left_out(waited);
        self.report_left_out();
    }

    /// Reports what threads have left out.
    pub(super) fn report_left_out(&mut self) {
        if !self.slots.filtered {
            return;
        }
        let rings = self.by_slot.values_mut();
        let left_out = rings.map(|ring| ring.take_left_out(&self.slots));
        self.output
            .counters
            .add_left_out(left_out.fold(0, u64::saturating_add));
    }

    /// Clears what was counted so far. It belongs to an earlier session, or was read already.
    pub(super) fn begin_counts(&mut self) {
        self.slots.counted = true;
        self.slots.clear_counts();
        for ring in self.by_slot.values_mut() {
            ring.forget_counts();
        }
    }

    /// Adds up what threads have counted since the last call.
    pub(super) fn count(&mut self) {
        for at in 0..self.order.len() {
            self.count_ring(self.order[at]);
        }
    }

    /// The number of a thread's counts that are read. The bound keeps the memory bounded.
    fn most_counts(&self) -> usize {
        MOST_COUNTS / self.by_slot.len().max(1)
    }

    /// Adds up what the thread of one ring has counted since the last call.
    pub(super) fn count_ring(&mut self, index: u32) {
        if let Some((thread, counted)) = self.take_counts(index) {
            self.output.count_calls(thread, counted.into_iter());
        }
    }

    /// What the thread of one ring has counted since the last call: the calls of each function, or
    /// of sites without one. `None`: nothing.
    pub(super) fn take_counts(&mut self, index: u32) -> Option<(ThreadId, Counted)> {
        if !self.slots.counted {
            return None;
        }
        let most = self.most_counts();
        let ring = self.by_slot.get_mut(&index)?;
        let owner = ring.owner;
        let counted = ring.take_counts(&self.slots, most);
        if counted.is_empty() {
            return None;
        }
        let numbers = counted.iter().map(|(number, _)| *number);
        self.numbers.learn(&self.slots, numbers);
        let thread = self.decoders.get_mut(owner)?.thread;
        let now = ticks_now();
        let counted = counted.into_iter();
        let counted = counted.map(|(number, calls)| (self.counted_function(number, now), calls));
        Some((thread, counted.collect()))
    }

    /// The function of a number under which calls are counted.
    pub(super) fn counted_function(&self, number: u64, now: Ticks) -> Option<FunctionId> {
        let name = self.numbers.name(number)?;
        self.sites.find(name, now).map(|site| site.function)
    }
}
