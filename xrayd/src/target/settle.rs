//! Waits until the threads of a process have left the trampolines.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{Threads, cpu_time};
use crate::pid::{Pid, Tid};

/// Longest wait for a thread that waits for a processor. On a busy machine, or once the quota of
/// its control group is used up, that takes hundreds of milliseconds.
const LONGEST_WITHOUT_PROCESSOR: Duration = Duration::from_secs(2);
/// Longest wait for a thread that is stopped or sleeps uninterruptibly, and for any thread if the
/// kernel reports no processor times.
const LONGEST_STANDSTILL: Duration = Duration::from_millis(200);
/// A thread that has run this long has left a trampoline, even if interrupts took most of it. A
/// shorter time may be that of the kernel alone, before the thread lost its processor again.
const ENOUGH: Duration = Duration::from_micros(100);
/// Time between the first two looks. It doubles up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// A thread that runs, waits for a processor, or stands still.
#[derive(Debug)]
struct Ready {
    tid: Tid,
    /// Its processor time. `None` if the kernel does not report it.
    ran: Option<Duration>,
}

/// Waits until each thread of a process has run since the call, or sleeps. A thread that was in a
/// trampoline has left it then: it needs less than a microsecond there, unless it loses its
/// processor, or waits there for room in its ring. The caller gives such threads room before.
///
/// Gives up on a thread that gets no processor for 2 s, or that stands still for 200 ms. If the
/// kernel reports no processor times, the function waits 200 ms.
pub(crate) fn let_threads_run(pid: Pid) {
    let begun = Instant::now();
    let is_awaited = |tid| patience(pid, tid).is_some_and(|longest| begun.elapsed() < longest);
    let mut ready: Vec<Ready> = Threads::of(pid)
        .into_iter()
        .filter(|tid| is_awaited(*tid))
        .map(|tid| Ready {
            tid,
            ran: ran(pid, tid),
        })
        .collect();
    let mut pause = FIRST_PAUSE;
    while !ready.is_empty() {
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
        ready.retain(|thread| is_awaited(thread.tid) && !has_run(pid, thread, begun.elapsed()));
    }
}

/// True if a thread has run for long enough, or if `waited` is enough for a thread without a
/// reported processor time.
fn has_run(pid: Pid, thread: &Ready, waited: Duration) -> bool {
    match (ran(pid, thread.tid), thread.ran) {
        (Some(now), Some(before)) => now.saturating_sub(before) >= ENOUGH,
        (None, _) | (_, None) => waited >= LONGEST_STANDSTILL,
    }
}

/// The longest wait for a thread. `None` if the thread sleeps or has ended, and so is in no
/// trampoline.
fn patience(pid: Pid, tid: Tid) -> Option<Duration> {
    match Threads::state_letter(pid, tid)? {
        b'S' | b'Z' | b'X' | b'x' => None,
        b'R' => Some(LONGEST_WITHOUT_PROCESSOR),
        // It is stopped, or a trampoline's store waits for a page.
        _ => Some(LONGEST_STANDSTILL),
    }
}

/// The processor time of a thread. `None` if the kernel does not report it: the file is missing, or
/// has zeros.
fn ran(pid: Pid, tid: Tid) -> Option<Duration> {
    let time = cpu_time::of_thread(pid, u32::try_from(tid.as_raw()).ok()?);
    time.filter(|time| !time.is_zero())
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
    fn a_thread_without_a_reported_time_is_awaited_for_a_short_time() {
        let pid = Pid::try_from(std::process::id()).unwrap();
        let tid = pid.leader();
        let unknown = Ready { tid, ran: None };
        assert!(!has_run(pid, &unknown, Duration::ZERO));
        assert!(has_run(pid, &unknown, LONGEST_STANDSTILL));
        // This kernel reports the time.
        let known = Ready {
            tid,
            ran: Some(Duration::MAX),
        };
        assert!(!has_run(pid, &known, LONGEST_STANDSTILL));
    }

    #[test]
    fn a_process_that_sleeps_or_has_ended_is_not_waited_for() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        let tid = pid.leader();
        while patience(pid, tid).is_some() {
            thread::yield_now();
        }
        let_threads_run(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(patience(pid, tid), None);
        let_threads_run(pid);
    }
}
