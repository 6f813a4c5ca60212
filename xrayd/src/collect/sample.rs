//! Samples of what was written to rings, and by which functions: enough to estimate the cost of
//! functions, in any mode, at little expense. The estimate itself is the governor's.
//!
//! The amount written to each ring is exact. The functions come from the newest part of the rings
//! with the most new words. The same thread reads at the same moment for how long the process and
//! the sampled threads have run, since these times are compared with the amounts.
//!
//! The newest part of a ring has too large a share of long calls. It ends at a random moment, and
//! most moments lie in long calls. So where calls are to be counted, a sample covers everything
//! that was written since the sample before. Rings that are read are counted as they are read, and
//! the others are copied.

use std::{
    collections::HashMap,
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant},
};

use shm_ring::{Item, Producer, newest::Picture};
use xray_trace::model::{CallKind, FunctionId, ThreadId, Ticks};

use super::{SiteKind, SiteTable};

/// The most rings whose newest part is looked at.
pub(super) const MOST_PICTURES: usize = 16;
/// The chunks of that part: the one under way and the one before.
pub(super) const CHUNKS: u64 = 2;
/// The most bytes of one ring that are copied, unless [`CHUNKS`] are more: the usual ring size.
pub(super) const MOST_COPIED: u64 = 1 << 20;
/// The most open calls that are told apart. Calls within them count by their events only.
const MOST_DEPTH: usize = 1024;

/// A ring, for as long as the same thread has it.
pub(crate) type RingId = (u32, ThreadId);

/// The part of the rings that a sample looks at.
#[derive(Debug)]
pub(crate) enum Look {
    /// The newest part of rings to which more was written than the number here.
    Newest(HashMap<RingId, u64>),
    /// Nothing yet. What is written from now on is for [`Look::All`].
    Begin,
    /// Everything that was written to rings since [`Look::Begin`]. The numbers are those of that
    /// time.
    All(HashMap<RingId, u64>),
}

/// All rings at one moment.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(super) sites: Arc<SiteTable>,
    /// The time of the sample, by both clocks.
    pub(crate) taken: (Instant, Ticks),
    /// The processor time of the process by then; `None` if it has ended.
    pub(crate) ran: Option<Duration>,
    pub(crate) rings: Vec<RingSample>,
}

/// One ring.
#[derive(Debug)]
pub(crate) struct RingSample {
    pub(crate) ring: RingId,
    /// Words that were written to it since it was claimed, and events that it had no room for. The
    /// number is close to that of the events.
    pub(crate) given: u64,
    /// The processor time of its thread. `None` if the ring is not looked at, or the kernel does
    /// not report it.
    pub(crate) ran: Option<Duration>,
    pub(super) seen: Option<Seen>,
}

/// The part of a ring that was looked at.
#[derive(Debug)]
pub(super) enum Seen {
    /// A copy. The flag is true if it has everything that was asked for.
    Picture(Picture, bool),
    /// The counts from reading the ring.
    Counted(Counting),
}

/// The events of one thread, counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// The number of events.
    pub(crate) events: u64,
    /// The number of events that were not seen; `None` if that is not known.
    pub(crate) unseen: Option<u64>,
    pub(crate) functions: HashMap<FunctionId, Share>,
}

/// The share of one function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) events: u64,
    /// Entries.
    pub(crate) calls: u64,
    /// Ticks in its calls, with the calls within them, as far as the events show them.
    pub(crate) ticks: u64,
}

// === impl Sample ===

impl Sample {
    /// The counted events of a time, by ring, without rings that were not looked at.
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
                // Losses before that time do not count.
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
    /// Open calls and their begins, outermost first.
    open: Vec<(FunctionId, u64)>,
    /// The times of the first and the last event.
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
                // The call was open before the first event.
                let since = open.map_or(begin, |at| self.open[at].1);
                share.ticks = share.ticks.saturating_add(ticks.saturating_sub(since));
                self.open.truncate(open.unwrap_or(0));
            }
            SiteKind::Custom | SiteKind::Typed => {}
        }
    }

    /// Notes that this many events are missing here.
    pub(super) fn lose(&mut self, many: u64) {
        self.lost = self.lost.saturating_add(many);
        self.open.clear();
    }

    /// The tally. Open calls have lasted up to the last event. If `whole`, nothing is missing but
    /// the losses.
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
