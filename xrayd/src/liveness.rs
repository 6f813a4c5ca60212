//! Waiting for the answer of a session's thread, which can hang.
//!
//! A target can map a file whose file system never answers over its own memory. A thread that
//! accesses that memory, or reads that file, stays in the kernel for as long as the file system
//! likes. The threads of a session take that risk. Every other thread that waits for one of them
//! waits here: until the answer comes, or until the thread has not run for [`PATIENCE`].
//!
//! A thread that waits for a processor does not hang, however long it waits. So a busy machine ends
//! no wait. Time counts by looks at the thread, so a daemon that was stopped ends none either. But
//! a file system that answers slowly could draw a wait out; [`LONGEST`] ends it.

use std::{
    fs,
    sync::{
        Arc, Mutex, MutexGuard, TryLockError,
        atomic::{AtomicBool, AtomicI32, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};

use nix::unistd::gettid;

use crate::{
    pid::Pid,
    refusal::{Reason, Refusal},
};

/// The longest time without progress of a thread that is waited for. Longer than a thread waits for
/// its turn to read a large file, or for a call on a borrowed thread.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest wait for a thread that makes progress.
const LONGEST: Duration = Duration::from_secs(300);
/// Pause between two looks at the thread.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Pause between two tries to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Pause between two tries to hand over a request.
const ROOM_PAUSE: Duration = Duration::from_millis(2);

/// The most requests that wait for one thread.
pub(crate) const MOST_REQUESTS: usize = 64;

/// Whether a thread that answers requests takes them up.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// The process that the thread works for.
    pid: Pid,
    patience: Duration,
    longest: Duration,
    /// The thread id; 0 before the thread has begun, and between the steps of a pool's threads.
    thread: AtomicI32,
    /// True from the moment at which a waiting thread gave up until the thread takes up the next
    /// request.
    is_overdue: AtomicBool,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The thread has ended.
    Ended,
    /// The thread hangs. It may carry the request out later.
    Hangs,
    /// The thread hangs, and did not get the request.
    Refused,
    /// [`MOST_REQUESTS`] requests wait already, and the thread did not get this one.
    Full,
}

/// Marks the end of a thread when it is dropped, see [`Liveness::until_end`].
#[derive(Debug)]
pub(crate) struct UntilEnd(Arc<Liveness>);

/// Looks at a thread from one moment on.
#[derive(Debug)]
pub(crate) struct Watch {
    liveness: Arc<Liveness>,
    began: Instant,
    /// Looks so far, and the last of them that saw no progress.
    looks: u32,
    idle_looks: u32,
    /// How long the thread had run at the last look, if there was one.
    ran: Option<u64>,
}

/// A lock that a thread holds while it reads a file, and may hang.
#[derive(Debug)]
pub(crate) struct Alone {
    /// The liveness of the thread that holds the lock.
    holder: Arc<Liveness>,
    held: Mutex<()>,
}

// === impl Liveness ===

impl Liveness {
    /// The liveness of a thread that works for this process and has not begun.
    pub(crate) fn new(pid: Pid) -> Arc<Self> {
        Self::with_patience(pid, PATIENCE, LONGEST)
    }

    fn with_patience(pid: Pid, patience: Duration, longest: Duration) -> Arc<Self> {
        Arc::new(Self {
            pid,
            patience,
            longest,
            thread: AtomicI32::new(0),
            is_overdue: AtomicBool::new(false),
        })
    }

    /// Called by a thread of a pool when it begins a step of the work.
    pub(crate) fn begins_step(&self) {
        self.thread.store(gettid().as_raw(), Relaxed);
        self.looks_for_requests();
    }

    /// Called by that thread at the end of the step. Until the next step, no thread can hang.
    pub(crate) fn ends_step(&self) {
        self.thread.store(0, Relaxed);
    }

    /// Called by the thread itself whenever it looks for requests.
    pub(crate) fn looks_for_requests(&self) {
        if self.thread.load(Relaxed) == 0 {
            self.thread.store(gettid().as_raw(), Relaxed);
        }
        self.is_overdue.store(false, Relaxed);
    }

    /// Hands a request to the thread. Does not wait.
    ///
    /// # Errors
    /// The thread has ended, it hangs, or too many requests wait for it. It does not get the
    /// request.
    pub(crate) fn send<T>(&self, requests: &SyncSender<T>, request: T) -> Result<(), NoAnswer> {
        if self.is_overdue.load(Relaxed) {
            return Err(NoAnswer::Refused);
        }
        requests.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => NoAnswer::Full,
            TrySendError::Disconnected(_) => NoAnswer::Ended,
        })
    }

    /// The same, but waits until fewer requests wait for the thread.
    ///
    /// # Errors
    /// The thread has ended; or it hangs, and does not get the request.
    pub(crate) fn send_when_room<T>(
        self: &Arc<Self>,
        requests: &SyncSender<T>,
        mut request: T,
    ) -> Result<(), NoAnswer> {
        let mut watch = self.watch();
        let pause = LOOK_EVERY.min(self.patience);
        let mut next_look = Instant::now() + pause;
        while !self.is_overdue.load(Relaxed) {
            request = match requests.try_send(request) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(NoAnswer::Ended),
                Err(TrySendError::Full(request)) => request,
            };
            if Instant::now() < next_look {
                thread::sleep(ROOM_PAUSE);
                continue;
            }
            if watch.sees_a_hang(pause) {
                self.is_overdue.store(true, Relaxed);
            }
            next_look = Instant::now() + pause;
        }
        Err(NoAnswer::Refused)
    }

    /// The same for a request that undoes something: a thread that hangs gets it all the same,
    /// unless too many requests wait for it.
    ///
    /// # Errors
    /// The thread has ended; or it hangs, and may get the request later.
    pub(crate) fn send_anyway<T>(
        self: &Arc<Self>,
        requests: &SyncSender<T>,
        request: T,
    ) -> Result<(), NoAnswer> {
        if !self.is_overdue.load(Relaxed) {
            return self.send_when_room(requests, request);
        }
        match requests.try_send(request) {
            Ok(()) => Err(NoAnswer::Hangs),
            Err(TrySendError::Full(_)) => Err(NoAnswer::Refused),
            Err(TrySendError::Disconnected(_)) => Err(NoAnswer::Ended),
        }
    }

    /// True from the moment at which a waiting thread gave up until the thread goes on.
    pub(crate) fn is_overdue(&self) -> bool {
        self.is_overdue.load(Relaxed)
    }

    /// Begins to watch the thread.
    pub(crate) fn watch(self: &Arc<Self>) -> Watch {
        Watch {
            liveness: Arc::clone(self),
            began: Instant::now(),
            looks: 0,
            idle_looks: 0,
            ran: None,
        }
    }

    /// Called by the thread itself. Once the returned value is dropped, requests find that the
    /// thread has ended, and not that it hangs.
    pub(crate) fn until_end(self: &Arc<Self>) -> UntilEnd {
        UntilEnd(Arc::clone(self))
    }

    /// The refusal of a request to a thread that hangs, or that has too many requests.
    pub(crate) fn refusal(&self, why: NoAnswer) -> Refusal {
        let pid = self.pid;
        let cause = "its memory or its files do not answer, and xrayd waits for them";
        let message = match why {
            NoAnswer::Hangs => {
                format!("process {pid}: {cause}; xrayd may still carry out the request")
            }
            NoAnswer::Refused | NoAnswer::Ended => format!("process {pid}: {cause}"),
            NoAnswer::Full => format!(
                "process {pid}: {MOST_REQUESTS} requests for it wait already; try again later"
            ),
        };
        Refusal::new(Reason::Busy, message)
    }
}

