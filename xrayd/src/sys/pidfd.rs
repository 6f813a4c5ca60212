//! A process held by a descriptor: a pid can be reused, a pidfd cannot.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::process::ExitStatusExt as _,
    },
    process::ExitStatus,
};

use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{getsockopt, sockopt::PeerPidfd},
};

use super::ioctl::request;
use crate::pid::{Pid, Tid};

/// `PIDFD_GET_INFO` for the first version of [`Info`], and the bit that asks for the exit code:
/// include/uapi/linux/pidfd.h of Linux 6.15.
const GET_INFO: libc::Ioctl = request(0xc040_ff0b);
const INFO_EXIT: u64 = 1 << 3;
/// `PIDFD_THREAD`, Linux 6.9: include/uapi/linux/pidfd.h.
const THREAD: i32 = libc::O_EXCL;

/// `struct pidfd_info` in its first version; later versions are longer.
#[repr(C)]
#[derive(Debug, Default)]
struct Info {
    /// The fields that we ask for, and after the call the fields that the kernel has filled.
    mask: u64,
    cgroup: u64,
    /// Ids of processes and users.
    ids: [u32; 11],
    exit_code: i32,
}

const _: () = assert!(size_of::<Info>() == 64);

/// A process or a thread, held by a descriptor.
#[derive(Debug)]
pub(crate) struct PidFd {
    fd: OwnedFd,
}

// === impl PidFd ===

impl PidFd {
    /// Holds `pid`.
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        Self::open_with(pid.as_raw(), 0)
    }

    /// Holds one thread. [`Self::get_fd`] then copies descriptors of this thread: the thread may
    /// have a table of its own, and it may outlive the main thread.
    ///
    /// # Errors
    /// Includes EINVAL: the kernel is older than 6.9.
    pub(crate) fn open_thread(tid: Tid) -> io::Result<Self> {
        Self::open_with(tid.as_raw(), THREAD)
    }

    /// Holds the process that connected a socket. It never holds a process that has the same number
    /// since.
    ///
    /// # Errors
    /// Includes ENOPROTOOPT: the kernel is older than 6.5.
    pub(crate) fn of_peer(socket: &impl AsFd) -> io::Result<Self> {
        let fd = getsockopt(socket, PeerPidfd)?;
        Ok(Self { fd })
    }

    /// True if this kernel holds single threads.
    pub(crate) fn can_hold_threads() -> bool {
        Self::open_with(nix::unistd::gettid().as_raw(), THREAD).is_ok()
    }

    fn open_with(id: i32, flags: i32) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers and touches no memory.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_open, id, flags) };
        Ok(Self { fd: owned(result)? })
    }

    /// True if the process has ended (also as a zombie).
    ///
    /// The kernel (6.18) reports a living process as ended if a thread takes over the leader's id
    /// by an `exec` just while the kernel answers. An ended process is reported as ended for ever,
    /// so the second answer counts.
    pub(crate) fn has_exited(&self) -> bool {
        self.is_readable() && self.is_readable()
    }

    fn is_readable(&self) -> bool {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut fds, PollTimeout::ZERO) {
                // A signal for the daemon shows nothing about the process.
                Err(Errno::EINTR) => {}
                // After any other error the descriptor is as useless as the descriptor of an ended
                // process.
                result => return result != Ok(0),
            }
        }
    }

    /// The exit status of the process. `None` until its parent has collected it.
    ///
    /// # Errors
    /// The kernel is older than 6.15 and has no such request.
    pub(crate) fn exit_status(&self) -> io::Result<Option<ExitStatus>> {
        let mut info = Info {
            mask: INFO_EXIT,
            ..Info::default()
        };
        // SAFETY: the request's number encodes that 64 bytes are read and written at the pointer.
        // It points to a live local of that size. The descriptor is open while `self` lives.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), GET_INFO, &raw mut info) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let reported = info.mask & INFO_EXIT != 0;
        Ok(reported.then(|| ExitStatus::from_raw(info.exit_code)))
    }

    /// A copy of the process's descriptor `number`.
    pub(crate) fn get_fd(&self, number: i32) -> io::Result<OwnedFd> {
        // SAFETY: pidfd_getfd takes three integers and touches no memory. The descriptor is open
        // while `self` lives.
        let result =
            unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.fd.as_raw_fd(), number, 0) };
        owned(result)
    }
}

impl AsFd for PidFd {
    /// Readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let raw = i32::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel has just returned this descriptor as a new one; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}
