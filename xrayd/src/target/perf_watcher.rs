//! The kernel's perf events, shared by all subscribers. However many sessions there are, the
//! machine pays for one event and one ring on each processor, and only while there is a
//! subscription.
//!
//! ```text
//!  kernel ─► rings ─► the thread `perf-events` ────────► notes for each subscription, and its
//!  eventfd └───► a subscriber in `catch_up` ────────┘
//! ```

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt::Debug,
    ops::Range,
    os::fd::AsFd as _,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};

use super::{
    perf_events::{ONLINE, PerfEvents, PerfUnavailable, Processors, Subject},
    record::PerfRecord,
};
use crate::{lock::lock, pid::Pid, tasks::LateWaker};

/// Most mappings that are remembered for each subscription.
const MARKS: usize = 256;
/// Shortest time between two wake-ups of the thread, also if subscribed processes are active
/// without pause.
const COALESCE: Duration = Duration::from_millis(1);
/// Most processes that are remembered for a subscription to all of them.
const TURNED: usize = 1024;
/// Time between two looks for new processors, in milliseconds.
const PROCESSORS_EVERY: u16 = 1000;

/// A thread or a task that waits for activity.
pub(crate) trait Subscriber: Debug + Send + Sync {
    /// Wakes it. Called from another thread.
    fn wake(&self);
}

/// The events of one subject. A registry has one watcher for each subject.
#[derive(Debug)]
pub(crate) struct PerfWatcher {
    subject: Subject,
    /// The file that lists the processors.
    online: PathBuf,
    /// Exists while there is a subscription.
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    shared: Arc<Shared>,
    subscriptions: usize,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    events: PerfEvents,
    /// Never locked before the rings of `perf-events`.
    listeners: Mutex<Listeners>,
    /// Signalled when the last subscription ends.
    over: EventFd,
}

/// The subscriptions.
#[derive(Debug, Default)]
struct Listeners {
    by_process: HashMap<u32, Vec<Arc<Noted>>>,
    /// Those to all processes.
    to_all: Vec<Arc<Noted>>,
}

/// A subscription to the activity of some processes.
#[derive(Debug)]
pub(crate) struct Subscription {
    perf_watcher: Arc<PerfWatcher>,
    shared: Arc<Shared>,
    noted: Arc<Noted>,
}

/// The activity of a subscription since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Activity {
    /// No activity.
    Nothing,
    /// Records were lost, most likely those of other processes. A process that causes many records
    /// could otherwise make every subscriber look as often as for its own processes.
    Lost,
    /// A subscribed process was active.
    Something,
}

/// The activity that is noted for a subscription.
#[derive(Debug)]
struct Noted {
    /// True if there was activity since the last look.
    any: AtomicBool,
    lost: AtomicBool,
    /// True if records were lost since the last [`Subscription::take_turned`].
    was_lost: AtomicBool,
    /// Time of the first of it, in nanoseconds of `CLOCK_MONOTONIC`; `u64::MAX` if there was none.
    since: AtomicU64,
    /// The latest mappings, the oldest first.
    marks: Mutex<VecDeque<Mark>>,
    /// The processes that were forked or executed a program since the last look, for a subscription
    /// to all of them.
    turned: Mutex<HashSet<u32>>,
    subscriber: Arc<dyn Subscriber>,
}

#[derive(Debug)]
struct Mark {
    range: Range<u64>,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    when: u64,
}

// === impl Subscriber for EventFd ===

/// A thread that waits for the descriptor. It clears it before it takes.
impl Subscriber for EventFd {
    fn wake(&self) {
        // The write fails only if the counter would overflow. The thread wakes up then as well.
        let _ = self.write(1);
    }
}

// === impl Subscriber for LateWaker ===

impl Subscriber for LateWaker {
    fn wake(&self) {
        Self::wake(self);
    }
}

// === impl PerfWatcher ===

impl PerfWatcher {
    pub(crate) fn new(subject: Subject) -> Arc<Self> {
        Self::on(subject, PathBuf::from(ONLINE))
    }

