//! Times, threads, processes and processors of events, in every version; buffers and their lengths.

use xray_trace::llvm::ByteOrder;
use xray_trace::llvm::fdr::{Body, Events, FunctionKind, Record, blocks};
use xray_trace::llvm::{Error, Mode};

use crate::common::*;

fn times(bytes: &[u8]) -> Vec<u64> {
    all_events(bytes).iter().map(|event| event.tsc).collect()
}

#[test]
fn every_record_that_tells_the_time_is_followed() {
    let events = [
        enter(1, 10),
        Record::CustomEventDelta {
            delta: -4,
            data: b"back",
        },
        Record::TypedEvent {
            delta: 6,
            event_type: 2,
            data: b"on",
        },
        Record::TscWrap { tsc: 50 },
        exit(1, 1),
        Record::NewCpu { cpu: 8, tsc: 7000 },
        enter(2, u32::MAX),
    ];
    let bytes = log(header(5), &buffer(4, 100, &events));
    assert_eq!(
        times(&bytes),
        [110, 106, 112, 51, 7000 + u64::from(u32::MAX)]
    );
    let cpus = all_events(&bytes)
        .iter()
        .map(|event| event.cpu)
        .collect::<Vec<_>>();
    assert_eq!(cpus, [3, 3, 3, 3, 8]);
}

#[test]
fn old_custom_events_have_a_time_of_their_own() {
    for (version, cpu) in [(3, 3), (4, 9)] {
        let custom: Rec = Record::CustomEvent {
            tsc: 5000,
            cpu: 9,
            data: b"old",
        };
        let bytes = log(
            header(version),
            &buffer(1, 100, &[enter(1, 10), custom, exit(1, 5)]),
        );
        assert_eq!(times(&bytes), [110, 5000, 115]);
        assert_eq!(all_events(&bytes)[1].cpu, cpu);
    }
}

#[test]
fn arguments_belong_to_the_entry_in_front() {
    let argument = Record::CallArgument { value: 67 };
    // Old runtimes write a plain entry before an argument.
    for kind in [FunctionKind::EnterArg, FunctionKind::Enter] {
        let events = [function(kind, 1, 1), argument, argument, exit(1, 1)];
        let all = all_events(&log(header(5), &buffer(1, 0, &events)));
        assert_eq!(all[1].body, Body::Argument(67));
        assert_eq!(all.len(), 4);
    }
    for events in [
        vec![exit(1, 1), argument],
        vec![function(FunctionKind::TailExit, 1, 1), argument],
    ] {
        let bytes = log(header(5), &buffer(1, 0, &events));
        let (_, error) = events_of(&bytes);
        assert_eq!(
            error,
            "argument record at offset 120: it does not follow a function entry that it belongs to"
        );
    }
    let bytes = log(header(5), &buffer(1, 0, &[argument]));
    assert_eq!(
        events_of(&bytes).1,
        "CallArg record at offset 112: invalid transition from NewCPUId to CallArg"
    );
}

/// The number of events, and the error in one line.
fn events_of(bytes: &[u8]) -> (usize, String) {
    let (all, error) = events(bytes);
    let error = error.map(|error| {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        format!("{error}{}", source.unwrap_or_default())
    });
    (all.len(), error.unwrap_or_default())
}

#[test]
fn extents_that_leave_out_typed_events_are_mended() {
    let typed = |data: &'static [u8]| Record::TypedEvent {
        delta: 1,
        event_type: 2,
        data,
    };
    // Buffers that continue for less and for more than the omitted bytes; one ends in the middle of
    // a record.
    for events in [
        vec![typed(b"a"), exit(1, 1), exit(2, 1), exit(3, 1)],
        vec![typed(b"abc"), exit(1, 1), typed(b"de"), exit(2, 1)],
        vec![enter(1, 1), typed(b"")],
        vec![typed(b""), typed(b""), typed(b"0123456789")],
    ] {
        let mut short = buffer(1, 0, &events);
        let count = events
            .iter()
            .filter(|event| matches!(event, Record::TypedEvent { .. }));
        let uncounted = 16 * count.count() as u64;
        if let Record::BufferExtents { size } = &mut short[0] {
            *size -= uncounted;
        }
        let whole = buffer(1, 0, &events);
        let next = buffer(2, 5, &[enter(9, 1)]);
        let short = log(header(5), &[short, next.clone()].concat());
        let whole = log(header(5), &[whole, next].concat());
        let expected = all_events(&whole);
        assert_eq!(all_events(&short), expected);
        assert_eq!(expected.len(), events.len() + 1);
    }
}

