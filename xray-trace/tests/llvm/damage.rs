//! Damaged FDR logs: the place and the error at which reading stops, and the events that can be
//! salvaged.

use xray_trace::llvm::Error;
use xray_trace::llvm::fdr::{Body, Record};

use crate::common::*;

/// Two threads with two calls each.
fn two_buffers() -> Vec<u8> {
    let events = [enter(1, 1), enter(2, 1), exit(2, 1), exit(1, 1)];
    let records = [buffer(1, 100, &events), buffer(2, 200, &events)].concat();
    log(header(5), &records)
}

/// The offsets of the buffers of [`two_buffers`].
const FIRST: usize = 32;
const SECOND: usize = FIRST + 112;

fn threads(events: &[Ev]) -> Vec<i32> {
    events.iter().map(|event| event.tid).collect()
}

#[track_caller]
fn check(bytes: &[u8], read: usize, message: &str, saved: &[i32], skipped: usize) {
    let (events, error) = events(bytes);
    assert_eq!(error.expect("an error").to_string(), message);
    assert_eq!(events.len(), read);
    let (events, notes) = salvage(bytes);
    assert_eq!(threads(&events), saved, "{notes:?}");
    assert_eq!(notes.len(), skipped, "{notes:?}");
    assert!(notes[0].ends_with(message), "{notes:?}");
}

#[test]
fn a_log_cut_at_any_byte_gives_what_stands_in_front() {
    let whole = two_buffers();
    let all = all_events(&whole);
    for len in 0..whole.len() {
        let (read, error) = events(&whole[..len]);
        assert_eq!(read, all[..read.len()]);
        // A log can end between buffers.
        assert_eq!(error.is_none(), len == FIRST || len == SECOND, "{len}");
        let before = all.iter().filter(|event| event.offset + 8 <= len as u64);
        assert_eq!(read.len(), before.count(), "{len}");
        match len {
            0 => assert!(matches!(error, Some(Error::Empty))),
            1..32 => assert!(
                matches!(error, Some(Error::ShortHeader { .. })),
                "{error:?}"
            ),
            _ => assert_eq!(salvage(&whole[..len]).0, read),
        }
    }
}

#[test]
fn a_log_of_an_old_version_cut_at_any_byte_gives_what_stands_in_front() {
    let mut old = header(1);
    old.free_form[..8].copy_from_slice(&96_u64.to_le_bytes());
    let records = [
        Record::NewBuffer { tid: 1 },
        Record::WallTime {
            seconds: 1,
            micros: 1,
        },
        Record::NewCpu { cpu: 1, tsc: 2 },
        enter(1, 1),
        exit(1, 100),
        Record::EndOfBuffer,
    ];
    let mut whole = log(old, &records);
    let end_of_records = whole.len();
    whole.resize(32 + 96, 0);
    for len in 33..whole.len() {
        let error = events(&whole[..len]).1;
        assert_eq!(error.is_none(), len >= end_of_records, "{len}: {error:?}");
    }
}

#[test]
fn a_header_that_is_none_is_refused() {
    let message = |bytes: &[u8]| events(bytes).1.unwrap().to_string();
    let whole = two_buffers();
    let with = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        message(&bytes)
    };
    assert_eq!(message(b""), "the file is empty");
    assert_eq!(
        message(&[5]),
        "the file ends inside its header: it has 1 of 32 bytes"
    );
    assert_eq!(
        with(0, 6),
        "version 6 of the FDR log is not supported; the newest supported version is 5"
    );
    assert_eq!(
        with(2, 0),
        "the file does not have the format FDR log: its first bytes are 05 00 00 00 03 00 00 00"
    );
    assert_eq!(
        message(b"#!/bin/sh\n"),
        "the file does not have the format FDR log: its first bytes are 23 21 2f 62 69 6e 2f 73"
    );
}

#[test]
fn extents_that_lie() {
    let with = |extents: u64| {
        let mut bytes = two_buffers();
        bytes[FIRST + 1..FIRST + 9].copy_from_slice(&extents.to_le_bytes());
        bytes
    };
    let all = [1, 1, 1, 1, 2, 2, 2, 2];
    check(
        &with(90),
        3,
        "Function record at offset 136: it extends 6 bytes beyond its buffer, which ends at 138",
        &all,
        1,
    );
    check(
        &with(88),
        3,
        "offset 136: expected a buffer, found the byte 0x12",
        &all,
        1,
    );
    check(
        &with(104),
        4,
        "BufferExtents record at offset 144: a buffer begins 8 bytes before the end of the \
         previous one",
        &all,
        1,
    );
    check(
        &with(1 << 40),
        4,
        "BufferExtents record at offset 144: a buffer begins 1099511627680 bytes before the end \
         of the previous one",
        &all,
        1,
    );
    check(
        &with(u64::MAX),
        0,
        "BufferExtents record at offset 32: a buffer of 18446744073709551615 bytes does not fit \
         into any file",
        &[2, 2, 2, 2],
        1,
    );
    let mut last = two_buffers();
    last[SECOND + 1] = 100;
    check(
        &last,
        8,
        "buffer at offset 144: the file ends 4 bytes before the end of the buffer",
        &all,
        1,
    );
}

