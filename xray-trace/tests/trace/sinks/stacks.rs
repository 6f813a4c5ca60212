//! Formats with sums by stack or by function: their sums equal those of our own table.

use std::collections::BTreeMap;

use proptest::prelude::*;
use xray_trace::analysis::{Step, Steps};
use xray_trace::model::{FunctionId, Trace};

use super::speedscope::speedscope;
use super::{NAMES, count_of, export, rich};
use crate::common::{Enter, Exit, any_events, call, trace};

/// Calls and self time of each function, by name.
pub(super) type Sums = BTreeMap<String, (u64, u64)>;

pub(super) fn expected(trace: &Trace) -> Sums {
    let mut sums = Sums::new();
    for step in Steps::of_threads(trace).flatten() {
        if let Step::Leave(call) = step {
            let name = trace.function_name(call.open.function).into_owned();
            let sum = sums.entry(name).or_default();
            sum.0 += 1;
            sum.1 += call.self_ns;
        }
    }
    sums
}

fn folded(trace: &Trace) -> Vec<(Vec<String>, u64)> {
    read_folded(export("folded", trace).0)
}

pub(super) fn read_folded(bytes: Vec<u8>) -> Vec<(Vec<String>, u64)> {
    let text = String::from_utf8(bytes).unwrap();
    let line = |line: &str| {
        let (stack, ns) = line.rsplit_once(' ').unwrap();
        let frames = stack.split(';').map(str::to_owned).collect();
        (frames, ns.parse().unwrap())
    };
    text.lines().map(line).collect()
}

#[test]
fn folded_stacks_have_self_values() {
    let events = [
        call(100, 0, Enter),
        call(110, 1, Enter),
        call(115, 1, Exit),
        call(120, 1, Enter),
        call(121, 1, Exit),
        call(200, 0, Exit),
    ];
    let trace = trace(&["main;\n", "leaf"], &[&events, &events]);
    let (bytes, report) = export("folded", &trace);
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(text, "demo;main:  188\ndemo;main: ;leaf 12\n");
    assert_eq!((report.calls, report.left_out), (6, Vec::new()));
}

#[test]
fn sums_say_what_they_leave_out() {
    let rich = rich();
    for format in ["folded", "callgrind", "pprof", "speedscope", "profile"] {
        let (_, report) = export(format, &rich);
        assert_eq!(report.calls, 5, "{format}");
        let left_out = report.left_out.iter().map(|(what, count)| {
            let what = what.split(' ').take(2).collect::<Vec<_>>().join(" ");
            (what, *count)
        });
        let expected = [
            ("exits of", 1),
            ("processors on", 1),
            ("arguments of", 1),
            ("results of", 1),
            ("custom and", 4),
            ("missing exits,", 1),
            ("lost events", 9),
            ("lost events", 4),
        ];
        let expected = expected.map(|(what, count)| (what.to_owned(), count));
        assert_eq!(left_out.collect::<Vec<_>>(), expected, "{format}");
    }
}

#[test]
fn a_recursion_without_end_makes_no_endless_file() {
    let mut events = (0..5000).map(|at| call(at, 0, Enter)).collect::<Vec<_>>();
    events.extend((5000..10_000).map(|at| call(at, 0, Exit)));
    let trace = trace(&NAMES, &[&events]);
    let (bytes, report) = export("folded", &trace);
    assert!(bytes.len() < 4_000_000, "{} bytes", bytes.len());
    assert_eq!(count_of(&report, "1000 deep"), 4000);
    let sum = folded(&trace).iter().map(|(_, ns)| ns).sum::<u64>();
    assert_eq!(sum, 9999);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_time_is_lost_in_stacks_nor_in_speedscope(
        threads in proptest::collection::vec(any_events(0..60), 1..3),
    ) {
        let slices = threads.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let trace = trace(&NAMES, &slices);
        let mut sums = Sums::new();
        for (stack, ns) in folded(&trace) {
            sums.entry(stack.last().unwrap().clone()).or_default().1 += ns;
        }
        let expected = expected(&trace);
        prop_assert_eq!(speedscope(&trace), expected.clone());
        let with_time = expected.into_iter().filter(|(_, (_, ns))| *ns > 0);
        prop_assert_eq!(sums, with_time.map(|(name, (_, ns))| (name, (0, ns))).collect::<Sums>());
    }
}

#[test]
fn functions_that_the_trace_does_not_describe_have_their_number() {
    let events = [call(1, 77, Enter), call(5, 77, Exit)];
    let trace = trace(&["a"], &[&events]);
    assert!(trace.function(FunctionId(77)).is_none());
    let expected = Sums::from([("#77".to_owned(), (1, 4))]);
    assert_eq!(folded(&trace), [(vec!["demo".into(), "#77".into()], 4)]);
    assert_eq!(speedscope(&trace), expected);
}
