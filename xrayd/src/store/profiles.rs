//! Sums of calls: those that are kept while the mode is [`Mode::Profile`](super::Mode::Profile), and those for who asked to have some made for a while.
//!
//! The drain's lanes make them, each of its own thread, and hand them over when a thread ends and when somebody asks. What is handed over goes to
//! everybody who wants it, so that nobody's sums depend on another's.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use xray_trace::{
    analysis::{ProfileRoom, StackSums},
    model::{ProcessId, Thread, ThreadId, Ticks},
};

use crate::{
    lock::lock,
    store::metering::Meter,
    sys::ticks_now,
    target::{Functions, Loaded},
};

/// Memory for the sums of the threads that run, and for those that somebody has, each.
const ROOM_BYTES: usize = 128 << 20;
/// Threads that have ended whose sums are kept apart.
const ENDED_APART: usize = 1024;
/// The thread of which the sums of other threads are that have ended. No thread has this id.
const OTHERS: ThreadId = ThreadId(u32::MAX - 2);

/// Who wants sums, and what they have.
#[derive(Debug)]
pub(crate) struct Profiles {
    process: ProcessId,
    /// For the lanes.
    lanes: ProfileRoom,
    /// For what they hand over.
    sums: ProfileRoom,
    wanted: Mutex<Wanted>,
    /// Somebody has asked for sums.
    asked: AtomicBool,
    next: AtomicU64,
    /// Who measures calls for as long as the session lives, if anybody does. Set before the drain begins.
    meter: OnceLock<Arc<Meter>>,
}

#[derive(Debug, Default)]
struct Wanted {
    kept: Option<ProfileSums>,
    asked: BTreeMap<u64, ProfileSums>,
}

/// The sums of one process, by thread.
#[derive(Debug, Clone, Default)]
pub struct ProfileSums {
    threads: BTreeMap<ThreadId, Known>,
    ended: usize,
    /// From when on calls are in them; `None` in those of a session that is over.
    since: Option<Ticks>,
}

#[derive(Debug, Clone)]
struct Known {
    thread: Thread,
    ended: bool,
    sums: StackSums,
}

/// What somebody asks, who is answered when everything that was recorded is in the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// To make some from now on, under this number.
    Begin(u64),
    /// For those, and to make them no longer.
    End(u64),
    /// For what is kept.
    Kept,
}

// === impl Profiles ===

impl Profiles {
    pub(crate) fn new(process: ProcessId) -> Self {
        Self {
            process,
            lanes: ProfileRoom::new(ROOM_BYTES),
            sums: ProfileRoom::new(ROOM_BYTES),
            wanted: Mutex::default(),
            asked: AtomicBool::new(false),
            next: AtomicU64::new(0),
            meter: OnceLock::new(),
        }
    }

    /// What the lanes may take.
    pub(crate) fn room(&self) -> ProfileRoom {
        self.lanes.clone()
    }

    /// A number that nobody has.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// From now on calls are measured.
    pub(crate) fn measure(&self, meter: Arc<Meter>) {
        // There is one for a session, at its begin.
        let _ = self.meter.set(meter);
    }

    /// A module has come, of which nothing is on. By the control thread.
    pub(crate) fn came(&self, functions: &Functions, loaded: &Loaded) {
        if let Some(meter) = self.meter.get() {
            meter.choose(functions, loaded);
        }
    }

    /// Somebody measures calls of this process.
    pub(crate) fn are_measured(&self) -> bool {
        self.meter.get().is_some_and(|meter| meter.wants())
    }

    /// Nothing will be handed over any more.
    pub(crate) fn close(&self) {
        if let Some(meter) = self.meter.get() {
            meter.close();
        }
    }

    /// Somebody has asked for sums, or measures calls.
    pub(super) fn are_asked_for(&self) -> bool {
        self.asked.load(Relaxed) || self.are_measured()
    }

    /// From now on sums are kept, or what was kept is forgotten. By the drain.
    pub(crate) fn keep(&self, keep: bool) {
        let mut wanted = lock(&self.wanted);
        match keep {
            true => drop(wanted.kept.get_or_insert_with(ProfileSums::begin)),
            false => wanted.kept = None,
        }
    }

    /// A thread's sums since the last time.
    pub(crate) fn hand_over(&self, thread: Thread, ended: bool, sums: &StackSums) {
        let mut wanted = lock(&self.wanted);
        let Wanted { kept, asked } = &mut *wanted;
        for whose in kept.iter_mut().chain(asked.values_mut()) {
            whose.add(&thread, ended, sums, (self.process, &self.sums));
        }
        drop(wanted);
        if let Some(meter) = self.meter.get() {
            meter.add(sums);
        }
    }

    /// By the drain, or, once that has read all there was, by anybody.
    pub(crate) fn answer(&self, ask: Ask) -> Option<ProfileSums> {
        let mut wanted = lock(&self.wanted);
        let answer = match ask {
            Ask::Begin(number) => {
                wanted.asked.insert(number, ProfileSums::begin());
                None
            }
            Ask::End(number) => wanted.asked.remove(&number),
            Ask::Kept => wanted.kept.clone(),
        };
        self.asked.store(!wanted.asked.is_empty(), Relaxed);
        answer
    }
}