    fn on(subject: Subject, online: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            subject,
            online,
            open: Mutex::default(),
        })
    }

    /// Begins a subscription without processes. The subscriber is woken when there is something to
    /// [`Subscription::take`].
    pub(crate) fn listen(
        self: &Arc<Self>,
        subscriber: Arc<dyn Subscriber>,
    ) -> Result<Subscription, PerfUnavailable> {
        let mut open = lock(&self.open);
        let shared = match &mut *open {
            Some(open) => {
                open.subscriptions += 1;
                Arc::clone(&open.shared)
            }
            None => {
                let begun = Open::new(self.subject, self.online.clone())?;
                Arc::clone(&open.insert(begun).shared)
            }
        };
        let noted = Arc::new(Noted::new(subscriber));
        Ok(Subscription {
            perf_watcher: Arc::clone(self),
            shared,
            noted,
        })
    }
}

// === impl Open ===

impl Open {
    /// Opens the events, for one subscription.
    fn new(subject: Subject, online: PathBuf) -> Result<Self, PerfUnavailable> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let shared = Arc::new(Shared {
            events: PerfEvents::new(subject, online)?,
            listeners: Mutex::default(),
            over: EventFd::from_flags(flags)
                .map_err(|error| PerfUnavailable::Refused(error.into()))?,
        });
        let received = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("perf-events".to_owned())
            .spawn(move || received.run())
            .map_err(PerfUnavailable::Refused)?;
        Ok(Self {
            shared,
            subscriptions: 1,
            thread,
        })
    }
}

// === impl Shared ===

impl Shared {
    /// Passes on records until the last subscription ends.
    fn run(&self) {
        let mut events = self.events.descriptors();
        let mut asked = Instant::now();
        loop {
            let fds = events.iter().map(|event| event.as_fd());
            let fds = std::iter::once(self.over.as_fd()).chain(fds);
            let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            // An error, such as an interruption, only ends the wait early.
            let _ = poll(&mut fds, PollTimeout::from(PROCESSORS_EVERY));
            if self.over.read().is_ok() {
                break;
            }
            if asked.elapsed() >= Duration::from_millis(PROCESSORS_EVERY.into()) {
                asked = Instant::now();
                if self.events.follow_processors() == Processors::Others {
                    events = self.events.descriptors();
                    // Activity on them before this look was not recorded.
                    lock(&self.listeners).all(|noted| noted.ring_lost());
                }
            }
            self.hand_on();
            std::thread::sleep(COALESCE);
        }
    }

    /// Passes on records. When this returns, all records that were written before the call have
    /// been noted.
    fn hand_on(&self) {
        self.events.take(|notice| {
            let listeners = lock(&self.listeners);
            let to = |process: u32| listeners.by_process.get(&process).into_iter().flatten();
            match notice {
                PerfRecord::Mapped {
                    process,
                    range,
                    when,
                } => to(process).for_each(|noted| noted.mark(range.clone(), when)),
                PerfRecord::Turned {
                    process,
                    child,
                    when,
                } => {
                    to(process).for_each(|noted| noted.ring_since(when));
                    let to_all = listeners.to_all.iter();
                    to_all.for_each(|noted| noted.turned(child.unwrap_or(process), when));
                }
                // A process ends with its first thread, or soon after it.
                PerfRecord::Switched {
                    process,
                    thread,
                    switch,
                    ended: true,
                } if process == thread => {
                    to(process).for_each(|noted| noted.ring_since(switch.at_ns));
                }
                PerfRecord::Switched { .. } | PerfRecord::Event { .. } => {}
                PerfRecord::Lost(_) => listeners.all(|noted| noted.ring_lost()),
            }
        });
    }
}

// === impl Subscription ===

impl Subscription {
    /// Subscribes to this process, from now on.
    pub(crate) fn to(&self, pid: Pid) {
        let mut listeners = lock(&self.shared.listeners);
        let its = listeners.by_process.entry(pid.as_u32()).or_default();
        if !its.iter().any(|noted| Arc::ptr_eq(noted, &self.noted)) {
            its.push(Arc::clone(&self.noted));
        }
    }