// === impl UntilEnd ===

impl Drop for UntilEnd {
    fn drop(&mut self) {
        self.0.is_overdue.store(false, Relaxed);
    }
}

// === impl Watch ===

impl Watch {
    /// Waits for an answer of the thread.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn wait<T>(mut self, answer: &Receiver<T>) -> Result<T, NoAnswer> {
        let pause = LOOK_EVERY.min(self.liveness.patience);
        if self.began.elapsed() >= self.liveness.patience {
            // Other threads were waited for first. If this one does not run now, few looks are
            // enough.
            let enough = self.liveness.patience.as_millis() / pause.as_millis();
            self.idle_looks = u32::try_from(enough).unwrap_or(u32::MAX).saturating_sub(3);
        }
        loop {
            match answer.recv_timeout(pause) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(NoAnswer::Ended),
                Err(RecvTimeoutError::Timeout) if self.sees_a_hang(pause) => {
                    self.liveness.is_overdue.store(true, Relaxed);
                    // It may have come meanwhile.
                    return answer.try_recv().map_err(|_| NoAnswer::Hangs);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Looks once more, a pause after the last look.
    fn sees_a_hang(&mut self, pause: Duration) -> bool {
        self.look();
        pause * self.idle_looks >= self.liveness.patience
            || pause * self.looks >= self.liveness.longest
    }

    fn look(&mut self) {
        let ran = ran(self.liveness.thread.load(Relaxed));
        let makes_progress = match ran {
            Some((ran, is_ready)) => is_ready || self.ran.is_some_and(|before| before != ran),
            // It has not begun, or has just ended.
            None => true,
        };
        self.ran = ran.map(|(ran, _)| ran);
        self.looks = self.looks.saturating_add(1);
        self.idle_looks = match makes_progress {
            true => 0,
            false => self.idle_looks.saturating_add(1),
        };
    }
}

// === impl Alone ===

impl Alone {
    pub(crate) fn new() -> Self {
        Self {
            holder: Liveness::new(Pid::this()),
            held: Mutex::new(()),
        }
    }

    /// Locks. `None` if the thread that holds the lock hangs.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, ()>> {
        let (mut watch, mut next_look) = (self.holder.watch(), Instant::now() + LOOK_EVERY);
        let guard = loop {
            match self.held.try_lock() {
                Ok(guard) => break guard,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() < next_look => {
                    thread::sleep(LOCK_PAUSE);
                }
                Err(TryLockError::WouldBlock) => {
                    if watch.sees_a_hang(LOOK_EVERY) {
                        return None;
                    }
                    next_look = Instant::now() + LOOK_EVERY;
                }
            }
        };
        self.holder.thread.store(gettid().as_raw(), Relaxed);
        Some(guard)
    }
}

/// How long a thread of this process has run, in clock ticks and, where the kernel counts them, in
/// nanoseconds added to that; and whether the thread runs or waits for a processor.
fn ran(thread: i32) -> Option<(u64, bool)> {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // Behind the name, which may contain anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let is_ready = fields.next()? == "R";
    let ticks = fields
        .skip(10)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok());
    let ticks: u64 = ticks.sum();
    let exact = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok();
    let exact = exact.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    Some((ticks.wrapping_add(exact.unwrap_or(0)), is_ready))
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::sync_channel, thread};

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);

    /// A thread that runs `work` for each request, its liveness, and the end for requests.
    fn worker(
        longest: Duration,
        work: impl Fn(u32) + Send + 'static,
    ) -> (Arc<Liveness>, SyncSender<(u32, SyncSender<u32>)>) {
        let liveness = Liveness::with_patience(Pid::this(), SHORT, longest);
        let (requests, received) = sync_channel::<(u32, SyncSender<u32>)>(MOST_REQUESTS);
        let of_thread = Arc::clone(&liveness);
        thread::spawn(move || {
            of_thread.looks_for_requests();
            while let Ok((number, answer)) = received.recv() {
                of_thread.looks_for_requests();
                work(number);
                let _ = answer.send(number);
            }
        });
        (liveness, requests)
    }

    fn ask(
        (liveness, requests): &(Arc<Liveness>, SyncSender<(u32, SyncSender<u32>)>),
        number: u32,
    ) -> Result<u32, NoAnswer> {
        let (answer, answered) = sync_channel(1);
        liveness.send(requests, (number, answer))?;
        liveness.watch().wait(&answered)
    }

    #[test]
    fn a_thread_that_hangs_is_left_to_itself_until_it_goes_on() {
        let (go, went) = sync_channel::<()>(1);
        let went = std::sync::Mutex::new(went);
        let worker = worker(60 * SHORT, move |number| {
            if number == 1 {
                let _ = crate::lock::lock(&went).recv();
            }
        });
        assert_eq!(ask(&worker, 0), Ok(0));
        assert_eq!(ask(&worker, 1), Err(NoAnswer::Hangs));
        // At once, and not handed to the thread.
        assert_eq!(ask(&worker, 1), Err(NoAnswer::Refused));
        let refusal = worker.0.refusal(NoAnswer::Refused);
        assert!(refusal.message.contains("do not answer"));
        // What undoes something waits for it.
        let (answer, undone) = sync_channel(1);
        let sent = worker.0.send_anyway(&worker.1, (2, answer));
        assert_eq!(sent, Err(NoAnswer::Hangs));
        go.send(()).unwrap();
        assert_eq!(undone.recv(), Ok(2));
        assert_eq!(ask(&worker, 3), Ok(3));
    }

    /// It runs until it has been looked at often enough.
    #[test]
    fn a_thread_that_is_at_work_is_waited_for() {
        let stop = Arc::new(AtomicBool::new(false));
        let spins = Arc::clone(&stop);
        let work = move |_| {
            while !spins.load(Relaxed) {
                std::hint::spin_loop();
            }
        };
        let worker = worker(600 * SHORT, work);
        let (answer, answered) = sync_channel(1);
        worker.0.send(&worker.1, (7, answer)).unwrap();
        let mut watch = worker.0.watch();
        while watch.looks < 5 {
            assert!(!watch.sees_a_hang(SHORT));
            thread::sleep(Duration::from_millis(20));
        }
        // A thread that makes progress is given up after the longest wait.
        watch.looks = 600;
        assert!(watch.sees_a_hang(SHORT));
        stop.store(true, Relaxed);
        assert_eq!(worker.0.watch().wait(&answered), Ok(7));
    }

    #[test]
    fn a_thread_that_has_ended_gives_no_answer() {
        let liveness = Liveness::new(Pid::this());
        let (requests, received) = sync_channel::<SyncSender<()>>(1);
        // It takes the request, and ends.
        let thread = thread::spawn(move || drop(received.recv()));
        let (answer, answered) = sync_channel(1);
        assert_eq!(liveness.send(&requests, answer), Ok(()));
        assert_eq!(liveness.watch().wait(&answered), Err(NoAnswer::Ended));
        thread.join().unwrap();
        let sent = liveness.send(&requests, sync_channel(1).0);
        assert_eq!(sent, Err(NoAnswer::Ended));
    }

    #[test]
    fn requests_that_are_too_many_are_refused() {
        let (requests, _received) = sync_channel(2);
        let liveness = Liveness::new(Pid::this());
        assert_eq!(liveness.send(&requests, 1), Ok(()));
        assert_eq!(liveness.send(&requests, 2), Ok(()));
        assert_eq!(liveness.send(&requests, 3), Err(NoAnswer::Full));
        let refusal = liveness.refusal(NoAnswer::Full);
        assert!(refusal.message.contains("wait already"), "{refusal}");
    }

    #[test]
    fn a_request_that_must_arrive_waits_for_room() {
        let (requests, received) = sync_channel(1);
        let liveness = Liveness::with_patience(Pid::this(), SHORT, 600 * SHORT);
        assert_eq!(liveness.send(&requests, 1), Ok(()));
        let (of_thread, sends) = (Arc::clone(&liveness), requests.clone());
        let sender = thread::spawn(move || of_thread.send_anyway(&sends, 2));
        // A thread that has not begun does not hang.
        thread::sleep(3 * SHORT);
        assert!(!sender.is_finished());
        assert_eq!(received.recv(), Ok(1));
        assert_eq!(received.recv(), Ok(2));
        assert_eq!(sender.join().unwrap(), Ok(()));
        // This thread takes requests, and sleeps.
        liveness.looks_for_requests();
        assert_eq!(liveness.send(&requests, 3), Ok(()));
        let (of_thread, sends) = (Arc::clone(&liveness), requests.clone());
        let sender = thread::spawn(move || of_thread.send_when_room(&sends, 4));
        assert_eq!(sender.join().unwrap(), Err(NoAnswer::Refused));
        assert!(liveness.is_overdue());
        assert_eq!(liveness.send_anyway(&requests, 5), Err(NoAnswer::Refused));
        assert_eq!(received.recv(), Ok(3));
        assert_eq!(liveness.send_anyway(&requests, 6), Err(NoAnswer::Hangs));
        assert_eq!(received.recv(), Ok(6));
    }

    #[test]
    fn a_lock_is_waited_for_unless_its_holder_hangs() {
        let alone = |patience| Alone {
            holder: Liveness::with_patience(Pid::this(), patience, 600 * LOOK_EVERY),
            held: Mutex::new(()),
        };
        // The holder runs.
        let lock = Arc::new(alone(LOOK_EVERY));
        let spins = Arc::clone(&lock);
        let (locked, is_locked) = sync_channel(1);
        let holder = thread::spawn(move || {
            let _guard = spins.lock().unwrap();
            locked.send(()).unwrap();
            let end = Instant::now() + 3 * LOOK_EVERY;
            while Instant::now() < end {
                std::hint::spin_loop();
            }
        });
        is_locked.recv().unwrap();
        assert!(lock.lock().is_some());
        holder.join().unwrap();
        // The holder sleeps.
        let guard = lock.lock().unwrap();
        let waits = Arc::clone(&lock);
        let hangs = thread::spawn(move || waits.lock().is_none());
        // This thread waits in the join.
        assert!(hangs.join().unwrap());
        drop(guard);
    }

    #[test]
    fn the_time_of_a_thread_grows_while_it_runs() {
        let this = gettid().as_raw();
        let (before, is_ready) = ran(this).unwrap();
        assert!(is_ready);
        let end = Instant::now() + Duration::from_millis(50);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        assert!(ran(this).unwrap().0 > before);
        assert_eq!(ran(0), None);
    }
}
