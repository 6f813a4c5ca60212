//! FunctionCallTrieTest of compiler-rt: the stacks and sums for short lists of events. Its other
//! tests are about memory of the traced program, which we do not use.
//!
//! The numbers differ from upstream's in two cases. A clock that runs backwards adds no time here,
//! but a difference modulo 2^64 there. All self times together are the elapsed time here; there the
//! callees of a call without an exit count once more.

use crate::common::{Enter, Exit, call, trace};
use xray_trace::analysis::{Filter, Notes, Siblings, Side, StackRoots, StackTrie};
use xray_trace::model::{CallKind, Event, Trace};

const NAMES: [&str; 4] = ["f0", "f1", "f2", "f3"];

/// A stack, its calls, its calls without an exit, and its self time.
type Seen = (String, u64, u64, u64);

fn events(calls: &[(u64, u32, CallKind)]) -> Vec<Event> {
    let calls = calls.iter();
    calls
        .map(|(ticks, function, kind)| call(*ticks, *function, *kind))
        .collect()
}

fn stacks_of(traces: &[Trace], siblings: Siblings) -> (Vec<Seen>, Notes) {
    let mut stacks = StackTrie::default();
    let mut notes = Notes::default();
    for trace in traces {
        let all = Filter::default();
        notes.add(stacks.add(trace, &all, siblings, StackRoots::Together, Side::Before));
    }
    let seen = stacks.nodes().iter().enumerate().map(|(at, node)| {
        let counts = node.counts[0];
        let path = stacks.path(at).join(";");
        (path, counts.calls, counts.unfinished, counts.self_ns)
    });
    (seen.collect(), notes)
}

#[track_caller]
fn check(calls: &[(u64, u32, CallKind)], expected: &[(&str, u64, u64, u64)], notes: Notes) {
    let trace = trace(&NAMES, &[&events(calls)]);
    let expected: Vec<Seen> = expected
        .iter()
        .map(|(path, calls, unfinished, self_ns)| {
            ((*path).to_owned(), *calls, *unfinished, *self_ns)
        })
        .collect();
    assert_eq!(stacks_of(&[trace], Siblings::Closed), (expected, notes));
}

#[test]
fn enter_and_exit_function() {
    check(
        &[(1, 1, Enter), (2, 1, Exit)],
        &[("f1", 1, 0, 1)],
        Notes::default(),
    );
}

#[test]
fn handle_tsc_overflow() {
    check(
        &[(u64::MAX, 1, Enter), (1, 1, Exit)],
        &[("f1", 1, 0, 0)],
        Notes::default(),
    );
}

#[test]
fn maximal_cumulative_time() {
    check(
        &[(1, 1, Enter), (0, 1, Exit)],
        &[("f1", 1, 0, 0)],
        Notes::default(),
    );
}

#[test]
fn missing_function_entry() {
    let notes = Notes {
        exits_without_entry: 1,
        ..Notes::default()
    };
    check(&[(1, 1, Exit)], &[], notes);
}

#[test]
fn no_matching_enters_for_exit() {
    let notes = Notes {
        exits_without_entry: 1,
        closed_at_end: 2,
        ..Notes::default()
    };
    check(
        &[(1, 2, Enter), (3, 3, Enter), (5, 1, Exit)],
        &[("f2", 1, 1, 2), ("f2;f3", 1, 1, 2)],
        notes,
    );
}

#[test]
fn missing_function_exit() {
    let notes = Notes {
        closed_at_end: 1,
        ..Notes::default()
    };
    check(&[(1, 1, Enter)], &[("f1", 1, 1, 0)], notes);
}

#[test]
fn multiple_roots() {
    check(
        &[(1, 1, Enter), (2, 1, Exit), (3, 2, Enter), (4, 2, Exit)],
        &[("f1", 1, 0, 1), ("f2", 1, 0, 1)],
        Notes::default(),
    );
}

/// f1 > f2 > f3, and no exit of f2.
#[test]
fn missing_intermediary_exit() {
    let calls = [
        (0, 1, Enter),
        (100, 2, Enter),
        (200, 3, Enter),
        (300, 3, Exit),
        (400, 1, Exit),
    ];
    let notes = Notes {
        closed_by_outer_exit: 1,
        ..Notes::default()
    };
    // f2 was certainly open until f3 had ended.
    let closed = [
        ("f1", 1, 0, 200),
        ("f1;f2", 1, 1, 100),
        ("f1;f2;f3", 1, 0, 100),
    ];
    check(&calls, &closed, notes);
    // Upstream assumes that it ended with f1.
    let trace = trace(&NAMES, &[&events(&calls)]);
    let (seen, notes) = stacks_of(&[trace], Siblings::Deduced);
    let times: Vec<_> = seen.iter().map(|stack| (stack.2, stack.3)).collect();
    assert_eq!(times, [(0, 100), (0, 200), (0, 100)]);
    assert_eq!(notes.deduced_siblings, 1);
}

#[test]
fn deep_call_stack() {
    let names: Vec<_> = (0..33).map(|id| format!("f{id}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut calls: Vec<_> = (0..32).map(|at| (u64::from(at), at + 1, Enter)).collect();
    calls.push((33, 1, Exit));
    let trace = trace(&names, &[&events(&calls)]);
    for siblings in [Siblings::Closed, Siblings::Deduced] {
        let (seen, _) = stacks_of(std::slice::from_ref(&trace), siblings);
        assert_eq!(seen.len(), 32);
        for (depth, (path, calls, ..)) in seen.iter().enumerate() {
            assert_eq!(
                (path.as_str(), *calls),
                (&*names[1..=depth + 1].join(";"), 1)
            );
        }
        assert_eq!(seen.iter().map(|stack| stack.3).sum::<u64>(), 33);
    }
}

const TWO_CALLEES: [(u64, u32, CallKind); 6] = [
    (0, 1, Enter),
    (1, 2, Enter),
    (2, 2, Exit),
    (3, 3, Enter),
    (4, 3, Exit),
    (5, 1, Exit),
];

/// A trace that was written and read again has the same stacks.
#[test]
fn deep_copy() {
    let trace = trace(&NAMES, &[&events(&TWO_CALLEES)]);
    let mut copy = Vec::new();
    trace.write(&mut copy, &[]).unwrap();
    let copy = Trace::read(&copy[..]).unwrap();
    let (seen, _) = stacks_of(&[copy], Siblings::Closed);
    assert_eq!(seen, stacks_of(&[trace], Siblings::Closed).0);
    let paths: Vec<_> = seen.iter().map(|stack| stack.0.as_str()).collect();
    assert_eq!(paths, ["f1", "f1;f2", "f1;f3"]);
}

/// The stacks of two threads, and of two traces.
#[test]
fn merge_into() {
    let calls = [
        (0, 1, Enter),
        (1, 2, Enter),
        (2, 3, Enter),
        (3, 3, Exit),
        (4, 2, Exit),
        (5, 1, Exit),
    ];
    let calls = events(&calls);
    let one = || trace(&NAMES, &[&calls]);
    let both = trace(&NAMES, &[&calls, &calls]);
    for traces in [vec![one(), one()], vec![both]] {
        let (seen, notes) = stacks_of(&traces, Siblings::Closed);
        let expected = [("f1", 2, 0, 4), ("f1;f2", 2, 0, 4), ("f1;f2;f3", 2, 0, 2)];
        assert_eq!(
            seen,
            expected.map(|(path, calls, unfinished, own)| (
                path.to_owned(),
                calls,
                unfinished,
                own
            ))
        );
        assert_eq!(notes, Notes::default());
    }
}
