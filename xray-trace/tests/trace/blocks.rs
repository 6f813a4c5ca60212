//! Blocks return the events that were pushed, of any kind, and no bytes make them panic.

use crate::common::{Enter, Exit, any_events, blocks, call, lost, push};
use proptest::prelude::*;
use xray_trace::container::BlockEncoder;
use xray_trace::model::{Event, EventBody, ThreadId, Ticks};

fn unpacked(blocks: &[xray_trace::container::Block]) -> Vec<Event> {
    blocks
        .iter()
        .flat_map(|block| block.events())
        .map(|event| event.unwrap())
        .collect()
}

proptest! {
    #[test]
    fn events_survive_the_round_trip(events in any_events(0..400), per_block in 1..200_usize) {
        let blocks = blocks(7, &events, per_block);
        prop_assert_eq!(unpacked(&blocks), events.clone());
        for (block, chunk) in blocks.iter().zip(events.chunks(per_block)) {
            let calls = chunk.iter().filter(|event| matches!(event.body, EventBody::Call { .. }));
            prop_assert_eq!(block.calls as usize, calls.count());
            prop_assert_eq!(block.first, chunk[0].ticks);
            prop_assert_eq!(block.last, chunk[chunk.len() - 1].ticks);
        }
    }

    #[test]
    fn any_bytes_are_events_or_one_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut block = blocks(0, &[call(u64::MAX - 5000, 1, Enter)], 1).remove(0);
        block.payload = bytes.clone().into();
        let mut ended = false;
        let mut last = Ticks(0);
        let mut count = 0;
        for event in block.events() {
            prop_assert!(!ended, "nothing comes after an error");
            match event {
                Ok(event) => {
                    prop_assert!(event.ticks >= last);
                    last = event.ticks;
                }
                Err(_) => ended = true,
            }
            count += 1;
        }
        prop_assert!(count <= bytes.len());
    }
}

#[test]
fn a_repeating_program_takes_two_bytes_per_event() {
    let mut events = Vec::new();
    let mut ticks = 0;
    for _ in 0..1000 {
        for (function, kind) in [
            (1, Enter),
            (2, Enter),
            (2, Exit),
            (3, Enter),
            (3, Exit),
            (1, Exit),
        ] {
            ticks += 100;
            events.push(call(ticks, function, kind));
        }
    }
    let blocks = blocks(0, &events, events.len());
    let per_event = blocks[0].encoded_len() as f64 / events.len() as f64;
    assert!(per_event < 2.02, "{per_event} bytes per event");
}

#[test]
fn time_never_runs_backwards_not_even_across_blocks() {
    let mut encoder = BlockEncoder::new(ThreadId(0));
    push(&mut encoder, call(1000, 1, Enter));
    push(&mut encoder, call(900, 1, Exit));
    let first = encoder.finish().unwrap();
    push(&mut encoder, call(500, 1, Enter));
    push(&mut encoder, lost(1100, 3));
    let second = encoder.finish().unwrap();
    let times = unpacked(&[first, second])
        .iter()
        .map(|event| event.ticks.0)
        .collect::<Vec<_>>();
    assert_eq!(times, [1000, 1000, 1000, 1100]);
}

#[test]
fn an_encoder_counts_and_begins_anew_after_finish() {
    let mut encoder = BlockEncoder::new(ThreadId(3));
    assert!(encoder.is_empty() && encoder.finish().is_none());
    push(&mut encoder, call(1, 1, Enter));
    push(&mut encoder, lost(2, 40));
    assert_eq!((encoder.events(), encoder.is_empty()), (1, false));
    let block = encoder.finish().unwrap();
    assert_eq!(
        (block.calls, block.lost, block.thread),
        (1, 40, ThreadId(3))
    );
    assert_eq!(
        (encoder.events(), encoder.is_empty(), encoder.encoded_len()),
        (0, true, 0)
    );
}
