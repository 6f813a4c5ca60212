//! The scenarios `convert-*` that are not about the records of LLVM's sample logs. xray-trace's
//! tests have the others.

use std::fs;

use serde_json::Value;

use crate::common::command;
use crate::support::{Files, leaves, mixed, nested, yaml};

/// The events of a trace in Chrome's JSON.
fn trace_events(files: &Files, log: &str) -> Vec<Value> {
    files.ours_out(&format!("convert {log} -f=trace_event -o out.json --force"));
    let text = fs::read_to_string(files.path().join("out.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    json["traceEvents"].as_array().unwrap().clone()
}

/// The number of events of this kind that have all fields of upstream's test. Two fields do not
/// count: the stack frame, which only llvm-xray has, and the name of an end, which its begin has.
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

/// From YAML to a raw log and back, the records stay the same.
#[test]
fn convert_roundtrip() {
    let calls = leaves([(10001, 10100, 1)]);
    let files = Files::new(&[("log", yaml(2_601_000_000, &calls))]);
    files.ours_out("convert log -f raw -o ours.raw");
    files.theirs_out("convert log -f raw -o theirs.raw");
    let records = |log: &str| -> Vec<String> {
        let yaml = files.theirs_out(&format!("convert {log} -f yaml -o -"));
        let records = yaml.lines().filter(|line| line.starts_with("  - "));
        records.map(str::to_owned).collect()
    };
    assert_eq!(records("ours.raw"), records("theirs.raw"));
    assert_eq!(records("ours.raw").len(), 2);
    files.ours_out("convert ours.raw -f yaml -o ours.yaml");
    files.same("account ours.yaml");
}

/// Upstream's test reads a log of the flight data recorder.
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

/// A user event among calls, which llvm-xray leaves out.
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

/// The output of `convert -f yaml` without the version and the type. llvm-xray prints those of the
/// log, and can read back only version 1.
fn body(yaml: &str) -> String {
    let head = |line: &&str| !line.starts_with("  version: ") && !line.starts_with("  type: ");
    yaml.lines().filter(head).collect::<Vec<_>>().join("\n")
}

/// Every option of llvm-xray, with one dash or two, as YAML on standard output, for logs of all
/// kinds.
#[test]
fn convert_prints_the_yaml_that_llvm_xray_prints() {
    let files = Files::new(&[("log.yaml", yaml(3_000_000_000, &mixed(3, 7)))]);
    files.ours_out("convert log.yaml -o log.basic");
    // By default, llvm-xray has no fixed order of threads. With one thread, there is only one
    // order.
    let one = Files::new(&[("log.yaml", yaml(3_000_000_000, &nested(9)))]);
    one.ours_out("convert log.yaml -o log.fdr");
    one.ours_out("convert log.yaml -o log.basic");
    let mut lines = 0;
    for (files, log) in [
        (&files, "log.yaml"),
        (&files, "log.basic"),
        (&one, "log.yaml"),
        (&one, "log.fdr"),
        (&one, "log.basic"),
    ] {
        for args in [
            "-output-format=yaml -symbolize",
            "--output-format yaml --symbolize --output -",
            "-f yaml -y -o -",
            "-f=yaml -y -sort",
            "-f yaml -y -s",
            "-f yaml -y -sort=true -m map.yaml",
            "--f=yaml --y=1 --s=1 --m=map.yaml --o=-",
            "-f yaml -y -instr_map map.yaml -demangle",
            "-f yaml -y --instr_map=map.yaml --no-demangle",
            "-f yaml -y -no-demangle=false",
        ] {
            let args = format!("convert {log} {args}");
            let (ours, theirs) = (files.ours_out(&args), files.theirs_out(&args));
            assert_eq!(body(&ours), body(&theirs), "{args}");
            lines += ours.lines().count();
        }
    }
    assert!(lines > 5000, "{lines}");
}

/// Without sorting, threads come one after the other. llvm-xray's order of threads is its own
/// affair.
#[test]
fn convert_without_sorting_keeps_threads_together() {
    let files = Files::new(&[("log.yaml", yaml(3_000_000_000, &mixed(3, 7)))]);
    files.ours_out("convert log.yaml -o log.fdr");
    let by_thread = |text: &str| {
        let mut records: Vec<_> = text
            .lines()
            .filter(|line| line.contains("thread: "))
            .map(str::to_owned)
            .collect();
        let thread = |record: &String| {
            record
                .split("thread: ")
                .nth(1)
                .unwrap()
                .split(',')
                .next()
                .unwrap()
                .to_owned()
        };
        let switches = records
            .windows(2)
            .filter(|two| thread(&two[0]) != thread(&two[1]))
            .count();
        records.sort_by_key(thread);
        (records, switches)
    };
    for args in [
        "-f yaml -y -s=0",
        "--output-format=yaml --symbolize --sort=false",
        "-f=yaml -y -sort=FALSE",
    ] {
        let args = format!("convert log.fdr {args}");
        let (ours, theirs) = (
            by_thread(&files.ours_out(&args)),
            by_thread(&files.theirs_out(&args)),
        );
        assert_eq!(ours, theirs, "{args}");
        assert_eq!(ours.1, 2);
    }
    let sorted = by_thread(&files.ours_out("convert log.fdr -f yaml -y"));
    assert!(sorted.1 > 10, "{sorted:?}");
}

/// This includes llvm-xray's default: a raw log on standard output. llvm-xray writes version 3 only
/// if its input has version 3.
#[test]
fn convert_writes_the_raw_log_that_llvm_xray_writes() {
    let files = Files::new(&[("log.yaml", yaml(3_000_000_000, &mixed(3, 8)))]);
    files.ours_out("convert log.yaml --to basic -o log.basic");
    let bytes = |program: &str, args: &str| {
        let mut command = match program {
            "llvm-xray-19" => std::process::Command::new(program),
            _ => command::<&str>([]),
        };
        let output = command
            .args(args.split(' '))
            .current_dir(files.path())
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{args}: {output:?}");
        output.stdout
    };
    for args in [
        "convert log.basic",
        "convert log.basic -f raw",
        "convert -output-format=raw log.basic -o -",
    ] {
        let (ours, theirs) = (bytes("xrayctl", args), bytes("llvm-xray-19", args));
        assert!(ours.len() > 1000, "{args}");
        assert_eq!(ours, theirs, "{args}");
    }
}

/// The same calls at the same times. llvm-xray's times are texts, and the later they are, the less
/// exact they are.
#[test]
fn convert_prints_the_trace_events_that_llvm_xray_prints() {
    let files = Files::new(&[("log.yaml", yaml(1_000_000_000, &mixed(3, 9)))]);
    let args = "convert log.yaml -f trace_event -y -o -";
    let mut counts = Vec::new();
    let mut calls = |text: &str| {
        let json: Value = serde_json::from_str(text).unwrap();
        let number = |value: &Value| match value {
            Value::String(text) => text.parse::<f64>().unwrap(),
            value => value.as_f64().unwrap(),
        };
        let mut stacks = std::collections::BTreeMap::<String, Vec<String>>::new();
        let events = json["traceEvents"].as_array().unwrap().iter();
        let mut calls = Vec::new();
        for event in events.filter(|event| event["ph"] == "B" || event["ph"] == "E") {
            let tid = format!("{:.0}", number(&event["tid"]));
            let stack = stacks.entry(tid.clone()).or_default();
            let name = if event["ph"] == "B" {
                let name = event["name"].as_str().unwrap().to_owned();
                stack.push(name.clone());
                name
            } else {
                stack.pop().unwrap()
            };
            let nanoseconds = format!("{:.0}", number(&event["ts"]) * 1000.0);
            calls.push((tid, nanoseconds, event["ph"].to_string(), name));
        }
        calls.sort();
        counts.push(calls.len());
        calls
    };
    assert_eq!(calls(&files.ours_out(args)), calls(&files.theirs_out(args)));
    assert!(counts[0] > 300, "{counts:?}");
}

#[test]
fn convert_refuses_what_standard_output_cannot_take() {
    let files = Files::new(&[("log.yaml", yaml(1000, &leaves([(1, 2, 1)])))]);
    for (args, why) in [
        (
            "convert log.yaml --to ctf",
            "ctf is a directory: give -o OUT",
        ),
        ("convert log.yaml --to folded --json", "give -o OUT"),
    ] {
        let ran = files.ours(args);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args}: {}", ran.err);
        assert!(ran.err.contains(why), "{args}: {}", ran.err);
    }
    let ran = files.ours("convert log.yaml --to folded");
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "?;#1 1000000\n"),
        "{}",
        ran.err
    );
}
