//! The threads of one target by their ids in the target's own pid namespace: their ids here, their
//! names, and which of them have ended.
//!
//! An id names a thread only for the thread's lifetime, since the kernel reuses ids. So a thread
//! that has a ring is identified by its id and its start time. Nothing here reads rings.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use crate::{
    pid::{Pid, Tid},
    sys::PidNamespace,
    target::{StartTime, ThreadCount, Threads},
};

/// A thread that no listing shows has ended if a listing this much later does not show it either. A
/// listing ends early when the thread at its current position ends.
const ABSENT_FOR: Duration = Duration::from_millis(100);

/// The translation of thread ids from the target's own pid namespace into ours. The files of each
/// thread are read once, since there may be very many threads.
#[derive(Debug)]
pub(super) struct Names {
    pid: Pid,
    /// `None` if the process was ending. Then it is listed each time.
    threads: Option<ThreadCount>,
    namespace: Namespace,
    /// The living threads of another namespace: by their ids here, and by their ids inside. Written
    /// by `living`.
    inner: HashMap<Tid, u32>,
    outer: HashMap<u32, Tid>,
    /// Threads that the kernel does not find for us and that no listing has shown, by their ids
    /// inside, and since when. Emptied by a listing that shows them, and when they count as ended.
    /// There are no more of them than rings and buckets.
    absent: HashMap<u32, Instant>,
    /// True if threads may have come since the last listing. Set by `expect_news`, cleared by
    /// `describe`.
    news: bool,
}

/// The pid namespace of the target.
#[derive(Debug)]
enum Namespace {
    /// Our own.
    Ours,
    /// Another one, if the kernel finds threads of it by their ids.
    Other(Option<PidNamespace>),
}

/// The thread that has an id now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bearer {
    /// It lives, and began at this time.
    Alive(StartTime),
    /// No living thread has the id.
    Gone,
    /// No listing has shown the id.
    Unseen,
}

/// The id of a thread in our namespace.
enum Outer {
    Id(Tid),
    None,
    Unknown,
}

// === impl Names ===

impl Names {
    pub(super) fn of(pid: Pid) -> Self {
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let namespace = match namespace("self") == namespace(&pid.to_string()) {
            true => Namespace::Ours,
            // Kernels before 6.11 do not have the request. Then listings are used.
            false => {
                let other = PidNamespace::of(pid).ok();
                Namespace::Other(other.filter(|other| other.find(0).is_ok()))
            }
        };
        Self::with(pid, namespace)
    }

    fn with(pid: Pid, namespace: Namespace) -> Self {
        Self {
            pid,
            threads: ThreadCount::open(pid).ok(),
            namespace,
            inner: HashMap::new(),
            outer: HashMap::new(),
            absent: HashMap::new(),
            news: true,
        }
    }

    /// The living threads, by their ids in the target. Empty if the process is ending. A listing
    /// may miss a living thread while others come and go (P1).
    pub(super) fn living(&mut self) -> HashSet<u32> {
        let threads = Threads::of(self.pid);
        if matches!(self.namespace, Namespace::Ours) {
            return threads.into_iter().map(Tid::as_u32).collect();
        }
        if threads.is_empty() {
            return HashSet::new();
        }
        let listed: HashSet<Tid> = threads.into_iter().collect();
        self.inner
            .retain(|tid, _| listed.contains(tid) || Threads::start_time(self.pid, *tid).is_some());
        for tid in listed {
            if !self.inner.contains_key(&tid)
                && let Some(id) = Threads::inner_id(self.pid, tid)
            {
                self.inner.insert(tid, id);
            }
        }
        self.outer = self.inner.iter().map(|(&tid, &id)| (id, tid)).collect();
        self.absent.retain(|id, _| !self.outer.contains_key(id));
        self.outer.keys().copied().collect()
    }

    /// The number of living threads. `None` if the process is ending.
    pub(super) fn count(&self) -> Option<u64> {
        self.threads.as_ref()?.get()
    }

    /// True if threads wait for a second listing, which shows whether they have ended.
    pub(super) fn miss_threads(&self) -> bool {
        !self.absent.is_empty()
    }

