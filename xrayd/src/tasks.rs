//! Runs many tasks on few threads.
//!
//! A task is the work of one session. A worker runs one step of it at a time, and the step says
//! when the next one is due. So a session that has nothing to do takes no thread.
//!
//! ```text
//!            woken, or due            a worker takes it
//!  resting ─────────────────► ready ─────────────────────► running
//!     ▲                         ▲                             │
//!     │                         └── woken meanwhile, or now ──┤
//!     └─────────────────────────────────────────── later ─────┴──► done
//! ```
//!
//! A step may hang in the memory of a target, and its worker hangs with it. So one thread of the
//! pool looks every [`WATCH_EVERY`] whether a task has been ready for that time while no worker is
//! free. Then it adds two workers for each step that takes as long, as far as tasks wait for them.
//! So if many tasks hang at once, each look finds room for twice as many as the one before, and the
//! other tasks are delayed by a few looks. Workers that were added and have nothing to do end after
//! [`SPARE_FOR`].

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::lock::lock;

/// Pause between two looks for ready tasks that no worker takes.
const WATCH_EVERY: Duration = Duration::from_millis(50);
/// A worker beyond the usual number ends after this time without work.
const SPARE_FOR: Duration = Duration::from_secs(10);
/// To wake a worker takes about 20 µs of processor time in a virtual machine. So a worker wakes no
/// other one for the tasks behind a step that is expected to take less than this.
const SHORT_STEP: Duration = Duration::from_micros(100);

/// Times after a [`LONG_PAUSE`] are multiples of the first, and others of the second, so that one
/// wake-up is for many tasks.
const COARSE: Duration = Duration::from_millis(50);
const FINE: Duration = Duration::from_millis(10);
/// A pause of this length, or longer.
const LONG_PAUSE: Duration = Duration::from_millis(500);

/// Work in steps.
pub(crate) trait Task: Send + 'static {
    /// Does one step. A panic ends the task.
    fn step(&mut self) -> Next;
}

/// When the next step of a task is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// At once, after the tasks that are ready already.
    Now,
    /// At this time, or when the task is woken.
    At(Instant),
    /// Never. The task is dropped.
    Done,
}

/// A time at least this pause away, at which other tasks are due, too.
pub(crate) fn shared_time_after(pause: Duration) -> Instant {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let begin = *BEGIN.get_or_init(Instant::now);
    let grid = if pause < LONG_PAUSE { FINE } else { COARSE };
    let ticks = (begin.elapsed() + pause)
        .as_nanos()
        .div_ceil(grid.as_nanos());
    let since_begin = u64::try_from(ticks * grid.as_nanos()).unwrap_or(u64::MAX);
    begin + Duration::from_nanos(since_begin)
}

/// Threads that run tasks. They begin when tasks are about to come, and end with the last task once
/// this is dropped.
#[derive(Debug)]
pub(crate) struct Pool(Arc<Shared>);

/// A pool whose threads have begun.
#[derive(Debug)]
pub(crate) struct RunningPool(Arc<Shared>);

/// Makes a task ready.
#[derive(Debug, Clone)]
pub(crate) struct Waker {
    pool: Arc<Shared>,
    task: u64,
}

/// Makes a task ready that may not be in its pool so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct LateWaker(Arc<OnceLock<Waker>>);

/// Wakes a task when it is dropped. The sender of a queue that the task reads stands before it in a
/// struct, so that the task finds that no sender is left.
#[derive(Debug)]
pub(crate) struct WakeAtEnd(pub(crate) LateWaker);

#[derive(Debug)]
struct Shared {
    /// The name of the threads.
    name: &'static str,
    /// The usual number of workers.
    usual: usize,
    state: Mutex<State>,
    /// A task is ready, or due before all others. For workers.
    has_work: Condvar,
    /// There are tasks again. For the thread that looks for waiting tasks.
    has_tasks: Condvar,
}

