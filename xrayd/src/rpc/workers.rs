//! The threads that calls and streams block: their number, and the shares of users.
//!
//! | lane | work | places |
//! |---|---|---|
//! | `calls` | a call: as long as an attach takes | 64 |
//! | `steps` | a step of a stream: short | 48 |
//! | `releases` | detach, the end of a lease, undoing what a lost client changed | 32 |
//! | `snapshots` | the answer of a snapshot or a profile, at the pace of its reader | 24 |
//!
//! Users share a lane as [`Turns`] describes. Root takes no place. The remaining threads of the
//! runtime are a reserve for root, for metrics, and for the end of the daemon.

use std::{sync::Arc, time::Duration};

use tokio::task::{JoinError, spawn_blocking};

use super::turns::{Turn, Turns};
use crate::{
    refusal::{Reason, Refusal},
    target::Caller,
};

const CALLS: usize = 64;
const CALLS_OF_A_USER: usize = 16;
const STEPS: usize = 48;
const STEPS_OF_A_USER: usize = 12;
const RELEASES: usize = 32;
const RELEASES_OF_A_USER: usize = 8;
const SNAPSHOTS: usize = 24;
const SNAPSHOTS_OF_A_USER: usize = 4;
const RESERVE: usize = 72;

/// The runtime's blocking threads.
pub(crate) const BLOCKING_THREADS: usize = CALLS + STEPS + RELEASES + SNAPSHOTS + RESERVE;

/// Longest wait of a snapshot for a place before it is refused.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(10);

/// Threads that may block. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Workers {
    calls: Arc<Turns>,
    /// Separate from calls, so that a user's calls do not hold up the same user's streams.
    steps: Arc<Turns>,
    releases: Arc<Turns>,
    snapshots: Arc<Turns>,
}

/// The purpose of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerKind {
    /// A call.
    Call,
    /// A step of a stream.
    Step,
    /// An operation that restores processes.
    Release,
}

// === impl Workers ===

impl Workers {
    pub(super) fn new() -> Self {
        Self {
            calls: Turns::new(CALLS, CALLS_OF_A_USER),
            steps: Turns::new(STEPS, STEPS_OF_A_USER),
            releases: Turns::new(RELEASES, RELEASES_OF_A_USER),
            snapshots: Turns::new(SNAPSHOTS, SNAPSHOTS_OF_A_USER),
        }
    }