    /// The thread that has the id now.
    pub(super) fn bearer(&self, inner: u32) -> Bearer {
        match self.outer_id(inner) {
            Outer::Id(tid) => {
                Threads::start_time(self.pid, tid).map_or(Bearer::Gone, Bearer::Alive)
            }
            Outer::None => Bearer::Gone,
            Outer::Unknown => Bearer::Unseen,
        }
    }

    /// True if this very thread has ended, whether another one has its id now or not. For a thread
    /// whose start time was never seen, the id alone decides.
    pub(super) fn is_gone(&mut self, inner: u32, began: Option<StartTime>) -> bool {
        match self.bearer(inner) {
            Bearer::Alive(now) => began.is_some_and(|began| began != now),
            Bearer::Gone => true,
            Bearer::Unseen => {
                let since = *self.absent.entry(inner).or_insert_with(Instant::now);
                let gone = since.elapsed() >= ABSENT_FOR;
                if gone {
                    self.absent.remove(&inner);
                }
                gone
            }
        }
    }

    /// Makes the next unknown thread worth a listing. Unknown threads after it use the same
    /// listing.
    pub(super) fn expect_news(&mut self) {
        self.news = true;
    }

    /// The thread's id here, and its name. For a thread that has ended already, its id inside and
    /// no name.
    pub(super) fn describe(&mut self, inner: u32) -> (u32, String) {
        let mut outer = self.outer_id(inner);
        if matches!(outer, Outer::Unknown) && std::mem::take(&mut self.news) {
            self.living();
            outer = self.outer_id(inner);
        }
        match outer {
            Outer::Id(tid) => (tid.as_u32(), Threads::name(self.pid, tid)),
            Outer::None | Outer::Unknown => (inner, String::new()),
        }
    }

    fn outer_id(&self, inner: u32) -> Outer {
        let found = match &self.namespace {
            Namespace::Ours => Some(Tid::try_from(inner).ok()),
            Namespace::Other(Some(namespace)) => namespace.find(inner).ok(),
            Namespace::Other(None) => None,
        };
        match found {
            Some(Some(tid)) => Outer::Id(tid),
            Some(None) => Outer::None,
            None => match self.outer.get(&inner) {
                Some(&tid) => Outer::Id(tid),
                None => Outer::Unknown,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::sync_channel, thread};

    use super::*;

    /// The kernel finds threads of the other namespace, or listings are used. This process stands
    /// for a process of another namespace in which its threads have the same ids.
    #[test]
    fn a_thread_that_one_listing_misses_has_not_ended() {
        let pid = Pid::this();
        let namespace = PidNamespace::of(pid).unwrap();
        for namespace in [Some(namespace).filter(|n| n.find(0).is_ok()), None] {
            let mut names = Names::with(pid, Namespace::Other(namespace));
            names.living();
            // The thread begins after this listing, so the listing does not show it.
            let (begun, begins) = sync_channel(1);
            let (end, ends) = sync_channel::<()>(1);
            let later = thread::spawn(move || {
                begun.send(nix::unistd::gettid()).unwrap();
                ends.recv().unwrap();
            });
            let id = begins.recv().unwrap().as_raw().cast_unsigned();
            assert!(!names.is_gone(id, None));
            assert!(names.living().contains(&id));
            let Bearer::Alive(began) = names.bearer(id) else {
                panic!("{id} lives");
            };
            assert!(!names.is_gone(id, Some(began)));
            assert_eq!(names.describe(id).0, id);
            end.send(()).unwrap();
            later.join().unwrap();
            let deadline = Instant::now() + 100 * ABSENT_FOR;
            while !names.is_gone(id, Some(began)) {
                assert!(Instant::now() < deadline, "{id} has ended");
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_thread_is_gone_whose_number_another_one_has() {
        let pid = Pid::this();
        let own = nix::unistd::gettid().as_raw().cast_unsigned();
        let leader = pid.leader();
        let mut names = Names::of(pid);
        let Bearer::Alive(began) = names.bearer(own) else {
            panic!("this thread lives");
        };
        assert!(!names.is_gone(own, Some(began)) && !names.is_gone(own, None));
        let of_the_leader = Threads::start_time(pid, leader).unwrap();
        assert_eq!(
            names.is_gone(own, Some(of_the_leader)),
            of_the_leader != began
        );
        assert!(names.is_gone(u32::MAX, None));
    }
}
