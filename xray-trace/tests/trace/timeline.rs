//! The timeline: it accounts for every call of a trace within any limits.

use proptest::prelude::*;
use xray_trace::analysis::{
    Ending, Filter, MOST_LANES, OffCpuTimes, Step, Steps, Survey, ThreadTimeline, Timeline,
    TimelineCall, TimelineLimits,
};
use xray_trace::container::{RunsEncoder, Writer};
use xray_trace::model::{ContextSwitch, Event, FunctionId, RunState, ThreadId, Ticks, Trace};

use crate::any_trace::any_trace;
use crate::common::{
    Enter, Exit, anchor, blocks, call, function, lost, module, process, thread, trace,
};
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
        let until_ns = filter.until.map(|until| trace.clock().monotonic_ns(until));
        while let Some(step) = steps.next() {
            match step {
                Step::Leave(call) if filter.until.is_none_or(|until| call.open.start < until) => {
                    let goes_on = steps.goes_on(&call);
                    let end_ns = match until_ns {
                        Some(until_ns) if goes_on => call.end_ns.max(until_ns),
                        _ => call.end_ns,
                    };
                    reported.calls.push(TimelineCall {
                        depth: call.open.depth,
                        function: call.open.function,
                        start_ns: call.open.start_ns,
                        end_ns,
                        finished: call.how != Ending::Closed,
                        goes_on,
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
        // A thread without events and open calls in the window has no line.
        let timeline = Timeline::new(&trace, &filter, origin(&trace), MUCH);
        prop_assert_eq!(timeline.threads.len(), reported(&trace, &filter).len());
        check_all(&trace, &filter, TimelineLimits { calls, ..MUCH });
    }
}

/// Checks that each call of a window has the end that it has in the whole trace, or goes on after
/// the window.
fn check_ends(trace: &Trace, since: u64, until: u64) {
    let filter = between(since, until);
    let [since_ns, until_ns] = [since, until].map(|at| trace.clock().monotonic_ns(Ticks(at)));
    let whole = reported(trace, &Filter::default());
    for line in Timeline::new(trace, &filter, origin(trace), MUCH).threads {
        let its = whole
            .iter()
            .find(|whole| whole.thread == line.thread)
            .unwrap();
        for call in line.calls {
            let begin = |call: &TimelineCall| (call.depth, call.start_ns, call.function);
            let mut same = its
                .calls
                .iter()
                .filter(|whole| begin(whole) == begin(&call));
            let found = same.any(|whole| match (call.finished, call.goes_on) {
                (false, true) => whole.end_ns >= call.end_ns && call.end_ns >= until_ns,
                // A call that is open only before the window has no time in it.
                (false, false) => !whole.finished && whole.end_ns.max(since_ns) == call.end_ns,
                (true, goes_on) => whole.finished && whole.end_ns == call.end_ns && !goes_on,
            });
            assert!(found, "{call:?} from {since} to {until}");
        }
    }
}

fn between(since: u64, until: u64) -> Filter {
    Filter {
        since: Some(Ticks(since)),
        until: Some(Ticks(until)),
        ..Filter::default()
    }
}

proptest! {
    #[test]
    fn calls_of_a_window_have_their_ends_or_go_on(
        trace in any_trace(),
        from in any::<prop::sample::Index>(),
        over in any::<prop::sample::Index>(),
        more in 0..3_u64,
    ) {
        let events = trace.blocks().iter().flat_map(|block| block.events());
        let mut moments: Vec<_> = events.map(|event| event.unwrap().ticks.0).collect();
        moments.sort_unstable();
        let (from, over) = (*from.get(&moments), *over.get(&moments));
        let until = from.max(over).saturating_add(more + 1);
        check_ends(&trace, from.min(over).saturating_add(more), until);
    }
}

/// A trace of a thread with these events, in blocks of `per_block` events, and with waits until
/// 1000.
fn with_waits(events: &[Event], per_block: usize, waits: &[(u64, u64)]) -> Trace {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.add(&process(0)).unwrap();
    writer.add(&module(0, 0)).unwrap();
    for (id, name) in [(0, "f"), (1, "g")] {
        writer.add(&function(id, 0, name)).unwrap();
    }
    writer.add(&thread(0, 0)).unwrap();
    writer.add(&anchor(0, 0)).unwrap();
    writer.add(&anchor(1000, 1000)).unwrap();
    for block in blocks(0, events, per_block) {
        writer.block(&block).unwrap();
    }
    let mut runs = RunsEncoder::new(0);
    for (from, until) in waits {
        for (at_ns, to) in [(*from, RunState::Waiting), (*until, RunState::Running)] {
            runs.push(ContextSwitch {
                at_ns,
                to,
                processor: 0,
            });
        }
    }
    writer.runs(&runs.take(ThreadId(0), 1000)).unwrap();
    Trace::read(writer.finish(&[]).unwrap().as_slice()).unwrap()
}

/// The same trace without an index and with one.
fn with_and_without_index(trace: &Trace) -> [Trace; 2] {
    let index = Survey::new(trace, 0).index;
    [&[][..], &index[..]].map(|index| {
        let bytes = trace.write(Vec::new(), index).unwrap();
        Trace::read(bytes.as_slice()).unwrap()
    })
}

/// The end of each call, whether it has an exit, and whether it goes on.
fn ends(line: &ThreadTimeline) -> Vec<(u64, bool, bool)> {
    let calls = line.calls.iter();
    calls
        .map(|call| (call.end_ns, call.finished, call.goes_on))
        .collect()
}

#[test]
fn a_call_that_is_open_at_the_end_of_the_window_goes_on() {
    let (open, done, torn) = ((false, true), (true, false), (false, false));
    let events = [
        call(100, 0, Enter),
        call(200, 1, Enter),
        call(300, 1, Exit),
        call(400, 1, Enter),
        call(500, 1, Exit),
        call(900, 0, Exit),
    ];
    let lossy = [
        call(100, 0, Enter),
        call(200, 1, Enter),
        call(300, 1, Exit),
        lost(800, 5),
    ];
    // `f` exits, but `g` within it does not.
    let left = [
        call(100, 0, Enter),
        call(200, 1, Enter),
        call(250, 1, Enter),
        call(300, 1, Exit),
        call(900, 0, Exit),
    ];
    for (events, (since, until), expected) in [
        (&events[..], (150, 350), vec![(350, open), (300, done)]),
        (&events[..], (320, 350), vec![(350, open)]),
        // The second `g` begins in the window and ends after it.
        (&events[..], (350, 450), vec![(500, open), (500, done)]),
        (&events[..], (550, 950), vec![(900, done)]),
        // The trace ends before the window does.
        (&events[..5], (550, 600), vec![]),
        (&events[..5], (450, 600), vec![(500, torn), (500, done)]),
        // The next event is a loss: the calls were open at the last event before.
        (&lossy[..], (150, 350), vec![(300, torn), (300, done)]),
        (&lossy[..], (150, 900), vec![(300, torn), (300, done)]),
        (
            &left[..],
            (260, 700),
            vec![(700, open), (300, torn), (300, done)],
        ),
    ] {
        for per_block in [1, 2, 100] {
            let trace = with_waits(events, per_block, &[]);
            for trace in with_and_without_index(&trace) {
                let timeline = Timeline::new(&trace, &between(since, until), 100, MUCH);
                let found = timeline.threads.first().map(ends).unwrap_or_default();
                let found: Vec<_> = found
                    .into_iter()
                    .map(|(end, finished, goes_on)| (end, (finished, goes_on)))
                    .collect();
                assert_eq!(found, expected, "{since} to {until}, {per_block}");
                check_ends(&trace, since, until);
            }
        }
    }
}

#[test]
fn a_thread_within_one_call_for_all_of_the_window_has_a_line() {
    let events = [call(100, 0, Enter), call(900, 0, Exit)];
    let waits = [(200, 250), (400, 600), (700, 710)];
    for trace in with_and_without_index(&with_waits(&events, 1, &waits)) {
        let line = |filter: &Filter, room| Timeline::new(&trace, filter, 100, room).threads.pop();
        let found = line(&between(300, 500), MUCH).unwrap();
        assert_eq!(ends(&found), [(500, false, true)]);
        // The time without a processor is longer than the window.
        let waiting = Some(RunState::Waiting);
        assert_eq!(off_cpu(&found), [(400, 600, waiting)]);
        let off = found.calls[0].off_cpu.unwrap();
        assert_eq!((off.total_ns, off.self_ns), (150, 150));
        // It has a share of a small room, too.
        let little = TimelineLimits { calls: 1, ..MUCH };
        assert_eq!(line(&between(300, 500), little).unwrap().calls.len(), 1);
        // Before and after the call there is nothing.
        assert!(line(&between(10, 90), MUCH).is_none());
        assert!(line(&between(910, 990), MUCH).is_none());
    }
    let idle = [
        call(100, 0, Enter),
        call(200, 0, Exit),
        call(700, 0, Enter),
        call(900, 0, Exit),
    ];
    for per_block in [1, 2] {
        for trace in with_and_without_index(&with_waits(&idle, per_block, &waits)) {
            let timeline = Timeline::new(&trace, &between(300, 500), 100, MUCH);
            assert!(timeline.threads.is_empty(), "{timeline:?}");
        }
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
    // The part selects times, and does not cut them.
    assert_eq!(off_cpu(&timeline.threads[0]), within_f);
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
    // The last of these ends later.
    assert_eq!(lengths(&at(&part, 10)), [6, 7, 8, 9]);
}

/// The switches of a thread outside of the window take no room from another thread.
#[test]
fn the_room_for_times_without_a_processor_is_for_the_window() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.add(&process(0)).unwrap();
    writer.add(&module(0, 0)).unwrap();
    writer.add(&function(0, 0, "f")).unwrap();
    writer.add(&anchor(0, 0)).unwrap();
    writer.add(&anchor(20_000, 20_000)).unwrap();
    for id in [0, 1] {
        writer.add(&thread(id, 0)).unwrap();
        for block in blocks(id, &[call(0, 0, Enter), call(20_000, 0, Exit)], 2) {
            writer.block(&block).unwrap();
        }
    }
    // The first thread waits 900 times before the window, and once in it.
    let early = (0..900).map(|wait| (wait * 10 + 1, 1));
    let late = (1..=40).map(|len| (10_000 + len * 100, len));
    for (id, from_ns, until_ns, waits) in [
        (0, 0, 10_000, early.collect::<Vec<(u64, u64)>>()),
        (0, 10_000, 20_000, vec![(15_000, 9)]),
        (1, 10_000, 20_000, late.collect()),
    ] {
        let mut runs = RunsEncoder::new(from_ns);
        for (at, len) in waits {
            for (at_ns, to) in [(at, RunState::Waiting), (at + len, RunState::Running)] {
                runs.push(ContextSwitch {
                    at_ns,
                    to,
                    processor: 0,
                });
            }
        }
        writer.runs(&runs.take(ThreadId(id), until_ns)).unwrap();
    }
    let trace = Trace::read(writer.finish(&[]).unwrap().as_slice()).unwrap();
    let room = TimelineLimits {
        off_cpu: 40,
        ..MUCH
    };
    let timeline = Timeline::new(&trace, &between(10_000, 20_000), 0, room);
    let kept = timeline.threads.iter().map(|line| line.off_cpu.spans.len());
    let kept: Vec<_> = kept.collect();
    assert!(kept[0] == 1 && kept[1] > 20, "{kept:?}");
}

/// A call without an exit has the times without a processor up to its last event. A call that goes
/// on has those up to the end of the window.
#[test]
fn times_without_a_processor_are_within_calls() {
    let trace = with_loss();
    for (since, until, expected) in [
        (None, None, vec![(120, 140), (240, 250)]),
        (None, Some(400), vec![(120, 140), (240, 250)]),
        (None, Some(170), vec![(120, 140)]),
        (None, Some(130), vec![(120, 140)]),
        // A loss follows: the call may have ended.
        (Some(148), Some(170), vec![]),
        // The call goes on.
        (Some(110), Some(130), vec![(120, 140)]),
        (Some(110), Some(120), vec![]),
        (Some(140), Some(143), vec![]),
        (Some(245), Some(260), vec![(240, 250)]),
    ] {
        let filter = Filter {
            since: since.map(Ticks),
            until: until.map(Ticks),
            ..Filter::default()
        };
        let timeline = Timeline::new(&trace, &filter, 100, MUCH);
        let times = off_cpu(&timeline.threads[0]).into_iter();
        let times: Vec<_> = times.map(|(from, over, _)| (from, over)).collect();
        assert_eq!(times, expected, "{since:?} to {until:?}");
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