    /// Runs `work` on a thread that may block, when it is this user's turn.
    ///
    /// # Errors
    /// `work` panicked. The panic hook has logged that.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        lane: WorkerKind,
        uid: u32,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let turns = match lane {
            WorkerKind::Call => &self.calls,
            WorkerKind::Step => &self.steps,
            WorkerKind::Release => &self.releases,
        };
        let turn = turns.wait(uid).await;
        spawn_blocking(move || {
            // Dropped when the work ends, which is later than this call if the client leaves.
            let _turn = turn;
            work()
        })
        .await
    }

    /// Takes a place for the answer of a snapshot or a profile.
    ///
    /// # Errors
    /// No place becomes free within [`SNAPSHOT_WAIT`].
    pub(super) async fn snapshot(&self, caller: Caller) -> Result<Turn, Refusal> {
        let turn = tokio::time::timeout(SNAPSHOT_WAIT, self.snapshots.wait(caller.uid)).await;
        turn.map_err(|_| {
            let message = format!(
                "no place for a snapshot became free within {SNAPSHOT_WAIT:?}: user {} may have \
                 {SNAPSHOTS_OF_A_USER} snapshots at a time, all users together {SNAPSHOTS}; wait \
                 for one to end",
                caller.uid
            );
            Refusal::new(Reason::TooMany, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Condvar, Mutex},
        task::{Context, Waker},
    };

    use tokio::runtime::Runtime;

    use super::*;
    use crate::{app, lock::lock};

    const DEADLINE: Duration = Duration::from_secs(20);

    /// The number of slow tasks that have begun, and the signal that ends all of them.
    type Gate = (Mutex<usize>, Condvar);

    /// Ends the slow tasks when it is dropped, even after a failed assertion, because the runtime
    /// waits for blocking threads.
    struct Opening(Arc<Gate>);

    impl Drop for Opening {
        fn drop(&mut self) {
            *lock(&self.0.0) = 1000;
            self.0.1.notify_all();
        }
    }

    /// Detaches the runtime's threads while they still wait at the gate. glibc (2.36) may crash if
    /// it detaches a thread that ends just then.
    fn leave(runtime: Runtime) {
        runtime.shutdown_background();
    }

    #[test]
    fn users_with_slow_work_leave_threads_for_others_and_for_root() {
        let runtime = app::runtime().unwrap();
        let workers = Workers::new();
        let gate = Arc::<Gate>::default();
        let opening = Opening(Arc::clone(&gate));
        runtime.block_on(async {
            // As many as their calls and streams can be.
            for uid in 1..=5 {
                for _ in 0..48 {
                    for lane in [WorkerKind::Call, WorkerKind::Release] {
                        let (workers, gate) = (workers.clone(), Arc::clone(&gate));
                        let slow = move || {
                            let (count, opened) = &*gate;
                            *lock(count) += 1;
                            let opened = opened.wait_while(lock(count), |count| *count < 1000);
                            drop(opened);
                        };
                        let mut run = Box::pin(async move { workers.run(lane, uid, slow).await });
                        // It asks for a turn here and now. The places that users get together
                        // depend on the order in which they ask.
                        let mut context = Context::from_waker(Waker::noop());
                        assert!(run.as_mut().poll(&mut context).is_pending());
                        tokio::spawn(run);
                    }
                }
            }
            let began = std::time::Instant::now();
            while *lock(&gate.0) < 60 + 30 {
                assert!(began.elapsed() < DEADLINE, "{} work", *lock(&gate.0));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            for uid in [0, 1000] {
                for lane in [WorkerKind::Call, WorkerKind::Release] {
                    let done = workers.run(lane, uid, || ());
                    let done = tokio::time::timeout(DEADLINE, done).await;
                    assert!(matches!(done, Ok(Ok(()))), "user {uid}, {lane:?}");
                }
                let caller = Caller::in_process(uid, 1);
                assert!(workers.snapshot(caller).await.is_ok());
            }
        });
        leave(runtime);
        drop(opening);
    }

    #[test]
    fn root_is_served_while_users_have_all_places() {
        const PLACES: usize = CALLS + STEPS + RELEASES + SNAPSHOTS;
        let runtime = app::runtime().unwrap();
        let workers = Workers::new();
        let gate = Arc::<Gate>::default();
        let opening = Opening(Arc::clone(&gate));
        runtime.block_on(async {
            // More users than a lane has places.
            for uid in 1..=100 {
                for lane in [
                    Some(WorkerKind::Call),
                    Some(WorkerKind::Step),
                    Some(WorkerKind::Release),
                    None,
                ] {
                    let (workers, gate) = (workers.clone(), Arc::clone(&gate));
                    let slow = move || {
                        let (count, opened) = &*gate;
                        *lock(count) += 1;
                        drop(opened.wait_while(lock(count), |count| *count < 1000));
                    };
                    tokio::spawn(async move {
                        match lane {
                            Some(lane) => drop(workers.run(lane, uid, slow).await),
                            None => {
                                let turn = workers.snapshot(Caller::in_process(uid, 1)).await;
                                // Others get no place in time.
                                if let Ok(turn) = turn {
                                    let snapshot = spawn_blocking(move || {
                                        let _turn = turn;
                                        slow();
                                    });
                                    drop(snapshot.await);
                                }
                            }
                        }
                    });
                }
            }
            let began = std::time::Instant::now();
            while *lock(&gate.0) < PLACES {
                assert!(began.elapsed() < DEADLINE, "{} work", *lock(&gate.0));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            for lane in [WorkerKind::Call, WorkerKind::Step, WorkerKind::Release] {
                let done = tokio::time::timeout(DEADLINE, workers.run(lane, 0, || ())).await;
                assert!(matches!(done, Ok(Ok(()))), "{lane:?}");
            }
        });
        leave(runtime);
        drop(opening);
    }
}
