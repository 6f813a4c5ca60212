//! The `.xtrace` reader: as the input is, and with its checksums mended, so that what is behind them is reached, too.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xray_trace::container::{HEADER_LEN, Item, Reader};

fuzz_target!(|input: &[u8]| {
    read(input);
    read(&mend(input));
});

fn read(bytes: &[u8]) {
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    // Each section takes at least its frame: so many calls are enough, also if errors repeat.
    for _ in 0..bytes.len() {
        match reader.next_item() {
            Ok(Some(Item::Block(block))) => {
                let limit = 64 + 8 * block.encoded_len();
                let events = block.events().take_while(Result::is_ok).count();
                assert!(
                    events <= limit,
                    "{events} events of {} bytes",
                    block.encoded_len()
                );
            }
            Ok(Some(_)) => {}
            Ok(None) => {
                assert!(reader.completeness().is_some());
                break;
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert!(reader.offset() <= bytes.len() as u64);
    }
}

/// The input with the checksum that each section should have (CRC-32 as in zlib).
fn mend(input: &[u8]) -> Vec<u8> {
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
