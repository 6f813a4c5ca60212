//! `--event-format` and `--where` of the commands that read traces.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::fs::{self, File, OpenOptions};
use std::path::Path;

use serde_json::{Value, json};
use xray_trace::container::{BlockEncoder, End, Writer};
use xray_trace::model::{
    CallKind, DataKind, EventType, FunctionId, ProcessId, ThreadId, Ticks, Trace,
};

mod common;

use common::{small_trace, xrayctl};

const FORMAT: &str = "order=price:u32,symbol:str4";

/// The small trace with events in another call of `work`: three orders (type 7), and a custom
/// event.
fn orders(dir: &Path) -> String {
    let path = small_trace(dir);
    let totals = Trace::open(File::open(&path).unwrap()).unwrap().totals();
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    let mut writer = Writer::going_on(file, End::default());
    let order = EventType {
        process: ProcessId(0),
        number: 7,
        name: "order".to_owned(),
    };
    writer.add(&order).unwrap();
    let mut worker = BlockEncoder::new(ThreadId(1));
    worker.push_call(Ticks(5_000), FunctionId(3), CallKind::Enter, None);
    for (at, price, symbol) in [
        (5_200, 50_u32, b"AB\0\0"),
        (5_400, 150, b"AB\0\0"),
        (5_600, 250, b"CDEF"),
    ] {
        let data = [&price.to_le_bytes()[..], symbol].concat();
        worker.push_data(Ticks(at), DataKind::Typed(7), &data);
    }
    worker.push_data(Ticks(5_800), DataKind::Custom, b"hello");
    worker.push_call(Ticks(6_000), FunctionId(3), CallKind::Exit, None);
    writer.block(&worker.finish().unwrap()).unwrap();
    let end = Writer::going_on(writer.into_inner(), totals.into());
    end.finish(&[]).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The standard output of a run that succeeds.
#[track_caller]
fn out(args: &[&str]) -> String {
    let ran = xrayctl(args);
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
    ran.out
}

#[track_caller]
fn check_refused(args: &[&str], code: i32, reason: &str) {
    let ran = xrayctl(args);
    assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
    assert!(ran.err.contains(reason), "{args:?}: {}", ran.err);
}

/// The prices of the orders in JSON lines.
fn prices(text: &str) -> Vec<u64> {
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.filter_map(|row: Value| row["fields"]["price"].as_u64())
        .collect()
}

#[test]
fn convert_writes_fields_and_the_selected_events() {
    let dir = tempfile::tempdir().unwrap();
    let trace = orders(dir.path());
    let convert = |options: &[&str]| {
        let args = ["convert", &trace, "--to", "jsonl", "--event-format", FORMAT];
        out(&[&args, options].concat())
    };
    let all = convert(&[]);
    assert_eq!(prices(&all), [50, 150, 250]);
    assert!(
        all.contains(r#""fields":{"price":250,"symbol":"CDEF"}"#),
        "{all}"
    );
    assert!(all.contains("hello"));
    let plain = out(&["convert", &trace, "--to", "jsonl"]);
    assert!(!plain.contains("fields"), "{plain}");
    let calls = |text: &str| text.matches("\"event\":\"enter\"").count();
    for (conditions, expected, has_custom) in [
        (&["event(order).price > 100"][..], &[150, 250][..], false),
        (&["event(order).symbol == \"AB\""], &[50, 150], false),
        (&["event(order)", "event(custom)"], &[50, 150, 250], true),
        (
            &["event(order).price >= 250", "event(order).price < 100"],
            &[50, 250],
            false,
        ),
        (&["event(custom)"], &[], true),
        (&["event(8)"], &[], false),
    ] {
        let options: Vec<_> = conditions.iter().flat_map(|of| ["--where", of]).collect();
        let found = convert(&options);
        assert_eq!(prices(&found), expected, "{conditions:?}");
        assert_eq!(found.contains("hello"), has_custom, "{conditions:?}");
        assert_eq!(calls(&found), calls(&plain), "{conditions:?}");
    }
}

#[test]
fn convert_writes_files_with_fields() {
    let dir = tempfile::tempdir().unwrap();
    let trace = orders(dir.path());
    let dearest = "event(order).price > 200";
    let events = ["--event-format", FORMAT, "--where", dearest];
    let json = dir.path().join("out.json");
    let to_json = ["convert", &trace, "-o", json.to_str().unwrap()];
    out(&[&to_json[..], &events].concat());
    let read: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let read = read["traceEvents"].as_array().unwrap().iter();
    let fields: Vec<_> = read
        .filter(|event| event["name"] == "order")
        .map(|event| event["args"]["fields"].clone())
        .collect();
    assert_eq!(fields, [json!({"price": 250, "symbol": "CDEF"})]);
    let tables = dir.path().join("out.parquet");
    let to_tables = ["convert", &trace, "-o", tables.to_str().unwrap()];
    out(&[&to_tables[..], &events].concat());
    let bytes = fs::read(tables.join("events.parquet")).unwrap();
    let has = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    assert!(has(br#"{"price":250,"symbol":"CDEF"}"#));
    assert!(!has(br#"{"price":50"#));
}

#[test]
fn formats_without_fields_and_profiles_are_refused_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let trace = orders(dir.path());
    let formats = "give --to with one of chrome, perfetto, csv, jsonl, parquet";
    let made = dir.path().join("made");
    for (format, option) in [
        ("fdr", ["--event-format", FORMAT]),
        ("yaml", ["--where", "event(custom)"]),
        ("folded", ["--event-format", FORMAT]),
        ("ctf", ["--where", "event(custom)"]),
    ] {
        let args = [
            "convert",
            &trace,
            "-o",
            made.to_str().unwrap(),
            "--to",
            format,
        ];
        check_refused(&[&args, &option[..]].concat(), 2, formats);
        assert!(!made.exists(), "{format}");
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xray-trace/tests/golden/v1");
    let profile = golden.join("profile.xtrace");
    let profile = ["convert", profile.to_str().unwrap(), "--to", "csv"];
    for option in [["--event-format", FORMAT], ["--where", "event(custom)"]] {
        let reason = "is a profile, which has sums of calls but no events";
        check_refused(&[&profile[..], &option].concat(), 2, reason);
    }
    assert_eq!(xrayctl(profile).code, 0);
}

#[test]
fn tree_and_report_show_the_selected_events_alone() {
    let dir = tempfile::tempdir().unwrap();
    let trace = orders(dir.path());
    let events = [
        "--event-format",
        FORMAT,
        "--where",
        "event(order).price > 100",
    ];
    for command in [
        &["tree", &trace, "--thread", "worker"][..],
        &["report", &trace, "--tree", "--thread", "worker"],
        // The lines of the slowest call of `work`.
        &[
            "report",
            &trace,
            "--table",
            "--slowest",
            "1",
            "--thread",
            "worker",
        ],
    ] {
        let shown = out(&[command, &events].concat());
        let lines: Vec<_> = shown
            .lines()
            .filter_map(|line| line.split_once("// event"))
            .map(|(_, event)| event)
            .collect();
        let expected = [
            " of type order: price=150 symbol=\"AB\"",
            " of type order: price=250 symbol=\"CDEF\"",
        ];
        assert_eq!(lines, expected, "{command:?}: {shown}");
        let all = out(&[command, &events[..2]].concat());
        assert_eq!(all.matches("// event").count(), 4, "{command:?}: {all}");
    }
}

#[test]
fn unknown_types_and_fields_are_refused_with_a_suggestion() {
    let dir = tempfile::tempdir().unwrap();
    let trace = orders(dir.path());
    for command in ["tree", "report", "convert"] {
        let check = |options: &[&str], code, reason| {
            check_refused(&[&[command, &trace], options].concat(), code, reason);
        };
        let to: &[&str] = if command == "convert" {
            &["--to", "csv"]
        } else {
            &[]
        };
        let described = [to, &["--event-format", FORMAT]].concat();
        let with = |condition| [&described[..], &["--where", condition]].concat();
        check(&with("event(ordr).price > 1"), 2, "(did you mean order?)");
        check(&with("event(order).prize > 1"), 2, "(did you mean price?)");
        check(
            &with("event(order).price > "),
            2,
            "column 22: expected a number",
        );
        check(
            &with("event(order).price == \"1\""),
            2,
            "'price' is a number",
        );
        check(&with("event(ordr)"), 3, "(did you mean order?)");
    }
    let small = tempfile::tempdir().unwrap();
    let without_names = small_trace(small.path());
    let tree = ["tree", without_names.to_str().unwrap()];
    let reason = "use the number of the type";
    check_refused(
        &[&tree[..], &["--where", "event(order)"]].concat(),
        3,
        reason,
    );
    for other in [&["--diff", &trace][..], &["--event-format"]] {
        let args = [&["tree", &trace, "--where", "event(order)"], other].concat();
        assert_eq!(xrayctl(args).code, 2, "{other:?}");
    }
    for other in [&["--open"][..], &["--html", "-o", "-"]] {
        let args = [&["report", &trace, "--where", "event(order)"], other].concat();
        assert_eq!(xrayctl(args).code, 2, "{other:?}");
    }
}
