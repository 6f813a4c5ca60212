//! Every event as it was recorded, for formats that hold all of them: nothing is paired, closed or put in order.

use std::io;

use super::{DAMAGED_BLOCKS, Report};
use crate::container::Events;
use crate::model::{CallKind, DataKind, Event, EventBody, ThreadId, Trace};

/// A taker of events.
pub(super) trait EachEvent {
    /// The events that follow are this thread's.
    fn thread(&mut self, thread: ThreadId) -> io::Result<()>;

    /// An event of the thread; `events` has the bytes that it refers to.
    fn event(&mut self, event: &Event, events: &Events) -> io::Result<()>;
}

/// Hands all events of the trace to `taker`, thread by thread.
pub(super) fn each_event(trace: &Trace, taker: &mut impl EachEvent) -> io::Result<Report> {
    let mut report = Report::default();
    let mut damaged = 0;
    for (thread, blocks) in trace.blocks_by_thread() {
        taker.thread(thread)?;
        for block in blocks {
            let mut events = block.events();
            while let Some(event) = events.next() {
                let Ok(event) = event else {
                    damaged += 1;
                    break;
                };
                report.calls += u64::from(is_entry(&event.body));
                taker.event(&event, &events)?;
            }
        }
    }
    report.leave_out(DAMAGED_BLOCKS, damaged);
    report.leave_out_unplaced(trace);
    Ok(report)
}

/// What kind of event it is, in a word.
pub(super) fn word(body: &EventBody) -> &'static str {
    match body {
        EventBody::Call { kind, .. } => match kind {
            CallKind::Enter => "enter",
            CallKind::Exit => "exit",
            CallKind::TailExit => "tail-exit",
        },
        EventBody::Data { kind, .. } => match kind {
            DataKind::Custom => "custom",
            DataKind::Typed(_) => "typed",
        },
        EventBody::Cpu { .. } => "processor",
        EventBody::Lost { .. } => "lost",
    }
}

/// Whether a call begins.
pub(super) fn is_entry(body: &EventBody) -> bool {
    matches!(
        body,
        EventBody::Call {
            kind: CallKind::Enter,
            ..
        }
    )
}
