//! The timeline: a line for each thread, with a lane for each depth. The timeline itself is
//! computed in `analysis`.

use super::document::Document;
use super::functions::Functions;
use super::off_cpu;
use super::threads::Threads;
use crate::analysis::{Slice, ThreadTimeline, Timeline, TimelineCall};

/// The calls of a thread at one depth.
struct Lane<'a> {
    thread: usize,
    depth: usize,
    calls: &'a [TimelineCall],
    slices: &'a [Slice],
}

pub(super) fn write(
    timeline: &Timeline,
    threads: &Threads,
    functions: &Functions,
    origin_ns: u64,
    document: &mut Document,
) {
    let lines = timeline.threads.iter();
    let lines = lines.filter_map(|line| Some((threads.row(line.thread)?, line)));
    let lines: Vec<_> = lines.collect();
    let lanes: Vec<_> = lines
        .iter()
        .flat_map(|(row, line)| lanes(*row, line))
        .collect();
    document.column("lane.thread", lanes.iter().map(|lane| lane.thread as u64));
    document.column("lane.depth", lanes.iter().map(|lane| lane.depth as u64));
    document.column(
        "lane.calls",
        lanes.iter().map(|lane| lane.calls.len() as u64),
    );
    document.column(
        "lane.slices",
        lanes.iter().map(|lane| lane.slices.len() as u64),
    );

    // The time of each call since the end of the previous call in its lane, or since the trace's
    // first event.
    let gaps = lanes.iter().flat_map(|lane| {
        let mut before = origin_ns;
        lane.calls.iter().map(move |call| {
            let gap = call.start_ns.saturating_sub(before);
            before = call.end_ns;
            gap
        })
    });
    document.column("call.gap", gaps);
    let calls = || lanes.iter().flat_map(|lane| lane.calls);
    document.column("call.len", calls().map(TimelineCall::len_ns));
    let what =
        |call: &TimelineCall| functions.number(call.function) << 1 | u64::from(!call.finished);
    document.column("call.what", calls().map(what));
    // Whether the last call of each lane goes on after the timeline. No other call of a lane can.
    // The column is missing if no call goes on.
    let goes_on = |lane: &Lane<'_>| lane.calls.last().is_some_and(|call| call.goes_on);
    if lanes.iter().any(goes_on) {
        let goes_on = lanes.iter().map(|lane| u64::from(goes_on(lane)));
        document.column("lane.goes_on", goes_on);
    }
    off_cpu::write_calls("call", calls, document);

    let steps = lanes.iter().flat_map(|lane| {
        let mut before = 0;
        lane.slices.iter().map(move |slice| {
            slice
                .at
                .saturating_sub(std::mem::replace(&mut before, slice.at))
        })
    });
    document.column("slice.step", steps);
    let slices = || lanes.iter().flat_map(|lane| lane.slices);
    document.column("slice.calls", slices().map(|slice| slice.calls));
    document.column("slice.busy", slices().map(|slice| slice.busy_ns));
    document.column(
        "slice.what",
        slices().map(|slice| functions.number(slice.function)),
    );

    let gaps = || {
        lines
            .iter()
            .flat_map(|(row, line)| line.gaps.iter().map(move |gap| (*row, gap)))
    };
    document.column("gap.thread", gaps().map(|(row, _)| row as u64));
    let start = |ns: u64| ns.saturating_sub(origin_ns);
    document.column("gap.start", gaps().map(|(_, gap)| start(gap.start_ns)));
    let len = gaps().map(|(_, gap)| gap.end_ns.saturating_sub(gap.start_ns));
    document.column("gap.len", len);
    document.column("gap.events", gaps().map(|(_, gap)| gap.events));
    document.column("gap.losses", gaps().map(|(_, gap)| gap.losses));
    off_cpu::write_spans(&lines, origin_ns, document);
}

/// The lanes of a thread that have content.
fn lanes(thread: usize, line: &ThreadTimeline) -> Vec<Lane<'_>> {
    let (mut calls, mut slices) = (line.calls.as_slice(), line.slices.as_slice());
    let mut lanes = Vec::new();
    loop {
        let depths = calls.first().map(|call| call.depth);
        let depths = depths
            .into_iter()
            .chain(slices.first().map(|slice| slice.depth));
        let Some(depth) = depths.min() else {
            return lanes;
        };
        let (its, others) = calls.split_at(calls.partition_point(|call| call.depth <= depth));
        let (summed, more) = slices.split_at(slices.partition_point(|slice| slice.depth <= depth));
        lanes.push(Lane {
            thread,
            depth,
            calls: its,
            slices: summed,
        });
        (calls, slices) = (others, more);
    }
}
