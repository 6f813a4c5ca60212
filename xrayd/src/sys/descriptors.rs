//! The limit on open descriptors of this process.

use std::{fs::File, io, os::fd::AsRawFd as _};

use nix::{
    errno::Errno,
    sys::resource::{Resource, getrlimit},
};

/// The share of the limit that is to stay free: one descriptor in so many, and at least
/// [`LEAST_SPARE`].
const SPARE_PART: u64 = 8;
/// An attach takes about this many for a moment.
const LEAST_SPARE: u64 = 16;

/// The descriptors that this process may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DescriptorRoom {
    /// Their number: `RLIMIT_NOFILE`.
    pub(crate) most: u64,
    /// The number that is to stay free.
    pub(crate) spare: u64,
    /// True if more are free.
    pub(crate) is_enough: bool,
}

// === impl DescriptorRoom ===

impl DescriptorRoom {
    /// Looks how many descriptors are free.
    ///
    /// # Errors
    /// The error of the system. It is no error that none is free.
    pub(crate) fn look() -> io::Result<Self> {
        let (most, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let spare = (most / SPARE_PART).max(LEAST_SPARE);
        // A new descriptor has the lowest number that is free.
        let lowest = match File::open("/dev/null") {
            Ok(file) => u64::try_from(file.as_raw_fd()).unwrap_or(0),
            Err(error) if Errno::from_raw(error.raw_os_error().unwrap_or(0)) == Errno::EMFILE => {
                most
            }
            Err(error) => return Err(error),
        };
        Ok(Self {
            most,
            spare,
            is_enough: lowest < most.saturating_sub(spare),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_few_descriptors_has_room() {
        let room = DescriptorRoom::look().unwrap();
        assert!(room.is_enough && room.spare < room.most, "{room:?}");
    }
}
