//! Speedscope's JSON, read by its own import.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};
use xray_trace::analysis::{Step, Steps};
use xray_trace::model::Trace;

use super::readers::read;
use super::stacks::{Sums, expected};
use super::{NAMES, busy, export, rich};
use crate::any_trace::any_trace;
use crate::common::trace;

/// The expected result of Speedscope's own import for each thread: its name, its time in
/// nanoseconds since the trace's first event, the begin and the end of each call, and the time for
/// which each stack was on top.
fn speedscope_profiles(trace: &Trace) -> Vec<Value> {
    let first = trace.blocks().iter().map(|block| block.first).min();
    let start = first.map_or(0, |first| trace.clock().monotonic_ns(first));
    let mut profiles = Vec::new();
    for steps in Steps::of_threads(trace) {
        let thread = trace.thread(steps.thread()).unwrap();
        let process = trace.process(thread.process).unwrap();
        let (mut events, mut end) = (Vec::new(), 0);
        let (mut stack, mut stacks) = (Vec::new(), BTreeMap::new());
        for step in steps {
            let (kind, function, ns) = match step {
                Step::Enter(open) => ("open", open.function, open.start_ns),
                Step::Leave(call) => ("close", call.open.function, call.end_ns),
                Step::Data(_) | Step::Lost { .. } => continue,
            };
            end = ns - start;
            let name = trace.function_name(function);
            let source = trace
                .function(function)
                .and_then(|known| known.source.clone());
            let (file, line) = source.map(|source| (source.file, source.line)).unzip();
            events.push(json!([kind, name, file, line, end]));
            match step {
                Step::Leave(call) => {
                    *stacks.entry(stack.clone()).or_insert(0) += call.self_ns;
                    stack.pop();
                }
                _ => stack.push(name.into_owned()),
            }
        }
        profiles.push(json!({
            "name": format!("{} {}, {} {}", process.command, process.pid, thread.name, thread.tid),
            "unit": "nanoseconds",
            "total": end,
            "events": events,
            "stacks": stacks.into_iter().filter(|(_, ns)| *ns > 0).collect::<Vec<_>>(),
        }));
    }
    profiles
}

/// Goes through the profiles like Speedscope.
pub(super) fn speedscope(trace: &Trace) -> Sums {
    let json: Value = serde_json::from_slice(&export("speedscope", trace).0).unwrap();
    let frames = json["shared"]["frames"].as_array().unwrap();
    let mut sums = Sums::new();
    for profile in json["profiles"].as_array().unwrap() {
        let mut stack = Vec::<(u64, u64)>::new();
        let mut before = profile["startValue"].as_u64().unwrap();
        for event in profile["events"].as_array().unwrap() {
            let at = event["at"].as_u64().unwrap();
            let frame = event["frame"].as_u64().unwrap();
            assert!(at >= before, "time runs backwards");
            if let Some((_, self_ns)) = stack.last_mut() {
                *self_ns += at - before;
            }
            before = at;
            match event["type"].as_str().unwrap() {
                "O" => stack.push((frame, 0)),
                _ => {
                    let (opened, self_ns) = stack.pop().unwrap();
                    assert_eq!(opened, frame, "calls are nested");
                    let name = frames[frame as usize]["name"].as_str().unwrap();
                    let sum = sums.entry(name.to_owned()).or_default();
                    *sum = (sum.0 + 1, sum.1 + self_ns);
                }
            }
        }
        assert_eq!(profile["endValue"].as_u64(), Some(before));
        assert!(stack.is_empty());
    }
    sums
}

#[test]
fn speedscopes_own_import_finds_every_call() {
    let trace = trace(&NAMES, &[&busy(1000, 300), &busy(1500, 200)]);
    if let Some(read) = read("speedscope.js", "speedscope", &trace) {
        let expected = speedscope_profiles(&trace);
        assert_eq!(read["profiles"], Value::Array(expected));
    }
}

#[test]
fn speedscope_has_threads_frames_and_lines() {
    let rich = rich();
    assert_eq!(speedscope(&rich), expected(&rich));
    let json: Value = serde_json::from_slice(&export("speedscope", &rich).0).unwrap();
    let profiles = json["profiles"].as_array().unwrap();
    assert_eq!(profiles[0]["name"], "demo 4000, worker-0 5000");
    // The offset is a third of the 100 ticks since the thread's first processor event.
    assert_eq!(profiles[0]["events"][0]["at"], 33);
    let frames = json["shared"]["frames"].as_array().unwrap();
    let frame = serde_json::json!({"name": "c", "file": "src/demo.cc", "line": 12});
    assert!(frames.contains(&frame), "{frames:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Speedscope does not draw calls of zero length, nor a border between consecutive calls of the
    /// same function.
    #[test]
    fn speedscopes_own_import_finds_every_nanosecond_of_any_trace(trace in any_trace()) {
        if let Some(mut read) = read("speedscope.js", "speedscope", &trace) {
            let mut expected = speedscope_profiles(&trace);
            for profile in read["profiles"].as_array_mut().unwrap().iter_mut().chain(&mut expected) {
                profile["events"] = Value::Null;
                let stacks = profile["stacks"].as_array_mut().unwrap();
                stacks.sort_by_key(ToString::to_string);
            }
            prop_assert_eq!(&read["profiles"], &Value::Array(expected));
        }
    }
}
