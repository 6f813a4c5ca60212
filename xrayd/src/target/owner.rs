//! The user to whom the kernel gives the memory of a process. The right to trace it is decided in
//! `access.rs`.

use std::{fs, os::unix::fs::MetadataExt as _};

use super::Threads;
use crate::pid::{Pid, Tid};

/// The owner of the process's files below `/proc`. That is its effective user. It is root if the
/// process made itself undumpable, has changed its user, or runs a program that its user cannot
/// read. `None` if the process has ended or is about to.
///
/// A thread that ends gives its memory back first, and from then on the kernel shows its files as
/// root's. So an ending thread does not count. The other threads do, and if they do not agree, only
/// root owns the process.
pub(crate) fn memory_owner(pid: Pid) -> Option<u32> {
    if let Some(owner) = owner_by(pid, pid.leader()) {
        return Some(owner);
    }
    let mut owners = Threads::of(pid)
        .into_iter()
        .filter_map(|tid| owner_by(pid, tid));
    let first = owners.next()?;
    Some(if owners.all(|owner| owner == first) {
        first
    } else {
        0
    })
}

/// The effective user of a process, or one that no process has if it is gone. It makes no request
/// that waits for the process or its files.
pub(crate) fn effective_user(pid: Pid) -> u32 {
    fs::metadata(format!("/proc/{pid}")).map_or(u32::MAX, |shown| shown.uid())
}

/// The owner that one thread shows; `None` if the thread is gone or ends.
fn owner_by(pid: Pid, tid: Tid) -> Option<u32> {
    // Not the directory itself: that one always shows the effective user.
    let shown = fs::metadata(format!("/proc/{pid}/task/{tid}/mem")).ok()?;
    // Checked afterwards: a thread that does not end now still had its memory before.
    (!Threads::is_ending(pid, tid)).then(|| shown.uid())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_lives_has_an_owner_and_a_zombie_has_none() {
        assert_eq!(
            memory_owner(Pid::this()),
            Some(nix::unistd::geteuid().as_raw())
        );
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        // Waits for the end, and leaves the zombie in place.
        let id = nix::sys::wait::Id::Pid(pid.as_nix());
        let flags = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
        nix::sys::wait::waitid(id, flags).unwrap();
        assert_eq!(memory_owner(pid), None);
        child.wait().unwrap();
        assert_eq!(memory_owner(pid), None);
    }
}
