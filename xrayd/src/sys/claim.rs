//! At most one tracer has a process: an advisory lock, which the kernel takes back when its holder dies.

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
    /// On the process's own file, and on that of a thread where the leader has ended.
    _locks: Vec<Flock<File>>,
}

// === impl Claim ===

impl Claim {
    /// Takes it; `None` if somebody else has it. `live` is the first thread that has not ended.
    ///
    /// The file is one that every process has, and that only its user and root can open, so that nobody else can keep them
    /// from tracing. Once the leader has ended, its file is root's alone. Then that of `live` is locked as well: two tracers
    /// of one kind always meet in one of the files.
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

    /// One test, since both lock this very process.
    #[test]
    fn one_at_a_time_by_the_leader_or_another_thread() {
        one_at_a_time(Pid::this().leader());
        let own = nix::unistd::gettid().as_raw().cast_unsigned();
        one_at_a_time(Tid::try_from(own).unwrap());
    }
}
