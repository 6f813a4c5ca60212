//! The kernel's notices, heard once for everybody: however many sessions there are, the machine pays for one event and one ring on
//! each processor, as long as anybody listens.
//!
//! ```text
//!  kernel ─► rings ─► the thread `notices` ──────────► notes for each subscription, and its bell
//!               └───► whoever has to know it now ──────────┘
//! ```

use std::{
    collections::{HashMap, VecDeque},
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
    notices::{Notices, ONLINE, PerfUnavailable, Processors, Subject},
    record::Notice,
};
use crate::{lock::lock, pid::Pid};

/// Mappings remembered for each subscription.
const MARKS: usize = 256;
/// Programs that do without pause what is listened to wake the thread once in this time.
const COALESCE: Duration = Duration::from_millis(1);
/// Processors that came are looked for once in this time, in milliseconds.
const PROCESSORS_EVERY: u16 = 1000;

/// Where everybody listens. One for a registry and subject.
#[derive(Debug)]
pub(crate) struct PerfWatcher {
    subject: Subject,
    /// The file that lists the processors.
    online: PathBuf,
    /// While anybody listens.
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    shared: Arc<Shared>,
    ears: usize,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    notices: Notices,
    /// Who listens to which processes. Never locked before the rings of `notices`.
    listeners: Mutex<HashMap<u32, Vec<Arc<Noted>>>>,
    /// Rung when nobody listens any more.
    over: EventFd,
}

/// Hears what some processes do.
#[derive(Debug)]
pub(crate) struct Subscription {
    perf_watcher: Arc<PerfWatcher>,
    shared: Arc<Shared>,
    noted: Arc<Noted>,
}

/// What a subscription has heard since the last time it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Heard {
    /// Nothing.
    Nothing,
    /// Notices were lost, most likely of others: whoever makes many could else have everybody look as often as for their own.
    Lost,
    /// Something that is listened to.
    Something,
}

/// What was heard for a subscription.
#[derive(Debug)]
struct Noted {
    /// Since the last time it was asked for.
    any: AtomicBool,
    lost: AtomicBool,
    /// When the first of that happened, in nanoseconds of `CLOCK_MONOTONIC`; the greatest number if nothing has.
    since: AtomicU64,
    /// What was mapped lately, the oldest first.
    marks: Mutex<VecDeque<Mark>>,
    bell: Arc<EventFd>,
}

#[derive(Debug)]
struct Mark {
    range: Range<u64>,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    when: u64,
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

    /// Begins a subscription without processes. `bell` is rung when there is something to
    /// [`Subscription::take`]. The subscriber clears it before it takes.
    pub(crate) fn listen(
        self: &Arc<Self>,
        bell: Arc<EventFd>,
    ) -> Result<Subscription, PerfUnavailable> {
        let mut open = lock(&self.open);
        let shared = match &mut *open {
            Some(open) => {
                open.ears += 1;
                Arc::clone(&open.shared)
            }
            None => {
                let begun = Open::new(self.subject, self.online.clone())?;
                Arc::clone(&open.insert(begun).shared)
            }
        };
        let noted = Arc::new(Noted::new(bell));
        Ok(Subscription {
            perf_watcher: Arc::clone(self),
            shared,
            noted,
        })
    }
}

// === impl Open ===

impl Open {
    /// With one subscription.
    fn new(subject: Subject, online: PathBuf) -> Result<Self, PerfUnavailable> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let shared = Arc::new(Shared {
            notices: Notices::new(subject, online)?,
            listeners: Mutex::default(),
            over: EventFd::from_flags(flags)
                .map_err(|error| PerfUnavailable::Refused(error.into()))?,
        });
        let heard = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("notices".to_owned())
            .spawn(move || heard.run())
            .map_err(PerfUnavailable::Refused)?;
        Ok(Self {
            shared,
            ears: 1,
            thread,
        })
    }
}

// === impl Shared ===