// === impl ProfileSums ===

impl ProfileSums {
    /// None so far, of what happens from now on.
    fn begin() -> Self {
        Self {
            since: Some(ticks_now()),
            ..Self::default()
        }
    }

    /// From when on calls are in them, if that is known.
    pub(crate) fn since(&self) -> Option<Ticks> {
        self.since
    }

    /// Every thread, and its sums.
    pub(crate) fn threads(&self) -> impl Iterator<Item = (&Thread, &StackSums)> {
        self.threads
            .values()
            .map(|known| (&known.thread, &known.sums))
    }

    fn add(
        &mut self,
        thread: &Thread,
        ended: bool,
        sums: &StackSums,
        (process, room): (ProcessId, &ProfileRoom),
    ) {
        let known = self.threads.entry(thread.id).or_insert_with(|| Known {
            thread: thread.clone(),
            ended: false,
            sums: StackSums::new(room.clone()),
        });
        known.sums.add(sums);
        if !ended || std::mem::replace(&mut known.ended, true) {
            return;
        }
        self.ended += 1;
        if self.ended > ENDED_APART {
            self.put_together(process, room);
        }
    }

    /// The sums of those threads that ended first, or nearly, become one.
    fn put_together(&mut self, process: ProcessId, room: &ProfileRoom) {
        let first = self.threads.iter().find(|(_, known)| known.ended);
        let Some(id) = first.map(|(id, _)| *id) else {
            return;
        };
        let Some(first) = self.threads.remove(&id) else {
            return;
        };
        self.ended -= 1;
        let others = self.threads.entry(OTHERS).or_insert_with(|| Known {
            thread: Thread {
                id: OTHERS,
                process,
                tid: 0,
                name: "(threads that have ended)".to_owned(),
            },
            ended: false,
            sums: StackSums::new(room.clone()),
        });
        others.sums.add(&first.sums);
    }
}

#[cfg(test)]
mod tests {
    use xray_trace::{analysis::Profiler, model::FunctionId};

    use super::*;

    fn sums(calls: u64) -> StackSums {
        let mut profiler = Profiler::new(ProfileRoom::new(1 << 20));
        for at in 0..calls {
            profiler.enter(FunctionId(1), at * 10);
            profiler.exit(FunctionId(1), at * 10 + 5);
        }
        profiler.take()
    }

    fn thread(id: u32) -> Thread {
        Thread {
            id: ThreadId(id),
            process: ProcessId(0),
            tid: id + 100,
            name: String::new(),
        }
    }

    /// How many calls there are in which threads.
    fn calls(sums: &ProfileSums) -> Vec<(u32, u64)> {
        let of = |(thread, sums): (&Thread, &StackSums)| {
            let mut calls = 0;
            for part in sums.parts(thread.id, |id| id) {
                let each = part.each(|stack| {
                    calls += stack.sums.calls;
                    Ok(())
                });
                each.unwrap();
            }
            (thread.tid, calls)
        };
        sums.threads().map(of).collect()
    }

    #[test]
    fn everybody_has_what_was_counted_while_they_wanted_it() {
        let profiles = Profiles::new(ProcessId(0));
        profiles.hand_over(thread(0), false, &sums(1000));
        assert!(profiles.answer(Ask::Kept).is_none());
        profiles.keep(true);
        profiles.hand_over(thread(0), false, &sums(1));
        let (one, other) = (profiles.number(), profiles.number());
        profiles.answer(Ask::Begin(one));
        assert!(profiles.are_asked_for());
        profiles.hand_over(thread(0), false, &sums(10));
        profiles.answer(Ask::Begin(other));
        profiles.hand_over(thread(1), true, &sums(100));
        let of = |ask| calls(&profiles.answer(ask).unwrap());
        assert_eq!(of(Ask::End(one)), [(100, 10), (101, 100)]);
        assert!(profiles.are_asked_for());
        assert_eq!(of(Ask::End(other)), [(101, 100)]);
        assert!(!profiles.are_asked_for());
        assert_eq!(of(Ask::Kept), [(100, 11), (101, 100)]);
        profiles.keep(false);
        assert!(profiles.answer(Ask::Kept).is_none());
        assert!(profiles.answer(Ask::End(one)).is_none());
    }

    #[test]
    fn threads_that_come_and_go_take_bounded_memory_and_no_call_goes() {
        let profiles = Profiles::new(ProcessId(0));
        profiles.keep(true);
        let most = u32::try_from(ENDED_APART).unwrap();
        for id in 0..most * 3 {
            profiles.hand_over(thread(id), true, &sums(1));
        }
        let calls = calls(&profiles.answer(Ask::Kept).unwrap());
        assert_eq!(calls.len(), ENDED_APART + 1);
        assert_eq!(calls.last(), Some(&(0, u64::from(most) * 2)));
    }
}
