//! When threads had a processor.

use proptest::collection::vec;
use proptest::prelude::*;
use xray_trace::analysis::{
    Filter, LeastTimes, OnCpu, OnePass, OnePassOptions, Order, Shown, Siblings, Side,
    SlowCallLines, SlowestOptions, StackRoots, StackTrie, Step, Steps, TableOption, Tree, TreeLine,
    account,
};
use xray_trace::container::{RunsEncoder, RunsPart, Writer};
use xray_trace::model::{
    ContextSwitch, Event, FunctionId, Run, RunState, ThreadId, ThreadRuns, Trace,
};

use crate::common::{Enter, Exit, anchor, blocks, call, function, lost, module, process, thread};

const RUNNING: RunState = RunState::Running;
const READY: RunState = RunState::Ready;
const WAITING: RunState = RunState::Waiting;

/// The part from `from` to `until` with these switches.
fn part(from: u64, until: u64, switches: &[(u64, RunState)]) -> RunsPart {
    let mut encoder = RunsEncoder::new(from);
    for &(at_ns, to) in switches {
        encoder.push(ContextSwitch {
            at_ns,
            to,
            processor: 3,
        });
    }
    encoder.take(ThreadId(0), until)
}

/// The time without a processor, and the part of it in which the thread was ready.
fn off(runs: &ThreadRuns, from: u64, until: u64) -> Option<(u64, u64)> {
    let off = runs.off_between(from, until)?;
    Some((off.total_ns, off.ready_ns))
}

#[test]
fn the_first_switch_shows_what_the_thread_did_before() {
    let ran = ThreadRuns::of(&[part(100, 200, &[(150, WAITING)])]);
    assert_eq!(off(&ran, 100, 200), Some((50, 0)));
    assert_eq!(
        (ran.processor_at(100), ran.processor_at(150)),
        (Some(3), None)
    );
    let waited = ThreadRuns::of(&[part(100, 200, &[(150, RUNNING)])]);
    assert_eq!(off(&waited, 100, 200), Some((50, 0)));
    assert_eq!(
        (waited.processor_at(100), waited.processor_at(150)),
        (None, Some(3))
    );
    // A thread without a switch that traces something has not left its processor.
    let quiet = ThreadRuns::of(&[part(100, 200, &[])]);
    assert_eq!(off(&quiet, 100, 200), Some((0, 0)));
    assert_eq!(quiet.processor_at(150), None);
    assert_eq!(quiet.runs().count(), 0, "nothing shows that it ran");
}

#[test]
fn times_outside_of_all_parts_are_unknown() {
    let runs = ThreadRuns::of(&[
        part(100, 200, &[(150, READY)]),
        part(200, 300, &[(220, RUNNING)]),
        part(400, 500, &[(450, WAITING)]),
    ]);
    // A part that continues another one has its state.
    assert_eq!(off(&runs, 100, 300), Some((70, 70)));
    for (from, until) in [
        (99, 150),
        (250, 301),
        (300, 400),
        (310, 320),
        (450, 501),
        (600, 600),
    ] {
        assert_eq!(off(&runs, from, until), None, "{from} to {until}");
    }
    assert_eq!(off(&runs, 400, 500), Some((50, 0)));
    assert!(ThreadRuns::of(&[]).is_empty());
}

