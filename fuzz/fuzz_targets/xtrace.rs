//! The `.xtrace` reader: as the input is, and with its checksums mended, so that what is behind them is reached, too.
#![no_main]

mod mend;

use libfuzzer_sys::fuzz_target;
use xray_trace::container::{Item, OpenCalls, Reader};

use mend::mend;

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
            Ok(Some(Item::OpenCalls(open))) => {
                for block in [0, 1, open.first_block, u64::MAX] {
                    if let Some((at, calls)) = open.before(block) {
                        assert!((open.first_block..=block).contains(&at));
                        assert!(calls.len() <= OpenCalls::MAX_DEPTH);
                        assert!(calls.is_sorted_by_key(|call| call.start));
                    }
                }
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
