//! The output of `llvm-xray fdr-dump` for the same logs, compared with ours.

use proptest::prelude::*;
use xray_trace::llvm::Mode;
use xray_trace::llvm::fdr::{BlockPrinter, FunctionKind, Reader, Record, print};

use crate::common::*;
use crate::samples::fdr_log_arg1_version_3;

fn dump(bytes: &[u8], verify: bool) -> String {
    let mut out = Vec::new();
    let mut reader = Reader::new(bytes, Mode::Strict).unwrap();
    let mut printer = BlockPrinter::default();
    while let Some(item) = reader.next().unwrap() {
        if verify {
            printer.print(&item.record, &mut out).unwrap();
        } else {
            print(&item.record, &mut out).unwrap();
            out.push(b'\n');
        }
    }
    String::from_utf8(out).unwrap()
}

#[track_caller]
fn check(bytes: &[u8]) {
    assert_eq!(dump(bytes, false), llvm_xray(&["fdr-dump"], bytes).unwrap());
    assert_eq!(
        dump(bytes, true),
        llvm_xray(&["fdr-dump", "-verify"], bytes).unwrap()
    );
}

/// The log of upstream's `fdr-dump-arg1.txt`, of version 1. The padding is left out, because
/// llvm-xray takes it for records.
#[test]
fn fdr_dump_arg1() {
    let mut header = header(1);
    header.free_form[..8].copy_from_slice(&112_u64.to_le_bytes());
    let tsc = 18_828_908_666_540_172;
    let records = [
        Record::NewBuffer { tid: 14648 },
        Record::WallTime {
            seconds: 1_452_786,
            micros: 250_689,
        },
        Record::NewCpu { cpu: 49, tsc },
        Record::TscWrap { tsc },
        enter(1, 3146),
        Record::CallArgument { value: 1 },
        exit(1, 52286),
        Record::EndOfBuffer,
    ];
    let bytes = log(header, &records);
    check(&bytes);
    assert!(dump(&bytes, false).contains("<Call Argument: data = 1 (hex = 0x1)>\n"));
}

/// Upstream's `fdr-dump-arg1-version-3.txt`, with `-verify`.
#[test]
fn fdr_dump_arg1_version_3() {
    let bytes = fdr_log_arg1_version_3();
    check(&bytes);
    let text = dump(&bytes, true);
    let begin = "\n[New Block]\nPreamble: \n<Thread ID: 2631>\n<Wall Time: seconds = 599605.032403>\n<PID: 2631>\n\nBody:\n <CPU: id = 6, ";
    assert!(text.starts_with(begin), "{text}");
    let end = "-  <Function Enter: #1 delta = +0>\n : <Call Argument: data = 67 (hex = 0x43)>\n-  <Function Exit: #1 delta = +24724>\n";
    assert!(text.ends_with(end), "{text}");
}

fn any_record() -> impl Strategy<Value = Rec> {
    let payload = prop_oneof![Just(&b"x"[..]), Just(&b"some text, 24 bytes long"[..])];
    let kind = prop_oneof![
        Just(FunctionKind::Enter),
        Just(FunctionKind::Exit),
        Just(FunctionKind::TailExit)
    ];
    prop_oneof![
        4 => (kind, 1..1_u32 << 28, any::<u32>()).prop_map(|(kind, id, delta)| function(kind, id, delta)),
        1 => (any::<u16>(), any::<u64>()).prop_map(|(cpu, tsc)| Record::NewCpu { cpu, tsc }),
        1 => any::<u64>().prop_map(|tsc| Record::TscWrap { tsc }),
        1 => (0..i32::MAX, payload).prop_map(|(delta, data)| Record::CustomEventDelta { delta, data }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn any_log_is_dumped_as_llvm_does(events in proptest::collection::vec(any_record(), 0..40), tid in 1_i32..) {
        check(&log(header(5), &buffer(tid, 1 << 40, &events)));
    }
}

#[test]
fn several_buffers_of_a_thread_are_dumped_as_llvm_does() {
    let records = [
        buffer(7, 100, &[enter(1, 1), exit(1, 1)]),
        buffer(7, 200, &[enter(2, 1)]),
        buffer(7, 300, &[exit(2, 1)]),
    ];
    check(&log(header(5), &records.concat()));
}
