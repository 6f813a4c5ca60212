//! Tests of `profiler`.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::analysis::{Ending, Step, Steps};
use crate::container::{BlockEncoder, Writer};
use crate::model::{
    CallKind, ClockAnchor, Process, ProcessId, Profile, Thread, Ticks, Trace, Values,
};

/// An event in a thread.
#[derive(Debug, Clone, Copy)]
enum Happens {
    Enter(u32),
    Exit(u32),
    Unwound(u64),
    AstrayExit(u32),
    Lost(u64),
    /// The sums so far are taken.
    HandOver,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        6 => (0_u32..4).prop_map(Happens::Enter),
        6 => (0_u32..4).prop_map(Happens::Exit),
        1 => (1_u64..4).prop_map(Happens::Unwound),
        1 => (0_u32..4).prop_map(Happens::AstrayExit),
        1 => (1_u64..9).prop_map(Happens::Lost),
        1 => Just(Happens::HandOver),
    ]
}

/// Sums by path, outermost first: calls, calls without an exit, self time, sum, shortest and
/// longest.
type Sums = BTreeMap<Vec<u32>, [u64; 6]>;

fn room() -> ProfileBudget {
    ProfileBudget::new(1 << 30)
}

/// The sums of a trace by the analyses of events.
fn by_steps(trace: &Trace) -> (Sums, u64, u64) {
    let mut sums = Sums::new();
    let (mut strays, mut lost) = (0, 0);
    for mut steps in Steps::of_threads(trace) {
        let mut path = Vec::new();
        for step in &mut steps {
            match step {
                Step::Enter(open) => path.push(open.function.0),
                Step::Leave(call) => {
                    let known = sums.entry(path.clone()).or_default();
                    let duration = call.duration_ns();
                    known[0] += 1;
                    known[2] += call.self_ns;
                    if call.how == Ending::Closed {
                        known[1] += 1;
                    } else {
                        let first = known[0] - known[1] == 1;
                        known[3] += duration;
                        known[4] = if first {
                            duration
                        } else {
                            known[4].min(duration)
                        };
                        known[5] = known[5].max(duration);
                    }
                    path.pop();
                }
                Step::Data(_) | Step::Lost { .. } => {}
            }
        }
        strays += steps.notes().exits_without_entry;
        lost += steps.notes().lost;
    }
    (sums, strays, lost)
}

/// The sums of a profile that was written and read again.
fn by_profile(profile: &Profile) -> (Sums, u64, u64) {
    let mut paths = Vec::<Vec<u32>>::new();
    let mut sums = Sums::new();
    for (at, stack) in profile.stacks().iter().enumerate() {
        let mut path = stack.caller.map_or_else(Vec::new, |at| paths[at].clone());
        path.push(stack.function.0);
        let times = profile.times(at).unwrap();
        let of_durations: u64 = times.durations.iter().map(|(_, count)| count).sum();
        assert_eq!(of_durations, stack.calls - times.unfinished);
        let all = [
            stack.calls,
            times.unfinished,
            stack.self_ns,
            times.sum_ns,
            times.min_ns,
            times.max_ns,
        ];
        if stack.calls > 0 {
            assert!(sums.insert(path.clone(), all).is_none());
        }
        paths.push(path);
    }
    let missing = profile.missing();
    (sums, missing.exits_without_entry, missing.lost)
}

proptest! {
    /// Profile and trace of the same events have the same sums, at whatever points the sums are
    /// taken.
    #[test]
    fn a_profile_has_the_sums_of_the_full_trace(
        events in prop::collection::vec((happens(), 0_u64..1000), 0..200),
    ) {
        let mut encoder = BlockEncoder::new(ThreadId(3));
        let mut profiler = Profiler::new(room());
        let mut sums = StackSums::new(room());
        let mut now = 1;
        for (event, later) in events {
            now += later;
            let ticks = Ticks(now);
            match event {
                Happens::Enter(id) => {
                    encoder.push_call(ticks, FunctionId(id), CallKind::Enter, Values::default());
                    profiler.enter(FunctionId(id), now);
                }
                Happens::Exit(id) => {
                    encoder.push_call(ticks, FunctionId(id), CallKind::Exit, Values::default());
                    profiler.exit(FunctionId(id), now);
                }
                Happens::Unwound(calls) => {
                    encoder.push_unwound(ticks, calls);
                    profiler.unwind(calls, now);
                }
                Happens::AstrayExit(id) => {
                    encoder.push_unmatched_exit(ticks);
                    encoder.push_call(ticks, FunctionId(id), CallKind::Exit, Values::default());
                    profiler.unmatched_exit();
                    profiler.pass(now);
                }
                Happens::Lost(events) => {
                    encoder.push_lost(ticks, events);
                    profiler.lose(events);
                }
                Happens::HandOver => sums.add(&profiler.take()),
            }
        }
        profiler.end();
        sums.add(&profiler.take());
        let mut writer = Writer::new(Vec::new()).unwrap();
        for tick in [0, 1_000_000_000] {
            let anchor = ClockAnchor { ticks: Ticks(tick), monotonic_ns: tick, wall_ns: tick };
            writer.add(&anchor).unwrap();
        }
        let mut profile = writer.into_inner();
        let mut trace = Writer::going_on(profile.clone(), Default::default());
        if let Some(block) = encoder.finish() {
            trace.block(&block).unwrap();
        }
        let mut writer = Writer::going_on(&mut profile, Default::default());
        for part in sums.parts(ThreadId(3), |id| id) {
            writer.profile(&part).unwrap();
        }
        let trace = Trace::read(&*trace.into_inner()).unwrap();
        let profile = Profile::of_trace(Trace::read(&*profile).unwrap()).unwrap().unwrap();
        prop_assert_eq!(by_profile(&profile), by_steps(&trace));
    }
}

