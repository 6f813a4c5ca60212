//! Facts about the process that connected a socket, as they were then: the label that a security
//! module gave to it, and its groups.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _},
};

use nix::libc;

/// `SO_PEERSEC`: include/uapi/asm-generic/socket.h.
const PEERSEC: libc::c_int = 31;
/// `SO_PEERGROUPS`: include/uapi/asm-generic/socket.h.
const PEERGROUPS: libc::c_int = 59;
/// The most supplementary groups of a process: `NGROUPS_MAX`, include/uapi/linux/limits.h.
const MOST_GROUPS: usize = 65536;
/// Groups that are expected. More are read at a second try.
const USUAL_GROUPS: usize = 64;
/// Longest label that is read, in bytes. The kernel refuses longer ones with ERANGE.
const LONGEST: usize = 4096;

/// The label that the peer had when it connected (`SO_PEERSEC`); `None` where no security module
/// labels processes.
///
/// # Errors
/// Includes ERANGE: the label is longer than 4096 bytes.
pub(crate) fn security_label(socket: &impl AsFd) -> io::Result<Option<Vec<u8>>> {
    let mut label = vec![0u8; LONGEST];
    let mut length: libc::socklen_t = 4096;
    // SAFETY: the kernel writes at most `length` bytes at the first pointer, whose vector has as
    // many. It writes their number at the second pointer, which points to a live local. The
    // descriptor is borrowed, so it is open.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            PEERSEC,
            label.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ENOPROTOOPT) => Ok(None),
            _ => Err(error),
        };
    }
    label.truncate(usize::try_from(length).unwrap_or(LONGEST));
    Ok(Some(label))
}

/// The supplementary groups of the peer when it connected (`SO_PEERGROUPS`). Empty where the kernel
/// does not report them, as for a socket that no process has connected.
///
/// # Errors
/// The error of getsockopt(2).
pub(crate) fn peer_groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; USUAL_GROUPS];
    loop {
        let bytes = groups.len() * size_of::<u32>();
        let mut length = libc::socklen_t::try_from(bytes).unwrap_or(libc::socklen_t::MAX);
        // SAFETY: the kernel writes at most `length` bytes at the first pointer, whose vector has
        // as many. It writes their number at the second pointer, which points to a live local. The
        // descriptor is borrowed, so it is open.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let written = usize::try_from(length).unwrap_or(0) / size_of::<u32>();
        if result == 0 {
            groups.truncate(written);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // The kernel has told their number.
            Some(libc::ERANGE) if groups.len() < written && written <= MOST_GROUPS => {
                groups = vec![0; written];
            }
            Some(libc::ENOPROTOOPT | libc::ENODATA) => return Ok(Vec::new()),
            _ => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_has_a_label_or_the_kernel_has_none() {
        let (one, _other) = UnixStream::pair().unwrap();
        security_label(&one).unwrap();
    }

    #[test]
    fn the_groups_of_a_peer_are_those_of_the_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let mut own: Vec<u32> = nix::unistd::getgroups()
            .unwrap()
            .into_iter()
            .map(nix::unistd::Gid::as_raw)
            .collect();
        let mut groups = peer_groups(&one).unwrap();
        own.sort_unstable();
        groups.sort_unstable();
        assert_eq!(groups, own);
    }
}
