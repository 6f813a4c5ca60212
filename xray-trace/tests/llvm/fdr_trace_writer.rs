//! FDRTraceWriterTest: logs of versions 1 to 3 made from records, checked byte by byte and read
//! back. LLVM reads them, too.

use xray_trace::llvm::fdr::{Body, FunctionKind, Record};

use crate::common::*;

#[track_caller]
fn check(bytes: &[u8], pid: Option<i32>) {
    let calls = [(FunctionKind::Enter, 3), (FunctionKind::Exit, 103)];
    let events = all_events(bytes);
    assert_eq!(events.len(), 2);
    for (event, (kind, tsc)) in events.iter().zip(calls) {
        assert_eq!(event.body, Body::Call { kind, function: 1 });
        assert_eq!(
            (event.tid, event.pid, event.cpu, event.tsc),
            (1, pid, 1, tsc)
        );
    }
    let yaml = llvm_xray(&["convert", "-f", "yaml"], bytes).unwrap();
    assert_eq!(yaml.matches("func-id: 1,").count(), 2, "{yaml}");
}

const WALL: Rec = Record::WallTime {
    seconds: 1,
    micros: 1,
};

#[test]
fn write_to_string_buffer_version_3() {
    let records = [
        Record::BufferExtents { size: 80 },
        Record::NewBuffer { tid: 1 },
        WALL,
        Record::Pid { pid: 1 },
        Record::NewCpu { cpu: 1, tsc: 2 },
        enter(1, 1),
        exit(1, 100),
    ];
    let bytes = log(header(3), &records);
    let expected: [&[u8]; 9] = [
        &[3, 0, 1, 0, 3, 0, 0, 0, 0, 0x5e, 0xd0, 0xb2, 0, 0, 0, 0],
        &[0; 16],
        &[0x0f, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x01, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x09, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0],
        &[0x13, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x05, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x10, 0, 0, 0, 1, 0, 0, 0],
        &[0x12, 0, 0, 0, 100, 0, 0, 0],
    ];
    assert_eq!(bytes, expected.concat());
    check(&bytes, Some(1));
}

#[test]
fn write_to_string_buffer_version_2() {
    let records = [
        Record::BufferExtents { size: 64 },
        Record::NewBuffer { tid: 1 },
        WALL,
        Record::NewCpu { cpu: 1, tsc: 2 },
        enter(1, 1),
        exit(1, 100),
    ];
    // Without a process record, the process has the thread's id.
    check(&log(header(2), &records), Some(1));
}

#[test]
fn write_to_string_buffer_version_1() {
    let mut header = header(1);
    header.free_form[..8].copy_from_slice(&4096_u64.to_le_bytes());
    let records = [
        Record::NewBuffer { tid: 1 },
        WALL,
        Record::NewCpu { cpu: 1, tsc: 2 },
        enter(1, 1),
        exit(1, 100),
        Record::EndOfBuffer,
    ];
    let mut bytes = log(header, &records);
    bytes.resize(32 + 4096, 0);
    check(&bytes, None);
}
