//! What rings were given of late, and by which functions: enough to weigh them by, whatever the mode, and cheap.
//!
//! How much each ring was given is known exactly; by whom, from the newest part of those that were given the most. For how long the process and these threads have run
//! is read at the same moment, by the same thread: the two are set against each other.
//!
//! The newest part of a ring says too much of what came last: its end is at any moment, and most
//! moments are in what takes long. Where calls are to be counted, all that rings were given is
//! looked at, from one sample to another: rings that are read are counted as they are read, the
//! others are copied.

use std::{
    collections::HashMap,
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant},
};

use shm_ring::{Item, Producer, newest::Picture};
use xray_trace::model::{CallKind, FunctionId, ThreadId, Ticks};

use super::{SiteKind, SiteTable};

/// Rings of which the newest part is looked at.
pub(super) const MOST_PICTURES: usize = 16;
/// Chunks of it: that under way and the one before.
pub(super) const CHUNKS: u64 = 2;
/// Bytes of one ring that are copied at most, unless [`CHUNKS`] are more: a usual ring.
pub(super) const MOST_COPIED: u64 = 1 << 20;
/// Open calls that are told apart; what is further in counts by its events alone.
const MOST_DEPTH: usize = 1024;

/// A ring, as long as the same thread has it.
pub(crate) type RingId = (u32, ThreadId);

/// What of rings is looked at.
#[derive(Debug)]
pub(crate) enum Look {
    /// The newest part of those that were given more than so much.
    Newest(HashMap<RingId, u64>),
    /// Nothing yet: what they are given from now on is for [`Look::All`].
    Begin,
    /// All that those were given since they had been given so much, when that began.
    All(HashMap<RingId, u64>),
}

/// All rings at one moment.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(super) sites: Arc<SiteTable>,
    /// When it was taken, by both clocks.
    pub(crate) taken: (Instant, Ticks),
    /// For how long the process had run by then; `None` if it has ended.
    pub(crate) ran: Option<Duration>,
    pub(crate) rings: Vec<RingSample>,
}

/// One ring.
#[derive(Debug)]
pub(crate) struct RingSample {
    pub(crate) ring: RingId,
    /// Words that it was given since it was claimed, and events that it had no room for: about as many as events.
    pub(crate) given: u64,
    /// For how long its thread had run; `None` of one that is not looked at, or where the kernel does not tell.
    pub(crate) ran: Option<Duration>,
    pub(super) seen: Option<Seen>,
}

/// What of a ring was looked at.
#[derive(Debug)]
pub(super) enum Seen {
    /// A copy, and whether that has all that was asked for.
    Picture(Picture, bool),
    /// What was counted while the ring was read.
    Counted(Counting),
}

/// What one thread's newest events say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// How many there are.
    pub(crate) events: u64,
    /// And how many were not seen; `None` if that is not known.
    pub(crate) unseen: Option<u64>,
    pub(crate) functions: HashMap<FunctionId, Share>,
}

/// What of them is of one function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) events: u64,
    /// Entries.
    pub(crate) calls: u64,
    /// Ticks in its calls and what they call, as far as the events reach.
    pub(crate) ticks: u64,
}

// === impl Sample ===

impl Sample {
    /// What was seen of a time, by ring; of rings that were not looked at, nothing.
    pub(crate) fn tallies(&mut self, time: &RangeInclusive<Ticks>) -> HashMap<RingId, Tally> {
        let sites = &self.sites;
        let seen = self.rings.iter_mut().filter_map(|ring| {
            let tally = match ring.seen.take()? {
                Seen::Picture(picture, whole) => Tally::of(&picture, whole, sites, time),
                Seen::Counted(count) => count.finish(true),
            };
            Some((ring.ring, tally))
        });
        seen.collect()
    }
}

// === impl Tally ===