impl Shared {
    /// Hands on what is heard until nobody listens any more.
    fn run(&self) {
        let mut events = self.notices.descriptors();
        let mut asked = Instant::now();
        loop {
            let fds = events.iter().map(|event| event.as_fd());
            let fds = std::iter::once(self.over.as_fd()).chain(fds);
            let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            // An error, as an interruption, is a wait that ends early.
            let _ = poll(&mut fds, PollTimeout::from(PROCESSORS_EVERY));
            if self.over.read().is_ok() {
                break;
            }
            if asked.elapsed() >= Duration::from_millis(PROCESSORS_EVERY.into()) {
                asked = Instant::now();
                if self.notices.follow_processors() == Processors::Others {
                    events = self.notices.descriptors();
                    // What was done there before.
                    let listeners = lock(&self.listeners);
                    let all = listeners.values().flatten();
                    all.for_each(|noted| noted.ring_lost());
                }
            }
            self.hand_on();
            std::thread::sleep(COALESCE);
        }
    }

    /// When this returns, everything that was written before it began has been noted.
    fn hand_on(&self) {
        self.notices.take(|notice| {
            let listeners = lock(&self.listeners);
            let to = |process: u32| listeners.get(&process).into_iter().flatten();
            match notice {
                Notice::Mapped {
                    process,
                    range,
                    when,
                } => to(process).for_each(|noted| noted.mark(range.clone(), when)),
                Notice::Turned { process, when } => {
                    to(process).for_each(|noted| noted.ring_since(when));
                }
                Notice::Lost => {
                    let all = listeners.values().flatten();
                    all.for_each(|noted| noted.ring_lost());
                }
            }
        });
    }
}

// === impl Subscription ===

impl Subscription {
    /// From now on, what this process does is heard.
    pub(crate) fn to(&self, pid: Pid) {
        let mut listeners = lock(&self.shared.listeners);
        let its = listeners.entry(pid.as_u32()).or_default();
        if !its.iter().any(|noted| Arc::ptr_eq(noted, &self.noted)) {
            its.push(Arc::clone(&self.noted));
        }
    }

    /// It is not heard any more.
    pub(crate) fn not_to(&self, pid: Pid) {
        let mut listeners = lock(&self.shared.listeners);
        if let Some(its) = listeners.get_mut(&pid.as_u32()) {
            its.retain(|noted| !Arc::ptr_eq(noted, &self.noted));
            if its.is_empty() {
                listeners.remove(&pid.as_u32());
            }
        }
    }

    /// What was heard since the last time.
    pub(crate) fn take(&self) -> Heard {
        self.noted.take()
    }

    /// True if something is there to be taken that is not just a loss.
    pub(crate) fn has_something(&self) -> bool {
        self.noted.any.load(Ordering::Acquire)
    }

    /// The same, at once: everything that has happened before this is called.
    pub(crate) fn catch_up(&self) -> Heard {
        self.shared.hand_on();
        self.take()
    }

    /// The same; when the first of it happened, or 0 if nobody knows.
    pub(crate) fn catch_up_since(&self) -> Option<u64> {
        self.catch_up();
        let since = self.noted.since.swap(u64::MAX, Ordering::AcqRel);
        (since != u64::MAX).then_some(since)
    }

    /// When what is at `address` was mapped, in nanoseconds of `CLOCK_MONOTONIC`, if that was heard.
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
        listeners.retain(|_, its| {
            its.retain(|noted| !Arc::ptr_eq(noted, &self.noted));
            !its.is_empty()
        });
        drop(listeners);
        let mut open = lock(&self.perf_watcher.open);
        let Some(Open { ears, .. }) = &mut *open else {
            return;
        };
        *ears -= 1;
        if *ears == 0
            && let Some(Open { shared, thread, .. }) = open.take()
        {
            // It cannot overflow: it is written once.
            let _ = shared.over.write(1);
            if thread.join().is_err() {
                tracing::error!("the thread that hears the kernel's notices panicked");
            }
        }
    }
}

// === impl Noted ===

