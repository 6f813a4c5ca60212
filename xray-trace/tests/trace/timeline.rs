//! The timeline: it accounts for every call of a trace within any limits.

use proptest::prelude::*;
use xray_trace::analysis::{
    Ending, Filter, MOST_LANES, OffCpuTimes, Step, Steps, ThreadTimeline, Timeline, TimelineCall,
    TimelineLimits,
};
use xray_trace::model::{FunctionId, RunState, ThreadId, Ticks, Trace};

use crate::any_trace::any_trace;
use crate::common::{Enter, Exit, call, lost, trace};
use crate::runs::{with_loss, with_rests, with_runs};

const MUCH: TimelineLimits = TimelineLimits {
    threads: 100,
    calls: 100_000,
    slices: 100_000,
    gaps: 1000,
    off_cpu: 1000,
    longest: 3,
};

fn origin(trace: &Trace) -> u64 {
    let first = trace.blocks().iter().map(|block| block.first).min();
    first.map_or(0, |first| trace.clock().monotonic_ns(first))
}

/// The steps of a thread, as they should be in a timeline.
struct Told {
    thread: ThreadId,
    calls: Vec<TimelineCall>,
    losses: u64,
    events: u64,
}

fn reported(trace: &Trace, filter: &Filter) -> Vec<Told> {
    let reported = Steps::of_wanted(trace, filter).map(|mut steps| {
        let mut reported = Told {
            thread: steps.thread(),
            calls: Vec::new(),
            losses: 0,
            events: 0,
        };
        for step in &mut steps {
            match step {
                Step::Leave(call) if filter.until.is_none_or(|until| call.open.start < until) => {
                    reported.calls.push(TimelineCall {
                        depth: call.open.depth,
                        function: call.open.function,
                        start_ns: call.open.start_ns,
                        end_ns: call.end_ns,
                        finished: call.how != Ending::Closed,
                        off_cpu: call.off_cpu,
                    });
                }
                Step::Lost { ticks, events } if filter.wants_time(ticks) => {
                    reported.losses += 1;
                    reported.events = reported.events.saturating_add(events);
                }
                _ => {}
            }
        }
        reported
    });
    reported.collect()
}

/// Checks that long calls are kept, that all others are summed up, and that times of slices are
/// those of their calls.
fn check(line: &ThreadTimeline, reported: &Told, room: TimelineLimits, since_ns: u64) {
    assert_eq!(line.thread, reported.thread);
    let (drawn, deep): (Vec<TimelineCall>, Vec<_>) = reported
        .calls
        .iter()
        .partition(|call| call.depth < MOST_LANES);
    assert_eq!(line.too_deep, deep.len() as u64);
    let (mut kept, summed): (Vec<TimelineCall>, Vec<_>) = drawn
        .into_iter()
        .partition(|call| call.len_ns() >= line.kept_from_ns);
    kept.sort_by_key(|call| (call.depth, call.start_ns, call.end_ns));
    let mut calls = line.calls.clone();
    let exactly = |call: &TimelineCall| (call.depth, call.start_ns, call.end_ns, call.function);
    kept.sort_by_key(exactly);
    calls.sort_by_key(exactly);
    assert_eq!(calls, kept);
    assert!(kept.len() <= room.calls, "{} calls", kept.len());
    assert!(line.slices.len() <= room.slices.max(4 * MOST_LANES));

    assert_eq!(line.summed, summed.len() as u64);
    let in_slices: u64 = line.slices.iter().map(|slice| slice.calls).sum();
    assert_eq!(in_slices, line.summed);
    for depth in 0..MOST_LANES {
        let its = line.slices.iter().filter(|slice| slice.depth == depth);
        let busy: u64 = its.clone().map(|slice| slice.busy_ns).sum();
        let calls = summed.iter().filter(|call| call.depth == depth);
        let ns = calls
            .map(|call| call.end_ns - call.start_ns.clamp(since_ns.min(call.end_ns), call.end_ns));
        assert_eq!(busy, ns.sum::<u64>(), "at depth {depth}");
        let longest = its.map(|slice| slice.busy_ns).max().unwrap_or(0);
        assert!(longest <= 1 << line.slice_power);
    }
    let losses: u64 = line.gaps.iter().map(|gap| gap.losses).sum();
    let events = line.gaps.iter().map(|gap| gap.events);
    assert_eq!(losses, reported.losses);
    assert_eq!(events.fold(0, u64::saturating_add), reported.events);
    assert!(line.gaps.len() <= 2 * room.gaps.max(1));
}

