//! Collects the exit status of a child process that another OS thread of this process may trace.
//!
//! waitpid(2) reports each stop of a traced child to every thread of the tracer's process, and
//! takes a signal that the child would have received (wait_task_stopped() in kernel/exit.c:
//! "Traditionally we see ptrace'd stopped tasks regardless of options."). So nothing here calls it
//! before the child has ended.

use std::{
    io,
    os::fd::AsFd as _,
    process::{Child, ExitStatus},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::PidFd;
use crate::pid::Pid;

/// The exit status of a child, if it has ended.
///
/// # Errors
/// There is no descriptor for the child, or the error of waitpid(2).
pub(crate) fn try_collect_child(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    match hold(child)?.has_exited() {
        true => child.wait().map(Some),
        false => Ok(None),
    }
}

/// Waits until a child has ended. Returns its exit status.
///
/// # Errors
/// As [`try_collect_child`].
pub(crate) fn collect_child(child: &mut Child) -> io::Result<ExitStatus> {
    let process = hold(child)?;
    while !process.has_exited() {
        let mut ends = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        // A signal for the daemon ends the call early.
        let _ = poll(&mut ends, PollTimeout::NONE);
    }
    child.wait()
}

/// Nothing has collected the child so far, so its id is its own.
fn hold(child: &Child) -> io::Result<PidFd> {
    PidFd::open(Pid::try_from(child.id()).map_err(io::Error::other)?)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, process::Command, thread, time::Duration};

    use nix::sys::signal::{Signal, kill};

    use super::*;
    use crate::sys::ptrace::Seized;

    /// The child stops at the signal, since it is traced. It receives it when its tracer ends.
    #[test]
    fn a_child_that_stops_has_not_ended_and_gets_its_signal() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        let status = thread::scope(|scope| {
            scope.spawn(|| {
                let _seized = Seized::seize(pid.leader()).unwrap();
                kill(pid.leader().as_nix(), Signal::SIGTERM).unwrap();
                thread::sleep(Duration::from_millis(50));
            });
            loop {
                if let Some(status) = try_collect_child(&mut child).unwrap() {
                    return status;
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
    }
}