#[test]
fn records_that_do_not_exist() {
    let with = |at: usize, byte: u8| {
        let mut bytes = two_buffers();
        bytes[at] = byte;
        bytes
    };
    let at = FIRST + 16 + 64 + 8;
    check(
        &with(at, 0x12 | 8),
        1,
        "record at offset 120: unknown function record kind 5",
        &[1, 2, 2, 2, 2],
        1,
    );
    check(
        &with(at, 12 << 1 | 1),
        1,
        "record at offset 120: unknown metadata record kind 12",
        &[1, 2, 2, 2, 2],
        1,
    );
    check(
        &with(FIRST, 0),
        0,
        "offset 32: expected a buffer, found the byte 0x00",
        &[1, 1, 1, 1, 2, 2, 2, 2],
        3,
    );
}

#[test]
fn records_in_an_order_that_is_none() {
    let events = [enter(1, 1), exit(1, 1)];
    let mut records = buffer(1, 100, &events);
    records.remove(2);
    records[0] = extents(&records[1..]);
    let bytes = log(header(5), &[records, buffer(2, 5, &events)].concat());
    check(&bytes, 0, "PIDEntry record at offset 64", &[1, 1, 2, 2], 1);

    // The times of these events are unknown.
    let mut records = buffer(1, 100, &events);
    records.remove(4);
    records[0] = extents(&records[1..]);
    let bytes = log(header(5), &[records, buffer(2, 5, &events)].concat());
    check(&bytes, 0, "Function record at offset 96", &[2, 2], 3);

    // The threads of these events are unknown.
    let mut records = buffer(1, 100, &events);
    records.remove(1);
    records[0] = extents(&records[1..]);
    let bytes = log(header(5), &[records, buffer(2, 5, &events)].concat());
    let (saved, _) = salvage(&bytes);
    assert_eq!(threads(&saved), [2, 2]);

    let bytes = log(header(5), &buffer(1, 100, &[])[..4]);
    assert!(events_error(&bytes).contains("16 bytes before the end of the buffer"));
    let mut records = buffer(1, 100, &[]);
    records.truncate(4);
    records[0] = extents(&records[1..]);
    check(
        &log(header(5), &records),
        0,
        "the buffer that ends at offset 96 has no event: its last record is PIDEntry",
        &[],
        1,
    );
}

fn events_error(bytes: &[u8]) -> String {
    events(bytes).1.unwrap().to_string()
}

#[test]
fn events_with_impossible_sizes() {
    let event: Rec = Record::CustomEventDelta {
        delta: 1,
        data: b"abcd",
    };
    let records = [
        buffer(1, 100, &[enter(1, 1), event, exit(1, 1)]),
        buffer(2, 5, &[enter(1, 1)]),
    ];
    let with = |size: i32| {
        let mut bytes = log(header(5), &records.concat());
        let at = FIRST + 16 + 64 + 8 + 1;
        bytes[at..at + 4].copy_from_slice(&size.to_le_bytes());
        bytes
    };
    check(
        &with(-1),
        1,
        "CustomEvent record at offset 120: its size -1 is negative",
        &[1, 2],
        1,
    );
    check(
        &with(1 << 20),
        1,
        "CustomEvent record at offset 120: the file ends inside it, after 116 of 1048592 bytes",
        &[1, 2],
        1,
    );
    check(
        &with(i32::MAX),
        1,
        "CustomEvent at offset 120: its 2147483647 bytes exceed the limit of 16777216 bytes",
        &[1, 2],
        1,
    );
}

#[test]
fn an_argument_without_its_entry_is_left_out_alone() {
    let events = [exit(1, 1), Record::CallArgument { value: 3 }, exit(2, 1)];
    let bytes = log(header(5), &buffer(1, 100, &events));
    check(
        &bytes,
        1,
        "argument record at offset 120: it does not follow a function entry that it belongs to",
        &[1, 1],
        1,
    );
    let (saved, _) = salvage(&bytes);
    assert!(
        saved
            .iter()
            .all(|event| matches!(event.body, Body::Call { .. }))
    );
}

#[test]
fn whatever_one_byte_is_the_other_buffer_is_saved() {
    let whole = two_buffers();
    let second = all_events(&whole).split_off(4);
    for at in FIRST..SECOND {
        for byte in [0, 1, 0x0f, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            let (saved, _) = salvage(&bytes);
            assert!(saved.ends_with(&second), "{byte:#x} at {at}");
        }
    }
}
