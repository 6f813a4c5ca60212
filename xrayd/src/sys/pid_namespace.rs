//! Translates thread ids of another pid namespace.

use std::{fs::File, io, os::fd::AsRawFd as _};

use nix::{errno::Errno, libc};

use super::ioctl::request;
use crate::pid::{Pid, Tid};

/// `NS_GET_PID_FROM_PIDNS`, Linux 6.11: include/uapi/linux/nsfs.h.
const GET_PID_FROM: libc::Ioctl = request(0x8004_b706);

/// A pid namespace, held by a descriptor.
#[derive(Debug)]
pub(crate) struct PidNamespace {
    file: File,
}

// === impl PidNamespace ===

impl PidNamespace {
    /// The pid namespace of a process.
    ///
    /// # Errors
    /// The process is gone, or we may not look at it.
    pub(crate) fn of(pid: Pid) -> io::Result<Self> {
        let file = File::open(format!("/proc/{pid}/ns/pid"))?;
        Ok(Self { file })
    }

    /// The id, in our namespace, of the thread with the id `inner` in that namespace. `None` if no
    /// thread has that id.
    ///
    /// # Errors
    /// The kernel is older than 6.11 and has no such request.
    pub(crate) fn find(&self, inner: u32) -> io::Result<Option<Tid>> {
        // SAFETY: this request takes an integer and touches no memory; the descriptor is open while
        // `self` lives.
        let found = unsafe {
            libc::ioctl(
                self.file.as_raw_fd(),
                GET_PID_FROM,
                libc::c_ulong::from(inner),
            )
        };
        match Errno::result(found) {
            Ok(found) => Ok(u32::try_from(found).ok().and_then(|id| id.try_into().ok())),
            Err(Errno::ESRCH) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_namespace_has_this_thread_and_none_of_an_impossible_id() {
        let own = nix::unistd::gettid().as_raw().cast_unsigned();
        let namespace = PidNamespace::of(Pid::this()).unwrap();
        match namespace.find(own) {
            Ok(found) => {
                assert_eq!(found.map(Tid::as_u32), Some(own));
                assert_eq!(namespace.find(0).unwrap(), None);
                assert_eq!(namespace.find(0x3fff_ffff).unwrap(), None);
                assert_eq!(namespace.find(u32::MAX).unwrap(), None);
            }
            // An older kernel.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY)),
        }
    }
}