#[derive(Debug, Default)]
struct State {
    tasks: HashMap<u64, Slot>,
    /// The ready tasks, in the order in which they became ready, with the times of that.
    ready: VecDeque<(Instant, u64)>,
    /// The resting tasks that are due at some time.
    due: BTreeSet<(Instant, u64)>,
    last_task: u64,
    workers: usize,
    /// Workers that wait for work.
    free: usize,
    /// When one of them ends its wait by itself, if one does.
    timed: Option<Instant>,
    is_watched: bool,
    /// True if the threads are to end when there are no more tasks.
    is_over: bool,
}

struct Slot {
    /// `None` while a worker runs it.
    task: Option<Box<dyn Task>>,
    phase: Phase,
    /// True if the last step took less than [`SHORT_STEP`].
    is_short: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Resting(Option<Instant>),
    Ready,
    Running { since: Instant, is_woken: bool },
}

// === impl Pool ===

impl Pool {
    /// A pool with this usual number of workers.
    pub(crate) fn new(name: &'static str, usual: usize) -> Self {
        Self(Arc::new(Shared {
            name,
            usual,
            state: Mutex::default(),
            has_work: Condvar::new(),
            has_tasks: Condvar::new(),
        }))
    }

    /// Starts the first threads, unless they run.
    ///
    /// # Errors
    /// The system starts none.
    pub(crate) fn begin(&self) -> io::Result<RunningPool> {
        let mut state = lock(&self.0.state);
        if !state.is_watched {
            let shared = Arc::clone(&self.0);
            start(self.0.name, move || shared.watch())?;
            state.is_watched = true;
        }
        // Workers only end while there are more than usual.
        if state.workers == 0 {
            self.0.start_worker(&mut state)?;
        }
        drop(state);
        Ok(RunningPool(Arc::clone(&self.0)))
    }

    /// The longest time for which a task has been waiting for a worker. Work goes on as long as it
    /// is short, however many steps hang.
    pub(crate) fn longest_wait(&self) -> Duration {
        let state = lock(&self.0.state);
        let ready = state.ready.front().map(|(since, _)| *since);
        let due = state.due.first().map(|(at, _)| *at);
        let oldest = ready.into_iter().chain(due).min();
        oldest.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.0.state).is_over = true;
        self.0.has_work.notify_all();
        self.0.has_tasks.notify_all();
    }
}

// === impl RunningPool ===

impl RunningPool {
    /// Adds a task, which is ready at once.
    pub(crate) fn add(&self, task: impl Task) -> Waker {
        let Self(pool) = self;
        let mut state = lock(&pool.state);
        state.last_task += 1;
        let waker = Waker {
            pool: Arc::clone(pool),
            task: state.last_task,
        };
        let slot = Slot {
            task: Some(Box::new(task)),
            phase: Phase::Resting(None),
            is_short: false,
        };
        state.tasks.insert(waker.task, slot);
        state.make_ready(waker.task);
        pool.ask_for_worker(&mut state);
        drop(state);
        pool.has_tasks.notify_one();
        waker
    }
}

// === impl Waker ===

impl Waker {
    /// Makes the task ready. If it runs, it is ready again afterwards.
    pub(crate) fn wake(&self) {
        let mut state = lock(&self.pool.state);
        if state.wake(self.task) {
            self.pool.ask_for_worker(&mut state);
        }
    }

    /// Does the same within a short step of another task of the pool. The worker of that step then
    /// takes the task, unless another one is faster.
    pub(crate) fn wake_from_step(&self) {
        lock(&self.pool.state).wake(self.task);
    }
}

// === impl LateWaker ===

impl LateWaker {
    /// Sets the waker of the task, which is in its pool now. It takes a step for what came before.
    pub(crate) fn set(&self, waker: Waker) {
        self.0.get_or_init(|| waker).wake();
    }

    /// Makes the task ready, or has it take a step when it comes into its pool.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.0.get() {
            waker.wake();
        }
    }
}

// === impl WakeAtEnd ===

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0.wake();
    }
}

// === impl Shared ===

impl Shared {
    /// Lets a free worker take a ready task, or adds one if there are fewer than usual.
    fn ask_for_worker(self: &Arc<Self>, state: &mut State) {
        if state.free > 0 {
            self.has_work.notify_one();
        } else if state.workers < self.usual {
            // Without a new one, the task waits for one of the others.
            let _ = self.start_worker(state);
        }
    }

