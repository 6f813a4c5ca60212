//! The drain as other threads see it: requests go in, and answers are waited for here. No wait
//! lasts for ever, also while the drain hangs in the target's memory (`liveness`).

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use xray_trace::model::Ticks;

use crate::{
    collect::{
        CallSite, EventFilter, Switches,
        profile_reader::AddUp,
        ring_copies::{Moment, RingCopies},
        sample::{Look, Sample},
    },
    liveness::{Liveness, NoAnswer, Watch},
    refusal::Result,
    store::{Ask, ProfileSums},
    tasks::{LateWaker, WakeAtEnd},
    types::ThreadChoice,
};

/// A request of the controller to the drain.
#[derive(Debug)]
pub(super) enum Request {
    /// Events are about to come.
    Wake,
    /// Learn the sites of a library that has just been loaded. The time lies before the first of
    /// them is switched on.
    Learn(Vec<CallSite>, Ticks, SyncSender<()>),
    /// Read until nothing is left, close all blocks, answer.
    Flush(SyncSender<()>),
    /// Set the filter and the choice of threads for events that are recorded from now on.
    EventFilter(
        Option<Arc<EventFilter>>,
        Option<Arc<ThreadChoice>>,
        SyncSender<()>,
    ),
    /// Clear the open calls in the trampolines' filter pages.
    RenewFilters(SyncSender<()>),
    /// Calls are about to be counted.
    BeginCounts(SyncSender<()>),
    /// Calls are about to be added up in the program.
    BeginProfiles(AddUp, SyncSender<bool>),
    /// No calls are added up any more.
    EndProfiles(SyncSender<()>),
    /// Copy the contents of the rings, up to this many bytes, and of the event store.
    RingCopies(u64, Moment, SyncSender<RingCopies>),
    /// Sample how much the threads wrote, and which events, as far as the [`Look`] asks.
    Sample(Look, SyncSender<Sample>),
    /// Read what is there, add it up, and answer the profile request.
    Profile(Ask, SyncSender<Option<ProfileSums>>),
    /// All producers are gone or switched off: read the rest, give memory back, end.
    Finish(SyncSender<()>),
    /// Another tracer has the rings: publish what was read, and end.
    Abandon(SyncSender<()>),
}

/// The drain, as its owner sees it.
#[derive(Debug)]
pub(crate) struct DrainHandle {
    pub(super) caller: DrainCaller,
    /// True if the rings are another tracer's, or may be a later session's by now. A thread that
    /// hung sees it before anything else.
    pub(super) is_abandoned: Arc<AtomicBool>,
    /// The sender goes with the task.
    pub(super) ended: Receiver<Infallible>,
    pub(super) switches: Arc<Switches>,
}

/// The way to ask the drain for something.
#[derive(Debug, Clone)]
pub(crate) struct DrainCaller {
    pub(super) requests: SyncSender<Request>,
    pub(super) waker: LateWaker,
    pub(super) liveness: Arc<Liveness>,
    /// True while a [`Request::Wake`] waits. More of them would only take the room of others.
    pub(super) is_woken: Arc<AtomicBool>,
    /// Behind the sender. The drain finishes when no caller is left.
    pub(super) _end: Arc<WakeAtEnd>,
}

/// A request to the drain whose answer was not waited for yet.
#[derive(Debug)]
#[must_use]
pub(crate) struct Asked<T> {
    liveness: Arc<Liveness>,
    /// `None` if the thread has ended.
    answer: Option<(Receiver<T>, Watch)>,
}

// === impl DrainHandle ===

impl DrainHandle {
    /// The way to ask the thread for something.
    pub(crate) fn caller(&self) -> DrainCaller {
        self.caller.clone()
    }

    /// The record of when functions were switched, for the code that switches them.
    pub(crate) fn switches(&self) -> Arc<Switches> {
        Arc::clone(&self.switches)
    }

    /// Reads the rest and ends the thread.
    ///
    /// # Errors
    /// The thread hangs. It ends once it goes on, and leaves the rings alone.
    pub(crate) fn finish(self) -> Result<()> {
        self.end(Request::Finish)
    }

