//! Samples of what was written to rings, and by which functions: enough to estimate the cost of
//! functions, in any mode, at little expense. The estimate itself is the governor's.
//!
//! The amount written to each ring is exact. The functions come from the newest part of the rings
//! with the most new words. The same thread reads at the same moment for how long the process and
//! the sampled threads have run, since these times are compared with the amounts.
//!
//! Where calls are added up in the program, there are no events. Then a sample reads the numbers of
//! calls of these threads, and shows by how much they have grown.
//!
//! The newest part of a ring has too large a share of long calls. It ends at a random moment, and
//! most moments lie in long calls. So where calls are to be counted, a sample covers everything
//! that was written since the sample before. Rings that are read are counted as they are read, and
//! the others are copied.

use std::{
    collections::HashMap,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use shm_ring::{Item, Producer, newest::RingCopy};
use xray_trace::model::{CallKind, FunctionId, ThreadId, Ticks};

use super::{SiteKind, SiteTable};
use crate::{
    sys::{PriorityBoost, ticks_now},
    target::RunClocks,
};

/// The most rings whose newest part is looked at.
pub(super) const MOST_COPIES: usize = 16;
/// The chunks of that part: the one under way and the one before.
pub(super) const CHUNKS: u64 = 2;
/// The most bytes of one ring that are copied, unless [`CHUNKS`] are more: the usual ring size.
pub(super) const MOST_COPIED: u64 = 1 << 20;
/// A copy shows a time if it has at least one in this many parts of it.
const LEAST_COVERED: u64 = 4;
/// The most open calls that are told apart. Calls within them count by their events only.
const MOST_DEPTH: usize = 1024;

/// A ring, for as long as the same thread has it.
pub(crate) type RingId = (u32, ThreadId);

/// The part of the rings that a sample looks at.
#[derive(Debug)]
pub(crate) enum Look {
    /// The newest part of rings to which more was written than the number here.
    Newest(HashMap<RingId, u64>),
    /// Nothing yet. Events of this window, which begins later, are for [`Look::All`].
    Begin(Arc<Window>),
    /// The events of the window of the last [`Look::Begin`]. The numbers are those of that time.
    All(HashMap<RingId, u64>, Arc<Window>),
    /// Nothing any more: events are not counted for a window, and nothing is kept for the next
    /// sample.
    Nothing,
}

/// A time in which all events are counted, and the clocks of the threads that work in it. The
/// controller begins and ends it while the drain reads events. Where calls are added up in the
/// program, the drain begins and ends it when it reads their numbers.
///
/// The drain reads no event before it happens. So the events that it has read before the begin or
/// the end was set are of the time before.
#[derive(Debug)]
pub(crate) struct Window {
    clocks: Arc<RunClocks>,
    /// Begin and end in ticks; `u64::MAX` until they are set.
    from: AtomicU64,
    until: AtomicU64,
}

/// The begin or the end of a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    pub(crate) at: Ticks,
    /// What the clocks show, in nanoseconds. `None` if the process has ended.
    pub(crate) clocked: Option<f64>,
    /// The ticks until all clocks were read, and all numbers of calls. More of them than usual:
    /// this thread had lost its processor meanwhile, and they show a later time.
    pub(crate) late: u64,
}

/// All rings at one moment.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(super) sites: Arc<SiteTable>,
    /// The time of the sample, by both clocks.
    pub(crate) taken: (Instant, Ticks),
    /// The processor time of the process by then; `None` if it has ended.
    pub(crate) ran: Option<Duration>,
    /// The begin or the end of the window, if it is this sample.
    pub(crate) edge: Option<Edge>,
    pub(crate) rings: Vec<RingSample>,
}

/// One ring.
#[derive(Debug)]
pub(crate) struct RingSample {
    pub(crate) ring: RingId,
    /// Words that were written to it since it was claimed, and events that it had no room for. The
    /// number is close to that of the events. Where calls are added up, the number of changes of
    /// its open calls, and two for each call that is not followed.
    pub(crate) given: u64,
    /// The processor time of its thread. `None` if the ring is not looked at, or the kernel does
    /// not report it.
    pub(crate) ran: Option<Duration>,
    pub(super) seen: Option<Seen>,
}

