//! The times for which threads had no processor: sums for each call, and single times for the
//! timeline. A page of a trace without run times has neither.

use super::document::Document;
use crate::analysis::{OffCpuSpan, ThreadTimeline, TimelineCall};
use crate::model::RunState;

/// Writes two columns: the time of each call without a processor + 1, which is 0 if it is not
/// known, and the part of it in which the thread was ready to run. Writes nothing if no time is
/// known.
pub(super) fn write_calls<'a, C: Iterator<Item = &'a TimelineCall>>(
    name: &str,
    calls: impl Fn() -> C,
    document: &mut Document,
) {
    if calls().all(|call| call.off_cpu.is_none()) {
        return;
    }
    let off = |call: &TimelineCall| call.off_cpu.map_or(0, |off| off.total_ns.saturating_add(1));
    document.column(&format!("{name}.off"), calls().map(off));
    let ready = |call: &TimelineCall| call.off_cpu.map_or(0, |off| off.ready_ns);
    document.column(&format!("{name}.ready"), calls().map(ready));
}

/// Writes the single times of each thread. `lines` has the rows of the threads.
pub(super) fn write_spans(
    lines: &[(usize, &ThreadTimeline)],
    origin_ns: u64,
    document: &mut Document,
) {
    let spans = || {
        lines
            .iter()
            .flat_map(|(row, line)| line.off_cpu.spans.iter().map(move |span| (*row, span)))
    };
    if spans().next().is_none() {
        return;
    }
    document.column("off.thread", spans().map(|(row, _)| row as u64));
    // The time of each span since the end of the previous span of its thread, or since the trace's
    // first event.
    let gaps = lines.iter().flat_map(|(_, line)| {
        let mut before = origin_ns;
        line.off_cpu.spans.iter().map(move |span| {
            let gap = span.start_ns.saturating_sub(before);
            before = span.end_ns;
            gap
        })
    });
    document.column("off.gap", gaps);
    document.column("off.len", spans().map(|(_, span)| span.len_ns()));
    document.column("off.state", spans().map(|(_, span)| state(span)));
}

/// The number of a state in the document.
fn state(span: &OffCpuSpan) -> u64 {
    match span.state {
        None | Some(RunState::Running) => 0,
        Some(RunState::Ready) => 1,
        Some(RunState::Waiting) => 2,
    }
}
