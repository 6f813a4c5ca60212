//! Traces from our own exports in JSON lines, CSV and trace events, and from trace events of other
//! programs.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::PathBuf;

use proptest::prelude::*;
use xray_trace::analysis::{Ending, Step, Steps};
use xray_trace::llvm::{Format, Mode};
use xray_trace::model::Trace;
use xray_trace::sink;
use xray_trace::source::{OpenError, Opened, Options, open};

use crate::any_trace::any_trace;
use crate::common::{any_events, trace};

const GOLDEN: [&str; 4] = ["calls", "processes", "snapshot", "cut"];

fn opened_in(bytes: &[u8], mode: Mode) -> Result<Opened, OpenError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    let options = Options {
        mode,
        ..Options::default()
    };
    open(file, &options)
}

fn opened(text: &str) -> Opened {
    opened_in(text.as_bytes(), Mode::Strict).unwrap()
}

fn error(text: &str) -> String {
    opened_in(text.as_bytes(), Mode::Strict)
        .unwrap_err()
        .to_string()
}

fn salvaged(text: &str) -> Opened {
    opened_in(text.as_bytes(), Mode::Salvage).unwrap()
}

fn exported(trace: &Trace, format: &str) -> String {
    let Some(sink::Format::File(sink)) = sink::by_name(format) else {
        panic!("{format} is a file");
    };
    let mut bytes = Vec::new();
    sink.write(trace, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn golden(name: &str) -> Trace {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
    let file = File::open(path.join(name).with_extension("xtrace")).unwrap();
    open(file, &Options::default()).unwrap().trace
}

/// The steps of all threads as text: time, thread, `+` or `-` and a function, data.
fn steps(trace: &Trace) -> Vec<String> {
    let mut all = Vec::new();
    for mut steps in Steps::of_threads(trace) {
        let thread = trace.thread(steps.thread()).unwrap();
        let process = trace.process(thread.process).unwrap();
        let (pid, tid) = (process.pid, thread.tid);
        while let Some(step) = steps.next() {
            let what = match step {
                Step::Enter(open) => {
                    let args = match open.args.as_slice() {
                        [] => String::new(),
                        args => format!(" {args:?}"),
                    };
                    let name = trace.function_name(open.function);
                    format!("{} +{name}{args}", open.start_ns)
                }
                Step::Leave(call) => {
                    let how = match call.how {
                        Ending::Normal => "",
                        Ending::TailExit => " tail",
                        Ending::Closed => " closed",
                    };
                    let result = call.result.map(|result| format!(" = {result}"));
                    let name = trace.function_name(call.open.function);
                    let result = result.unwrap_or_default();
                    format!("{} -{name}{result}{how}", call.end_ns)
                }
                Step::Data(event) => {
                    let data = steps.data(&event).escape_ascii().to_string();
                    format!("{} {:?} {data}", event.ns, event.kind)
                }
                Step::Lost { ticks, events } => format!("{} lost {events}", ticks.0),
            };
            all.push(format!("{pid}/{tid} {what}"));
        }
    }
    all
}

/// The notes as text, in order.
fn notes(opened: &Opened) -> Vec<String> {
    let notes = opened.notes.iter();
    notes
        .map(|(what, count)| format!("{count} {what}"))
        .collect()
}

#[test]
fn exports_of_golden_traces_come_back_unchanged() {
    for name in GOLDEN {
        let original = golden(name);
        for (format, expected) in [
            ("jsonl", Format::JsonLines),
            ("csv", Format::Csv),
            ("chrome", Format::Chrome),
        ] {
            let text = exported(&original, format);
            let back = opened(&text);
            assert_eq!(back.format, expected, "{name}");
            assert_eq!(back.notes, [], "{name} as {format}");
            let again = exported(&back.trace, format);
            // An imported trace has a clock, even if the original has only one anchor.
            let text = text.replace("one anchor: a tick is shown as a nanosecond", "measured");
            let mut lines = text.lines().zip(again.lines());
            let other = lines.find(|(one, other)| one != other);
            assert!(text == again, "{name} as {format}: {other:?}");
        }
    }
}

#[test]
fn rows_hold_names_calls_and_events() {
    let original = golden("calls");
    for format in ["jsonl", "csv"] {
        let back = opened(&exported(&original, format)).trace;
        assert_eq!(steps(&back), steps(&original), "{format}");
        let names = |trace: &Trace| -> Vec<_> {
            let threads = trace.threads().iter();
            threads
                .map(|thread| {
                    let process = trace.process(thread.process).unwrap();
                    let command = process.command.clone();
                    (process.pid, command, thread.tid, thread.name.clone())
                })
                .collect()
        };
        assert_eq!(names(&back), names(&original), "{format}");
        assert!(!back.event_types().is_empty(), "{format}");
        assert_eq!(back.event_types(), original.event_types(), "{format}");
        assert_eq!(back.totals().calls, original.totals().calls, "{format}");
        for function in back.functions() {
            let known = original.function(function.id).unwrap();
            assert_eq!(function.name, known.name, "{format}");
            let path = |trace: &Trace, module| trace.module(module).unwrap().path.clone();
            let paths = (path(&back, function.module), path(&original, known.module));
            assert_eq!(paths.0, paths.1, "{format}");
        }
    }
}

#[test]
fn rows_of_other_tools_are_read() {
    // jq sorts keys, databases write nulls, and lines may be missing or in order of time.
    let text = "\u{feff}{\"event\": \"enter\", \"function\": \"f\", \"function_id\": 7, \"pid\": 1, \
                \"tid\": 2, \"time_ns\": 10, \"result\": null, \"module\": null, \"new\": [{}]}\n\
                \n\
                {\"event\":\"enter\",\"function\":\"g\",\"function_id\":8,\"pid\":1,\"tid\":3,\"time_ns\":11,\"arguments\":[18446744073709551615]}\r\n\
                {\"event\":\"exit\",\"function\":\"f\",\"function_id\":7,\"pid\":1,\"tid\":2,\"time_ns\":12}";
    let back = opened(text);
    assert_eq!(back.format, Format::JsonLines);
    assert_eq!(
        steps(&back.trace),
        [
            "1/2 10 +f",
            "1/2 12 -f",
            "1/3 11 +g [18446744073709551615]",
            "1/3 11 -g closed"
        ]
    );
    // A spreadsheet moves columns, adds some, and quotes all fields.
    let text = "\"time_ns\",\"event\",\"pid\",\"tid\",\"note\",\"function_id\",\"function\"\n\
                \"5\",\"enter\",\"1\",\"2\",\"a \"\"b\"\",\n c\",\"3\",\"f\"\n\
                \n\
                \"9\",\"exit\",\"1\",\"2\",\"\",\"3\",\"f\"";
    let back = opened(text);
    assert_eq!(back.format, Format::Csv);
    assert_eq!(steps(&back.trace), ["1/2 5 +f", "1/2 9 -f"]);
}

#[test]
fn functions_of_joined_exports_stay_apart() {
    let row = |time: u32, event: &str, name: &str| {
        format!(
            "{{\"time_ns\":{time},\"pid\":1,\"tid\":1,\"event\":\"{event}\",\"function_id\":0,\
             \"function\":\"{name}\"}}\n"
        )
    };
    let text = [
        row(1, "enter", "f"),
        row(2, "exit", "f"),
        row(3, "enter", "g"),
        row(4, "exit", "g"),
        row(5, "enter", "f"),
    ];
    let back = opened(&text.concat());
    let steps = steps(&back.trace);
    let expected = ["1 +f", "2 -f", "3 +g", "4 -g", "5 +f", "5 -f closed"];
    assert_eq!(steps, expected.map(|step| format!("1/1 {step}")));
    assert_eq!(back.trace.functions().len(), 2);
}

#[test]
fn threads_with_one_number_and_other_names_stay_apart() {
    let row = |thread: &str| {
        format!(
            "{{\"time_ns\":1,\"pid\":1,\"process\":\"p\",\"tid\":1,\"thread\":\"{thread}\",\
             \"event\":\"lost\",\"lost\":3}}\n"
        )
    };
    let back = opened(&[row("a"), row("b"), row("a")].concat()).trace;
    let names: Vec<_> = back.threads().iter().map(|thread| &thread.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!((back.processes().len(), back.totals().lost), (1, 9));
}

#[test]
fn more_threads_than_blocks_in_progress_keep_their_order() {
    let mut text = String::new();
    for round in 0..3 {
        for tid in 0..600 {
            let time = round * 1000 + tid;
            text.push_str(&format!(
                "{{\"time_ns\":{time},\"pid\":1,\"tid\":{tid},\"event\":\"unmatched-exit\"}}\n\
                 {{\"time_ns\":{time},\"pid\":1,\"tid\":{tid},\"event\":\"exit\",\"function_id\":1}}\n",
            ));
        }
    }
    let back = opened(&text);
    assert_eq!(back.notes, []);
    let mut rows: Vec<_> = text.lines().map(key_of).collect();
    let exported = exported(&back.trace, "jsonl");
    let found: Vec<_> = exported.lines().map(key_of).collect();
    rows.sort_by_key(|row| (row.1, row.0));
    assert_eq!(found, rows);
}

/// Time, thread and kind of a row.
fn key_of(row: &str) -> (u64, u64, String) {
    let row: serde_json::Value = serde_json::from_str(row).unwrap();
    let event = row["event"].as_str().unwrap().to_owned();
    (
        row["time_ns"].as_u64().unwrap(),
        row["tid"].as_u64().unwrap(),
        event,
    )
}

#[test]
fn damaged_rows_are_reported_or_left_out() {
    let good = "{\"time_ns\":1,\"pid\":1,\"tid\":1,\"event\":\"lost\",\"lost\":1}";
    for (bad, expected) in [
        ("{\"time_ns\":1,", "EOF while parsing"),
        ("nonsense", "expected"),
        ("{\"time_ns\":-1}", "column 13: invalid value: integer `-1`"),
        ("{\"time_ns\":\"1\"}", "invalid type: string"),
        ("{\"pid\":1}", "the field time_ns is missing"),
        ("{\"time_ns\":1,\"tid\":1}", "the field pid is missing"),
        ("{\"time_ns\":1,\"pid\":1}", "the field tid is missing"),
        (
            "{\"time_ns\":1,\"pid\":1,\"tid\":1}",
            "the field event is missing",
        ),
        (
            "{\"time_ns\":1,\"pid\":4294967296,\"tid\":1}",
            "invalid value: integer `4294967296`",
        ),
        (
            "{\"time_ns\":1,\"pid\":1,\"tid\":1,\"event\":\"sleep\"}",
            "there is no event \"sleep\"",
        ),
        (
            "{\"time_ns\":1,\"pid\":1,\"tid\":1,\"event\":\"enter\"}",
            "the field function_id is missing",
        ),
        (
            "{\"time_ns\":1,\"pid\":1,\"tid\":1,\"event\":\"typed\"}",
            "the field event_type is missing",
        ),
        (
            "{\"time_ns\":1,\"pid\":1,\"tid\":1,\"event\":\"custom\",\"data_hex\":\"0g\"}",
            "data_hex has other characters",
        ),
        (
            "{\"time_ns\":1,\"pid\":1,\"tid\":1,\"event\":\"custom\",\"data_hex\":\"012\"}",
            "data_hex has other characters",
        ),
    ] {
        let text = format!("{good}\n{bad}\n{good}\n");
        let error = error(&text);
        assert!(error.starts_with("line 2 of the JSON lines: "), "{error}");
        assert!(error.contains(expected), "{bad}: {error}");
        let back = salvaged(&text);
        assert_eq!(back.trace.totals().lost, 2, "{bad}");
        assert_eq!(notes(&back), [format!("1 left out: {error}")]);
    }
    let head = "time_ns,pid,tid,event,lost,data\n";
    for (bad, expected) in [
        ("1,1,1,lost,1", "it has 5 fields, but there are 6 columns"),
        ("1,1,1,lost,1,,", "it has 7 fields"),
        (
            "x,1,1,lost,1,",
            "time_ns is \"x\", which is no number that fits",
        ),
        (
            "1,1,1,lost,-1,",
            "lost is \"-1\", which is no number that fits",
        ),
        (
            "1,1,1,custom,,\"a\"b",
            "text follows the end of a quoted field",
        ),
        (",1,1,lost,1,", "the field time_ns is missing"),
    ] {
        let text = format!("{head}1,1,1,lost,1,\n{bad}\n2,1,1,lost,1,\n");
        let error = error(&text);
        assert!(error.starts_with("line 3 of the CSV: "), "{error}");
        assert!(error.contains(expected), "{bad}: {error}");
        let back = salvaged(&text);
        assert_eq!(back.trace.totals().lost, 2, "{bad}");
        assert_eq!(notes(&back), [format!("1 left out: {error}")]);
    }
    let text = format!("{head}1,1,1,custom,,\"line\nline\"\n1,1,1,custom,,\"no end\n\n");
    let error = error(&text);
    assert_eq!(
        error,
        "line 4 of the CSV: the file ends inside a quoted field (the row has lines 4 to 5)"
    );
    assert_eq!(salvaged(&text).trace.totals().blocks, 1);
}

#[test]
fn lines_of_damaged_rows_are_named() {
    let head = "time_ns,pid,tid,event,lost,data\n";
    let rows = "2,1,1,lost,1,\n".repeat(10);
    let back = salvaged(&format!("{head}1,1,1,lost,1,\"x\n{rows}"));
    assert_eq!(
        notes(&back),
        [
            "1 left out: line 2 of the CSV: the file ends inside a quoted field (the row has lines \
             2 to 12)"
        ]
    );
    // The rest of a row that is too long is no row.
    let fields = ",".repeat(5000);
    let text = format!("{head}{fields},\"\n1,1,1,lost,1,\n\"\n2,1,1,lost,1,\n");
    let back = salvaged(&text);
    assert_eq!(back.trace.totals().lost, 1);
    assert_eq!(
        notes(&back),
        [
            "1 left out: line 2 of the CSV: it has more than 16777216 bytes or more than 4096 \
             fields (the row has lines 2 to 4)"
        ]
    );
}

#[test]
fn the_last_row_of_an_export_needs_its_line_break() {
    let text = "time_ns,pid,tid,event,processor\r\n1,1,1,processor,3\r\n2,1,1,processor,12";
    let expected = "line 3 of the CSV: the file ends inside the row";
    for end in ["", "\r"] {
        let text = format!("{text}{end}");
        assert_eq!(error(&text), expected);
        let back = salvaged(&text);
        assert_eq!(notes(&back), [format!("1 left out: {expected}")]);
        assert_eq!(exported(&back.trace, "csv").lines().count(), 2);
    }
    let back = opened(&format!("{text}\r\n"));
    assert_eq!(exported(&back.trace, "csv").lines().count(), 3);
}

#[test]
fn rejected_rows_add_no_names() {
    let good = "{\"time_ns\":1,\"pid\":1,\"tid\":1,\"event\":\"lost\",\"lost\":1}";
    for event in [
        "\"sleep\"",
        "\"lost\"",
        "\"typed\"",
        "\"custom\",\"data_hex\":\"0g\"",
    ] {
        let ghost =
            "\"pid\":9,\"process\":\"ghost\",\"tid\":9,\"function_id\":5,\"function\":\"f\"";
        let text = format!("{good}\n{{\"time_ns\":1,{ghost},\"event\":{event}}}\n");
        let trace = salvaged(&text).trace;
        let tables = (trace.processes().len(), trace.threads().len());
        assert_eq!(tables, (1, 1), "{event}");
        assert!(trace.functions().is_empty(), "{event}");
    }
}

#[test]
fn long_rows_are_left_out_in_bounded_memory() {
    let good = "{\"time_ns\":1,\"pid\":1,\"tid\":1,\"event\":\"lost\",\"lost\":1}\n";
    let long = format!("{{\"time_ns\":1,\"data\":\"{}\"}}\n", "x".repeat(17 << 20));
    let back = salvaged(&[good, &long, good].concat());
    assert_eq!(back.trace.totals().lost, 2);
    assert_eq!(
        notes(&back),
        ["1 left out: line 2 of the JSON lines: it has more than 16777216 bytes"]
    );
    let text = format!("{{\"time_ns\":\"{}\"}}", "x".repeat(1 << 20));
    assert!(error(&text).len() < 300);
    let fields = format!("time_ns,pid,tid,event\n{}\n", ",".repeat(5000));
    let error = error(&fields);
    assert!(error.contains("more than 4096 fields"), "{error}");
}

#[test]
fn data_that_does_not_fit_is_counted() {
    let data = "x".repeat((1 << 20) + 5);
    let text = format!(
        "{{\"time_ns\":9,\"pid\":1,\"tid\":1,\"event\":\"custom\",\"data\":\"{data}\"}}\n\
         {{\"time_ns\":8,\"pid\":1,\"tid\":1,\"event\":\"enter\",\"function_id\":0,\
         \"arguments\":[1,2,3,4,5,6,7,8]}}\n"
    );
    let back = opened(&text);
    assert_eq!(
        notes(&back),
        [
            "1 times that went backwards within a thread, replaced by the time before",
            "5 bytes of custom and typed events beyond 1 MiB each",
            "2 arguments beyond the first 6 of a call",
        ]
    );
    assert_eq!(
        steps(&back.trace)[1..],
        ["1/1 9 +#0 [1, 2, 3, 4, 5, 6]", "1/1 9 -#0 closed"]
    );
    let rows = exported(&back.trace, "jsonl");
    assert!(rows.contains("\"size\":1048581"), "the event has its size");
}

#[test]
fn names_that_do_not_fit_are_counted() {
    let name = "x".repeat((64 << 10) + 1);
    let back = opened(&format!(
        "{{\"time_ns\":1,\"pid\":1,\"process\":\"{}\",\"tid\":1,\"thread\":\"{name}\",\
         \"event\":\"lost\",\"lost\":1}}\n",
        &name[1..]
    ));
    assert_eq!(
        notes(&back),
        [
            "1 names of processes, threads, modules, functions and event types beyond 64 KiB, cut \
             there"
        ]
    );
    assert_eq!(back.trace.threads()[0].name.len(), 64 << 10);
}

#[test]
fn event_types_with_one_number_and_other_names_stay_apart() {
    const RENUMBERED: &str =
        "2 types of typed events that got a free number, because another type has theirs";
    let types = [(7, "a"), (7, "b"), (7, "a"), (7, ""), (65535, "c")];
    let rows = types.map(|(number, name)| {
        format!(
            "{{\"time_ns\":1,\"pid\":1,\"tid\":2,\"event\":\"typed\",\"event_type\":{number},\
             \"event_type_name\":\"{name}\",\"data\":\"x\"}}\n"
        )
    });
    let events = types.map(|(number, name)| {
        let name = match name {
            "" => format!("typed event {number}"),
            name => name.to_owned(),
        };
        let args = format!(r#""args":{{"data":"x","type":"{number}"}}"#);
        format!(r#""ph":"i","ts":0.001,"name":"{name}",{args}"#)
    });
    for text in [
        rows.concat(),
        of_thread(&events.each_ref().map(String::as_str)),
    ] {
        let back = opened(&text);
        let numbers = [7, 65535, 7, 7, 65534];
        assert_eq!(
            steps(&back.trace),
            numbers.map(|number| format!("1/2 1 Typed({number}) x"))
        );
        let types = back.trace.event_types().iter();
        let types: Vec<_> = types.map(|known| (known.number, &*known.name)).collect();
        assert_eq!(types, [(7, "a"), (65534, "c"), (65535, "b")]);
        assert_eq!(notes(&back), [RENUMBERED]);
    }
}

#[test]
fn trace_events_of_llvm_xray_are_read() {
    let text = r#"{
  "traceEvents": [
    { "name" : "main", "ph" : "B", "tid" : "7", "pid" : "5", "ts" : "1.5000", "sf" : "2"},
    { "name" : "f", "ph" : "B", "tid" : "7", "pid" : "5", "ts" : "2.0000", "sf" : "3"},
    { "name" : "f", "ph" : "E", "tid" : "7", "pid" : "5", "ts" : "3.2500", "sf" : "3"},
    { "name" : "main", "ph" : "E", "tid" : "7", "pid" : "5", "ts" : "4.0005", "sf" : "2"}],
"displayTimeUnit":"ns",
"stackFrames" : {"2": {"name" : "main"}, "3": {"name" : "f", "parent": "2"}}
}
"#;
    let back = opened(text);
    assert_eq!(back.format, Format::Chrome);
    assert_eq!(back.notes, []);
    let expected = ["1500 +main", "2000 +f", "3250 -f", "4001 -main"];
    assert_eq!(
        steps(&back.trace),
        expected.map(|step| format!("5/7 {step}"))
    );
}

/// Trace events without the fields of a process and a thread.
fn of_thread(events: &[&str]) -> String {
    let events: Vec<_> = events
        .iter()
        .map(|event| format!("{{\"pid\":1,\"tid\":2,{event}}}"))
        .collect();
    format!("[{}]", events.join(",\n"))
}

fn check_nesting(events: &[&str], expected: &[&str], expected_notes: &[&str]) {
    let back = opened(&of_thread(events));
    let expected: Vec<_> = expected.iter().map(|step| format!("1/2 {step}")).collect();
    assert_eq!(steps(&back.trace), expected, "{events:?}");
    assert_eq!(notes(&back), expected_notes, "{events:?}");
}

#[test]
fn complete_events_nest_in_any_order_of_the_file() {
    // Tools write a complete event at its end.
    check_nesting(
        &[
            r#""ph":"X","ts":3,"dur":1,"name":"c""#,
            r#""ph":"X","ts":2,"dur":2,"name":"b""#,
            r#""ph":"X","ts":4,"dur":0,"name":"z""#,
            r#""ph":"X","ts":4,"dur":6,"name":"d""#,
            r#""ph":"X","ts":1,"dur":9,"name":"a","args":{"arg1":"0xf","arg2":3}"#,
        ],
        &[
            "1000 +a [15, 3]",
            "2000 +b",
            "3000 +c",
            "4000 -c",
            "4000 -b",
            "4000 +d",
            "4000 +z",
            "4000 -z",
            "10000 -d",
            "10000 -a",
        ],
        &[],
    );
    check_nesting(
        &[
            r#""ph":"X","ts":1,"dur":2,"name":"outer""#,
            r#""ph":"X","ts":1,"dur":2,"name":"inner""#,
        ],
        &["1000 +outer", "1000 +inner", "3000 -inner", "3000 -outer"],
        &[],
    );
    // The greatest time.
    check_nesting(
        &[
            r#""ph":"X","ts":1,"dur":18446744073709551.615,"name":"a""#,
            r#""ph":"X","ts":18446744073709551.615,"dur":1,"name":"b""#,
        ],
        &[
            "1000 +a",
            "18446744073709551615 -a",
            "18446744073709551615 +b",
            "18446744073709551615 -b",
        ],
        &[],
    );
    check_nesting(
        &[
            r#""ph":"B","ts":1,"name":"a""#,
            r#""ph":"X","ts":2,"dur":1,"name":"b""#,
            r#""ph":"E","ts":3"#,
        ],
        &["1000 +a", "2000 +b", "3000 -b", "3000 -a"],
        &[],
    );
}

#[test]
fn calls_that_do_not_nest_are_counted() {
    const LATE: &str = "1 calls that would end after their callers, cut at the callers' ends";
    check_nesting(
        &[
            r#""ph":"X","ts":1,"dur":3,"name":"a""#,
            r#""ph":"X","ts":2,"dur":5,"name":"b""#,
        ],
        &["1000 +a", "2000 +b", "4000 -b", "4000 -a"],
        &[LATE],
    );
    check_nesting(
        &[
            r#""ph":"B","ts":1,"name":"a""#,
            r#""ph":"X","ts":2,"dur":2,"name":"b""#,
            r#""ph":"B","ts":3,"name":"c""#,
            r#""ph":"E","ts":5"#,
            r#""ph":"E","ts":6"#,
        ],
        &[
            "1000 +a", "2000 +b", "3000 +c", "4000 -c", "4000 -b", "6000 -a",
        ],
        &[LATE],
    );
    // The end of `c` comes after `b`. It ends neither `a` nor `d`.
    check_nesting(
        &[
            r#""ph":"B","ts":1,"name":"a""#,
            r#""ph":"X","ts":2,"dur":2,"name":"b""#,
            r#""ph":"B","ts":3,"name":"c""#,
            r#""ph":"B","ts":5,"name":"d""#,
            r#""ph":"E","ts":6,"name":"d""#,
            r#""ph":"E","ts":7,"name":"c""#,
            r#""ph":"E","ts":8,"name":"a""#,
            r#""ph":"E","ts":9"#,
        ],
        &[
            "1000 +a", "2000 +b", "3000 +c", "4000 -c", "4000 -b", "5000 +d", "6000 -d", "8000 -a",
        ],
        &["1 ignored ends of calls without a begin", LATE],
    );
    check_nesting(
        &[
            r#""ph":"B","ts":1,"name":"a""#,
            r#""ph":"X","ts":2,"dur":9,"name":"b""#,
            r#""ph":"E","ts":5"#,
            r#""ph":"E","ts":6"#,
        ],
        &["1000 +a", "2000 +b", "5000 -b", "5000 -a"],
        &["1 ignored ends of calls without a begin", LATE],
    );
    // The end of `b` comes within `c`, which has a caller of its own.
    check_nesting(
        &[
            r#""ph":"X","ts":0,"dur":10,"name":"a""#,
            r#""ph":"B","ts":5,"name":"b""#,
            r#""ph":"E","ts":15,"name":"b""#,
            r#""ph":"X","ts":12,"dur":8,"name":"c""#,
        ],
        &[
            "0 +a", "5000 +b", "10000 -b", "10000 -a", "12000 +c", "20000 -c",
        ],
        &[LATE],
    );
    check_nesting(
        &[
            r#""ph":"X","ts":1,"dur":3,"name":"a""#,
            r#""ph":"B","ts":2,"name":"b""#,
            r#""ph":"E","ts":5,"name":"b""#,
            r#""ph":"X","ts":6,"dur":3,"name":"c""#,
            r#""ph":"B","ts":7,"name":"d""#,
            r#""ph":"X","ts":9,"dur":9,"name":"e""#,
            r#""ph":"E","ts":10,"name":"d""#,
            r#""ph":"E","ts":11"#,
        ],
        &[
            "1000 +a", "2000 +b", "4000 -b", "4000 -a", "6000 +c", "7000 +d", "9000 -d", "9000 -c",
            "9000 +e", "18000 -e",
        ],
        &[
            "1 ignored ends of calls without a begin",
            "2 calls that would end after their callers, cut at the callers' ends",
        ],
    );
}

#[test]
fn args_without_a_place_in_their_phase_are_counted() {
    let with = |event: &str| opened(&of_thread(&[r#""ph":"B","ts":0,"name":"f""#, event]));
    for event in [
        r#""ph":"i","ts":1,"name":"alloc","args":{"size":4096}"#,
        r#""ph":"i","ts":1,"name":"alloc","args":{"data":"x","size":4096}"#,
        r#""ph":"i","ts":1,"name":"mark","args":{"events":3}"#,
        r#""ph":"i","ts":1,"name":"mark","args":{"type":3}"#,
        r#""ph":"i","ts":1,"name":"custom event","args":{"data":"x","name":"n"}"#,
        r#""ph":"i","ts":1,"name":"events lost","args":{"events":"3","data":"x"}"#,
        r#""ph":"X","ts":1,"dur":1,"name":"g","args":{"data":{"url":"http://x"}}"#,
        r#""ph":"X","ts":1,"dur":1,"name":"g","args":{"arg1":"0x1","result":"0x5"}"#,
        r#""ph":"B","ts":1,"name":"g","args":{"arg2":"0x7"}"#,
        r#""ph":"B","ts":1,"name":"g","args":{"arg1":"x"}"#,
        r#""ph":"E","ts":1,"args":{"arg1":"0x1"}"#,
        r#""ph":"E","ts":1,"args":{"end":"soon"}"#,
        r#""ph":"E","ts":1,"args":{"end":"no exit seen","result":"1"}"#,
        r#""ph":"M","name":"process_name","args":{"name":"p","labels":"l"}"#,
    ] {
        let back = with(event);
        assert_eq!(
            notes(&back),
            ["1 trace events whose args are not all kept"],
            "{event}"
        );
        let rows = exported(&back.trace, "jsonl");
        assert!(!rows.contains("\"size\""), "{event}: {rows}");
    }
    for (event, expected) in [
        (
            r#""ph":"B","ts":1,"name":"g","args":{"arg1":"1","arg2":2}"#,
            "\"arguments\":[1,2]",
        ),
        (
            r#""ph":"X","ts":1,"dur":1,"name":"g","args":{"arg1":"0xf"}"#,
            "\"arguments\":[15]",
        ),
        (r#""ph":"E","ts":1,"args":{"result":"0x5"}"#, "\"result\":5"),
        (
            r#""ph":"E","ts":1,"args":{"end":"tail exit"}"#,
            "\"tail-exit\"",
        ),
        (
            r#""ph":"i","ts":1,"name":"custom event","args":{"data":"x","size":"9"}"#,
            "\"size\":9",
        ),
        (
            r#""ph":"i","ts":1,"name":"typed event 3","args":{"data":"x","type":"3","size":"9"}"#,
            "\"size\":9,\"event_type\":3",
        ),
        (
            r#""ph":"i","ts":1,"name":"events lost","args":{"events":"3"}"#,
            "\"lost\":3",
        ),
    ] {
        let back = with(event);
        assert_eq!(back.notes, [], "{event}");
        let rows = exported(&back.trace, "jsonl");
        assert!(rows.contains(expected), "{event}: {rows}");
    }
}

#[test]
fn other_phases_are_ignored_and_counted() {
    check_nesting(
        &[
            r#""ph":"B","ts":1,"name":"a","cat":"x","args":{"deep":{"er":[1,"]"]}}"#,
            r#""ph":"C","ts":1,"name":"counter","args":{"value":1}"#,
            r#""ph":"C","ts":2,"name":"counter","args":{"value":2}"#,
            r#""ph":"b","ts":2,"id":"0x1","name":"async""#,
            r#""ph":"\u0001","ts":2"#,
            r#""ph":"XX","ts":2"#,
            r#""ts":2"#,
            r#""ph":"M","name":"process_sort_index","args":{"sort_index":1}"#,
            r#""ph":"E","ts":-1"#,
            r#""ph":"E""#,
            r#""ph":"X","ts":1,"name":"no duration""#,
            r#""ph":"i","ts":3,"name":"mark \"1\"","s":"g""#,
            r#""ph":"E","ts":4"#,
        ],
        &["1000 +a", "3000 Custom mark \\\"1\\\"", "4000 -a"],
        &[
            "3 ignored trace events without a phase of one character",
            "2 ignored trace events of phase C, which are neither calls nor instants",
            "1 ignored trace events of phase b, which are neither calls nor instants",
            "3 ignored trace events without a usable time",
            "1 ignored metadata other than names of processes and threads",
            "1 trace events whose args are not all kept",
        ],
    );
}

#[test]
fn processes_and_threads_have_numbers_and_names() {
    let text = r#"{"otherData":{"traceEvents":[{}]},"traceEvents":[
        {"ph":"X","ts":1,"dur":1,"name":"f","pid":3,"tid":140737353983808},
        {"ph":"X","ts":1,"dur":1,"name":"f","pid":3,"tid":"Main \"1\""},
        {"ph":"X","ts":1,"dur":1,"pid":"7","tid":8},
        {"ph":"X","ts":1,"dur":1,"name":"f"},
        {"ph":"M","name":"thread_name","pid":3,"tid":140737353983808,"args":{"name":"late"}},
        {"ph":"M","name":"process_name","pid":7,"args":{"name":"seven"}}
    ]}"#;
    let trace = opened(text).trace;
    let threads: Vec<_> = trace
        .threads()
        .iter()
        .map(|thread| {
            let process = trace.process(thread.process).unwrap();
            let (command, name) = (&*process.command, &*thread.name);
            (process.pid, command, thread.tid, name)
        })
        .collect();
    assert_eq!(
        threads,
        [
            (3, "", 1 << 31, "late"),
            (3, "", (1 << 31) + 1, "Main \"1\""),
            (7, "seven", 8, ""),
            (0, "", 0, ""),
        ]
    );
    let names = trace.functions().iter().map(|function| &*function.name);
    assert_eq!(names.collect::<Vec<_>>(), ["f", "[no name]"]);
}

#[test]
fn second_names_of_processes_and_threads_are_counted() {
    let name =
        |what: &str, name: &str| format!(r#""ph":"M","name":"{what}","args":{{"name":"{name}"}}"#);
    let events = [
        name("process_name", "a"),
        name("process_name", "a"),
        name("process_name", "b"),
        name("thread_name", "x"),
        name("thread_name", "y"),
        name("thread_name", "z"),
    ];
    let back = opened(&of_thread(&events.each_ref().map(String::as_str)));
    assert_eq!(
        notes(&back),
        [
            "1 names of processes that replaced another name of the same pid",
            "2 names of threads that replaced another name of the same tid",
        ]
    );
    assert_eq!(back.trace.processes()[0].command, "b");
    assert_eq!(back.trace.threads()[0].name, "z");
}

#[test]
fn processes_with_one_pid_stay_apart_in_trace_events() {
    let row = |process: &str, thread: &str| {
        format!(
            "{{\"time_ns\":1,\"pid\":7,\"process\":\"{process}\",\"tid\":9,\
             \"thread\":\"{thread}\",\"event\":\"lost\",\"lost\":3}}\n"
        )
    };
    let rows = [row("a", "x"), row("a", "y"), row("b", "x")];
    let text = exported(&opened(&rows.concat()).trace, "chrome");
    let back = opened(&text);
    assert_eq!(back.notes, []);
    assert_eq!(exported(&back.trace, "chrome"), text);
    let threads = back.trace.threads().iter().map(|thread| {
        let process = back.trace.process(thread.process).unwrap();
        (&*process.command, &*thread.name)
    });
    let threads: Vec<_> = threads.collect();
    assert_eq!(threads, [("a", "x"), ("a", "y"), ("b", "x")]);
}

#[test]
fn a_list_of_trace_events_needs_no_end() {
    let event = r#"{"ph":"X","ts":1,"dur":1,"name":"f","pid":1,"tid":1}"#;
    for text in [
        format!("[{event}]"),
        format!("[\n{event},\n"),
        format!(" [ {event}"),
        format!("\u{feff}[{event},]"),
        format!("{{\"traceEvents\":[{event},]}}\n"),
    ] {
        let back = opened(&text);
        assert_eq!(steps(&back.trace).len(), 2, "{text}");
        assert_eq!(back.notes, [], "{text}");
    }
}

#[test]
fn damaged_trace_events_are_reported_or_left_out() {
    let event = r#"{"ph":"X","ts":1,"dur":1,"name":"f","pid":1,"tid":1}"#;
    for (text, expected) in [
        (
            format!("[{event},{{\"ph\""),
            "offset 54: the file ends inside it, 5 bytes after its begin",
        ),
        (format!("[{event},7]"), "offset 54: it is no JSON object"),
        (
            format!("[{event},{{\"ph\":}}]"),
            "offset 54: it is no JSON object",
        ),
        (
            format!("[{event},:{event}]"),
            "offset 54: there is no JSON value",
        ),
        (
            format!(r#"[{event},{{"name":"\q"}}]"#),
            "offset 54: a text in it is no JSON string",
        ),
        (
            format!("[{event}] more"),
            "offset 55: text of 4 bytes follows the end",
        ),
        (
            format!("[{event}],{event}]"),
            "offset 54: text of 54 bytes follows the end",
        ),
        (
            format!("[{event},{{\"ph\":\"B\",{event},{event}]"),
            "offset 54: it is no JSON object (116 bytes)",
        ),
        (
            format!("{{\"traceEvents\":[{event}"),
            "the file ends inside it",
        ),
        (
            format!("{{\"traceEvents\":[{event}]"),
            "the file ends early",
        ),
        (
            format!("{{\"traceEvents\":[{event}],7}}"),
            "there is no JSON value",
        ),
    ] {
        let error = error(&text);
        assert!(error.starts_with("trace event at offset "), "{error}");
        assert!(error.contains(expected), "{text}: {error}");
        let back = salvaged(&text);
        assert!(steps(&back.trace).len() >= 2, "{text}");
        assert_eq!(notes(&back), [format!("1 left out: {error}")], "{text}");
    }
    let mut bytes = format!("[{event},{{\"ph\":\"X\",\"name\":\"?\"}}]").into_bytes();
    let place = bytes.iter().position(|byte| *byte == b'?').unwrap();
    bytes[place] = 0xff;
    let error = opened_in(&bytes, Mode::Strict).unwrap_err().to_string();
    assert!(error.contains("a text in it is not UTF-8"), "{error}");
}

#[test]
fn json_without_trace_events_is_reported() {
    for text in [
        "{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\"shared\":{}}",
        "{\"traceEvents\":7}",
        "{\"a\":[{\"traceEvents\":[]}]}",
    ] {
        let error = error(text);
        assert!(error.contains("it has no list 'traceEvents'"), "{error}");
    }
}

#[test]
fn deep_and_long_json_takes_no_stack() {
    let deep = "[".repeat(1 << 20);
    let text = format!(
        "{{\"metadata\":{deep}{},\"traceEvents\":[",
        "]".repeat(1 << 20)
    );
    let text = format!("{text}{{\"ph\":\"B\",\"ts\":1,\"name\":\"f\",\"args\":{{\"x\":{deep}");
    let error = error(&text);
    assert!(error.contains("the file ends inside it"), "{error}");
    let long = format!("[{{\"ph\":\"B\",\"name\":\"{}\"}}]", "x".repeat(17 << 20));
    let back = salvaged(&long);
    assert_eq!(
        notes(&back),
        ["1 left out: trace event at offset 1: it has 17825812 bytes, but the maximum is 16777216"]
    );
}

/// The lines of trace events without the data that an import cannot have: the end of a call without
/// an exit, and the size of data that the export has escaped.
fn comparable(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let end = match line {
            _ if line.contains("no exit seen") => line.find("\"ts\":"),
            _ if line.contains("\\\\x") => line.find(",\"size\":"),
            _ => None,
        };
        line[..end.unwrap_or(line.len())].trim_end_matches(['}', ','])
    });
    lines.collect::<Vec<_>>().join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rows_of_any_trace_come_back_unchanged(trace in any_trace()) {
        for format in ["jsonl", "csv"] {
            let text = exported(&trace, format);
            let back = opened(&text);
            prop_assert_eq!(&back.notes, &[]);
            prop_assert_eq!(exported(&back.trace, format), text);
        }
    }

    #[test]
    fn trace_events_of_any_trace_come_back_unchanged(trace in any_trace()) {
        let text = exported(&trace, "chrome");
        let back = opened(&text);
        prop_assert_eq!(&back.notes, &[]);
        let again = exported(&back.trace, "chrome");
        prop_assert_eq!(comparable(&again), comparable(&text));
    }

    #[test]
    fn cut_and_changed_exports_are_an_error_or_a_trace(
        events in any_events(1..40),
        cut in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let trace = trace(&["a", "b,\"", "c", "d", "e", "f", "g", "h"], &[&events]);
        for format in ["jsonl", "csv", "chrome"] {
            let mut bytes = exported(&trace, format).into_bytes();
            for (place, byte) in &changes {
                let place = place.index(bytes.len());
                bytes[place] = *byte;
            }
            bytes.truncate(cut.index(bytes.len()) + 1);
            for mode in [Mode::Strict, Mode::Salvage] {
                if let Ok(back) = opened_in(&bytes, mode) {
                    let _ = steps(&back.trace);
                }
            }
        }
    }
}
