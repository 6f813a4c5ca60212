//! Tests of the decoder of one thread.

use xray_trace::model::{EventBody, ProcessId};

use super::*;

/// The contents of a ring come from the target.
#[test]
fn no_payload_decodes_to_more_values_than_a_call_has() {
    let bytes: Vec<u8> = (0..100).collect();
    let first = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]);
    for (kind, len, count) in [
        (CallKind::Enter, 0, 0),
        (CallKind::Enter, 7, 0),
        (CallKind::Enter, 17, 2),
        (CallKind::Enter, 48, 6),
        (CallKind::Enter, 100, 6),
        (CallKind::Exit, 100, 1),
        (CallKind::TailExit, 100, 0),
    ] {
        let values = values_at(kind, &bytes[..len]);
        assert_eq!(values.len(), count, "{kind:?} of {len} bytes");
        assert_eq!(values.first(), (count > 0).then_some(first));
    }
}

/// Losses wait for the time of the first event, but no longer than until everything is read.
#[test]
fn losses_before_the_first_event_are_reported_once() {
    let mut sites = SiteTable::new();
    let site = CallSite {
        name: 0x1007,
        function: FunctionId(0),
        kind: SiteKind::Call(CallKind::Enter),
    };
    assert!(sites.insert(site, Ticks(0)));
    let event = |ticks| Item::Call {
        site: 0x1007,
        ticks,
        sp: 0x7000,
        argument: None,
    };
    let rows: [&[Item]; 5] = [
        &[Item::Lost(5)],
        &[Item::Lost(5), Item::Lost(2)],
        &[Item::Lost(5), event(100)],
        &[event(100), Item::Lost(5)],
        &[Item::Lost(5), event(100), Item::Lost(2), event(200)],
    ];
    for items in rows {
        let losses = items.iter().map(|item| match item {
            Item::Lost(count) => *count,
            _ => 0,
        });
        let expected: u64 = losses.sum();
        for read in 0..=items.len() {
            let output = EventStore::new(ProcessId(0), 1, 1 << 20);
            let thread = output.new_thread(1, String::new());
            let mut decoder =
                ThreadDecoder::new(thread, Ticks(0), &FrameBudget::new(), Arc::default());
            for (at, item) in items.iter().enumerate() {
                if at == read {
                    decoder.tell_early(ticks_now());
                }
                decoder.sink(&sites, &output).take(item.clone());
            }
            if read == items.len() {
                decoder.tell_early(ticks_now());
                decoder.publish(&output);
            } else {
                decoder.end(&output);
            }
            decoder.settle(&output);
            let blocks = output.snapshot().blocks;
            let reported: u64 = blocks.iter().map(|block| block.lost).sum();
            assert_eq!(reported, expected, "{items:?}, all read after {read}");
            assert_eq!(output.counters().lost, expected);
            let order = blocks.iter().flat_map(|block| [block.first, block.last]);
            assert!(order.is_sorted());
        }
    }
}

/// A call is open when its function is switched off. Another call in its place returns when the
/// function is on again. That exit does not end the first call. It makes no difference whether
/// the switch is known before or after the decoder's last look.
#[test]
fn an_exit_after_a_switch_is_not_that_of_an_entry_before_it() {
    for looked in [false, true] {
        for switched in [false, true] {
            let mut sites = SiteTable::new();
            for (name, kind) in [(0x1007, CallKind::Enter), (0x2007, CallKind::Exit)] {
                let site = CallSite {
                    name,
                    function: FunctionId(7),
                    kind: SiteKind::Call(kind),
                };
                assert!(sites.insert(site, Ticks(0)));
            }
            let switches = Arc::new(Switches::default());
            let output = EventStore::new(ProcessId(0), 8, 1 << 20);
            let thread = output.new_thread(1, String::new());
            let mut decoder =
                ThreadDecoder::new(thread, Ticks(0), &FrameBudget::new(), Arc::clone(&switches));
            let call = |site, ticks: Ticks| Item::Call {
                site,
                ticks: ticks.0,
                sp: 0x7000,
                argument: None,
            };
            let enter = call(0x1007, ticks_now());
            if looked {
                decoder.sink(&sites, &output).take(enter.clone());
            }
            // Of a neighbour, and of a function that was off.
            switches.mark(&[FunctionId(6), FunctionId(8)]);
            if switched {
                switches.mark(&[FunctionId(3), FunctionId(7)]);
            }
            if !looked {
                decoder.sink(&sites, &output).take(enter);
            }
            decoder
                .sink(&sites, &output)
                .take(call(0x2007, ticks_now()));
            decoder.end(&output);
            let blocks = output.snapshot().blocks;
            let events = blocks.iter().flat_map(|block| block.events());
            let bodies: Vec<EventBody> = events.map(|event| event.unwrap().body).collect();
            let left = bodies.contains(&EventBody::Unwound { calls: 1 });
            assert_eq!(left, switched, "{bodies:?}");
        }
    }
}