    fn start_worker(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let shared = Arc::clone(self);
        start(self.name, move || shared.work())?;
        state.workers += 1;
        Ok(())
    }

    /// Runs tasks until there is no more use for this worker.
    fn work(self: Arc<Self>) {
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            state.take_due(now);
            let Some((_, task)) = state.ready.pop_front() else {
                let Some(again) = self.wait(state) else {
                    return;
                };
                state = again;
                continue;
            };
            let Some(slot) = state.tasks.get_mut(&task) else {
                continue;
            };
            slot.phase = Phase::Running {
                since: now,
                is_woken: false,
            };
            let Some(mut running) = slot.task.take() else {
                continue;
            };
            let is_long = !slot.is_short;
            let leaves_due = state.timed.is_none() && !state.due.is_empty();
            if is_long && (leaves_due || !state.ready.is_empty()) {
                self.ask_for_worker(&mut state);
            }
            drop(state);
            // Nothing uses the task after a panic.
            let stepped = catch_unwind(AssertUnwindSafe(|| running.step()));
            let next = stepped.unwrap_or(Next::Done);
            if next == Next::Done {
                // Its end may take a while, and other tasks are not to wait for it.
                drop(running);
                state = lock(&self.state);
                state.tasks.remove(&task);
                if state.has_ended() {
                    self.has_work.notify_all();
                    self.has_tasks.notify_all();
                }
                continue;
            }
            state = lock(&self.state);
            state.put_back(task, running, next);
        }
    }

    /// Waits for work. `None` if this worker is one too many.
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Option<MutexGuard<'a, State>> {
        if state.has_ended() {
            state.workers -= 1;
            return None;
        }
        // The first task to be due is waited for by one worker.
        let first = state.due.first().map(|(due, _)| *due);
        let timed = first.filter(|first| state.timed.is_none_or(|timed| *first < timed));
        let pause = match timed {
            Some(due) => Some(due.saturating_duration_since(Instant::now())),
            None if state.workers > self.usual => Some(SPARE_FOR),
            None => None,
        };
        state.timed = timed.or(state.timed);
        state.free += 1;
        let is_over;
        (state, is_over) = match pause {
            None => {
                let state = self.has_work.wait(state);
                (state.unwrap_or_else(PoisonError::into_inner), false)
            }
            Some(pause) => {
                let waited = self.has_work.wait_timeout(state, pause);
                let (state, result) = waited.unwrap_or_else(PoisonError::into_inner);
                (state, result.timed_out())
            }
        };
        state.free -= 1;
        if timed.is_some() {
            state.timed = None;
        } else if is_over && state.ready.is_empty() && state.workers > self.usual {
            state.workers -= 1;
            return None;
        }
        Some(state)
    }

    /// Looks for ready tasks that no worker takes, as long as there are tasks.
    fn watch(self: Arc<Self>) {
        let mut state = lock(&self.state);
        loop {
            if state.has_ended() {
                return;
            }
            if state.tasks.is_empty() {
                state = self
                    .has_tasks
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            thread::sleep(WATCH_EVERY);
            state = lock(&self.state);
            let now = Instant::now();
            state.take_due(now);
            let is_late = |since: Instant| now.duration_since(since) >= WATCH_EVERY;
            let Some(&(since, _)) = state.ready.front() else {
                continue;
            };
            if state.free > 0 {
                // It may have been woken already, and wait for a processor.
                self.has_work.notify_one();
            } else if is_late(since) {
                let most = self.usual + 2 * state.running(is_late);
                let more = most.saturating_sub(state.workers).min(state.ready.len());
                for _ in 0..more {
                    // Without a new one, a task waits for one of the others.
                    let _ = self.start_worker(&mut state);
                }
            }
        }
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work)?;
    Ok(())
}

// === impl State ===

impl State {
    /// True if no task is there, and none will come.
    fn has_ended(&self) -> bool {
        self.is_over && self.tasks.is_empty()
    }

