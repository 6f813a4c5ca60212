//! Rows: JSON lines and CSV.

use xray_trace::llvm::Format;
use xray_trace::model::Trace;

use super::{error, exported, golden, notes, opened, salvaged, steps};

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
