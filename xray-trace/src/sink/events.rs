//! Every event as it was recorded, for formats that hold all of them: nothing is paired, closed or put in order.

use std::io;
use std::ops::ControlFlow;

use super::Report;
use super::ahead::{Bytes, Outlet, ahead};
use super::report::DAMAGED_BLOCKS;
use crate::model::{CallKind, DataKind, Event, EventBody, ThreadId, Trace};

/// A taker of events.
pub(super) trait EachEvent {
    /// The events that follow are this thread's.
    fn thread(&mut self, thread: ThreadId) -> io::Result<()>;

    /// An event of the thread; `bytes` has what it refers to.
    fn event(&mut self, event: &Event, bytes: &Bytes) -> io::Result<()>;
}

/// What a trace consists of.
enum Item {
    /// The events that follow are this thread's.
    Thread(ThreadId),
    Event(Event),
}

/// Hands all events of the trace to `taker`, thread by thread.
pub(super) fn each_event(trace: &Trace, taker: &mut impl EachEvent) -> io::Result<Report> {
    let mut calls = 0;
    let make = |outlet: &mut Outlet<Item>| {
        let mut damaged = 0;
        for (thread, blocks) in trace.blocks_by_thread() {
            outlet.put(Item::Thread(thread))?;
            for block in blocks {
                let mut events = block.events();
                while let Some(event) = events.next() {
                    let Ok(mut event) = event else {
                        damaged += 1;
                        break;
                    };
                    if let EventBody::Data { data, .. } = &mut event.body {
                        *data = outlet.keep(events.data(*data), *data);
                    }
                    outlet.put(Item::Event(event))?;
                }
            }
        }
        ControlFlow::Continue(damaged)
    };
    let damaged = ahead(make, |item, bytes| match item {
        Item::Thread(thread) => taker.thread(*thread),
        Item::Event(event) => {
            calls += u64::from(is_entry(&event.body));
            taker.event(event, bytes)
        }
    })?;
    let mut report = Report {
        calls,
        ..Report::default()
    };
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
        EventBody::Unwound { .. } => "unwound",
        EventBody::Astray => "astray",
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
