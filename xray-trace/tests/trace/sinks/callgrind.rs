//! Callgrind's profile, read by `callgrind_annotate`.

use std::collections::BTreeMap;
use std::process::Command;

use proptest::prelude::*;
use xray_trace::analysis::{Step, Steps};
use xray_trace::model::Trace;

use super::stacks::{Sums, expected};
use super::{NAMES, busy, export, run};
use crate::common::{Enter, Exit, any_events, call, trace};

/// Calls and their time, by caller and callee.
pub(super) type Edges = BTreeMap<(String, String), (u64, u64)>;

/// The caller of outermost calls.
const OUTSIDE: &str = "(outside)";

/// The functions and the edges that `callgrind_annotate` prints.
pub(super) fn annotate(profile: &[u8]) -> (Sums, Edges) {
    let text = annotated(profile, "--tree=calling");
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
            if name != OUTSIDE {
                sums.insert(name.clone(), (numbers[1], numbers[0]));
            }
            caller = name;
        } else {
            let calls = words.next().unwrap().trim_matches(['(', 'x', ')']);
            assert_eq!(calls.parse(), Ok(numbers[1]), "{line}");
            edges.insert((caller.clone(), name), (numbers[1], numbers[0]));
        }
    }
    (sums, edges)
}

fn annotated(profile: &[u8], what: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.callgrind");
    std::fs::write(&path, profile).unwrap();
    let mut command = Command::new("callgrind_annotate");
    command.args(["--threshold=100", "--auto=no", what]);
    run(command.arg(&path), "valgrind")
}

/// Of calls within a call of the same function, only the time of the outermost one counts.
pub(super) fn expected_edges(trace: &Trace) -> Edges {
    let mut edges = Edges::new();
    for steps in Steps::of_threads(trace) {
        let mut stack = Vec::new();
        for step in steps {
            match step {
                Step::Enter(open) => stack.push(trace.function_name(open.function).into_owned()),
                Step::Leave(call) => {
                    let callee = stack.pop().unwrap();
                    let outermost = call.open.nesting == 0;
                    let caller = stack.last().map_or(OUTSIDE, String::as_str);
                    let edge = edges.entry((caller.to_owned(), callee)).or_default();
                    edge.0 += 1;
                    edge.1 += if outermost { call.duration_ns() } else { 0 };
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
    let profile = export("callgrind", &trace).0;
    assert_eq!(
        annotate(&profile),
        (expected(&trace), expected_edges(&trace))
    );
}

/// `callgrind_annotate` adds up a function's inclusive time from its callers.
#[test]
fn outermost_calls_count_for_a_function_that_is_called_elsewhere_too() {
    let events = [
        call(0, 0, Enter),
        call(10, 1, Enter),
        call(20, 0, Enter),
        call(120, 0, Exit),
        call(150, 1, Exit),
        call(1000, 0, Exit),
        call(1000, 1, Enter),
        call(1007, 1, Exit),
    ];
    let profile = export("callgrind", &trace(&NAMES, &[&events])).0;
    let text = annotated(&profile, "--inclusive=yes");
    let inclusive = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.contains(&format!(":{name} [")));
        let number = line.unwrap().split_whitespace().next().unwrap();
        number.replace(',', "").parse::<u64>().unwrap()
    };
    assert_eq!((inclusive("a"), inclusive("b")), (1000, 147));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn callgrind_annotate_agrees_on_any_trace(
        threads in proptest::collection::vec(any_events(1..60), 1..3),
    ) {
        let slices = threads.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let trace = trace(&NAMES, &slices);
        let (sums, edges) = annotate(&export("callgrind", &trace).0);
        prop_assert_eq!(sums, expected(&trace));
        prop_assert_eq!(edges, expected_edges(&trace));
    }
}
