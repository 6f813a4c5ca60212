//! `convert-*` that are not about the records of LLVM's sample logs: those are in xray-trace's tests.

use std::fs;

use serde_json::Value;

use crate::support::{Files, leaves, yaml};

/// The events of a trace in Chrome's JSON.
fn trace_events(files: &Files, log: &str) -> Vec<Value> {
    files.ours_out(&format!("convert {log} -f=trace_event -o out.json --force"));
    let text = fs::read_to_string(files.path().join("out.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    json["traceEvents"].as_array().unwrap().clone()
}

/// How many events of that kind have all fields that upstream looks for, but for the stack frame, which llvm-xray alone has, and the
/// name of what ends, which its begin has.
fn complete(events: &[Value], phase: &str) -> usize {
    let of_phase = events.iter().filter(|event| event["ph"] == phase);
    let has_all = |event: &&Value| {
        let named = phase == "E" || event["name"].is_string();
        named
            && ["pid", "tid", "ts"]
                .iter()
                .all(|field| event[*field].is_number())
    };
    of_phase.filter(has_all).count()
}

/// From YAML to a raw log and back: the same records.
#[test]
fn convert_roundtrip() {
    let calls = leaves([(10001, 10100, 1)]);
    let files = Files::new(&[("log", yaml(2_601_000_000, &calls))]);
    files.ours_out("convert log -f raw -o ours.raw");
    files.theirs_out("convert log -f raw -o theirs.raw");
    let records = |log: &str| -> Vec<String> {
        let yaml = files.theirs_out(&format!("convert {log} -f yaml -o -"));
        let records = yaml.lines().filter(|line| line.starts_with("  - "));
        records
            .map(|record| record.replace("cpu: 1", "cpu: 0"))
            .collect()
    };
    assert_eq!(records("ours.raw"), records("theirs.raw"));
    assert_eq!(records("ours.raw").len(), 2);
    files.ours_out("convert ours.raw -f yaml -o ours.yaml");
    files.same("account ours.yaml");
}

/// Upstream reads a log of the flight data recorder.
#[test]
fn convert_fdr_to_traceevent() {
    let calls = leaves([(7000, 7006, 1), (7007, 7050, 2), (7060, 7090, 268_435_455)]);
    let files = Files::new(&[("log", yaml(5678, &calls))]);
    files.ours_out("convert log --to fdr -o log.fdr");
    let events = trace_events(&files, "log.fdr");
    assert_eq!((complete(&events, "B"), complete(&events, "E")), (3, 3));
    let theirs = files.theirs_out("convert log.fdr -f trace_event -o -");
    let theirs: Value = serde_json::from_str(&theirs).unwrap();
    assert_eq!(theirs["traceEvents"].as_array().unwrap().len(), 6);
}

/// An event of the program's own among calls, which llvm-xray leaves out.
#[test]
fn convert_traceevent_special_events() {
    let calls = leaves([(10001, 10100, 1)]);
    let event = "  - { type: 0, func-id: 1, function: x, cpu: 1, thread: 111, process: 111, kind: custom-event, tsc: 2000, data: \"\\x03\\0\\0\\0\" }\n";
    let log = yaml(2_601_000_000, &calls);
    let second = log.rfind("  - ").unwrap();
    let log = format!("{}{event}{}", &log[..second], &log[second..]);
    let files = Files::new(&[("log", log)]);
    let events = trace_events(&files, "log");
    assert_eq!((complete(&events, "B"), complete(&events, "E")), (1, 1));
    assert_eq!(complete(&events, "i"), 1, "{events:?}");
    let theirs = files.theirs_out("convert log -f trace_event -o -");
    let theirs: Value = serde_json::from_str(&theirs).unwrap();
    assert_eq!(theirs["traceEvents"].as_array().unwrap().len(), 2);
}
