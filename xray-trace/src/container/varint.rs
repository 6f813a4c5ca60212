//! Unsigned LEB128 numbers: seven bits in a byte, the lowest first. The top bit is set in all bytes
//! but the last.

/// The longest encoding of a 64-bit number.
pub(crate) const MAX_LEN: usize = 10;

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, value: u64) {
    let mut bytes = [0; MAX_LEN];
    let len = write(&mut bytes, value);
    out.extend_from_slice(&bytes[..len]);
}

/// Writes a number to the front of `bytes`, and returns its length.
#[inline]
pub(crate) fn write(bytes: &mut [u8; MAX_LEN], mut value: u64) -> usize {
    for (at, byte) in bytes.iter_mut().enumerate() {
        let low = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        if value == 0 {
            *byte = low;
            return at + 1;
        }
        *byte = low | 0x80;
    }
    MAX_LEN
}

/// The reason why a number cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VarintError {
    /// The bytes end inside the number.
    Short,
    /// The number does not fit 64 bits.
    TooLong,
}

/// Reads the number at the front of `bytes`, and returns it with its length.
#[inline(always)]
pub(super) fn read(bytes: &[u8]) -> Result<(u64, usize), VarintError> {
    match *bytes {
        [only @ 0..0x80, ..] => Ok((only.into(), 1)),
        [low, high @ 0..0x80, ..] => Ok((u64::from(low & 0x7f) | u64::from(high) << 7, 2)),
        _ => read_any(bytes),
    }
}

#[inline(never)]
fn read_any(bytes: &[u8]) -> Result<(u64, usize), VarintError> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(MAX_LEN).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if at == MAX_LEN - 1 && bits > 1 {
            return Err(VarintError::TooLong);
        }
        value |= bits << (7 * at);
        if byte & 0x80 == 0 {
            return Ok((value, at + 1));
        }
    }
    Err(if bytes.len() < MAX_LEN {
        VarintError::Short
    } else {
        VarintError::TooLong
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_round_trip() {
        for value in [
            0,
            1,
            0x7f,
            0x80,
            0x3fff,
            0x4000,
            u64::from(u32::MAX),
            u64::MAX - 1,
            u64::MAX,
        ] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert_eq!(read(&bytes), Ok((value, bytes.len())), "{value}");
            assert_eq!(
                read(&bytes[..bytes.len() - 1]),
                Err(VarintError::Short),
                "{value}"
            );
        }
    }

    #[test]
    fn numbers_above_64_bits_are_refused() {
        assert_eq!(read(&[0xff; 12]), Err(VarintError::TooLong));
        let mut bytes = [0xff; 10];
        bytes[9] = 2;
        assert_eq!(read(&bytes), Err(VarintError::TooLong));
        bytes[9] = 1;
        assert_eq!(read(&bytes), Ok((u64::MAX, 10)));
    }
}