fn check_all(trace: &Trace, filter: &Filter, room: TimelineLimits) {
    let origin = origin(trace);
    let since = filter.since.map(|since| trace.clock().monotonic_ns(since));
    let timeline = Timeline::new(trace, filter, origin, room);
    let reported = reported(trace, filter);
    assert_eq!(
        timeline.threads.len() + timeline.other_threads,
        reported.len()
    );
    for line in &timeline.threads {
        let its = reported
            .iter()
            .find(|reported| reported.thread == line.thread)
            .unwrap();
        check(line, its, room, since.unwrap_or(0).max(origin));
    }
}

proptest! {
    #[test]
    fn whatever_there_is_room_for_all_calls_are_there(
        trace in any_trace(),
        calls in prop_oneof![Just(0_usize), 1..40_usize, Just(100_000)],
        slices in prop_oneof![Just(0_usize), 1..40_usize, Just(100_000)],
        gaps in 0..3_usize,
        threads in 1..8_usize,
    ) {
        let room = TimelineLimits { threads, calls, slices, gaps, off_cpu: 2, longest: 2 };
        check_all(&trace, &Filter::default(), room);
    }

    #[test]
    fn a_window_has_what_is_open_in_it(trace in any_trace(), from: u64, len in 1..1_u64 << 30, calls in 0..20_usize) {
        let last = trace.blocks().iter().map(|block| block.last.0).max().unwrap_or(0);
        let since = from % (last + 1);
        let filter = Filter {
            since: Some(Ticks(since)),
            until: Some(Ticks(since.saturating_add(len))),
            ..Filter::default()
        };
        // A thread without events in the window has no line.
        let timeline = Timeline::new(&trace, &filter, origin(&trace), MUCH);
        prop_assert_eq!(timeline.threads.len(), reported(&trace, &filter).len());
        check_all(&trace, &filter, TimelineLimits { calls, ..MUCH });
    }
}

/// A call with calls within it. Each of these is longer than the previous one.
fn staircase(calls: u64) -> Vec<xray_trace::model::Event> {
    let mut events = vec![call(0, 0, Enter)];
    let mut now = 0;
    for len in 1..=calls {
        now += 10;
        events.push(call(now, 1, Enter));
        now += len;
        events.push(call(now, 1, Exit));
    }
    events.push(call(now + 10, 0, Exit));
    events
}