/// The part of a ring that was looked at.
#[derive(Debug)]
pub(super) enum Seen {
    /// A copy, and about how many events it should have. `None` if it has everything that was asked
    /// for.
    Copy(RingCopy, Option<u64>),
    /// The counts from reading the ring.
    Counted(Counting),
    /// All calls that were added up since the sample before.
    Whole(Tally),
}

/// The events of one thread, counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// The number of events.
    pub(crate) events: u64,
    /// About how many events there were since the sample before. It is greater than `events` if
    /// the time that counts is only a part of the time between the samples.
    pub(crate) passed: u64,
    /// About how many events were not seen.
    pub(crate) unseen: u64,
    /// Those of them for which the ring had no room.
    pub(crate) lost: u64,
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

// === impl Look ===

impl Look {
    /// What was written to a ring by the begin of the time that is looked at; `None` if the ring is
    /// not looked at.
    pub(super) fn before(&self, ring: RingId) -> Option<u64> {
        match self {
            Self::Newest(before) | Self::All(before, _) => before.get(&ring).copied(),
            Self::Begin(_) | Self::Nothing => None,
        }
    }
}

// === impl Window ===

impl Window {
    pub(crate) fn new(clocks: Arc<RunClocks>) -> Self {
        Self {
            clocks,
            from: AtomicU64::new(u64::MAX),
            until: AtomicU64::new(u64::MAX),
        }
    }

    /// Sets `edge` to the present, and reads the clocks. The time is set once, because the drain
    /// may read events by it from then on.
    fn set(&self, edge: &AtomicU64) -> Edge {
        let _urgent = PriorityBoost::begin();
        let at = ticks_now();
        edge.store(at.0, Ordering::Relaxed);
        let clocked = self.clocks.read();
        Edge {
            at,
            clocked,
            late: ticks_now().0.saturating_sub(at.0),
        }
    }

    /// Begins the window.
    pub(crate) fn begin(&self) -> Edge {
        self.set(&self.from)
    }

    fn has(&self, ticks: u64) -> bool {
        let from = self.from.load(Ordering::Relaxed);
        let until = self.until.load(Ordering::Relaxed);
        (from..=until).contains(&ticks)
    }

    /// Ends the window.
    pub(crate) fn end(&self) -> Edge {
        self.set(&self.until)
    }
}

// === impl Sample ===

impl Sample {
    /// The counted events of a time, by ring, without rings that were not looked at. The sample
    /// before was taken at `since`.
    pub(crate) fn tallies(
        &mut self,
        since: Ticks,
        time: &RangeInclusive<Ticks>,
    ) -> HashMap<RingId, Tally> {
        let sites = &self.sites;
        let passed = since..=self.taken.1;
        let seen = self.rings.iter_mut().filter_map(|ring| {
            let tally = match ring.seen.take()? {
                Seen::Copy(copy, should_have) => {
                    Tally::of(&copy, should_have, sites, (&passed, time))?
                }
                Seen::Counted(count) => count.finish(),
                Seen::Whole(tally) => tally,
            };
            Some((ring.ring, tally))
        });
        seen.collect()
    }
}

// === impl Tally ===