impl Tally {
    fn of(picture: &Picture, whole: bool, sites: &SiteTable, time: &RangeInclusive<Ticks>) -> Self {
        let mut count = Counting::default();
        let mut consumer = picture.consumer();
        consumer.expect_payloads();
        let take = |item| {
            let (site, ticks) = match item {
                Item::Call { site, ticks, .. } => (site, ticks),
                Item::Data(data) => (data.site, data.ticks),
                // What was lost before that time does not count.
                Item::Lost(many) if count.tally.events > 0 => return count.lose(many),
                Item::Lost(_) => return,
            };
            let at = Ticks(ticks);
            if !time.contains(&at) {
                return;
            }
            if let Some(site) = sites.find(site, at) {
                count.take(site.function, site.kind, ticks);
            }
        };
        consumer.drain(picture, Producer::Gone, 0, u64::MAX, take);
        count.finish(whole)
    }
}

/// A tally under way.
#[derive(Debug, Default)]
pub(super) struct Counting {
    tally: Tally,
    lost: u64,
    /// Open calls and when they began, the outermost first.
    open: Vec<(FunctionId, u64)>,
    /// The first event and the last.
    extent: Option<(u64, u64)>,
}

// === impl Counting ===

impl Counting {
    pub(super) fn take(&mut self, function: FunctionId, kind: SiteKind, ticks: u64) {
        let (begin, _) = *self.extent.get_or_insert((ticks, ticks));
        self.extent = Some((begin, ticks));
        self.tally.events += 1;
        let share = self.tally.functions.entry(function).or_default();
        share.events += 1;
        match kind {
            SiteKind::Call(CallKind::Enter) => {
                share.calls += 1;
                if self.open.len() < MOST_DEPTH {
                    self.open.push((function, ticks));
                }
            }
            SiteKind::Call(CallKind::Exit | CallKind::TailExit) => {
                let open = self.open.iter().rposition(|(open, _)| *open == function);
                // A call that was open before the first event.
                let since = open.map_or(begin, |at| self.open[at].1);
                share.ticks = share.ticks.saturating_add(ticks.saturating_sub(since));
                self.open.truncate(open.unwrap_or(0));
            }
            SiteKind::Custom | SiteKind::Typed => {}
        }
    }

    /// So many events are missing here.
    pub(super) fn lose(&mut self, many: u64) {
        self.lost = self.lost.saturating_add(many);
        self.open.clear();
    }

    /// Calls that go on have lasted up to the last event. Of the `whole` time, nothing else is
    /// missing than what was lost.
    fn finish(mut self, whole: bool) -> Tally {
        let end = self.extent.map_or(0, |(_, end)| end);
        for (function, since) in self.open {
            let share = self.tally.functions.entry(function).or_default();
            share.ticks = share.ticks.saturating_add(end.saturating_sub(since));
        }
        self.tally.unseen = whole.then_some(self.lost);
        self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_count_for_as_long_as_they_are_seen() {
        let [main, leaf, before] = [1, 2, 3].map(FunctionId);
        let mut count = Counting::default();
        count.lose(3);
        let call = SiteKind::Call;
        for (function, kind, ticks) in [
            (leaf, call(CallKind::Enter), 100),
            (leaf, call(CallKind::Exit), 110),
            (before, call(CallKind::TailExit), 120),
            (main, call(CallKind::Enter), 130),
            (leaf, call(CallKind::Enter), 140),
            (leaf, SiteKind::Custom, 145),
            (leaf, call(CallKind::Exit), 170),
        ] {
            count.take(function, kind, ticks);
        }
        let share = |events, calls, ticks| Share {
            events,
            calls,
            ticks,
        };
        let expected = Tally {
            events: 7,
            unseen: Some(3),
            functions: HashMap::from([
                (main, share(1, 1, 40)),
                (leaf, share(5, 2, 40)),
                (before, share(1, 0, 20)),
            ]),
        };
        assert_eq!(count.finish(true), expected);
    }
}
