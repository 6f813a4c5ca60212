//! Perfetto's trace processor reads both its own format and Chrome's. Every call and every event is
//! a slice, to the nanosecond, and the processor reports no errors.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};
use xray_trace::analysis::{Ending, Step, Steps};
use xray_trace::model::{DataKind, Trace};

use super::readers::run;
use super::{NAMES, busy, export, rich};
use crate::any_trace::any_trace;
use crate::common::{module, trace};

/// The format from which a slice was read.
#[derive(Clone, Copy, PartialEq)]
enum From {
    Chrome,
    Perfetto,
}

// === impl From ===

impl From {
    fn format(self) -> &'static str {
        match self {
            From::Chrome => "chrome",
            From::Perfetto => "perfetto",
        }
    }

    fn key(self, name: &str) -> String {
        match self {
            From::Chrome => format!("args.{name}"),
            From::Perfetto => format!("debug.{name}"),
        }
    }

    /// An argument. Numbers are signed in SQL.
    fn arg(self, value: u64) -> Value {
        match self {
            From::Chrome => format!("{value:#x}").into(),
            From::Perfetto => value.cast_signed().into(),
        }
    }

    fn count(self, value: u64) -> Value {
        match self {
            From::Chrome => value.to_string().into(),
            From::Perfetto => value.cast_signed().into(),
        }
    }
}

/// The slices of a trace: process, thread, name, begin, duration, depth, category, arguments; in
/// order of their begin. An event without a duration has no depth, because the trace processor
/// nests two events at the same time.
fn slices(trace: &Trace, from: From) -> Vec<Value> {
    let mut slices = Vec::new();
    for mut steps in Steps::of_threads(trace) {
        let thread = trace.thread(steps.thread()).unwrap();
        let process = trace.process(thread.process).unwrap();
        let slice = |name: &str, ns: u64, depth: Option<usize>| {
            let (pid, tid) = (process.pid, thread.tid);
            json!([
                pid,
                process.command,
                tid,
                thread.name,
                name,
                ns,
                0,
                depth,
                null,
                {}
            ])
        };
        let mut open_slices = Vec::new();
        while let Some(step) = steps.next() {
            match step {
                Step::Enter(open) => {
                    let name = trace.function_name(open.function);
                    let mut slice = slice(&name, open.start_ns, Some(open.depth));
                    if from == From::Perfetto && trace.function(open.function).is_some() {
                        slice[8] = module(thread.process.0, 0).path.rsplit('/').next().into();
                    }
                    for (number, arg) in (1..).zip(open.args.as_slice()) {
                        slice[9][from.key(&format!("arg{number}"))] = from.arg(*arg);
                    }
                    open_slices.push(slices.len());
                    slices.push(slice);
                }
                Step::Leave(call) => {
                    let slice: &mut Value = &mut slices[open_slices.pop().unwrap()];
                    slice[6] = call.duration_ns().into();
                    if let Some(result) = call.result {
                        slice[9][from.key("result")] = from.arg(result);
                    }
                    let how = match call.how {
                        Ending::Normal => continue,
                        Ending::TailExit => "tail exit",
                        Ending::Closed => "no exit seen",
                    };
                    slice[9][from.key("end")] = how.into();
                }
                Step::Data(user_event) => {
                    let name = match user_event.kind {
                        DataKind::Custom => "custom event".to_owned(),
                        DataKind::Kernel(_) => unreachable!("the trace has none"),
                        DataKind::Typed(number) => {
                            let name = trace.event_type(user_event.thread, number);
                            name.map_or_else(|| format!("typed event {number}"), str::to_owned)
                        }
                    };
                    let mut slice = slice(&name, user_event.ns, None);
                    let data = steps.data(&user_event);
                    let text = std::str::from_utf8(data).ok();
                    let text = text.filter(|text| !text.contains('\0'));
                    let text = text.map_or_else(|| data.escape_ascii().to_string(), str::to_owned);
                    slice[9][from.key("data")] = text.into();
                    if let DataKind::Typed(number) = user_event.kind {
                        slice[9][from.key("type")] = from.count(number.into());
                    }
                    if user_event.data.is_cut() {
                        slice[9][from.key("size")] = from.count(user_event.data.size());
                    }
                    slices.push(slice);
                }
                Step::Lost { ticks, events } => {
                    let ns = trace.clock().monotonic_ns(ticks);
                    let mut slice = slice("events lost", ns, None);
                    slice[9][from.key("events")] = from.count(events);
                    slices.push(slice);
                }
            }
        }
    }
    slices
}

/// The slices that the trace processor finds in each of the traces in each format.
fn read(traces: &[Trace]) -> Option<Vec<(From, &Trace, Value)>> {
    let dir = tempfile::tempdir().unwrap();
    let mut read = Vec::new();
    for (number, trace) in traces.iter().enumerate() {
        for from in [From::Perfetto, From::Chrome] {
            let path = dir.path().join(format!("{number}.{}", from.format()));
            std::fs::write(&path, export(from.format(), trace).0).unwrap();
            read.push((from, trace, path));
        }
    }
    let paths = read.iter().map(|(_, _, path)| path.as_path());
    let found = run("trace_processor.py", &paths.collect::<Vec<_>>())?;
    let found = found.as_array().unwrap().clone();
    let read = read.into_iter().zip(found);
    Some(
        read.map(|((from, trace, _), found)| (from, trace, found))
            .collect(),
    )
}

fn check(traces: &[Trace]) {
    for (from, trace, found) in read(traces).into_iter().flatten() {
        assert_eq!(found["problems"], json!([]), "{}", from.format());
        let mut found = found["slices"].as_array().unwrap().clone();
        let expected = slices(trace, from);
        for (found, expected) in found.iter_mut().zip(&expected) {
            if expected[7].is_null() {
                found[7] = Value::Null;
            }
            assert_eq!(found, expected, "{}", from.format());
        }
        assert_eq!(found.len(), expected.len(), "{}", from.format());
    }
}

#[test]
fn the_trace_processor_finds_everything_in_a_trace_of_everything() {
    check(&[rich()]);
}

/// Calls and time of each function of each thread.
#[test]
fn the_trace_processor_sums_up_what_we_sum_up() {
    let trace = trace(&NAMES, &[&busy(1000, 300), &busy(1500, 200)]);
    let mut sums = BTreeMap::new();
    for step in Steps::of_threads(&trace).flatten() {
        if let Step::Leave(call) = step {
            let tid = trace.thread(call.open.thread).unwrap().tid;
            let name = trace.function_name(call.open.function).into_owned();
            let sum = sums.entry((tid, name)).or_insert((0, 0));
            *sum = (sum.0 + 1, sum.1 + call.duration_ns());
        }
    }
    let sums = sums.into_iter();
    let sums = sums.map(|((tid, name), (calls, ns))| json!([tid, name, calls, ns]));
    let sums = Value::Array(sums.collect());
    for (from, _, found) in read(&[trace]).into_iter().flatten() {
        let problems = &found["problems"];
        assert_eq!(
            (problems, &found["sums"]),
            (&json!([]), &sums),
            "{}",
            from.format()
        );
    }
}

proptest! {
    // The trace processor takes a second to start.
    #![proptest_config(ProptestConfig { cases: 2, max_shrink_iters: 32, ..ProptestConfig::default() })]

    #[test]
    fn the_trace_processor_finds_everything_in_any_trace(
        traces in proptest::collection::vec(any_trace(), 12),
    ) {
        check(&traces);
    }
}