    /// The number of tasks that run since a time for which `is_meant` is true.
    fn running(&self, is_meant: impl Fn(Instant) -> bool) -> usize {
        let phases = self.tasks.values().map(|slot| slot.phase);
        let running = phases
            .filter(|phase| matches!(phase, Phase::Running { since, .. } if is_meant(*since)));
        running.count()
    }

    /// Makes the tasks ready that are due.
    fn take_due(&mut self, now: Instant) {
        while let Some(&(due, task)) = self.due.first()
            && due <= now
        {
            self.due.pop_first();
            if let Some(slot) = self.tasks.get_mut(&task) {
                slot.phase = Phase::Ready;
                self.ready.push_back((now, task));
            }
        }
    }

    fn make_ready(&mut self, task: u64) {
        if let Some(slot) = self.tasks.get_mut(&task) {
            slot.phase = Phase::Ready;
            self.ready.push_back((Instant::now(), task));
        }
    }

    /// Makes a task ready, or ready again once it has run. True if it is newly ready.
    fn wake(&mut self, task: u64) -> bool {
        match self.tasks.get_mut(&task).map(|slot| &mut slot.phase) {
            Some(Phase::Resting(due)) => {
                if let Some(due) = due.take() {
                    self.due.remove(&(due, task));
                }
                self.make_ready(task);
                return true;
            }
            Some(Phase::Running { is_woken, .. }) => *is_woken = true,
            Some(Phase::Ready) | None => {}
        }
        false
    }

