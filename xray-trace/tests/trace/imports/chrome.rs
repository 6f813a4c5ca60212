//! Trace events.

use xray_trace::llvm::{Format, Mode};

use super::{error, exported, notes, of_thread, opened, opened_in, salvaged, steps};

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