/// An open call counts with its self time, and with its whole duration after its end.
#[test]
fn open_calls_are_reported_once() {
    let (outer, inner) = (FunctionId(1), FunctionId(2));
    let mut profiler = Profiler::new(room());
    profiler.enter(outer, 100);
    profiler.enter(inner, 110);
    profiler.exit(inner, 130);
    profiler.enter(inner, 140);
    let first = profiler.take();
    let calls = |sums: &StackSums| -> Vec<(u64, u64, u64)> {
        let nodes = sums.nodes.iter();
        let known = nodes.map(|node| &node.sums);
        known
            .map(|sums| (sums.calls, sums.self_ticks, sums.total_ticks))
            .collect()
    };
    assert_eq!(calls(&first), [(0, 20, 0), (1, 20, 20)]);
    profiler.exit(inner, 200);
    profiler.exit(outer, 205);
    let second = profiler.take();
    assert_eq!(calls(&second), [(1, 5, 105), (1, 60, 60)]);
    let mut all = first.clone();
    all.add(&second);
    assert_eq!(calls(&all), [(1, 25, 105), (2, 80, 80)]);
}

#[test]
fn memory_is_bounded_and_comes_back() {
    let room = ProfileBudget::new(64 << 10);
    let mut profiler = Profiler::new(room.clone());
    let mut calls = 0;
    for round in 0..100_000_u32 {
        profiler.enter(FunctionId(round), u64::from(round) * 10);
        profiler.enter(FunctionId(round + 1), u64::from(round) * 10 + 1);
        profiler.exit(FunctionId(round + 1), u64::from(round) * 10 + 2);
        profiler.exit(FunctionId(round), u64::from(round) * 10 + 3);
        calls += 2;
    }
    assert!(room.used() < 128 << 10, "{}", room.used());
    let sums = profiler.take();
    let counted = sums.nodes.iter().map(|node| node.sums.calls).sum::<u64>();
    assert_eq!(counted, calls);
    let more = sums.nodes.iter().find(|node| node.function == MORE_STACKS);
    assert!(more.unwrap().sums.calls > 190_000);
    drop((sums, profiler));
    assert_eq!(room.used(), 0);
}

/// An infinite recursion takes bounded memory, and its caller is known again after its end.
#[test]
fn a_stack_without_end_is_cut() {
    let mut profiler = Profiler::new(ProfileBudget::new(1 << 20));
    let function = FunctionId(1);
    profiler.enter(FunctionId(0), 0);
    let most = MOST_DEPTH as u64;
    for tick in 1..most + 100 {
        profiler.enter(function, tick);
    }
    for tick in most + 100..2 * most + 199 {
        profiler.exit(function, tick);
    }
    profiler.exit(FunctionId(0), 3 * most);
    let sums = profiler.take();
    assert_eq!(sums.missing.too_deep, 100);
    let outermost = &sums.nodes[0].sums;
    assert_eq!((outermost.calls, outermost.total_ticks), (1, 3 * most));
}

/// A file with parts of a profile is a profile, and any other file is a trace.
#[test]
fn a_profile_is_distinguished_from_a_trace() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer
        .add(&Process {
            id: ProcessId(0),
            pid: 1,
            start_time_ticks: 0,
            command: "a".to_owned(),
            executable: String::new(),
            host: None,
        })
        .unwrap();
    writer
        .add(&Thread {
            id: ThreadId(0),
            process: ProcessId(0),
            tid: 1,
            name: String::new(),
        })
        .unwrap();
    let trace = Trace::read(writer.get_ref().as_slice()).unwrap();
    assert!(Profile::of_trace(trace).unwrap().is_none());
    let part = &StackSums::new(room()).parts(ThreadId(0), |id| id)[0];
    writer.profile(part).unwrap();
    let trace = Trace::read(writer.get_ref().as_slice()).unwrap();
    assert!(Profile::of_trace(trace).unwrap().is_some());
    let mut behind = part.clone();
    behind.first = 1;
    writer.profile(&behind).unwrap();
    let trace = Trace::read(writer.get_ref().as_slice()).unwrap();
    Profile::of_trace(trace).unwrap_err();
}