#[test]
fn the_longest_calls_are_kept() {
    let events = staircase(1000);
    let trace = trace(&["outer", "inner"], &[&events]);
    let room = TimelineLimits { calls: 11, ..MUCH };
    let timeline = Timeline::new(&trace, &Filter::default(), 0, room);
    let [line] = &timeline.threads[..] else {
        panic!("{timeline:?}")
    };
    let lengths: Vec<_> = line.calls.iter().map(TimelineCall::len_ns).collect();
    assert_eq!(lengths[1..], (991..=1000).collect::<Vec<_>>());
    assert_eq!((line.kept_from_ns, line.summed), (991, 990));
    let longest: Vec<_> = timeline
        .longest
        .values()
        .map(|calls| {
            calls
                .iter()
                .map(|(_, call)| call.len_ns())
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(longest[1], [1000, 999, 998]);
    assert_eq!(longest[0].len(), 1);
}

#[test]
fn a_gap_reaches_from_the_last_event_before_it() {
    let events = [
        call(100, 0, Enter),
        call(200, 1, Enter),
        call(250, 1, Exit),
        lost(700, 12),
        call(800, 1, Enter),
        call(900, 1, Exit),
    ];
    let trace = trace(&["outer", "inner"], &[&events]);
    let timeline = Timeline::new(&trace, &Filter::default(), 100, MUCH);
    let line = &timeline.threads[0];
    let gap = line.gaps[0];
    assert_eq!(
        (gap.start_ns, gap.end_ns, gap.events, gap.losses),
        (250, 700, 12, 1)
    );
    let outer = line.calls[0];
    assert_eq!((outer.end_ns, outer.finished), (250, false));
}

/// The times of a thread without a processor, from the trace's begin on.
fn off_cpu(line: &ThreadTimeline) -> Vec<(u64, u64, Option<RunState>)> {
    let spans = line.off_cpu.spans.iter();
    spans
        .map(|span| (span.start_ns, span.end_ns, span.state))
        .collect()
}

#[test]
fn a_thread_has_the_times_without_a_processor_within_its_calls() {
    let trace = with_runs();
    let timeline = Timeline::new(&trace, &Filter::default(), 100, MUCH);
    let line = &timeline.threads[0];
    let (ready, waiting) = (Some(RunState::Ready), Some(RunState::Waiting));
    let within_f = [(200, 250, ready), (400, 600, waiting)];
    assert_eq!(off_cpu(line), within_f);
    assert_eq!((line.off_cpu.kept_from_ns, line.off_cpu.left_out), (0, 0));
    let off = |call: &TimelineCall| call.off_cpu.map(|off| (off.total_ns, off.ready_ns));
    let calls: Vec<_> = line.calls.iter().map(off).collect();
    // f, the second g, whose time is not known as a whole, and g within f.
    assert_eq!(calls, [Some((250, 50)), None, Some((200, 0))]);
    let longest = timeline.longest[&FunctionId(1)].iter();
    let longest: Vec<_> = longest.map(|(_, call)| off(call)).collect();
    assert_eq!(longest, [Some((200, 0)), None]);
    // The calls of g alone, and a part of the time.
    let only_g = Filter {
        functions: Some(Filter::matching_functions(&trace, "g").unwrap()),
        ..Filter::default()
    };
    let timeline = Timeline::new(&trace, &only_g, 100, MUCH);
    assert_eq!(off_cpu(&timeline.threads[0]), within_f[1..]);
    let part = Filter {
        since: Some(Ticks(230)),
        until: Some(Ticks(450)),
        ..Filter::default()
    };
    let timeline = Timeline::new(&trace, &part, 100, MUCH);
    assert_eq!(
        off_cpu(&timeline.threads[0]),
        [(230, 250, ready), (400, 450, waiting)]
    );
}

#[test]
fn the_longest_times_without_a_processor_are_kept() {
    let trace = with_rests(1000);
    let at = |filter: &Filter, off_cpu: usize| {
        let room = TimelineLimits { off_cpu, ..MUCH };
        let mut timeline = Timeline::new(&trace, filter, 0, room);
        timeline.threads.remove(0).off_cpu
    };
    let all = Filter::default();
    let lengths = |times: &OffCpuTimes| -> Vec<_> {
        let spans = times.spans.iter();
        spans.map(|span| span.end_ns - span.start_ns).collect()
    };
    let times = at(&all, 10);
    assert_eq!(lengths(&times), (991..=1000).collect::<Vec<_>>());
    assert_eq!((times.kept_from_ns, times.left_out), (991, 990));
    let times = at(&all, 0);
    assert_eq!((times.spans.len(), times.left_out), (0, 1000));
    let times = at(&all, 1000);
    assert_eq!((times.spans.len(), times.left_out), (1000, 0));
    // A part of the time has all of the room: the first 5 times end at 65. The call ends later.
    let part = Filter {
        until: Some(Ticks(65)),
        ..Filter::default()
    };
    assert_eq!(lengths(&at(&part, 10)), [1, 2, 3, 4, 5]);
    let part = Filter {
        since: Some(Ticks(65)),
        until: Some(Ticks(130)),
        ..Filter::default()
    };
    // The last of these is cut.
    assert_eq!(lengths(&at(&part, 10)), [6, 7, 8, 4]);
}

/// The call that a loss closes may go on, but its times without a processor count once.
#[test]
fn a_time_without_a_processor_is_there_once() {
    let trace = with_loss();
    for (until, expected) in [
        (None, vec![(120, 140), (240, 250)]),
        (
            Some(400),
            vec![(120, 140), (160, 180), (240, 250), (330, 340)],
        ),
        (Some(170), vec![(120, 140), (160, 170)]),
    ] {
        let filter = Filter {
            until: until.map(Ticks),
            ..Filter::default()
        };
        let timeline = Timeline::new(&trace, &filter, 100, MUCH);
        let times = off_cpu(&timeline.threads[0]).into_iter();
        let times: Vec<_> = times.map(|(from, over, _)| (from, over)).collect();
        assert_eq!(times, expected, "until {until:?}");
    }
}

#[test]
fn a_function_has_lanes_of_its_own() {
    let events = [
        call(0, 0, Enter),
        call(100, 1, Enter),
        call(200, 2, Enter),
        call(300, 2, Exit),
        call(400, 1, Exit),
        call(500, 0, Exit),
    ];
    let trace = trace(&["a", "b", "c"], &[&events]);
    let filter = Filter {
        functions: Some(Filter::matching_functions(&trace, "b").unwrap()),
        ..Filter::default()
    };
    let timeline = Timeline::new(&trace, &filter, 0, MUCH);
    let calls = &timeline.threads[0].calls;
    let shown: Vec<_> = calls
        .iter()
        .map(|call| (call.depth, call.function.0))
        .collect();
    assert_eq!(shown, [(0, 1), (1, 2)]);
    assert_eq!(timeline.longest.len(), 1);
}
