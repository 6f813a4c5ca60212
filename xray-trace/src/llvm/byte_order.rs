//! The order of the bytes of a number. A log has the order of the machine that wrote it.

/// The order of the bytes of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOrder {
    /// The lowest byte comes first.
    Little,
    /// The highest byte comes first.
    Big,
}

// === impl ByteOrder ===

impl ByteOrder {
    /// The number of two bytes at this offset; 0 beyond the end.
    #[inline]
    #[must_use]
    pub fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let bytes = field(bytes, at);
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    /// The number of four bytes at this offset; 0 beyond the end.
    #[inline]
    #[must_use]
    pub fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let bytes = field(bytes, at);
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    /// The number of eight bytes at this offset; 0 beyond the end.
    #[inline]
    #[must_use]
    pub fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let bytes = field(bytes, at);
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    /// The signed number of four bytes at this offset; 0 beyond the end.
    #[inline]
    #[must_use]
    pub fn i32(self, bytes: &[u8], at: usize) -> i32 {
        self.u32(bytes, at).cast_signed()
    }

    pub(super) fn put_u16(self, value: u16) -> [u8; 2] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    pub(super) fn put_u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    pub(super) fn put_u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

/// Some bytes of a record. The caller has made sure that the record has them; zeros replace missing
/// bytes.
#[inline]
pub(super) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(|bytes| bytes.first_chunk())
        .copied()
        .unwrap_or([0; N])
}