#[test]
fn padding_behind_the_end_of_a_buffer_is_no_record() {
    let mut header = header(1);
    header.free_form[..8].copy_from_slice(&128_u64.to_le_bytes());
    let block = |tid| {
        let records = [
            Record::NewBuffer { tid },
            Record::WallTime {
                seconds: 1,
                micros: 1,
            },
            Record::NewCpu { cpu: 1, tsc: 2 },
            enter(1, 1),
            Record::EndOfBuffer,
            // Left-over memory behind the end.
            enter(77, 1),
            exit(77, 1),
        ];
        let mut bytes = log(header, &records).split_off(32);
        bytes.resize(128, 0xff);
        bytes
    };
    let bytes = [log(header, &[]), block(1), block(2)].concat();
    let all = all_events(&bytes);
    assert_eq!(
        all.iter().map(|event| event.tid).collect::<Vec<_>>(),
        [1, 2]
    );
}

#[test]
fn a_log_without_events_has_none() {
    for version in 1..=5 {
        assert_eq!(all_events(&log(header(version), &[])), []);
    }
    let empty = Record::BufferExtents { size: 0 };
    let bytes = log(
        header(5),
        &[vec![empty], buffer(1, 1, &[enter(1, 1)])].concat(),
    );
    assert_eq!(all_events(&bytes).len(), 1);
}

#[test]
fn a_time_beyond_64_bits_is_none() {
    let bytes = log(header(5), &buffer(1, u64::MAX, &[enter(1, 1)]));
    let (_, error) = events(&bytes);
    assert!(
        matches!(error, Some(Error::Time { offset: 112, .. })),
        "{error:?}"
    );
    let back: Rec = Record::CustomEventDelta {
        delta: -2,
        data: b"",
    };
    let bytes = log(header(5), &buffer(1, 1, &[back]));
    assert!(matches!(events(&bytes).1, Some(Error::Time { .. })));
}

#[test]
fn blocks_are_listed_and_can_be_read_one_by_one() {
    let records = [
        buffer(1, 100, &[enter(1, 5), exit(1, 5)]),
        buffer(2, 50, &[enter(2, 5)]),
        buffer(1, 200, &[enter(3, 5)]),
    ];
    let mut header = header(5);
    for order in [ByteOrder::Little, ByteOrder::Big] {
        header.order = order;
        let bytes = log(header, &records.concat());
        let list = blocks(&mut Events::new(&bytes[..], Mode::Strict).unwrap()).unwrap();
        let seen = list.iter().map(|block| {
            (
                block.buffer.tid,
                block.buffer.first,
                block.last,
                block.events,
            )
        });
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [
                (Some(1), Some(100), 110, 2),
                (Some(2), Some(50), 55, 1),
                (Some(1), Some(200), 205, 1)
            ]
        );
        assert_eq!(list[0].buffer.wall, Some((5, 7)));
        let mut all = Vec::new();
        for block in &list {
            let from = usize::try_from(block.buffer.offset).unwrap();
            let len = usize::try_from(block.len).unwrap();
            let bytes = &bytes[from..from + len];
            let mut events =
                Events::resume(bytes, header, block.buffer.offset, Mode::Strict).unwrap();
            let (events, error) = rest(&mut events);
            assert!(error.is_none(), "{error:?}");
            all.extend(events);
        }
        assert_eq!(all, all_events(&bytes));
    }
}
