//! The Firefox Profiler's JSON: checked by the rules of its format, and read by the profiler's own
//! command line.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;
use xray_trace::model::Trace;

use super::readers::Profiler;
use super::stacks::{Sums, expected};
use super::{NAMES, busy, count_of, export, rich};
use crate::common::{Enter, Exit, any_events, call, trace};

fn firefox(trace: &Trace) -> Value {
    serde_json::from_slice(&export("firefox", trace).0).unwrap()
}

fn ns(milliseconds: &Value) -> u64 {
    let decimals = format!("{:.6}", milliseconds.as_f64().unwrap());
    decimals.replace('.', "").parse().unwrap()
}

/// In every table each column has as many rows as the table's length.
fn check_tables(json: &Value) {
    match json {
        Value::Object(fields) => {
            if let Some(length) = fields.get("length") {
                let columns = fields.values().filter_map(Value::as_array);
                for column in columns {
                    assert_eq!(Some(column.len() as u64), length.as_u64(), "{json}");
                }
            }
            fields.values().for_each(check_tables);
        }
        Value::Array(values) => values.iter().for_each(check_tables),
        _ => {}
    }
}

/// Calls and self time by function, from samples: a stack with one frame more than the previous one
/// is a call.
fn sums(json: &Value) -> Sums {
    let shared = &json["shared"];
    let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let caller = |stack: usize| {
        let up = number(&shared["stackTable"]["prefixOffset"][stack]);
        (up > 0).then(|| stack - up)
    };
    let name = |stack: usize| {
        let frame = number(&shared["stackTable"]["frame"][stack]);
        let function = number(&shared["frameTable"]["func"][frame]);
        let name = number(&shared["funcTable"]["name"][function]);
        shared["stringArray"][name].as_str().unwrap().to_owned()
    };
    let mut sums = Sums::new();
    for thread in json["threads"].as_array().unwrap() {
        let samples = &thread["samples"];
        assert_eq!(samples["weightType"], "tracing-ms");
        let times = samples["time"].as_array().unwrap().iter().map(ns);
        let times = times.collect::<Vec<_>>();
        let mut before = None;
        for (row, stack) in samples["stack"].as_array().unwrap().iter().enumerate() {
            let weight = ns(&samples["weight"][row]);
            let until = times.get(row + 1).copied().unwrap_or(times[row]);
            assert_eq!(times[row] + weight, until);
            let stack = (!stack.is_null()).then(|| number(stack));
            if let Some(stack) = stack {
                let sum = sums.entry(name(stack)).or_default();
                sum.0 += u64::from(caller(stack) == before);
                sum.1 += weight;
            }
            before = stack;
        }
        assert_eq!(before, None, "all calls end");
    }
    sums
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_call_and_all_time_is_in_samples(
        threads in proptest::collection::vec(any_events(0..60), 1..3),
    ) {
        let slices = threads.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let trace = trace(&NAMES, &slices);
        let json = firefox(&trace);
        check_tables(&json);
        prop_assert_eq!(sums(&json), expected(&trace));
    }
}

#[test]
fn data_without_samples_is_in_markers_or_reported() {
    let rich = rich();
    let (_, report) = export("firefox", &rich);
    assert_eq!(report.calls, 5);
    let left_out = report.left_out.iter().map(|(_, count)| *count);
    assert_eq!(left_out.collect::<Vec<_>>(), [1, 1, 1, 4], "{report:?}");
    assert_eq!(count_of(&report, "missing exits"), 1);
    let json = firefox(&rich);
    check_tables(&json);
    let markers = &json["threads"][0]["markers"];
    let expected = serde_json::json!([
        {"type": "XRayArguments", "arguments": "0xffffffffffffffff, 0x7"},
        {"type": "XRayEvent", "data": "hello,\n\"é\""},
        {"type": "XRayEvent", "data": "\\xff\\x00", "eventType": 7},
        {"type": "XRayEvent", "data": "8", "eventType": 8, "typeName": "a \"type\""},
        {"type": "XRayEvent", "data": ""},
        {"type": "XRayResult", "result": "0x5"},
        {"type": "XRayLoss", "events": "9"},
    ]);
    assert_eq!(markers["data"], expected);
}

