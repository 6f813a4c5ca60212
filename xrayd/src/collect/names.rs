//! The threads of one target by the ids that they have in the target's own pid namespace: their ids
//! here, their names, and which of them have ended.
//!
//! A number names a thread only as long as that lives: the kernel gives numbers out anew. So a
//! thread that has a ring is known by its number and its start time.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use crate::{
    pid::{Pid, Tid},
    sys::PidNamespace,
    target::{StartTime, Threads},
};

/// A thread that no listing shows has ended if a listing so much later does not show it either. A
/// listing ends early when the thread ends that it has come to.
const ABSENT_FOR: Duration = Duration::from_millis(100);

/// Thread ids of the target's own pid namespace, in ours. Each thread's files are read once; there
/// may be very many threads.
#[derive(Debug)]
pub(super) struct Names {
    pid: Pid,
    same_namespace: bool,
    /// The other namespace, where the kernel finds threads of it.
    namespace: Option<PidNamespace>,
    /// In another namespace, the living threads: by their id here, and by the one inside. Kept by
    /// `living`.
    inner: HashMap<Tid, u32>,
    outer: HashMap<u32, Tid>,
    /// Threads that the kernel does not find for us and no listing has shown, by the id inside, and
    /// since when. Emptied by a listing that shows them, and when they count as ended; there are no
    /// more than rings and buckets.
    absent: HashMap<u32, Instant>,
    /// Threads may have come since the last listing. Set by `expect_news`, cleared by `describe`.
    news: bool,
}

/// What is known of the thread that has a number now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bearer {
    /// It lives, and began then.
    Alive(StartTime),
    /// No living thread has the number.
    Gone,
    /// Nothing: no listing has shown it.
    Unseen,
}

/// Where a thread is looked for.
enum Outer {
    Id(Tid),
    None,
    Unknown,
}

// === impl Names ===

impl Names {
    pub(super) fn of(pid: Pid) -> Self {
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let same_namespace = namespace("self") == namespace(&pid.to_string());
        let other = match same_namespace {
            true => None,
            // Kernels before 6.11 do not know the question: then listings have to do.
            false => PidNamespace::of(pid)
                .ok()
                .filter(|other| other.find(0).is_ok()),
        };
        Self::with(pid, same_namespace, other)
    }

    fn with(pid: Pid, same_namespace: bool, namespace: Option<PidNamespace>) -> Self {
        Self {
            pid,
            same_namespace,
            namespace,
            inner: HashMap::new(),
            outer: HashMap::new(),
            absent: HashMap::new(),
            news: true,
        }
    }

    /// The threads that live now, as the target knows them. Empty if the process is ending. A
    /// listing may miss a living thread while others come and go (P1).
    pub(super) fn living(&mut self) -> HashSet<u32> {
        let threads = Threads::of(self.pid);
        if self.same_namespace {
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

    /// What is known of the thread that has the number now.
    pub(super) fn bearer(&self, inner: u32) -> Bearer {
        match self.outer_id(inner) {
            Outer::Id(tid) => {
                Threads::start_time(self.pid, tid).map_or(Bearer::Gone, Bearer::Alive)
            }
            Outer::None => Bearer::Gone,
            Outer::Unknown => Bearer::Unseen,
        }
    }

    /// True if this very thread has ended, whether another one has its number now or not. Of one
    /// whose start time was never seen the number has to do.
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

    /// Makes the next thread that is not known worth a listing; those after it have the same one.
    pub(super) fn expect_news(&mut self) {
        self.news = true;
    }

    /// The thread's id here, and its name; the id inside and no name for one that has ended
    /// already.
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
            _ if self.same_namespace => Some(Tid::try_from(inner).ok()),
            Some(namespace) => namespace.find(inner).ok(),
            None => None,
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

    /// Whether the kernel finds threads of the other namespace, or listings have to do. This
    /// process stands for one of another namespace, in which its threads have the same numbers.
    #[test]
    fn a_thread_that_one_listing_misses_has_not_ended() {
        let pid = Pid::this();
        let namespace = PidNamespace::of(pid).unwrap();
        for namespace in [Some(namespace).filter(|n| n.find(0).is_ok()), None] {
            let mut names = Names::with(pid, false, namespace);
            names.living();
            // It has begun since, so that listing does not show it.
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