#[test]
fn parts_of_a_hostile_file_are_read_as_far_as_they_make_sense() {
    let good = part(100, 200, &[(150, WAITING)]);
    // It begins within the other one.
    let within = part(120, 400, &[(130, READY)]);
    let runs = ThreadRuns::of(&[within, good.clone()]);
    assert_eq!(off(&runs, 100, 200), Some((50, 0)));
    assert_eq!(off(&runs, 100, 201), None);
    // State 3 does not exist. What comes before it is known.
    let mut bytes = good.switches.load().unwrap().to_vec();
    bytes.extend([3, 0]);
    let damaged = RunsPart {
        switches: bytes.into(),
        ..good
    };
    let error = damaged.each(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no state 3"), "{error}");
    let runs = ThreadRuns::of(&[damaged]);
    assert_eq!(off(&runs, 100, 150), Some((0, 0)));
    assert_eq!(off(&runs, 100, 151), None);
    // A switch behind the end of its part.
    let late = part(100, 600, &[(500, WAITING)]);
    let late = RunsPart {
        until_ns: 200,
        ..late
    };
    assert_eq!(off(&ThreadRuns::of(&[late]), 100, 200), Some((0, 0)));
}

/// A trace of a thread: `f` from 100 to 900 calls `g` from 300 to 700, and `g` alone from 950 to
/// 990.
fn traced(parts: &[RunsPart]) -> Trace {
    let events = [
        call(100, 0, Enter),
        call(300, 1, Enter),
        call(700, 1, Exit),
        call(900, 0, Exit),
        call(950, 1, Enter),
        call(990, 1, Exit),
    ];
    traced_as(&events, parts)
}

/// A trace of a thread with these events and run times, until 1000 or later.
fn traced_as(events: &[Event], parts: &[RunsPart]) -> Trace {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.add(&process(0)).unwrap();
    writer.add(&module(0, 0)).unwrap();
    for (id, name) in [(0, "f"), (1, "g")] {
        writer.add(&function(id, 0, name)).unwrap();
    }
    writer.add(&thread(0, 0)).unwrap();
    let end = events.last().map_or(0, |event| event.ticks.0).max(1000);
    writer.add(&anchor(0, 0)).unwrap();
    writer.add(&anchor(end, end)).unwrap();
    for block in blocks(0, events, 100) {
        writer.block(&block).unwrap();
    }
    for part in parts {
        writer.runs(part).unwrap();
    }
    Trace::read(writer.finish(&[]).unwrap().as_slice()).unwrap()
}

/// A trace of a thread with one call, from 0 on. In it, the thread runs for 10 ns and waits for 1
/// ns, runs for 10 ns and waits for 2 ns, and so on.
pub(crate) fn with_rests(rests: u64) -> Trace {
    let mut switches = Vec::new();
    let mut now = 0;
    for len in 1..=rests {
        switches.extend([(now + 10, WAITING), (now + 10 + len, RUNNING)]);
        now += 10 + len;
    }
    let end = now + 10;
    let events = [call(0, 0, Enter), call(end, 0, Exit)];
    traced_as(&events, &[part(0, end, &switches)])
}

/// The same, with run times from 50 to 920.
pub(crate) fn with_runs() -> Trace {
    let parts = [
        part(50, 500, &[(200, READY), (250, RUNNING), (400, WAITING)]),
        part(500, 920, &[(600, RUNNING)]),
    ];
    traced(&parts)
}

#[test]
fn calls_have_the_time_without_a_processor() {
    let trace = with_runs();
    assert!(trace.has_runs());
    let written = trace.write(Vec::new(), &[]).unwrap();
    let again = Trace::read(written.as_slice()).unwrap();
    assert_eq!(
        again.thread_runs(ThreadId(0)),
        trace.thread_runs(ThreadId(0))
    );
    assert_eq!(trace.thread_runs(ThreadId(1)), None);
    let table = account(&trace, &Filter::default(), Default::default());
    let on_cpu = |function: usize| table.rows[function].on_cpu;
    let f = OnCpu {
        ns: 550,
        of_ns: 800,
    };
    assert_eq!((on_cpu(0), f.off_ns()), (Some(f), 250));
    // The second call of g is after the end of what is known.
    assert_eq!(
        (on_cpu(1), table.rows[1].total_ns),
        (
            Some(OnCpu {
                ns: 200,
                of_ns: 400
            }),
            440
        )
    );
    // Of the 250 ns that f had no processor, g has 200.
    let mut own = Vec::new();
    for steps in Steps::of_threads(&trace) {
        let runs = trace.thread_runs(steps.thread());
        let steps = steps.with_runs(runs);
        for step in steps {
            if let Step::Leave(call) = step {
                own.push((call.open.function, call.off_cpu.map(|off| off.self_ns)));
            }
        }
    }
    let [f, g] = [FunctionId(0), FunctionId(1)];
    assert_eq!(own, [(g, Some(200)), (f, Some(50)), (g, None)]);
    let mut stacks = StackTrie::default();
    let (roots, side) = (StackRoots::Together, Side::Before);
    stacks.add_off_cpu(&trace, &Filter::default(), Siblings::Closed, roots, side);
    let counts = stacks.nodes().iter().enumerate();
    let counts = counts.map(|(at, node)| (stacks.path(at).join(";"), node.counts[0]));
    let times: Vec<_> = counts
        .map(|(path, of)| (path, of.total_ns, of.self_ns))
        .collect();
    let expected = [("f", 250, 50), ("f;g", 200, 200), ("g", 0, 0)];
    let expected = expected.map(|(path, total, own)| (path.to_owned(), total, own));
    assert_eq!((times, stacks.unknown_off_cpu()), (expected.to_vec(), 1));
    let without = traced(&[]);
    let table = account(&without, &Filter::default(), Default::default());
    assert!(!without.has_runs() && table.rows.iter().all(|row| row.on_cpu.is_none()));
}

/// A trace of a thread: a call of `f` from 100 to 150 that a loss at 200 closes, and another one
/// from 220 to 300. The thread waits from 120 to 140, 160 to 180, 240 to 250 and 330 to 340.
pub(crate) fn with_loss() -> Trace {
    let events = [
        call(100, 0, Enter),
        call(145, 1, Enter),
        call(150, 1, Exit),
        lost(200, 3),
        call(220, 0, Enter),
        call(300, 0, Exit),
    ];
    let waits = [(120, 140), (160, 180), (240, 250), (330, 340)];
    let switches = waits.map(|(from, until)| [(from, WAITING), (until, RUNNING)]);
    traced_as(&events, &[part(0, 500, &switches.concat())])
}

/// A state of the thread for each nanosecond, in order, without a switch to the same kind.
fn any_life() -> impl Strategy<Value = Vec<(u64, RunState)>> {
    let off = prop_oneof![Just(READY), Just(WAITING)];
    vec((1..9_u64, 1..9_u64, off), 1..12).prop_map(|turns| {
        let mut at = 0;
        let mut switches = Vec::new();
        for (runs, rests, off) in turns {
            switches.push((at + runs, off));
            switches.push((at + runs + rests, RUNNING));
            at += runs + rests;
        }
        switches
    })
}

proptest! {
    /// However the time is cut into parts, and with any parts missing: each time is as long as
    /// counting its nanoseconds one by one shows, or unknown.
    #[test]
    fn sums_are_those_of_single_nanoseconds(
        life in any_life(),
        cuts in vec(1..150_u64, 0..6),
        missing in vec(any::<bool>(), 8),
    ) {
        let end = life.last().map_or(0, |last| last.0) + 3;
        let mut bounds: Vec<u64> = cuts.into_iter().filter(|cut| *cut < end).collect();
        bounds.extend([0, end]);
        bounds.sort_unstable();
        bounds.dedup();
        // The state in the nanosecond after each moment; `None` if it is not known.
        let mut states: Vec<Option<RunState>> = (0..end)
            .map(|at| {
                let before = life.iter().rev().find(|(when, _)| *when <= at);
                Some(before.map_or(RUNNING, |(_, state)| *state))
            })
            .collect();
        let mut parts = Vec::new();
        let mut chain: Vec<(u64, u64, bool)> = Vec::new();
        for (pair, missing) in bounds.windows(2).zip(missing) {
            let (from, until) = (pair[0], pair[1]);
            if missing {
                states[from as usize..until as usize].fill(None);
                continue;
            }
            let within = |at: u64| from <= at && (at < until || until == end);
            let switches: Vec<_> = life.iter().copied().filter(|(at, _)| within(*at)).collect();
            let has_any = !switches.is_empty();
            match chain.last_mut() {
                Some((_, last, any)) if *last == from => (*last, *any) = (until, *any || has_any),
                _ => chain.push((from, until, has_any)),
            }
            parts.push(part(from, until, &switches));
        }
        let runs = ThreadRuns::of(&parts);
        for from in 0..end {
            for until in from + 1..=end {
                // Without any switch, only a thread that runs has calls.
                if chain.iter().any(|&(begin, last, any)| !any && begin < until && from < last) {
                    continue;
                }
                let range = &states[from as usize..until as usize];
                let count = |wanted: &[RunState]| {
                    let known = range.iter().flatten();
                    known.filter(|state| wanted.contains(state)).count() as u64
                };
                let known = range.iter().all(Option::is_some);
                let found = runs.off_between(from, until);
                prop_assert_eq!(found.is_some(), known, "{}..{}", from, until);
                if let Some(found) = found {
                    prop_assert_eq!(found.total_ns, count(&[READY, WAITING]), "{}..{}", from, until);
                    // Before the first switch, only that it had no processor is known.
                    prop_assert!(found.ready_ns <= count(&[READY]), "{}..{}", from, until);
                }
                // Each single time has the state of its nanoseconds, also beside unknown time.
                let single: Vec<_> = runs.off_runs(from, until).collect();
                prop_assert!(single.windows(2).all(|pair| pair[0].until_ns <= pair[1].from_ns));
                prop_assert!(single.iter().all(|run| from <= run.from_ns && run.until_ns <= until));
                let lasts = |run: &Run| run.until_ns - run.from_ns;
                let sum = |wanted: RunState| {
                    let its = single.iter().filter(|run| run.state.is_none_or(|its| its == wanted));
                    its.map(lasts).sum::<u64>()
                };
                let all: u64 = single.iter().map(lasts).sum();
                prop_assert_eq!(all, count(&[READY, WAITING]), "{}..{}", from, until);
                prop_assert!(sum(READY) >= count(&[READY]), "{}..{}", from, until);
                prop_assert!(sum(WAITING) >= count(&[WAITING]), "{}..{}", from, until);
            }
        }
    }

    #[test]
    fn whatever_a_part_holds_is_read(bytes in vec(any::<u8>(), 0..64), from: u64, until: u64) {
        let part = RunsPart {
            thread: ThreadId(0),
            from_ns: from,
            until_ns: until,
            switches: bytes.into(),
        };
        let runs = ThreadRuns::of(&[part.clone(), part]);
        let _ = (runs.off_between(from, until), runs.processor_at(from), runs.runs().count());
        prop_assert!(runs.off_runs(from, until).all(|run| run.from_ns < run.until_ns));
    }
}

/// Functions and durations of the ended calls in the tree, and of the slowest calls.
fn with_least(trace: &Trace, least: LeastTimes) -> [Vec<(u32, u64)>; 2] {
    let filter = Filter::default();
    let shown = Shown {
        least,
        levels: None,
    };
    let ended = Tree::new(trace, &filter, shown, Order::ByThread).filter_map(|line| match line {
        TreeLine::Leaf(call) | TreeLine::End(call) => Some(call),
        TreeLine::Begin(_) | TreeLine::Data { .. } | TreeLine::Lost { .. } => None,
    });
    let options = OnePassOptions {
        table: TableOption::NotesOnly,
        slowest: Some(SlowestOptions {
            most: 10,
            least,
            lines: SlowCallLines {
                levels: 1,
                parts: 1,
                user_events: 0,
            },
        }),
        shown,
        order: Order::ByThread,
    };
    let ended = ended.map(|call| (call.open.function.0, call.duration_ns()));
    let slowest = OnePass::new(trace, &filter, options).finish().slowest;
    let slowest = slowest.iter().map(|slow| &slow.call);
    let slowest = slowest.map(|call| (call.open.function.0, call.duration_ns()));
    [ended.collect(), slowest.collect()]
}

/// f has 550 of its 800 ns on a processor, and the first call of g 200 of its 400. Of the second
/// call of g, of 40 ns, that is not known.
#[test]
fn calls_are_selected_by_their_time_with_and_without_a_processor() {
    let trace = with_runs();
    let [f, g, unknown] = [(0, 800), (1, 400), (1, 40)];
    for (duration_ns, on_cpu_ns, off_cpu_ns, tree, slowest) in [
        (0, 0, 0, vec![g, f, unknown], vec![f, g, unknown]),
        (0, 1, 0, vec![g, f], vec![f, g]),
        (0, 200, 200, vec![g, f], vec![f, g]),
        (0, 201, 0, vec![f], vec![f]),
        (0, 551, 0, vec![], vec![]),
        (0, 0, 200, vec![g, f], vec![f, g]),
        (0, 0, 201, vec![f], vec![f]),
        (0, 0, 251, vec![], vec![]),
        (0, 551, 250, vec![], vec![]),
        (401, 200, 200, vec![f], vec![f]),
    ] {
        let least = LeastTimes {
            duration_ns,
            on_cpu_ns,
            off_cpu_ns,
        };
        let found = with_least(&trace, least);
        assert_eq!(found, [tree, slowest], "{least:?}");
    }
}

/// The run times begin after f, so nothing is known about f. The tree shows f around the call in
/// it, and the list has only that call.
#[test]
fn a_caller_without_known_run_times_is_shown_around_its_callee() {
    let known = [(200, READY), (250, RUNNING), (400, WAITING), (600, RUNNING)];
    let trace = traced(&[part(150, 920, &known)]);
    let least = LeastTimes {
        off_cpu_ns: 100,
        ..LeastTimes::default()
    };
    let [tree, slowest] = with_least(&trace, least);
    assert_eq!(slowest, [(1, 400)]);
    assert_eq!(tree, [(1, 400), (0, 800)]);
}