    /// Ends the subscription to this process.
    pub(crate) fn not_to(&self, pid: Pid) {
        let mut listeners = lock(&self.shared.listeners);
        if let Some(its) = listeners.by_process.get_mut(&pid.as_u32()) {
            its.retain(|noted| !Arc::ptr_eq(noted, &self.noted));
            if its.is_empty() {
                listeners.by_process.remove(&pid.as_u32());
            }
        }
    }

    /// Subscribes to the forks and executed programs of all processes, from now on.
    pub(crate) fn to_all(&self) {
        let mut listeners = lock(&self.shared.listeners);
        listeners.to_all.push(Arc::clone(&self.noted));
    }

    /// The processes that were forked or executed a program since the last call. `None` if there
    /// were too many, or if records were lost: any process may have.
    pub(crate) fn take_turned(&self) -> Option<HashSet<u32>> {
        // Taken first: a process that comes in between is taken now, and wakes the subscriber.
        self.take();
        let was_lost = self.noted.was_lost.swap(false, Ordering::AcqRel);
        let turned = std::mem::take(&mut *lock(&self.noted.turned));
        (turned.len() < TURNED && !was_lost).then_some(turned)
    }

    /// Returns the activity since the last look.
    pub(crate) fn take(&self) -> Activity {
        self.noted.take()
    }

    /// True if there is activity to take, other than a loss.
    pub(crate) fn has_something(&self) -> bool {
        self.noted.any.load(Ordering::Acquire)
    }

    /// Returns the activity since the last look, including everything before this call.
    pub(crate) fn catch_up(&self) -> Activity {
        self.shared.hand_on();
        self.take()
    }

    /// Takes all activity before this call. Returns the time of its beginning, or 0 if that time is
    /// unknown. `None` if there was none.
    pub(crate) fn catch_up_since(&self) -> Option<u64> {
        self.catch_up();
        let since = self.noted.since.swap(u64::MAX, Ordering::AcqRel);
        (since != u64::MAX).then_some(since)
    }

    /// Time at which the memory at `address` was mapped, in nanoseconds of `CLOCK_MONOTONIC`, if
    /// that was recorded.
    pub(crate) fn mapped_at(&self, address: u64) -> Option<u64> {
        let marks = lock(&self.noted.marks);
        let mark = marks
            .iter()
            .rev()
            .find(|mark| mark.range.contains(&address))?;
        Some(mark.when)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut listeners = lock(&self.shared.listeners);
        let is_other = |noted: &Arc<Noted>| !Arc::ptr_eq(noted, &self.noted);
        listeners.to_all.retain(is_other);
        listeners.by_process.retain(|_, its| {
            its.retain(is_other);
            !its.is_empty()
        });
        drop(listeners);
        let mut open = lock(&self.perf_watcher.open);
        let Some(Open { subscriptions, .. }) = &mut *open else {
            return;
        };
        *subscriptions -= 1;
        if *subscriptions == 0
            && let Some(Open { shared, thread, .. }) = open.take()
        {
            // The eventfd cannot overflow: it is written once.
            let _ = shared.over.write(1);
            if thread.join().is_err() {
                tracing::error!("the thread that reads perf events panicked");
            }
        }
    }
}

// === impl Listeners ===

impl Listeners {
    fn all(&self, call: impl Fn(&Noted)) {
        let all = self.by_process.values().flatten().chain(&self.to_all);
        all.for_each(|noted| call(noted));
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.by_process.is_empty() && self.to_all.is_empty()
    }
}

// === impl Noted ===

impl Noted {
    fn new(subscriber: Arc<dyn Subscriber>) -> Self {
        Self {
            any: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            since: AtomicU64::new(u64::MAX),
            marks: Mutex::default(),
            turned: Mutex::default(),
            was_lost: AtomicBool::new(false),
            subscriber,
        }
    }

    fn mark(&self, range: Range<u64>, when: u64) {
        let mut marks = lock(&self.marks);
        if marks.len() == MARKS {
            marks.pop_front();
        }
        marks.push_back(Mark { range, when });
        drop(marks);
        self.ring_since(when);
    }