impl Noted {
    fn new(bell: Arc<EventFd>) -> Self {
        Self {
            any: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            since: AtomicU64::new(u64::MAX),
            marks: Mutex::default(),
            bell,
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

    fn ring_since(&self, when: u64) {
        self.since.fetch_min(when, Ordering::AcqRel);
        if !self.any.swap(true, Ordering::AcqRel) {
            // One that has been rung so often that it overflows is heard all the same.
            let _ = self.bell.write(1);
        }
    }

    fn ring_lost(&self) {
        // Nobody knows since when.
        self.since.fetch_min(0, Ordering::AcqRel);
        if !self.lost.swap(true, Ordering::AcqRel) {
            let _ = self.bell.write(1);
        }
    }

    fn take(&self) -> Heard {
        let lost = self.lost.swap(false, Ordering::AcqRel);
        match (self.any.swap(false, Ordering::AcqRel), lost) {
            (true, _) => Heard::Something,
            (false, true) => Heard::Lost,
            (false, false) => Heard::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;
    use crate::sys::monotonic_now;

    fn bell() -> Arc<EventFd> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Arc::new(EventFd::from_flags(flags).unwrap())
    }

    /// `None`, said aloud, where the kernel gives no notice.
    fn subscription(perf_watcher: &Arc<PerfWatcher>) -> Option<Subscription> {
        match perf_watcher.listen(bell()) {
            Ok(subscription) => Some(subscription),
            Err(why) => {
                assert!(std::env::var_os("CI").is_none(), "{why}");
                eprintln!("NOT RUN: {why}");
                None
            }
        }
    }

    fn is_rung(subscription: &Subscription) -> bool {
        let mut fds = [PollFd::new(
            subscription.noted.bell.as_fd(),
            PollFlags::POLLIN,
        )];
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
    fn who_listens_to_a_process_hears_that_it_forks() {
        let perf_watcher = PerfWatcher::new(Subject::Processes);
        let Some(own) = subscription(&perf_watcher) else {
            return;
        };
        let other = subscription(&perf_watcher).unwrap();
        // Other tests fork, too.
        let before = monotonic_now().unwrap();
        own.to(Pid::this());
        other.to(Pid::try_from(1).unwrap());
        Command::new("true").status().unwrap();
        let after = monotonic_now().unwrap();
        assert!(is_rung(&own));
        let since = own.catch_up_since().unwrap();
        // Or something was lost.
        assert!(
            (before..=after).contains(&since) || since == 0,
            "{before} {since} {after}"
        );
        own.not_to(Pid::this());
        own.catch_up();
        Command::new("true").status().unwrap();
        // Or something was lost.
        assert_ne!(other.catch_up(), Heard::Something);
        assert_ne!(own.take(), Heard::Something);
    }

    /// A processor that comes while somebody listens: what was done on it before is told as a loss, what is done then is heard.
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
        // Other tests fork on other processors; of this list all but one are unheard of.
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
        let events = || subscription.shared.notices.descriptors().len();
        assert_eq!(events(), 1);
        std::fs::write(&list, &online).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        // On a busy machine something may be lost before.
        while events() == 1 || !subscription.noted.lost.load(Ordering::Acquire) {
            assert!(Instant::now() < deadline, "the processor is not found");
            std::thread::sleep(Duration::from_millis(10));
        }
        loop {
            subscription.catch_up();
            fork();
            if subscription.catch_up() == Heard::Something {
                break;
            }
            assert!(Instant::now() < deadline, "a fork there is not heard");
        }
        // One that goes is let go of.
        std::fs::write(&list, first.to_string()).unwrap();
        while events() > 1 {
            assert!(Instant::now() < deadline, "the processor is not let go of");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn who_loses_notices_is_told() {
        let noted = Noted::new(bell());
        for when in 0..10 * MARKS as u64 {
            noted.mark(0..1, when);
        }
        assert_eq!(lock(&noted.marks).len(), MARKS);
        assert_eq!(noted.bell.read().unwrap(), 1);
        assert_eq!(noted.take(), Heard::Something);
    }

    #[test]
    fn what_was_lost_is_told_apart_from_what_was_heard() {
        let noted = Noted::new(bell());
        noted.ring_lost();
        noted.ring_lost();
        assert_eq!(noted.bell.read().unwrap(), 1);
        assert_eq!(noted.since.load(Ordering::Acquire), 0);
        assert_eq!(noted.take(), Heard::Lost);
        assert_eq!(noted.take(), Heard::Nothing);
        noted.ring_lost();
        noted.ring_since(7);
        assert_eq!(noted.take(), Heard::Something);
        assert_eq!(noted.take(), Heard::Nothing);
    }
}
