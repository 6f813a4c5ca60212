//! Addresses in an object file.
//!
//! Adding the load bias of the module turns an address of a file into one of a process. The two
//! have different types, so that the bias is neither added twice nor forgotten.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An address in the object file, before the load bias is added.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct FileAddr(pub u64);

// === impl FileAddr ===

impl FileAddr {
    /// The address `bytes` further on; `None` beyond the end of the address space.
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }

    /// The distance of this address from `base`; `None` if the address is before it.
    pub fn offset_from(self, base: Self) -> Option<u64> {
        self.0.checked_sub(base.0)
    }

    /// The address moved by a signed distance, modulo 2^64, as for a PC-relative field.
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
