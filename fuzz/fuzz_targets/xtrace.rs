//! The `.xtrace` reader. It reads the input as it is, and with mended checksums, so that it also
//! reaches the data behind them.
#![no_main]

mod mend;

use libfuzzer_sys::fuzz_target;
use xray_trace::analysis::{Budget, Filter, GroupBy, account_profile};
use xray_trace::container::{Item, OpenCalls, Reader};
use xray_trace::model::{Profile, Trace};

use mend::mend;

fuzz_target!(|input: &[u8]| {
    read(input);
    read(&mend(input));
    add_up(&mend(input));
});

/// Checks the suppressed functions of a trace, and its sums of calls, if it has any.
fn add_up(bytes: &[u8]) {
    let Ok(trace) = Trace::read(bytes) else {
        return;
    };
    let budget = Budget::new(&trace, &Filter::default());
    let off = budget.suppressed.iter();
    assert!(
        off.clone()
            .all(|suppressed| suppressed.off_ns <= suppressed.of_ns)
    );
    if let Ok(Some(profile)) = Profile::of_trace(trace) {
        let account = account_profile(&profile, &Filter::default(), GroupBy::Function);
        let stacks = profile.stacks().iter();
        let calls = stacks.map(|stack| stack.calls).fold(0, u64::saturating_add);
        let rows = account.rows.iter();
        assert_eq!(
            rows.map(|row| row.calls).fold(0, u64::saturating_add),
            calls
        );
    }
}

fn read(bytes: &[u8]) {
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    // Each section takes at least its frame. So this many calls suffice even if errors repeat.
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
            Ok(Some(Item::Profile(part))) => {
                let mut stacks = 0;
                let all = part.each(|stack| {
                    stacks += 1;
                    let own = part.first.saturating_add(stacks - 1);
                    assert!(stack.caller.is_none_or(|caller| caller < own));
                    assert!(stack.sums.durations.heap_bytes() <= 32 << 10);
                    Ok(())
                });
                assert!(stacks as usize <= part.stacks.len());
                assert!(all.is_ok() || !part.stacks.is_empty());
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
