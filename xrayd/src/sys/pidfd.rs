//! A process held by a descriptor: a pid can be reused, a pidfd cannot.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use crate::pid::Pid;

/// A process, held.
#[derive(Debug)]
pub(crate) struct PidFd {
    fd: OwnedFd,
}

// === impl PidFd ===

impl PidFd {
    /// Holds `pid`.
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers and touches no memory.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
        Ok(Self { fd: owned(result)? })
    }

    /// True if the process has ended (also as a zombie).
    pub(crate) fn has_exited(&self) -> bool {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        // An error here means the descriptor is unusable, which no caller can tell from an ended process.
        !matches!(poll(&mut fds, PollTimeout::ZERO), Ok(0))
    }

    /// A copy of the process's descriptor `number`.
    pub(crate) fn get_fd(&self, number: i32) -> io::Result<OwnedFd> {
        // SAFETY: pidfd_getfd takes three integers and touches no memory; the descriptor is open while `self` lives.
        let result =
            unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.fd.as_raw_fd(), number, 0) };
        owned(result)
    }
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let raw = i32::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel just returned this descriptor as a new one; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}