/// The rows of a list of the profiler, converted by `row`.
fn listed<T>(profiler: &Profiler, args: &str, list: &str, row: impl Fn(&Value) -> T) -> Vec<T> {
    let json = profiler.ask(args);
    json[list].as_array().unwrap().iter().map(row).collect()
}

fn text(row: &Value, key: &str) -> String {
    row[key].as_str().unwrap().to_owned()
}

#[test]
fn the_profiler_agrees_with_our_table() {
    let trace = trace(&NAMES, &[&busy(1_000_000, 300), &busy(1_500_000, 200)]);
    let dir = tempfile::tempdir().unwrap();
    let Some(profiler) = open(&trace, dir.path()) else {
        return;
    };
    let threads = listed(&profiler, "thread list", "threads", |row| {
        (text(row, "name"), text(row, "pid"), row["tid"].as_u64())
    });
    let thread = |name: &str, tid| (name.to_owned(), "4000".to_owned(), Some(tid));
    assert_eq!(
        threads,
        [thread("worker-0", 5000), thread("worker-1", 5001)]
    );
    let mut times = BTreeMap::<_, u64>::new();
    for thread in ["t-0", "t-1"] {
        let args = format!("thread functions --include-idle --limit 100 --thread {thread}");
        let functions = listed(&profiler, &args, "functions", |row| {
            (text(row, "nameWithLibrary"), ns(&row["selfSamples"]))
        });
        for (name, ns) in functions {
            *times.entry(name).or_default() += ns;
        }
    }
    let expected = expected(&trace).into_iter();
    let expected = expected.map(|(name, (_, ns))| (format!("demo!{name}"), ns));
    assert_eq!(times, expected.collect());
}

#[test]
fn the_profiler_shows_markers_with_their_data() {
    let dir = tempfile::tempdir().unwrap();
    let Some(profiler) = open(&rich(), dir.path()) else {
        return;
    };
    let args = "thread markers --list --thread t-0";
    let markers = listed(&profiler, args, "flatMarkers", |row| {
        (text(row, "label"), ns(&row["start"]))
    });
    let expected = [
        ("b(0xffffffffffffffff, 0x7)", 333),
        ("hello,\n\"é\"", 500),
        ("custom event", 533),
        ("\\xff\\x00", 533),
        ("8", 533),
        ("c = 0x5", 667),
        ("9", 1333),
    ];
    let mut expected = expected.map(|(label, ns)| (label.to_owned(), ns)).to_vec();
    expected.sort();
    let mut markers = markers;
    markers.sort();
    assert_eq!(markers, expected);
}

#[test]
fn a_recursion_without_end_is_counted_where_it_gets_too_deep() {
    let mut events = (0..5000).map(|at| call(at, 0, Enter)).collect::<Vec<_>>();
    events.extend((5000..10_000).map(|at| call(at, 0, Exit)));
    let trace = trace(&NAMES, &[&events]);
    let (_, report) = export("firefox", &trace);
    assert_eq!(count_of(&report, "1000 deep"), 4000);
    let json = firefox(&trace);
    assert_eq!(json["shared"]["stackTable"]["length"], 1000);
    let weights = json["threads"][0]["samples"]["weight"].as_array().unwrap();
    assert_eq!(weights.iter().map(ns).sum::<u64>(), 9999);
}

/// The trace in the profiler; `None` without the profiler.
fn open(trace: &Trace, dir: &Path) -> Option<Profiler> {
    let file = dir.join("demo.firefox.json");
    std::fs::write(&file, export("firefox", trace).0).unwrap();
    Profiler::open(&file, dir)
}
