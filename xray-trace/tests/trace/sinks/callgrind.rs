//! Callgrind's profile, read by `callgrind_annotate`.

use std::collections::BTreeMap;
use std::process::Command;

use proptest::prelude::*;
use xray_trace::analysis::{Step, Steps};
use xray_trace::model::Trace;

use super::stacks::{Sums, expected};
use super::{NAMES, busy, export, run};
use crate::common::{any_events, trace};

/// Calls and their time, by caller and callee.
type Edges = BTreeMap<(String, String), (u64, u64)>;

/// What `callgrind_annotate` prints of functions and of who called whom.
fn annotate(trace: &Trace) -> (Sums, Edges) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.callgrind");
    std::fs::write(&path, export("callgrind", trace).0).unwrap();
    let mut command = Command::new("callgrind_annotate");
    command.args(["--threshold=100", "--auto=no", "--tree=calling"]);
    let text = run(command.arg(&path), "valgrind");
    let (mut sums, mut edges) = (Sums::new(), Edges::new());
    let mut caller = String::new();
    for line in text.lines() {
        // 1,234 (50.0%) 5 (10.0%)  *  src/demo.cc:caller [object]
        // 1,000 (40.0%) 2 ( 4.0%)  >   src/demo.cc:callee (2x) [object]
        let Some((numbers, place)) = line.split_once("  * ").or(line.split_once("  > ")) else {
            continue;
        };
        let numbers = numbers.replace(',', "");
        let numbers = numbers
            .split_whitespace()
            .filter_map(|word| word.parse().ok());
        let numbers = numbers.collect::<Vec<u64>>();
        let (_, place) = place.split_once(':').unwrap();
        let mut words = place.split_whitespace();
        let name = words.next().unwrap().to_owned();
        if line.contains("  * ") {
            sums.insert(name.clone(), (numbers[1], numbers[0]));
            caller = name;
        } else {
            let calls = words.next().unwrap().trim_matches(['(', 'x', ')']);
            assert_eq!(calls.parse(), Ok(numbers[1]), "{line}");
            edges.insert((caller.clone(), name), (numbers[1], numbers[0]));
        }
    }
    (sums, edges)
}

/// Of calls within a call of the same function, the time is that of the outermost one.
fn expected_edges(trace: &Trace) -> Edges {
    let mut edges = Edges::new();
    for steps in Steps::of_threads(trace) {
        let mut stack = Vec::new();
        for step in steps {
            match step {
                Step::Enter(open) => stack.push(trace.function_name(open.function).into_owned()),
                Step::Leave(call) => {
                    let callee = stack.pop().unwrap();
                    let outermost = call.open.nesting == 0;
                    if let Some(caller) = stack.last() {
                        let edge = edges.entry((caller.clone(), callee)).or_default();
                        edge.0 += 1;
                        edge.1 += if outermost { call.duration_ns() } else { 0 };
                    }
                }
                Step::Data(_) | Step::Lost { .. } => {}
            }
        }
    }
    edges
}

#[test]
fn callgrind_annotate_agrees_with_our_table() {
    let trace = trace(&NAMES, &[&busy(1000, 300), &busy(1500, 200)]);
    assert_eq!(annotate(&trace), (expected(&trace), expected_edges(&trace)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn callgrind_annotate_agrees_on_any_trace(
        threads in proptest::collection::vec(any_events(1..60), 1..3),
    ) {
        let slices = threads.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let trace = trace(&NAMES, &slices);
        let (sums, edges) = annotate(&trace);
        prop_assert_eq!(sums, expected(&trace));
        prop_assert_eq!(edges, expected_edges(&trace));
    }
}