    /// Ends the thread without another look at the rings.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn abandon(self) -> Result<()> {
        self.is_abandoned.store(true, Relaxed);
        self.end(Request::Abandon)
    }

    fn end(self, request: impl FnOnce(SyncSender<()>) -> Request) -> Result<()> {
        let Self {
            caller,
            is_abandoned,
            ended,
            ..
        } = self;
        let asked = caller.hand_over(request, |request| {
            caller.liveness.send_anyway(&caller.requests, request)
        });
        if let Err(refusal) = asked.and_then(Asked::wait) {
            // The rings may be the next session's by the time at which the thread goes on.
            is_abandoned.store(true, Relaxed);
            return Err(refusal);
        }
        // Nothing is ever sent. The wait ends with the task.
        let _ = ended.recv();
        Ok(())
    }
}

// === impl DrainCaller ===

impl DrainCaller {
    /// Checks that the thread does not hang. Does not wait.
    ///
    /// # Errors
    /// A waiting thread gave up, and the thread has not gone on since.
    pub(crate) fn check(&self) -> Result<()> {
        match self.liveness.is_overdue() {
            true => Err(self.liveness.refusal(NoAnswer::Refused)),
            false => Ok(()),
        }
    }

    /// Announces that events are about to come.
    pub(crate) fn wake(&self) {
        if self.is_woken.swap(true, Relaxed) {
            return;
        }
        // If the thread has ended, its owner notices at the next request that has an answer. If
        // there is no room, the thread wakes up for the requests that wait.
        if self.requests.try_send(Request::Wake).is_err() {
            self.is_woken.store(false, Relaxed);
        }
        self.waker.wake();
    }

    /// Makes the meaning of sites known, from `since` on. When this returns, they may be switched
    /// on.
    ///
    /// # Errors
    /// The thread hangs, as in all methods with a result.
    pub(crate) fn learn(&self, sites: Vec<CallSite>, since: Ticks) -> Result<()> {
        self.ask(|answer| Request::Learn(sites, since, answer))
    }

