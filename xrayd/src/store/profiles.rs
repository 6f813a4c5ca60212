//! Sums of calls: those of the mode [`Mode::Profile`](crate::types::Mode::Profile), and those of
//! clients that request some for a while.
//!
//! Each thread decoder makes the sums of its own thread. It hands them over when the thread ends
//! and when there is a request. Everything that is handed over is added to the sums of each client.
//! So no client's sums depend on another client. Calls are added up in [`StackSums`].

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use xray_trace::{
    analysis::{ProfileBudget, StackSums},
    model::{ProcessId, Thread, ThreadId, Ticks},
};

use crate::{
    lock::lock,
    store::metering::Meter,
    sys::ticks_now,
    target::{Functions, Loaded},
};

/// The memory for the decoders' sums, and the memory for the clients' sums, in bytes.
const ROOM_BYTES: usize = 128 << 20;
/// The number of ended threads whose sums are kept by thread.
const ENDED_APART: usize = 1024;
/// The thread that stands for other ended threads. No thread has this id.
pub(super) const OTHERS: ThreadId = ThreadId(u32::MAX - 2);

/// The requested sums of a process.
#[derive(Debug)]
pub(crate) struct Profiles {
    process: ProcessId,
    /// The memory of the decoders' sums.
    decoders: ProfileBudget,
    /// The memory of the sums here.
    sums: ProfileBudget,
    wanted: Mutex<Wanted>,
    /// True while a client has requested sums.
    asked: AtomicBool,
    next: AtomicU64,
    /// The meter that measures calls for the whole session, if there is one. Set before the drain
    /// begins.
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
    /// The time from which on calls are in the sums; `None` in a session that is over.
    since: Option<Ticks>,
    /// The number of earlier daemons that had a part of the sums in their own memory.
    taken_along: u64,
    /// True if this daemon has such a part, and true once that is noted for the next one.
    is_held: bool,
    is_noted: bool,
}

#[derive(Debug, Clone)]
struct Known {
    thread: Thread,
    ended: bool,
    sums: StackSums,
}

/// The sums that a thread's decoder hands over: one of several parts, or the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handover {
    Interim,
    Last,
}

/// A request for sums. It is answered when everything that was recorded is in the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Begin to make sums under this number.
    Begin(u64),
    /// Return the sums of this number, and end them.
    End(u64),
    /// Return the sums of mode `profile`.
    Kept,
}

// === impl Profiles ===

impl Profiles {
    pub(crate) fn new(process: ProcessId) -> Self {
        Self {
            process,
            decoders: ProfileBudget::new(ROOM_BYTES),
            sums: ProfileBudget::new(ROOM_BYTES),
            wanted: Mutex::default(),
            asked: AtomicBool::new(false),
            next: AtomicU64::new(0),
            meter: OnceLock::new(),
        }
    }

    /// The memory of the decoders' sums.
    pub(crate) fn room(&self) -> ProfileBudget {
        self.decoders.clone()
    }

    /// A new number for a request.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// Measures calls from now on.
    pub(crate) fn measure(&self, meter: Arc<Meter>) {
        // A session has one meter, set at its begin.
        let _ = self.meter.set(meter);
    }

    /// Has the meter choose functions of a new module, none of which is on. Called by the control
    /// thread.
    pub(crate) fn came(&self, functions: &Functions, loaded: &Arc<Loaded>) {
        if let Some(meter) = self.meter.get() {
            meter.choose(functions, loaded);
        }
    }

    /// True if calls of this process are measured.
    pub(crate) fn are_measured(&self) -> bool {
        self.meter.get().is_some_and(|meter| meter.wants())
    }

    /// Closes the meter: nothing more will be handed over.
    pub(crate) fn close(&self) {
        if let Some(meter) = self.meter.get() {
            meter.close();
        }
    }

    /// True if sums are requested or calls are measured.
    pub(super) fn are_asked_for(&self) -> bool {
        self.asked.load(Relaxed) || self.are_measured()
    }

    /// Begins to keep sums for mode `profile`, of calls from `since` on. So many daemons have taken
    /// a part of them along. Called by the drain.
    pub(crate) fn begin_kept(&self, since: Ticks, taken_along: u64) {
        let mut wanted = lock(&self.wanted);
        wanted.kept.get_or_insert_with(|| ProfileSums {
            taken_along,
            ..ProfileSums::begin(since)
        });
    }

    /// The time from which on calls are in the sums for mode `profile`, if there are such sums.
    pub(crate) fn kept_since(&self) -> Option<Ticks> {
        lock(&self.wanted).kept.as_ref()?.since
    }

    /// Notes that the sums for mode `profile` get calls that are in the daemon's memory alone.
    pub(crate) fn hold(&self) {
        if let Some(kept) = &mut lock(&self.wanted).kept {
            kept.is_held = true;
        }
    }

    /// After [`Self::hold`], once: the number of daemons that have a part of the sums in their own
    /// memory, with this one.
    pub(crate) fn newly_held(&self) -> Option<u64> {
        let mut wanted = lock(&self.wanted);
        let kept = wanted.kept.as_mut().filter(|kept| kept.is_held)?;
        let is_new = !std::mem::replace(&mut kept.is_noted, true);
        is_new.then_some(kept.taken_along.saturating_add(1))
    }

