//! FDRRecordPrinterTest: every record's text.

use xray_trace::llvm::fdr::{BlockPrinter, FunctionKind, Record, print};

use crate::common::*;

#[track_caller]
fn check(record: Rec, expected: &str) {
    let mut out = Vec::new();
    print(&record, &mut out).unwrap();
    assert_eq!(String::from_utf8_lossy(&out), expected);
}

#[test]
fn prints_record() {
    check(
        Record::BufferExtents { size: 1 },
        "<Buffer: size = 1 bytes>",
    );
    check(Record::NewBuffer { tid: 1 }, "<Thread ID: 1>");
    check(Record::EndOfBuffer, "<End of Buffer>");
    check(Record::NewCpu { cpu: 1, tsc: 2 }, "<CPU: id = 1, tsc = 2>");
    check(Record::TscWrap { tsc: 1 }, "<TSC Wrap: base = 1>");
    let wall = Record::WallTime {
        seconds: 1,
        micros: 2,
    };
    check(wall, "<Wall Time: seconds = 1.000002>");
    let custom: Rec = Record::CustomEvent {
        tsc: 1,
        cpu: 2,
        data: b"data",
    };
    check(
        custom,
        "<Custom Event: tsc = 1, cpu = 2, size = 4, data = 'data'>",
    );
    check(
        Record::CallArgument { value: 1 },
        "<Call Argument: data = 1 (hex = 0x1)>",
    );
    check(Record::Pid { pid: 1 }, "<PID: 1>");
    let custom: Rec = Record::CustomEventDelta {
        delta: 5,
        data: b"data",
    };
    check(
        custom,
        "<Custom Event: delta = +5, size = 4, data = 'data'>",
    );
}

#[test]
fn a_typed_event_is_closed_and_a_negative_delta_has_one_sign() {
    let typed: Rec = Record::TypedEvent {
        delta: -5,
        event_type: 9,
        data: b"a",
    };
    check(
        typed,
        "<Typed Event: delta = -5, type = 9, size = 1, data = 'a'>",
    );
}

#[test]
fn a_payload_cannot_look_like_a_record() {
    let custom: Rec = Record::CustomEventDelta {
        delta: 5,
        data: b"a'>\n<PID: 1>\x1b[0m\xff",
    };
    let mut out = Vec::new();
    print(&custom, &mut out).unwrap();
    assert_eq!(
        out,
        b"<Custom Event: delta = +5, size = 17, data = 'a'>\\n<PID: 1>\\x1b[0m\xff'>"
    );
}

#[test]
fn write_function_record() {
    for (kind, text) in [
        (FunctionKind::Enter, "Enter"),
        (FunctionKind::Exit, "Exit"),
        (FunctionKind::TailExit, "Tail Exit"),
        (FunctionKind::EnterArg, "Enter With Arg"),
    ] {
        check(
            function(kind, 1, 2),
            &format!("<Function {text}: #1 delta = +2>"),
        );
    }
}

#[test]
fn blocks_are_printed_with_their_parts() {
    let mut out = Vec::new();
    let mut printer = BlockPrinter::default();
    let events = [
        enter(1, 1),
        Record::CallArgument { value: 2 },
        exit(1, 1),
        Record::TscWrap { tsc: 9 },
        Record::CustomEventDelta {
            delta: 1,
            data: b"x",
        },
    ];
    for record in buffer(1, 2, &events) {
        printer.print(&record, &mut out).unwrap();
    }
    let expected = "
[New Block]
Preamble: 
<Thread ID: 1>
<Wall Time: seconds = 5.000007>
<PID: 11>

Body:
 <CPU: id = 3, tsc = 2>

-  <Function Enter: #1 delta = +1>
 : <Call Argument: data = 2 (hex = 0x2)>
-  <Function Exit: #1 delta = +1>

Metadata: <TSC Wrap: base = 9>

*  <Custom Event: delta = +1, size = 1, data = 'x'>
";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}
