//! Addresses as an object file has them.
//!
//! A file's addresses become a process's by adding the load bias of the module. The two are different types, so
//! that nobody adds the bias twice or forgets it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An address as in the object file, before the load bias is added.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct FileAddr(pub u64);

// === impl FileAddr ===

impl FileAddr {
    /// The address `bytes` further on, or `None` where the address space ends.
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }

    /// How many bytes this address lies after `base`, or `None` if it lies before it.
    pub fn offset_from(self, base: Self) -> Option<u64> {
        self.0.checked_sub(base.0)
    }

    /// The address moved by a signed distance, modulo 2^64: what a PC-relative field means.
    pub(crate) fn displaced(self, distance: u64) -> Self {
        Self(self.0.wrapping_add(distance))
    }
}

impl fmt::Display for FileAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::LowerHex for FileAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_in_hex_and_never_wraps_by_itself() {
        assert_eq!(FileAddr(0x27a50).to_string(), "0x27a50");
        assert_eq!(FileAddr(u64::MAX).checked_add(1), None);
        assert_eq!(FileAddr(8).offset_from(FileAddr(9)), None);
        assert_eq!(
            FileAddr(0x1000).displaced((-16_i64).cast_unsigned()),
            FileAddr(0xff0)
        );
    }
}
