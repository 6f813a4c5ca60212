//! Ids that an importer gives out.

use std::io;

/// The id after `known` ids.
pub(super) fn next_id(known: usize) -> io::Result<u32> {
    u32::try_from(known).map_err(|_| io::Error::other("more than 2^32 threads or functions"))
}