    /// Sets the filter for events that are recorded from now on; `None` keeps all. Events that were
    /// recorded before are filtered as before. In mode `flight` nothing has read them yet, so there
    /// the new filter holds for them, too. Does not wait for the answer.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn keep(
        &self,
        keep: Option<Arc<EventFilter>>,
        threads: Option<Arc<ThreadChoice>>,
    ) -> Result<Asked<()>> {
        self.begin_when_room(|answer| Request::EventFilter(keep, threads, answer))
    }

    /// The same to undo a change that the thread may have got. A thread that hangs does it later.
    pub(crate) fn keep_again(
        &self,
        keep: Option<Arc<EventFilter>>,
        threads: Option<Arc<ThreadChoice>>,
    ) {
        let (answer, _) = sync_channel(1);
        let request = Request::EventFilter(keep, threads, answer);
        let _ = self.liveness.send_anyway(&self.requests, request);
        self.waker.wake();
    }

    /// Begins to read what is added up in the program. To be called before that begins. Returns
    /// false if the program's control group has no room for it, or if the thread has ended.
    pub(crate) fn begin_profiles(&self, from: AddUp) -> Result<bool> {
        let asked = self.begin_when_room(|answer| Request::BeginProfiles(from, answer))?;
        Ok(asked.wait()?.unwrap_or(false))
    }

    /// Reads what was added up in the program to its end. Nothing is added up any more.
    pub(crate) fn end_profiles(&self) -> Result<()> {
        self.ask(Request::EndProfiles)
    }

    /// Begins to count calls. Counts from before belong to an earlier session.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn begin_counts(&self) -> Result<()> {
        self.ask(Request::BeginCounts)
    }

    /// Clears the open calls in the trampolines' filter pages, while no trampoline uses them.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn renew_filters(&self) -> Result<()> {
        self.ask(Request::RenewFilters)
    }

    /// Reads and publishes everything that is in the rings now.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn flush(&self) -> Result<()> {
        self.ask(Request::Flush)
    }

    /// Requests copies of the rings, up to `bytes` bytes, and of the event store's contents. Rings
    /// that are read along are read first. Does not wait.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn ask_for_copies(&self, bytes: u64, moment: Moment) -> Result<Asked<RingCopies>> {
        self.begin(|answer| Request::RingCopies(bytes, moment, answer))
    }

    /// Samples how much was written to each ring so far, and the contents of the rings with the
    /// most new words. `None` if the thread has ended or hangs.
    pub(crate) fn sample(&self, look: Look) -> Option<Sample> {
        let asked = self.begin(|answer| Request::Sample(look, answer)).ok()?;
        asked.wait().ok()?
    }

    /// Answers a profile request, once everything that is in the rings now is in the sums. `None`
    /// if the thread has ended.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn profile(&self, ask: Ask) -> Result<Option<Option<ProfileSums>>> {
        self.begin(|answer| Request::Profile(ask, answer))?.wait()
    }

    /// Waits for the answer. A thread that has ended has logged the cause.
    fn ask(&self, request: impl FnOnce(SyncSender<()>) -> Request) -> Result<()> {
        self.begin_when_room(request)?.wait().map(|_ended| ())
    }

    /// Hands a client's request over.
    fn begin<T>(&self, request: impl FnOnce(SyncSender<T>) -> Request) -> Result<Asked<T>> {
        self.hand_over(request, |request| {
            self.liveness.send(&self.requests, request)
        })
    }

    /// Hands over a request that the session depends on. Requests of clients may wait before it.
    fn begin_when_room<T>(
        &self,
        request: impl FnOnce(SyncSender<T>) -> Request,
    ) -> Result<Asked<T>> {
        self.hand_over(request, |request| {
            self.liveness.send_when_room(&self.requests, request)
        })
    }

    fn hand_over<T>(
        &self,
        request: impl FnOnce(SyncSender<T>) -> Request,
        send: impl FnOnce(Request) -> std::result::Result<(), NoAnswer>,
    ) -> Result<Asked<T>> {
        let (answer, answered) = sync_channel(1);
        let sent = send(request(answer));
        self.waker.wake();
        let answer = match sent {
            Ok(()) => Some((answered, self.liveness.watch())),
            Err(NoAnswer::Ended) => None,
            Err(why) => return Err(self.liveness.refusal(why)),
        };
        let liveness = Arc::clone(&self.liveness);
        Ok(Asked { liveness, answer })
    }
}

// === impl Asked ===

impl<T> Asked<T> {
    /// Waits for the answer. `None` if the thread has ended.
    ///
    /// # Errors
    /// The thread hangs.
    pub(crate) fn wait(self) -> Result<Option<T>> {
        let Self { liveness, answer } = self;
        match answer.map(|(answered, watch)| watch.wait(&answered)) {
            Some(Ok(answer)) => Ok(Some(answer)),
            None | Some(Err(NoAnswer::Ended)) => Ok(None),
            Some(Err(why)) => Err(liveness.refusal(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{liveness::MOST_REQUESTS, pid::Pid};

    /// The thread gets no processor, and functions are switched on again and again.
    #[test]
    fn wakes_take_the_room_of_one_request() {
        let (requests, received) = sync_channel(MOST_REQUESTS);
        let caller = DrainCaller {
            requests,
            waker: LateWaker::default(),
            liveness: Liveness::new(Pid::this()),
            is_woken: Arc::default(),
            _end: Arc::new(WakeAtEnd(LateWaker::default())),
        };
        for _ in 0..2 * MOST_REQUESTS {
            caller.wake();
        }
        assert!(matches!(received.try_recv(), Ok(Request::Wake)));
        assert!(received.try_recv().is_err());
        // The thread has taken it.
        caller.is_woken.store(false, Relaxed);
        caller.wake();
        assert!(matches!(received.try_recv(), Ok(Request::Wake)));
        // Without room, nothing stays behind that keeps later ones from being sent.
        caller.is_woken.store(false, Relaxed);
        let asked: Vec<_> = std::iter::repeat_with(|| caller.begin(Request::Flush))
            .take(MOST_REQUESTS)
            .collect();
        assert!(asked.iter().all(Result::is_ok));
        caller.wake();
        assert!(!caller.is_woken.load(Relaxed));
    }
}
