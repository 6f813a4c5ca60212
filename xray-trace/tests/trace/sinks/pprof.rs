//! Pprof's profile, read by `go tool pprof`.

use std::collections::BTreeMap;
use std::process::Command;

use proptest::prelude::*;
use xray_trace::analysis::{Step, Steps};
use xray_trace::model::Trace;

use super::{NAMES, busy, export, rich, run};
use crate::common::{Enter, Exit, any_events, call, file, trace};

/// Calls and self time of each stack of each thread, by the thread's id and the names from the
/// outermost function on.
pub(super) type StackTrie = BTreeMap<(u32, Vec<String>), (u64, u64)>;

/// The output of `go tool pprof -raw`: samples with their values and locations, and locations with
/// their functions.
fn pprof(trace: &Trace) -> (StackTrie, String) {
    raw(&export("pprof", trace).0)
}

pub(super) fn raw(profile: &[u8]) -> (StackTrie, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.pb.gz");
    std::fs::write(&path, profile).unwrap();
    let mut command = Command::new("/usr/lib/go-1.19/pkg/tool/linux_amd64/pprof");
    command.arg("-raw").arg(&path).env("HOME", dir.path());
    let text = run(&mut command, "golang-1.19-go");
    let (samples, places) = text.split_once("Locations\n").unwrap();
    let (places, _) = places.split_once("Mappings\n").unwrap();
    let mut names = BTreeMap::new();
    for line in places.lines() {
        // 1: 0x1000 M=1 name file:line s=10
        let (number, rest) = line.trim().split_once(": ").unwrap();
        let words = rest.split_whitespace();
        let mut words = words.skip_while(|word| word.starts_with("0x") || word.starts_with("M="));
        names.insert(number.to_owned(), words.next().unwrap().to_owned());
    }
    let mut stacks = StackTrie::new();
    let mut lines = samples
        .lines()
        .skip_while(|line| !line.starts_with("calls/count"));
    lines.next();
    let mut lines = lines.peekable();
    while let Some(sample) = lines.next() {
        //     3    1234: 7 5 1
        //                process:[demo] thread:[worker]
        //                pid:[4000] tid:[5000]
        let (values, places) = sample.split_once(": ").unwrap();
        let values = values.split_whitespace().map(str::parse::<u64>);
        let values = values.collect::<Result<Vec<_>, _>>().unwrap();
        let stack = places.split_whitespace().map(|place| names[place].clone());
        let mut labels = String::new();
        while let Some(line) = lines.next_if(|line| line.contains(":[")) {
            labels += line;
        }
        let (_, tid) = labels.split_once("tid:[").unwrap();
        let tid = tid.split(']').next().unwrap().parse().unwrap();
        let sum = stacks.entry((tid, stack.rev().collect())).or_default();
        *sum = (sum.0 + values[0], sum.1 + values[1]);
    }
    (stacks, text)
}

pub(super) fn expected(trace: &Trace) -> StackTrie {
    let mut stacks = StackTrie::new();
    for steps in Steps::of_threads(trace) {
        let tid = trace.thread(steps.thread()).unwrap().tid;
        let mut stack = Vec::new();
        for step in steps {
            match step {
                Step::Enter(open) => stack.push(trace.function_name(open.function).into_owned()),
                Step::Leave(call) => {
                    let sum = stacks.entry((tid, stack.clone())).or_default();
                    *sum = (sum.0 + 1, sum.1 + call.self_ns);
                    stack.pop();
                }
                Step::Data(_) | Step::Lost { .. } => {}
            }
        }
    }
    stacks
}

#[test]
fn pprof_agrees_with_our_table() {
    let trace = trace(&NAMES, &[&busy(1000, 300), &busy(1500, 200)]);
    let (stacks, text) = pprof(&trace);
    assert_eq!(stacks, expected(&trace));
    for expected in [
        "calls/count time/nanoseconds[dflt]",
        "thread:[worker-1]",
        "tid:[5001]",
        "/usr/bin/demo abcd01",
        "src/demo.cc:12",
        "Time: 2023-11-14 22:13:20",
    ] {
        assert!(text.contains(expected), "{expected} is missing:\n{text}");
    }
}

#[test]
fn pprof_reads_a_trace_of_everything_an_empty_one_and_one_without_names() {
    let unknown = trace(&["a"], &[&[call(1, 77, Enter), call(5, 77, Exit)]]);
    assert_eq!(pprof(&unknown).0, expected(&unknown));
    let rich = rich();
    assert_eq!(pprof(&rich).0, expected(&rich));
    let empty = Trace::read(file(&[], &[]).as_slice()).unwrap();
    assert_eq!(pprof(&empty).0, StackTrie::new());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn pprof_agrees_on_any_trace(
        threads in proptest::collection::vec(any_events(1..60), 1..3),
    ) {
        let slices = threads.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let trace = trace(&NAMES, &slices);
        prop_assert_eq!(pprof(&trace).0, expected(&trace));
    }
}
