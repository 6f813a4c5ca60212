//! The claim on a process: an advisory lock, so that at most one tracer attaches to it. The kernel
//! releases the lock when its holder dies.

use std::{
    fs::File,
    io::{self, ErrorKind},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use crate::pid::{Pid, Tid};

/// The lock on one process.
#[derive(Debug)]
pub(crate) struct Claim {
    /// On the process's own file. Once the leader has ended, also on the file of a live thread.
    _locks: Vec<Flock<File>>,
}

// === impl Claim ===

impl Claim {
    /// Takes the claim. Returns `None` if another tracer holds it. `live` is the first thread that
    /// has not ended.
    ///
    /// Each process has the locked file, and only the user of the process and root can open it. So
    /// no other user can keep them from tracing. Once the leader has ended, only root can open the
    /// leader's file. Then the file of `live` is locked as well: two tracers with the same rights
    /// always meet in one of the files.
    pub(crate) fn take(pid: Pid, live: Tid) -> io::Result<Option<Self>> {
        let leaderless = live != pid.leader();
        let mut files = Vec::new();
        match File::open(format!("/proc/{pid}/personality")) {
            Ok(file) => files.push(file),
            Err(error) if leaderless && error.kind() == ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
        if leaderless {
            files.push(File::open(format!("/proc/{pid}/task/{live}/personality"))?);
        }
        let mut locks = Vec::new();
        for file in files {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => locks.push(lock),
                Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
                Err((_, errno)) => return Err(errno.into()),
            }
        }
        Ok(Some(Self { _locks: locks }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_at_a_time(live: Tid) {
        let pid = Pid::this();
        let first = Claim::take(pid, live).unwrap();
        assert!(first.is_some());
        assert!(Claim::take(pid, live).unwrap().is_none());
        drop(first);
        assert!(Claim::take(pid, live).unwrap().is_some());
    }

    /// One test, since both cases lock this process.
    #[test]
    fn one_at_a_time_by_the_leader_or_another_thread() {
        one_at_a_time(Pid::this().leader());
        let own = nix::unistd::gettid().as_raw().cast_unsigned();
        one_at_a_time(Tid::try_from(own).unwrap());
    }
}
