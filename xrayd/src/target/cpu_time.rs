//! Processor time of processes and threads.

use std::time::Duration;

use nix::{
    time::{ClockId, clock_gettime},
    unistd,
};

use super::{Threads, proc_file};
use crate::pid::Pid;

/// Processor time of all threads of a process together. `None` if the process has ended.
pub(crate) fn of_process(pid: Pid) -> Option<Duration> {
    let clock = nix::time::clock_getcpuclockid(unistd::Pid::from_raw(pid.as_raw())).ok()?;
    let time = clock_gettime(ClockId::from_raw(clock.as_raw())).ok()?;
    Some(Duration::from(time))
}

/// Processor time of one thread, by its id outside the process. It is at most a tick of the
/// scheduler old. `None` if the thread has ended, or if the kernel does not report it.
///
/// It is the first field of `schedstat`: `Documentation/scheduler/sched-stats.rst` of Linux.
pub(crate) fn of_thread(pid: Pid, tid: u32) -> Option<Duration> {
    let path = format!("{}/task/{tid}/schedstat", Threads::proc_dir(pid));
    let text = proc_file::read(path).ok()?;
    let first = text.split(u8::is_ascii_whitespace).next()?;
    let nanoseconds = std::str::from_utf8(first).ok()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_works_runs_and_who_has_ended_does_not() {
        let pid = Pid::try_from(std::process::id()).unwrap();
        let tid = u32::try_from(unistd::gettid().as_raw()).unwrap();
        let before = (of_process(pid).unwrap(), of_thread(pid, tid).unwrap());
        let mut sum = 0_u64;
        while of_thread(pid, tid).unwrap() < before.1 + Duration::from_millis(20) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(of_process(pid).unwrap() >= before.0 + Duration::from_millis(15));
        assert_eq!(of_thread(pid, u32::MAX >> 2), None);
        assert_eq!(of_process(Pid::try_from(4_194_303_u32).unwrap()), None);
    }
}
