//! Mends the checksums of an `.xtrace`, because a reader stops at a wrong checksum.

use xray_trace::container::HEADER_LEN;

/// The input, with a correct checksum in the header and in each section (CRC-32 as in zlib).
pub(crate) fn mend(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    if bytes.len() < HEADER_LEN {
        return bytes;
    }
    put(&mut bytes, 0, 12);
    let mut at = HEADER_LEN;
    while let Some(length) = bytes.get(at + 4..at + 8) {
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        let Some(end) = at
            .checked_add(8 + length)
            .filter(|end| end + 4 <= bytes.len())
        else {
            break;
        };
        put(&mut bytes, at, end);
        at = end + 4;
    }
    bytes
}

fn put(bytes: &mut [u8], from: usize, to: usize) {
    let sum = crc32(&bytes[from..to]).to_le_bytes();
    bytes[to..to + 4].copy_from_slice(&sum);
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 {
                sum >> 1 ^ 0xedb8_8320
            } else {
                sum >> 1
            };
        }
    }
    !sum
}
