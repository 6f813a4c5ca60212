//! Counts of calls, and numbers of calls that a filter has left out: what trampolines write beside
//! rings. Events in rings are not read here.

use super::rings::Rings;
use crate::sys::ticks_now;

/// The most counts that are read, of all threads together. Counts beyond them are not known.
const MOST_COUNTS: usize = 1 << 23;

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

    /// Skips what was counted so far. It belongs to an earlier session, or was added up already.
    pub(super) fn begin_counts(&mut self) {
        self.slots.counted = true;
        let most = self.most_counts();
        for ring in self.by_slot.values_mut() {
            ring.take_counts(&self.slots, most);
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
        if !self.slots.counted {
            return;
        }
        let most = self.most_counts();
        let Some(ring) = self.by_slot.get_mut(&index) else {
            return;
        };
        let owner = ring.owner;
        let counted = ring.take_counts(&self.slots, most);
        if counted.is_empty() {
            return;
        }
        let numbers = counted.iter().map(|(number, _)| *number);
        self.numbers.learn(&self.slots, numbers);
        let now = ticks_now();
        let calls = counted.into_iter().map(|(number, calls)| {
            let site = self.numbers.name(number);
            let site = site.and_then(|name| self.sites.find(name, now));
            (site.map(|site| site.function), calls)
        });
        if let Some(decoder) = self.decoders.get_mut(owner) {
            self.output.count_calls(decoder.thread, calls);
        }
    }
}
