//! A process that xrayd started, until it runs. The start itself is in `launch`.

use std::process::Child;

use nix::sys::{
    signal::{Signal, kill as send_signal},
    wait::waitpid,
};

use crate::{pid::Pid, sys::ptrace::Stopped};

/// A process that xrayd started and that has not run yet.
#[derive(Debug)]
pub(super) struct Started {
    /// The first field, so that it is dropped first: a program that cannot be traced is killed
    /// before its thread is released.
    pub(crate) undo: KillOnDrop,
    pub(crate) child: Child,
    pub(crate) thread: Stopped,
}

/// Kills a child when dropped, unless it is disarmed. It has to be dropped before the stopped
/// thread, which runs on when it is dropped.
#[derive(Debug)]
pub(super) struct KillOnDrop {
    pid: Pid,
    armed: bool,
}

// === impl KillOnDrop ===

impl KillOnDrop {
    pub(super) fn new(pid: Pid) -> Self {
        Self { pid, armed: true }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if self.armed {
            // The kill may fail because the child has ended. It is our child, so the pid is still
            // its own.
            let _ = send_signal(self.pid.as_nix(), Signal::SIGKILL);
            let _ = waitpid(self.pid.as_nix(), None);
        }
    }
}