    /// Takes a task back after a step.
    fn put_back(&mut self, task: u64, running: Box<dyn Task>, next: Next) {
        let Some(slot) = self.tasks.get_mut(&task) else {
            return;
        };
        slot.task = Some(running);
        let now = Instant::now();
        let mut rests = None;
        if let Phase::Running { since, is_woken } = slot.phase {
            slot.is_short = now.duration_since(since) < SHORT_STEP;
            if let (Next::At(due), false) = (next, is_woken) {
                rests = Some(due);
            }
        }
        match rests {
            Some(due) => {
                slot.phase = Phase::Resting(Some(due));
                self.due.insert((due, task));
            }
            None => self.make_ready(task),
        }
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot")
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicU32, Ordering::SeqCst},
        mpsc::{Receiver, SyncSender, sync_channel},
    };

    use super::*;

    /// Far longer than anything takes, but for a machine that is very busy.
    const LONG: Duration = Duration::from_secs(60);

    struct Steps<F>(F);

    impl<F: FnMut() -> Next + Send + 'static> Task for Steps<F> {
        fn step(&mut self) -> Next {
            (self.0)()
        }
    }

    fn later() -> Next {
        Next::At(Instant::now() + LONG)
    }

    fn add(pool: &Pool, step: impl FnMut() -> Next + Send + 'static) -> Waker {
        pool.begin().unwrap().add(Steps(step))
    }

    /// A step that says that it has begun, and waits until it may go on.
    fn hanging() -> (
        impl FnMut() -> Next + Send + 'static,
        Receiver<()>,
        SyncSender<()>,
    ) {
        let (begun, begins) = sync_channel(8);
        let (go, goes) = sync_channel(8);
        let step = move || {
            begun.send(()).unwrap();
            let _ = goes.recv();
            Next::Done
        };
        (step, begins, go)
    }

    #[test]
    fn a_task_runs_when_it_is_woken_and_when_it_is_due() {
        let pool = Pool::new("test", 2);
        let (ran, runs) = sync_channel(8);
        let mut nexts = [later(), Next::Now, Next::At(Instant::now()), Next::Done].into_iter();
        let waker = add(&pool, move || {
            ran.send(()).unwrap();
            nexts.next().unwrap()
        });
        runs.recv_timeout(LONG).unwrap();
        assert!(runs.recv_timeout(2 * WATCH_EVERY).is_err(), "it rests");
        waker.wake();
        for _ in 0..3 {
            runs.recv_timeout(LONG).unwrap();
        }
        // The task was dropped, and with it the sender.
        assert!(runs.recv_timeout(LONG).is_err());
        waker.wake();
    }

    #[test]
    fn the_threads_end_with_the_last_task_of_a_pool_that_was_dropped() {
        let pool = Pool::new("test", 3);
        let (step, begins, go) = hanging();
        add(&pool, step);
        let shared = Arc::downgrade(&pool.0);
        begins.recv_timeout(LONG).unwrap();
        drop(pool);
        thread::sleep(2 * WATCH_EVERY);
        assert!(lock(&shared.upgrade().unwrap().state).workers > 0);
        go.send(()).unwrap();
        while shared.strong_count() > 0 {
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_panic_ends_its_task_alone() {
        let pool = Pool::new("test", 1);
        add(&pool, || panic!("provoked by a test"));
        let (ran, runs) = sync_channel(1);
        add(&pool, move || {
            let _ = ran.try_send(());
            Next::Done
        });
        runs.recv_timeout(LONG).unwrap();
        while !lock(&pool.0.state).tasks.is_empty() {
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_task_that_is_woken_while_it_runs_runs_once_more() {
        let pool = Pool::new("test", 1);
        let (begun, begins) = sync_channel(8);
        let (go, goes) = sync_channel(8);
        let waker = add(&pool, move || {
            begun.send(()).unwrap();
            goes.recv().map_or(Next::Done, |()| later())
        });
        begins.recv_timeout(LONG).unwrap();
        waker.wake();
        waker.wake();
        go.send(()).unwrap();
        begins.recv_timeout(LONG).unwrap();
        go.send(()).unwrap();
        assert!(begins.recv_timeout(2 * WATCH_EVERY).is_err());
    }

    /// As many tasks hang as there are workers, and more.
    #[test]
    fn tasks_that_hang_delay_no_other_task() {
        let pool = Pool::new("test", 2);
        let mut hanging_ones = Vec::new();
        for _ in 0..5 {
            let (step, begins, go) = hanging();
            add(&pool, step);
            begins.recv_timeout(LONG).unwrap();
            hanging_ones.push(go);
        }
        let (ran, runs) = sync_channel(8);
        add(&pool, move || {
            // The test may be over.
            let _ = ran.try_send(());
            Next::At(Instant::now() + Duration::from_millis(1))
        });
        for _ in 0..20 {
            runs.recv_timeout(LONG).unwrap();
        }
        assert!(lock(&pool.0.state).workers > 5);
    }

    /// All of them are ready before a task that does not hang.
    #[test]
    fn many_tasks_that_hang_at_once_are_passed() {
        const HANG: usize = 64;
        let pool = Pool::new("test", 2);
        let (go, goes) = sync_channel::<()>(0);
        let goes = Arc::new(Mutex::new(goes));
        for _ in 0..HANG {
            let goes = Arc::clone(&goes);
            add(&pool, move || {
                let _ = lock(&goes).recv();
                Next::Done
            });
        }
        let (ran, runs) = sync_channel(1);
        add(&pool, move || {
            let _ = ran.try_send(());
            Next::Done
        });
        runs.recv_timeout(LONG).unwrap();
        let workers = lock(&pool.0.state).workers;
        assert!(
            (HANG..=2 + 2 * HANG).contains(&workers),
            "{workers} workers"
        );
        drop(go);
        while !lock(&pool.0.state).tasks.is_empty() {
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn as_many_tasks_as_you_like_take_few_threads() {
        let pool = Pool::new("test", 2);
        let steps = Arc::new(AtomicU32::new(0));
        for number in 0..1000_u64 {
            let counted = Arc::clone(&steps);
            let pause = Duration::from_micros(number % 7 * 300);
            add(&pool, move || match counted.fetch_add(1, SeqCst) {
                20_000.. => Next::Done,
                _ => Next::At(Instant::now() + pause),
            });
        }
        while !lock(&pool.0.state).tasks.is_empty() {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(steps.load(SeqCst) >= 20_000);
        let State {
            ready,
            due,
            workers,
            ..
        } = &*lock(&pool.0.state);
        assert!(ready.is_empty() && due.is_empty());
        // A step may have got no processor for a while.
        assert!(*workers < 20, "{workers} workers");
    }
}
