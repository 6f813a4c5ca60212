//! The type of ioctl(2)'s requests. The C libraries declare it differently.

use nix::libc;

/// A request by its number in the kernel's headers.
#[cfg(target_env = "musl")]
pub(super) const fn request(number: u32) -> libc::Ioctl {
    number.cast_signed()
}

/// A request by its number in the kernel's headers.
#[cfg(not(target_env = "musl"))]
pub(super) const fn request(number: u32) -> libc::Ioctl {
    number as libc::Ioctl
}