    /// Drops the sums for mode `profile`. Called by the drain.
    pub(crate) fn drop_kept(&self) {
        lock(&self.wanted).kept = None;
    }

    /// Adds a thread's sums since the last call.
    pub(crate) fn hand_over(&self, thread: Thread, handover: Handover, sums: &StackSums) {
        let mut wanted = lock(&self.wanted);
        let Wanted { kept, asked } = &mut *wanted;
        for whose in kept.iter_mut().chain(asked.values_mut()) {
            whose.add(&thread, handover, sums, (self.process, &self.sums));
        }
        drop(wanted);
        if let Some(meter) = self.meter.get() {
            meter.add(sums);
        }
    }

    /// Adds sums of a thread to those for mode `profile` alone.
    pub(crate) fn keep(&self, thread: &Thread, handover: Handover, sums: &StackSums) {
        if let Some(kept) = &mut lock(&self.wanted).kept {
            kept.add(thread, handover, sums, (self.process, &self.sums));
        }
    }

    /// Answers a request. Called by the drain, or by any thread once the drain has read everything.
    pub(crate) fn answer(&self, ask: Ask) -> Option<ProfileSums> {
        let mut wanted = lock(&self.wanted);
        let answer = match ask {
            Ask::Begin(number) => {
                wanted.asked.insert(number, ProfileSums::begin(ticks_now()));
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
    /// Empty sums, of calls from `since` on.
    fn begin(since: Ticks) -> Self {
        Self {
            since: Some(since),
            ..Self::default()
        }
    }

    /// Adds sums of a thread that has ended, or that stands for others. `room` is the memory for
    /// all sums in these.
    pub(crate) fn add_ended(&mut self, thread: &Thread, sums: &StackSums, room: &ProfileBudget) {
        self.add(thread, Handover::Last, sums, (thread.process, room));
    }

    /// The time from which on calls are in them, if it is known.
    pub(crate) fn since(&self) -> Option<Ticks> {
        self.since
    }

    /// The number of daemons that have taken a part of the sums along.
    pub(crate) fn taken_along(&self) -> u64 {
        self.taken_along
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
        handover: Handover,
        sums: &StackSums,
        (process, room): (ProcessId, &ProfileBudget),
    ) {
        let known = self.threads.entry(thread.id).or_insert_with(|| Known {
            thread: thread.clone(),
            ended: false,
            sums: StackSums::new(room.clone()),
        });
        known.sums.add(sums);
        let is_over = handover == Handover::Last && thread.id != OTHERS;
        if !is_over || std::mem::replace(&mut known.ended, true) {
            return;
        }
        self.ended += 1;
        if self.ended > ENDED_APART {
            self.put_together(process, room);
        }
    }

    /// Puts together the sums of all ended threads.
    pub(crate) fn put_all_together(&mut self, room: &ProfileBudget) {
        let process = self.threads.values().next();
        let Some(process) = process.map(|known| known.thread.process) else {
            return;
        };
        for _ in 0..self.ended {
            self.put_together(process, room);
        }
    }

    /// Puts together the sums of the ended thread with the lowest id and those of the other ended
    /// threads.
    fn put_together(&mut self, process: ProcessId, room: &ProfileBudget) {
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
        let mut profiler = Profiler::new(ProfileBudget::new(1 << 20));
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

    /// The number of calls of each thread.
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
        profiles.hand_over(thread(0), Handover::Interim, &sums(1000));
        assert!(profiles.answer(Ask::Kept).is_none());
        profiles.begin_kept(Ticks(0), 0);
        profiles.hand_over(thread(0), Handover::Interim, &sums(1));
        let (one, other) = (profiles.number(), profiles.number());
        profiles.answer(Ask::Begin(one));
        assert!(profiles.are_asked_for());
        profiles.hand_over(thread(0), Handover::Interim, &sums(10));
        profiles.answer(Ask::Begin(other));
        profiles.hand_over(thread(1), Handover::Last, &sums(100));
        let of = |ask| calls(&profiles.answer(ask).unwrap());
        assert_eq!(of(Ask::End(one)), [(100, 10), (101, 100)]);
        assert!(profiles.are_asked_for());
        assert_eq!(of(Ask::End(other)), [(101, 100)]);
        assert!(!profiles.are_asked_for());
        assert_eq!(of(Ask::Kept), [(100, 11), (101, 100)]);
        profiles.drop_kept();
        assert!(profiles.answer(Ask::Kept).is_none());
        assert!(profiles.answer(Ask::End(one)).is_none());
    }

    #[test]
    fn threads_that_come_and_go_take_bounded_memory_and_no_call_goes() {
        let profiles = Profiles::new(ProcessId(0));
        profiles.begin_kept(Ticks(0), 0);
        let most = u32::try_from(ENDED_APART).unwrap();
        for id in 0..most * 3 {
            profiles.hand_over(thread(id), Handover::Last, &sums(1));
        }
        let calls = calls(&profiles.answer(Ask::Kept).unwrap());
        assert_eq!(calls.len(), ENDED_APART + 1);
        assert_eq!(calls.last(), Some(&(0, u64::from(most) * 2)));
    }
}
