//! Owner and parent of an open user namespace.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd},
};

use nix::libc;

/// `NS_GET_PARENT`, `NS_GET_OWNER_UID`: include/uapi/linux/nsfs.h, Linux 4.9 and 4.11.
const GET_PARENT: libc::Ioctl = 0xb702;
const GET_OWNER_UID: libc::Ioctl = 0xb704;

/// The parent of a namespace.
///
/// # Errors
/// EPERM: the parent lies outside the caller's own user namespace.
pub(crate) fn parent_of_namespace(namespace: &impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: this request takes no argument and touches no memory; the descriptor is borrowed, so
    // it is open.
    let result = unsafe { libc::ioctl(namespace.as_fd().as_raw_fd(), GET_PARENT) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor as a new one; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// The user who made a user namespace.
///
/// # Errors
/// EINVAL: it is a namespace of another kind.
pub(crate) fn owner_of_namespace(namespace: &impl AsFd) -> io::Result<u32> {
    let mut uid: libc::uid_t = 0;
    let fd = namespace.as_fd().as_raw_fd();
    // SAFETY: the request writes one `uid_t` at the pointer, which points to a live local. The
    // descriptor is borrowed, so it is open.
    let result = unsafe { libc::ioctl(fd, GET_OWNER_UID, &raw mut uid) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(uid)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_descriptor_that_is_no_namespace_is_refused() {
        let file = File::open("/dev/null").unwrap();
        parent_of_namespace(&file).unwrap_err();
        owner_of_namespace(&file).unwrap_err();
    }

    #[test]
    fn ones_own_namespace_has_an_owner_and_no_parent_that_can_be_seen() {
        let own = File::open("/proc/self/ns/user").unwrap();
        owner_of_namespace(&own).unwrap();
        let refused = parent_of_namespace(&own).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    }
}
