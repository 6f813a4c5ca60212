//! The drain as a task: a step is one request, a round, and the chores that are due.

use std::{
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    },
    time::Instant,
};

use shm_ring::Mapping;

use super::{
    Drain, LOST_RINGS, SumsKeeper,
    handle::{DrainCaller, DrainHandle, Request},
    rest::{Rest, finds_news},
};
use crate::{
    collect::{
        SiteTable,
        activity::{CALM, Collectors, ScannerHandle, Words},
        ring_budget::RingBudget,
        slots::Slots,
    },
    inject::Installed,
    liveness::{Liveness, MOST_REQUESTS, UntilEnd},
    panics::message_of,
    pid::Pid,
    quotas::Ticket,
    store::EventStore,
    sys::{Memory, prefer_thread},
    tasks::{Next, Task, WakeAtEnd, shared_time_after},
};

/// A drain, and its ends of what [`DrainHandle`] has.
struct DrainTask {
    drain: Drain,
    requests: Receiver<Request>,
    liveness: Arc<Liveness>,
    is_abandoned: Arc<AtomicBool>,
    is_woken: Arc<AtomicBool>,
    header: Arc<Mapping>,
    /// The end of the rest, unless the drain is woken before.
    rests_until: Option<Instant>,
    /// Where the drain rests. It is set once the task is in the pool.
    scanner: Arc<OnceLock<ScannerHandle>>,
    _until_end: UntilEnd,
    /// The drain can outlive the session while it hangs.
    _ticket: Arc<Ticket>,
    /// Dropped last: it says that everything else is gone.
    _ended: SyncSender<Infallible>,
}

/// Begins the drain of a session, and adds it to the pool of collectors.
///
/// # Errors
/// The system cannot start a thread.
pub(crate) fn spawn(
    collectors: &Collectors,
    pid: Pid,
    memory: Arc<Memory>,
    installed: Installed,
    budget: RingBudget,
    sites: SiteTable,
    (output, keeper, ticket): (Arc<EventStore>, SumsKeeper, Arc<Ticket>),
) -> std::io::Result<DrainHandle> {
    let Installed {
        layout,
        rings,
        rings_file,
        adopted,
        closed,
        ..
    } = installed;
    let mut slots = Slots::new(layout, rings, rings_file);
    slots.filtered = adopted;
    slots.profiled = adopted && slots.layout.geometry.has_profiles();
    let pool = collectors.begin()?;
    let header = Arc::new(slots.map_header()?);
    let mut drain = Drain::new(pid, memory, slots, budget, sites, Arc::clone(&output));
    if let Some(closed) = closed {
        drain.owners.rings.decoders.switches().mark_all(closed.end);
    }
    drain.begin_with(keeper);
    let switches = Arc::clone(drain.owners.rings.decoders.switches());
    let (requests, received) = sync_channel(MOST_REQUESTS);
    let (ends, ended) = sync_channel(0);
    let liveness = Liveness::new(pid);
    let is_abandoned = Arc::new(AtomicBool::new(false));
    let is_woken = Arc::new(AtomicBool::new(false));
    let scanner = Arc::new(OnceLock::new());
    let task = DrainTask {
        drain,
        requests: received,
        _until_end: liveness.until_end(),
        liveness: Arc::clone(&liveness),
        is_abandoned: Arc::clone(&is_abandoned),
        is_woken: Arc::clone(&is_woken),
        header: Arc::clone(&header),
        rests_until: None,
        scanner: Arc::clone(&scanner),
        _ticket: ticket,
        _ended: ends,
    };
    let waker = pool.add(task);
    // This is the only place that sets it.
    let _ = scanner.set(collectors.scanner_handle(&header, &waker));
    output.drain.set(waker);
    let waker = output.drain.clone();
    Ok(DrainHandle {
        caller: DrainCaller {
            requests,
            _end: Arc::new(WakeAtEnd(waker.clone())),
            waker,
            liveness,
            is_woken,
        },
        is_abandoned,
        ended,
        switches,
    })
}

// === impl DrainTask ===

impl Task for DrainTask {
    fn step(&mut self) -> Next {
        prefer_thread(self.drain.owners.rings.is_filling);
        self.liveness.begins_step();
        // Nothing uses the drain after a panic. What it shares is consistent between statements.
        let stepped = catch_unwind(AssertUnwindSafe(|| self.turn()));
        self.liveness.ends_step();
        let next = stepped.unwrap_or_else(|payload| {
            let message = format!("a bug in xrayd: {}", message_of(&*payload));
            self.drain.owners.rings.output.fail(message);
            Next::Done
        });
        // Until the thread's next step: it is to get a processor for that in time.
        prefer_thread(next != Next::Done && self.drain.owners.rings.is_filling);
        next
    }
}

impl DrainTask {
    fn turn(&mut self) -> Next {
        let rests_until = self.rests_until.take();
        self.drain.last.is_asked |= rests_until.is_some_and(|until| Instant::now() < until);
        if let Some(scanner) = self.scanner.get() {
            scanner.leave();
        }
        let request = self.requests.try_recv();
        // A drain that hung may have been given up.
        if self.is_abandoned.load(Relaxed) {
            self.drain.publish_last();
            return Next::Done;
        }
        let has_request = request.is_ok();
        match request {
            Ok(request) => {
                if matches!(request, Request::Wake) {
                    self.is_woken.store(false, Relaxed);
                }
                if !self.drain.carry_out(request) {
                    return Next::Done;
                }
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                self.drain.finish();
                return Next::Done;
            }
        }
        self.drain.settle_mode();
        let words = Words::of(&self.header);
        let news = words.since(&self.drain.last.words);
        self.drain.last.words = words;
        if self.drain.last.needs_rings(news) {
            self.drain.owners.discover();
        }
        if news.long_calls {
            self.drain.owners.rings.read_long_calls();
        }
        let busy = self.drain.read(true);
        // Each may hang in the target's memory, which another tracer may have by then.
        for step in [|drain: &mut Drain| drain.owners.open_slots(), Drain::chores] {
            if self.is_abandoned.load(Relaxed) {
                self.drain.publish_last();
                return Next::Done;
            }
            step(&mut self.drain);
        }
        let rings = &self.drain.owners.rings;
        if rings.slots.rings.is_broken() {
            rings.output.fail(LOST_RINGS.to_owned());
            return Next::Done;
        }
        if has_request {
            // Another one may wait.
            return Next::Now;
        }
        let rest = self.drain.rest(busy, news);
        self.drain.last.was_quiet = !finds_news(busy, news);
        match (rest, self.scanner.get()) {
            (Rest::None, _) => Next::Now,
            (Rest::For(pause), _) => Next::At(Instant::now() + pause),
            (Rest::Until(pause, wants), Some(scanner)) => {
                scanner.rest(words, wants);
                let until = shared_time_after(pause);
                self.rests_until = Some(until);
                Next::At(until)
            }
            // It is set at any moment.
            (Rest::Until(..), None) => Next::At(Instant::now() + CALM),
        }
    }
}