impl Tally {
    /// The events of `time` in a copy. `passed` is the time between the samples. If the copy lacks
    /// the begin of `time`, the rest stands for it. `None` if too little is there.
    fn of(
        copy: &RingCopy,
        should_have: Option<u64>,
        sites: &SiteTable,
        (passed, time): (&RangeInclusive<Ticks>, &RangeInclusive<Ticks>),
    ) -> Option<Self> {
        let mut first = None;
        let mut count = Counting::default();
        let mut consumer = copy.consumer();
        consumer.expect_payloads();
        let take = |item| {
            let (site, ticks) = match item {
                Item::Call { site, ticks, .. } => (site, ticks),
                Item::Data(data) => (data.site, data.ticks),
                // Losses before that time do not count.
                Item::Lost(many) if count.tally.events > 0 => return count.lose(many),
                Item::Lost(_) | Item::Waited(_) => return,
            };
            let at = Ticks(ticks);
            first.get_or_insert(at);
            if !passed.contains(&at) {
                return;
            }
            match sites.find(site, at) {
                Some(_) if !time.contains(&at) => count.tally.passed += 1,
                Some(site) => count.take(site.function, site.kind, ticks),
                None => {}
            }
        };
        consumer.drain(copy, Producer::Gone, 0, u64::MAX, take);
        let mut tally = count.finish();
        match should_have {
            None => {}
            Some(should_have) if time == passed => {
                tally.unseen = should_have.saturating_sub(tally.events);
            }
            Some(should_have) => {
                let (from, until) = (time.start().0, time.end().0);
                let first = first?.0.max(from);
                let (all, there) = (until.saturating_sub(from), until.saturating_sub(first));
                if there < all / LEAST_COVERED {
                    return None;
                }
                let unseen = u128::from(tally.events) * u128::from(all - there);
                let unseen = unseen / u128::from(there.max(1));
                tally.unseen = u64::try_from(unseen).unwrap_or(u64::MAX);
                tally.passed = tally.passed.max(should_have);
            }
        }
        Some(tally)
    }
}

/// A tally under way.
#[derive(Debug, Default)]
pub(super) struct Counting {
    tally: Tally,
    lost: u64,
    /// The window that counts. Without one, all events count.
    window: Option<Counted>,
    /// Open calls and their begins, outermost first.
    open: Vec<(FunctionId, u64)>,
    /// The times of the first and the last event.
    extent: Option<(u64, u64)>,
}

/// A window in which the events of a ring count.
#[derive(Debug)]
struct Counted {
    window: Arc<Window>,
    /// Events that the ring had lost before it.
    lost: u64,
}

// === impl Counting ===

impl Counting {
    /// Counts the events of a window that begins later. The ring has lost this many events so far.
    pub(super) fn within(window: &Arc<Window>, lost: u64) -> Self {
        Self {
            window: Some(Counted {
                window: Arc::clone(window),
                lost,
            }),
            ..Self::default()
        }
    }

    /// The same, once the ring has lost this many events. The program reports a loss with the next
    /// event that has room, which may be in another window than the loss.
    pub(super) fn with_lost(mut self, lost: u64) -> Self {
        let before = self.window.as_ref().map_or(0, |counted| counted.lost);
        self.lost = lost.saturating_sub(before);
        self
    }

    pub(super) fn take(&mut self, function: FunctionId, kind: SiteKind, ticks: u64) {
        self.tally.passed += 1;
        if let Some(counted) = &self.window
            && !counted.window.has(ticks)
        {
            return;
        }
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

    /// The tally. Open calls have lasted up to the last event. Nothing is missing but the losses.
    fn finish(mut self) -> Tally {
        let end = self.extent.map_or(0, |(_, end)| end);
        for (function, since) in self.open {
            let share = self.tally.functions.entry(function).or_default();
            share.ticks = share.ticks.saturating_add(end.saturating_sub(since));
        }
        self.tally.unseen = self.lost;
        self.tally.lost = self.lost;
        self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pid::Pid;

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
            passed: 7,
            unseen: 3,
            lost: 3,
            functions: HashMap::from([
                (main, share(1, 1, 40)),
                (leaf, share(5, 2, 40)),
                (before, share(1, 0, 20)),
            ]),
        };
        assert_eq!(count.finish(), expected);
    }

    #[test]
    fn events_outside_of_a_window_do_not_count() {
        let window = Arc::new(Window::new(Arc::new(RunClocks::of(Pid::this(), &[]))));
        let mut count = Counting::within(&window, 7);
        let mut enter = |ticks| count.take(FunctionId(1), SiteKind::Call(CallKind::Enter), ticks);
        enter(ticks_now().0);
        let begin = window.begin().at.0;
        [begin - 1, begin, ticks_now().0]
            .into_iter()
            .for_each(&mut enter);
        let end = window.end().at.0;
        [end, end + 1].into_iter().for_each(&mut enter);
        // This loss was before the window.
        count.lose(7);
        let tally = count.with_lost(9).finish();
        assert_eq!((tally.events, tally.passed, tally.unseen), (3, 6, 2));
    }
}