    fn turned(&self, process: u32, when: u64) {
        let mut turned = lock(&self.turned);
        if turned.len() < TURNED {
            turned.insert(process);
        }
        drop(turned);
        self.ring_since(when);
    }

    fn ring_since(&self, when: u64) {
        self.since.fetch_min(when, Ordering::AcqRel);
        if !self.any.swap(true, Ordering::AcqRel) {
            self.subscriber.wake();
        }
    }

    fn ring_lost(&self) {
        // The time is unknown.
        self.since.fetch_min(0, Ordering::AcqRel);
        self.was_lost.store(true, Ordering::Release);
        if !self.lost.swap(true, Ordering::AcqRel) {
            self.subscriber.wake();
        }
    }

    fn take(&self) -> Activity {
        let lost = self.lost.swap(false, Ordering::AcqRel);
        match (self.any.swap(false, Ordering::AcqRel), lost) {
            (true, _) => Activity::Something,
            (false, true) => Activity::Lost,
            (false, false) => Activity::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;
    use crate::sys::monotonic_now;

    fn eventfd() -> Arc<EventFd> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Arc::new(EventFd::from_flags(flags).unwrap())
    }

    fn subscription(perf_watcher: &Arc<PerfWatcher>) -> Option<Subscription> {
        subscription_of(eventfd(), perf_watcher)
    }

    /// `None`, with a message, where the kernel has no perf events for us.
    fn subscription_of(
        eventfd: Arc<EventFd>,
        perf_watcher: &Arc<PerfWatcher>,
    ) -> Option<Subscription> {
        match perf_watcher.listen(eventfd) {
            Ok(subscription) => Some(subscription),
            Err(why) => {
                assert!(std::env::var_os("CI").is_none(), "{why}");
                eprintln!("NOT RUN: {why}");
                None
            }
        }
    }

    fn is_rung(eventfd: &EventFd) -> bool {
        let mut fds = [PollFd::new(eventfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(10_000_u16)).unwrap() == 1
    }

    #[test]
    fn everybody_shares_the_events_and_the_last_one_closes_them() {
        let perf_watcher = PerfWatcher::new(Subject::Mappings);
        let Some(first) = subscription(&perf_watcher) else {
            return;
        };
        let others: Vec<Subscription> = (0..100)
            .map(|_| subscription(&perf_watcher).unwrap())
            .collect();
        for other in &others {
            assert!(Arc::ptr_eq(&other.shared, &first.shared));
            other.to(Pid::this());
        }
        drop(others);
        assert!(lock(&first.shared.listeners).is_empty());
        let shared = Arc::downgrade(&first.shared);
        drop(first);
        assert!(shared.upgrade().is_none() && lock(&perf_watcher.open).is_none());
        assert!(subscription(&perf_watcher).is_some());
    }

    #[test]
    fn a_subscriber_of_a_process_sees_its_forks() {
        let perf_watcher = PerfWatcher::new(Subject::Processes);
        let eventfd = eventfd();
        let Some(own) = subscription_of(Arc::clone(&eventfd), &perf_watcher) else {
            return;
        };
        let other = subscription(&perf_watcher).unwrap();
        // Other tests fork, too.
        let before = monotonic_now().unwrap();
        own.to(Pid::this());
        other.to(Pid::try_from(1).unwrap());
        Command::new("true").status().unwrap();
        let after = monotonic_now().unwrap();
        assert!(is_rung(&eventfd));
        let since = own.catch_up_since().unwrap();
        // Or a record was lost.
        assert!(
            (before..=after).contains(&since) || since == 0,
            "{before} {since} {after}"
        );
        own.not_to(Pid::this());
        own.catch_up();
        Command::new("true").status().unwrap();
        // Or a record was lost.
        assert_ne!(other.catch_up(), Activity::Something);
        assert_ne!(own.take(), Activity::Something);
    }

    #[test]
    fn a_subscriber_of_all_processes_sees_each_program_that_is_executed() {
        let perf_watcher = PerfWatcher::new(Subject::Processes);
        let eventfd = eventfd();
        let Some(all) = subscription_of(Arc::clone(&eventfd), &perf_watcher) else {
            return;
        };
        all.to_all();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let mut child = Command::new("true").spawn().unwrap();
            let pid = child.id();
            child.wait().unwrap();
            assert!(is_rung(&eventfd));
            all.shared.hand_on();
            match all.take_turned() {
                Some(turned) => {
                    assert!(turned.contains(&pid), "{pid}: {turned:?}");
                    break;
                }
                // On a busy machine a record may be lost.
                None => assert!(Instant::now() < deadline, "records are lost all the time"),
            }
        }
        // Many processes are no list any more.
        for process in 0..u32::try_from(TURNED).unwrap() {
            all.noted.turned(process, 1);
        }
        assert_eq!(all.take_turned(), None);
        assert!(all.take_turned().is_some());
        drop(all);
        assert!(lock(&perf_watcher.open).is_none());
    }

    /// A processor comes while there is a subscription. Activity on it before that counts as a
    /// loss, and activity after it is recorded.
    #[test]
    fn what_is_done_on_a_processor_that_comes_is_heard() {
        let online = std::fs::read_to_string(ONLINE).unwrap();
        let allowed = sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
        let cpus: Vec<usize> = (0..CpuSet::count())
            .filter(|&cpu| allowed.is_set(cpu).unwrap())
            .collect();
        let &[first, .., last] = &*cpus else {
            assert!(std::env::var_os("CI").is_none(), "a single processor");
            eprintln!("NOT RUN: a single processor");
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("online");
        std::fs::write(&list, first.to_string()).unwrap();
        let perf_watcher = PerfWatcher::on(Subject::Processes, list.clone());
        let Some(subscription) = subscription(&perf_watcher) else {
            return;
        };
        subscription.to(Pid::this());
        // Other tests fork on other processors. This list lacks all processors but one.
        let fork = || {
            let mut there = CpuSet::new();
            there.set(last).unwrap();
            let mut command = Command::new("true");
            std::thread::spawn(move || {
                sched_setaffinity(nix::unistd::Pid::from_raw(0), &there).unwrap();
                command.status().unwrap();
            })
            .join()
            .unwrap();
        };
        let events = || subscription.shared.events.descriptors().len();
        assert_eq!(events(), 1);
        std::fs::write(&list, &online).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        // On a busy machine a record may be lost before.
        while events() == 1 || !subscription.noted.lost.load(Ordering::Acquire) {
            assert!(Instant::now() < deadline, "the processor is not found");
            std::thread::sleep(Duration::from_millis(10));
        }
        loop {
            subscription.catch_up();
            fork();
            if subscription.catch_up() == Activity::Something {
                break;
            }
            assert!(Instant::now() < deadline, "a fork there is not heard");
        }
        // The event of a processor that goes is closed.
        std::fs::write(&list, first.to_string()).unwrap();
        while events() > 1 {
            assert!(Instant::now() < deadline, "the processor is not let go of");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_subscriber_that_loses_records_is_informed() {
        let eventfd = eventfd();
        let noted = Noted::new(Arc::<EventFd>::clone(&eventfd));
        for when in 0..10 * MARKS as u64 {
            noted.mark(0..1, when);
        }
        assert_eq!(lock(&noted.marks).len(), MARKS);
        assert_eq!(eventfd.read().unwrap(), 1);
        assert_eq!(noted.take(), Activity::Something);
    }

    #[test]
    fn what_was_lost_is_distinguished_from_what_was_heard() {
        let eventfd = eventfd();
        let noted = Noted::new(Arc::<EventFd>::clone(&eventfd));
        noted.ring_lost();
        noted.ring_lost();
        assert_eq!(eventfd.read().unwrap(), 1);
        assert_eq!(noted.since.load(Ordering::Acquire), 0);
        assert_eq!(noted.take(), Activity::Lost);
        assert_eq!(noted.take(), Activity::Nothing);
        noted.ring_lost();
        noted.ring_since(7);
        assert_eq!(noted.take(), Activity::Something);
        assert_eq!(noted.take(), Activity::Nothing);
    }
}
