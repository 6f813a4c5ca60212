//! At most one tracer has a process: an advisory lock, which the kernel takes back when its holder dies.

use std::{fs::File, io};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use crate::pid::Pid;

/// The lock on one process.
#[derive(Debug)]
pub(crate) struct Claim {
    _lock: Flock<File>,
}

// === impl Claim ===

impl Claim {
    /// Takes it; `None` if somebody else has it.
    pub(crate) fn take(pid: Pid) -> io::Result<Option<Self>> {
        // A file that every process has, also one whose leader has ended, and that only its user and root can open, so
        // that nobody else can keep them from tracing.
        let file = File::open(format!("/proc/{pid}/personality"))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(Self { _lock: lock })),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let pid = Pid::this();
        let first = Claim::take(pid).unwrap();
        assert!(first.is_some());
        assert!(Claim::take(pid).unwrap().is_none());
        drop(first);
        assert!(Claim::take(pid).unwrap().is_some());
    }
}
