//! Waits until the threads of a process have left the trampolines.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{ThreadState, Threads, cpu_time};
use crate::pid::{Pid, Tid};

/// Longest wait for a thread without a processor: a control group whose quota is used up usually
/// gets the next one 100 ms later.
const PATIENCE: Duration = Duration::from_millis(200);
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// A thread that runs or waits for a processor.
#[derive(Debug)]
struct Ready {
    tid: Tid,
    ran: Option<Duration>,
}

/// Waits until each thread of a process has run since the call, or sleeps. A thread that was in a
/// trampoline has left it then: it needs less than a microsecond there, unless it loses its
/// processor.
///
/// Gives up after 200 ms. A thread may have to wait longer for a processor, and a stopped thread
/// does not run at all.
pub(crate) fn let_threads_run(pid: Pid) {
    let begun = Instant::now();
    let in_time = || begun.elapsed() < PATIENCE;
    let mut ready: Vec<Ready> = Threads::of(pid)
        .into_iter()
        .filter(|tid| in_time() && is_ready(pid, *tid))
        .map(|tid| Ready {
            tid,
            ran: ran(pid, tid),
        })
        .collect();
    while !ready.is_empty() {
        thread::sleep(PAUSE);
        ready.retain(|thread| {
            in_time() && is_ready(pid, thread.tid) && ran(pid, thread.tid) == thread.ran
        });
    }
}

fn is_ready(pid: Pid, tid: Tid) -> bool {
    match Threads::state(pid, tid) {
        // A trampoline's store may wait for a page.
        ThreadState::Stoppable | ThreadState::Uninterruptible => true,
        ThreadState::Sleeping | ThreadState::Dead => false,
    }
}

fn ran(pid: Pid, tid: Tid) -> Option<Duration> {
    cpu_time::of_thread(pid, u32::try_from(tid.as_raw()).ok()?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;

    /// One thread that counts beside many, so that it waits for processors.
    #[test]
    fn a_thread_that_wants_a_processor_has_had_one_afterwards() {
        let pid = Pid::try_from(std::process::id()).unwrap();
        let (over, count) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            while count.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            let mut stood_still = 0;
            for _ in 0..20 {
                let before = count.load(Ordering::Relaxed);
                let_threads_run(pid);
                stood_still += u32::from(count.load(Ordering::Relaxed) == before);
            }
            over.store(true, Ordering::Relaxed);
            // A busy machine may keep a thread from processors for longer than the wait.
            assert!(stood_still < 5, "{stood_still} of 20 times");
        });
    }

    #[test]
    fn a_process_that_sleeps_or_has_ended_is_not_waited_for() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        let tid = pid.leader();
        while is_ready(pid, tid) {
            thread::yield_now();
        }
        let_threads_run(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_ready(pid, tid));
        let_threads_run(pid);
    }
}
