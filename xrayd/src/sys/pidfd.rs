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

use crate::pid::{Pid, Tid};

/// `PIDFD_GET_INFO` of the first version of [`Info`], and what can be asked for by it: include/uapi/linux/pidfd.h of Linux 6.15.
const GET_INFO: libc::Ioctl = 0xc040_ff0b;
const INFO_EXIT: u64 = 1 << 3;
/// `PIDFD_THREAD`, Linux 6.9: include/uapi/linux/pidfd.h.
const THREAD: i32 = libc::O_EXCL;

/// `struct pidfd_info`, as it was at first; later ones are longer.
#[repr(C)]
#[derive(Debug, Default)]
struct Info {
    /// What is asked for, and what is told.
    mask: u64,
    cgroup: u64,
    /// Process ids and users.
    ids: [u32; 11],
    exit_code: i32,
}

const _: () = assert!(size_of::<Info>() == 64);

/// A process, held.
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

    /// Holds one thread: its descriptors are its own where it has a table of its own, and there
    /// when the main thread has ended.
    ///
    /// # Errors
    /// Also EINVAL: the kernel is older than 6.9.
    pub(crate) fn open_thread(tid: Tid) -> io::Result<Self> {
        Self::open_with(tid.as_raw(), THREAD)
    }

    /// Holds the process that connected a socket, and none that has got its number since.
    ///
    /// # Errors
    /// Also ENOPROTOOPT: the kernel is older than 6.5.
    pub(crate) fn of_peer(socket: &impl AsFd) -> io::Result<Self> {
        let fd = getsockopt(socket, PeerPidfd)?;
        Ok(Self { fd })
    }

    /// True if the kernel holds single threads.
    pub(crate) fn can_hold_threads() -> bool {
        Self::open_with(nix::unistd::gettid().as_raw(), THREAD).is_ok()
    }

    fn open_with(id: i32, flags: i32) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers and touches no memory.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_open, id, flags) };
        Ok(Self { fd: owned(result)? })
    }

    /// True if the process has ended (also as a zombie).
    pub(crate) fn has_exited(&self) -> bool {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut fds, PollTimeout::ZERO) {
                // A signal for the daemon says nothing of the process.
                Err(Errno::EINTR) => {}
                // With any other error the descriptor is of no use, as that of an ended process.
                result => return result != Ok(0),
            }
        }
    }

    /// How the process ended, once its parent has collected it; until then `None`.
    ///
    /// # Errors
    /// The kernel does not tell: it is older than 6.15.
    pub(crate) fn exit_status(&self) -> io::Result<Option<ExitStatus>> {
        let mut info = Info {
            mask: INFO_EXIT,
            ..Info::default()
        };
        // SAFETY: the request's number says that 64 bytes are read and written at the pointer, the size of the live local that it points to; the
        // descriptor is open while `self` lives.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), GET_INFO, &raw mut info) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let told = info.mask & INFO_EXIT != 0;
        Ok(told.then(|| ExitStatus::from_raw(info.exit_code)))
    }

    /// A copy of the process's descriptor `number`.
    pub(crate) fn get_fd(&self, number: i32) -> io::Result<OwnedFd> {
        // SAFETY: pidfd_getfd takes three integers and touches no memory; the descriptor is open while `self` lives.
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
    // SAFETY: the kernel just returned this descriptor as a new one; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}
