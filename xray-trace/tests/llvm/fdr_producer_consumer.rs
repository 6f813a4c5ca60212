//! FDRProducerConsumerTest: each record comes back unchanged, in every version that has it.

use xray_trace::llvm::ByteOrder;
use xray_trace::llvm::fdr::{FunctionKind, MAX_FUNCTION_ID, Reader, Record, Writer};
use xray_trace::llvm::{Error, Header, Mode};

use crate::common::*;

/// Reads the written record, after the extents that versions from 2 on need.
#[track_caller]
fn check(header: Header, from_low: bool, record: Rec) {
    let mut all = vec![record];
    if header.version >= 2 {
        let size = log(header, &all).len() - 32;
        all.insert(0, Record::BufferExtents { size: size as u64 });
    } else if !matches!(record, Record::NewBuffer { .. }) {
        all.insert(0, Record::NewBuffer { tid: 1 });
    }
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    if from_low {
        writer = writer.with_bits_from_low();
    }
    for record in &all {
        writer.record(record).unwrap();
    }
    let bytes = writer.into_inner();
    let mut reader = Reader::new(&bytes[..], Mode::Strict).unwrap();
    for record in &all {
        let item = reader.next().unwrap().expect("a record");
        assert_eq!(item.record, *record, "{header:?}");
    }
    assert_eq!(reader.next().unwrap(), None);
}

fn check_everywhere(versions: std::ops::RangeInclusive<u16>, record: Rec) {
    for version in versions {
        let mut header = header(version);
        check(header, false, record);
        header.order = ByteOrder::Big;
        check(header, false, record);
        let id_is_short =
            !matches!(record, Record::Function { function, .. } if function >> 20 != 0);
        if id_is_short {
            check(header, true, record);
        }
    }
}

#[test]
fn round_trips_single_value() {
    let (tsc, cpu) = (0x0123_4567_89ab_cdef, 0xfedc);
    check_everywhere(1..=5, Record::NewBuffer { tid: -5 });
    check_everywhere(1..=1, Record::EndOfBuffer);
    check_everywhere(1..=5, Record::NewCpu { cpu, tsc });
    check_everywhere(1..=5, Record::TscWrap { tsc });
    let wall = Record::WallTime {
        seconds: u64::MAX,
        micros: 999_999,
    };
    check_everywhere(1..=5, wall);
    check_everywhere(3..=5, Record::Pid { pid: i32::MAX });
    check_everywhere(1..=5, Record::CallArgument { value: tsc });
    let data = b"a payload of 25 bytes, odd";
    check_everywhere(1..=3, Record::CustomEvent { tsc, cpu: 0, data });
    check_everywhere(4..=4, Record::CustomEvent { tsc, cpu, data });
    check_everywhere(5..=5, Record::CustomEventDelta { delta: -7, data });
    let typed: Rec = Record::TypedEvent {
        delta: i32::MIN,
        event_type: 0xabcd,
        data,
    };
    check_everywhere(5..=5, typed);
    for kind in [
        FunctionKind::Enter,
        FunctionKind::Exit,
        FunctionKind::TailExit,
        FunctionKind::EnterArg,
    ] {
        check_everywhere(1..=5, function(kind, 1, 2));
        check_everywhere(1..=5, function(kind, MAX_FUNCTION_ID, u32::MAX));
    }
}

#[test]
fn events_without_payload_are_legal() {
    check_everywhere(
        5..=5,
        Record::CustomEventDelta {
            delta: 1,
            data: b"",
        },
    );
    let typed: Rec = Record::TypedEvent {
        delta: 1,
        event_type: 0,
        data: b"",
    };
    check_everywhere(5..=5, typed);
}

#[test]
fn a_function_id_of_29_bits_is_not_written() {
    let mut writer = Writer::new(Vec::new(), header(5)).unwrap();
    let error = writer.record(&enter(MAX_FUNCTION_ID + 1, 0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the function id is too large for an FDR log"
    );
}

#[test]
fn end_of_buffer_is_refused_from_version_2_on() {
    let bytes = log(
        header(2),
        &[Record::BufferExtents { size: 16 }, Record::EndOfBuffer],
    );
    let (_, error) = records(&bytes);
    assert!(matches!(
        error,
        Some(Error::EndOfBuffer {
            offset: 48,
            version: 2
        })
    ));
}
