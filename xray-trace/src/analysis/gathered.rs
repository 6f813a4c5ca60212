//! The sums of one subject's calls, updated as the calls end. The durations of single calls are in
//! `histogram`.

use super::account_table::{AccountRow, Subject};
use super::histogram::{Histograms, Slot};
use super::step::{Call, Ending};

/// The sums of one subject, without the durations of its calls.
#[derive(Debug, Default)]
#[repr(align(32))]
pub(super) struct Gathered {
    unfinished: u64,
    total_ns: u64,
    self_ns: u64,
    /// Data for subjects with calls within calls of the same subject.
    recursion: Option<Box<Recursion>>,
}

#[derive(Debug, Default)]
struct Recursion {
    /// For each open call in which counted calls of the same subject have ended, outermost first:
    /// the time of these calls, which its own time will include.
    within_ns: Vec<u64>,
    /// True if a call of the same function has ended within the outermost open one.
    met: bool,
}

// === impl Gathered ===

impl Gathered {
    /// Whether a call that ends was part of a recursion.
    pub(super) fn recurs(&mut self, call: &Call) -> bool {
        let within = call.open.nesting > 0;
        match &mut self.recursion {
            None if !within => false,
            recursion => {
                let recursion = recursion.get_or_insert_default();
                std::mem::replace(&mut recursion.met, within) || within
            }
        }
    }

    /// Counts the end of a call within `level` others of the same subject. If the call itself does
    /// not count, counted calls within it still do. Returns whether the call has a duration that
    /// counts.
    #[inline(always)]
    pub(super) fn leave(&mut self, call: &Call, level: usize, counts: bool) -> bool {
        let finished = counts && call.how != Ending::Closed;
        let duration = call.duration_ns();
        if finished {
            self.self_ns = self.self_ns.saturating_add(call.self_ns);
        } else {
            self.unfinished += u64::from(counts);
        }
        let time = if level == 0 && self.recursion.is_none() {
            if finished { duration } else { 0 }
        } else {
            self.recursive(level, finished.then_some(duration))
        };
        self.total_ns = self.total_ns.saturating_add(time);
        finished
    }

    /// The growth of the total if there are calls within calls.
    #[inline(never)]
    fn recursive(&mut self, level: usize, duration: Option<u64>) -> u64 {
        let recursion = self.recursion.get_or_insert_default();
        recursion.leave(level, duration)
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self {
            unfinished,
            total_ns,
            self_ns,
            recursion: _,
        } = other;
        self.unfinished += unfinished;
        self.total_ns = self.total_ns.saturating_add(total_ns);
        self.self_ns = self.self_ns.saturating_add(self_ns);
    }

    pub(super) fn row(
        self,
        subject: Subject,
        slot: Slot,
        histograms: &mut Histograms,
    ) -> AccountRow {
        AccountRow {
            subject,
            calls: histograms.finished(slot) + self.unfinished,
            unfinished: self.unfinished,
            total_ns: self.total_ns,
            self_ns: self.self_ns,
            sum_ns: histograms.sum_ns(slot),
            durations: histograms.distribution(slot),
            on_cpu: None,
        }
    }
}

// === impl Recursion ===

impl Recursion {
    /// Counts the end of a call within `level` others, with its duration if that is known and
    /// counts. Returns the growth of the subject's total.
    fn leave(&mut self, level: usize, duration: Option<u64>) -> u64 {
        let within = self.within_ns.get(level).copied().unwrap_or(0);
        self.within_ns.truncate(level);
        // Without a time of its own, a call has the time of the finished calls within it.
        let time = duration.unwrap_or(within);
        if level == 0 {
            return time;
        }
        if time > 0 {
            if self.within_ns.len() < level {
                self.within_ns.resize(level, 0);
            }
            let outer = &mut self.within_ns[level - 1];
            *outer = outer.saturating_add(time);
        }
        0
    }
}
