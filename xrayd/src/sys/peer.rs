//! The label that a security module gave to the process that connected a socket.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _},
};

use nix::libc;

/// `SO_PEERSEC`: include/uapi/asm-generic/socket.h.
const PEERSEC: libc::c_int = 31;
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_has_a_label_or_the_kernel_has_none() {
        let (one, _other) = UnixStream::pair().unwrap();
        security_label(&one).unwrap();
    }
}
