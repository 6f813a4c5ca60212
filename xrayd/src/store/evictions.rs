//! Blocks that were retained and dropped: whose they were, and when their events happened.

use std::collections::VecDeque;

use xray_trace::model::{ThreadId, Ticks};

/// The most dropped blocks whose times are kept: 96 KiB.
const MOST_EVICTIONS: usize = 1 << 12;

/// The newest blocks that were retained and dropped: thread, number of events, and time of the last
/// event. For snapshots of a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Evictions {
    newest: VecDeque<(ThreadId, u64, Ticks)>,
    /// The time of the last event among the dropped blocks that are not in `newest` any more.
    before: Option<Ticks>,
}

// === impl Evictions ===

impl Evictions {
    pub(super) fn add(&mut self, thread: ThreadId, events: u64, last: Ticks) {
        if self.newest.len() == MOST_EVICTIONS
            && let Some((_, _, last)) = self.newest.pop_front()
        {
            self.before = self.before.max(Some(last));
        }
        self.newest.push_back((thread, events, last));
    }

    /// The number of events of a thread from `since` on that were dropped, to the precision of a
    /// block. `None` if it is not known any more.
    pub(crate) fn since(&self, since: Ticks, thread: ThreadId) -> Option<u64> {
        if self.before >= Some(since) {
            return None;
        }
        let its = self
            .newest
            .iter()
            .filter(|its| its.0 == thread && its.2 >= since);
        Some(its.map(|its| its.1).fold(0, u64::saturating_add))
    }

    /// The same for all threads.
    pub(super) fn all_since(&self, since: Ticks) -> Option<u64> {
        if self.before >= Some(since) {
            return None;
        }
        let late = self.newest.iter().filter(|its| its.2 >= since);
        Some(late.map(|its| its.1).fold(0, u64::saturating_add))
    }
}
