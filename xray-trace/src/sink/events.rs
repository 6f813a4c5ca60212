//! Iterates over all events as they were recorded, for formats that can hold every event. It does
//! not pair, close or reorder events.

use std::io;
use std::ops::ControlFlow;

use super::Report;
use super::report::DAMAGED_BLOCKS;
use super::unpack_thread::{Bytes, Outlet, ahead};
use crate::analysis::KernelQueue;
use crate::event_format::{EventFilter, RecordedData};
use crate::model::{CallKind, DataKind, DataRef, Event, EventBody, ThreadId, Ticks, Trace};

/// A consumer of events.
pub(super) trait EachEvent {
    /// Begins the events of this thread.
    fn thread(&mut self, thread: ThreadId) -> io::Result<()>;

    /// Takes an event of the thread; `bytes` contains the bytes that it refers to.
    fn event(&mut self, event: &Event, bytes: &Bytes) -> io::Result<()>;
}

/// An element of the queue between the threads.
enum Item {
    /// The following events belong to this thread.
    Thread(ThreadId),
    Event(Event),
}

/// Passes the events of the trace to `taker`, thread by thread, and kernel events at their times
/// between them: all but the custom, typed and kernel events that `filter` does not select.
pub(super) fn each_event(
    trace: &Trace,
    filter: &EventFilter,
    taker: &mut impl EachEvent,
) -> io::Result<Report> {
    let mut calls = 0;
    let make = |outlet: &mut Outlet<Item>| {
        let mut damaged = 0;
        for (thread, blocks) in trace.blocks_by_thread() {
            outlet.put(Item::Thread(thread))?;
            let wants = |kind: DataKind, data: DataRef, bytes: &[u8]| {
                let recorded = RecordedData::of_size(bytes, data.size());
                filter.is_empty() || filter.wants(trace.type_of(thread, kind), recorded)
            };
            let mut kernel = KernelQueue::of(trace, thread);
            let mut put_kernel_events = |until: Ticks, outlet: &mut Outlet<Item>| {
                let Some(kernel) = &mut kernel else {
                    return ControlFlow::Continue(());
                };
                while let Some(taken) = kernel.take_before(until) {
                    if !wants(taken.kind, taken.data, kernel.data()) {
                        continue;
                    }
                    let (kind, data) = (taken.kind, outlet.keep(kernel.data(), taken.data));
                    let (ticks, body) = (taken.ticks, EventBody::Data { kind, data });
                    outlet.put(Item::Event(Event { ticks, body }))?;
                }
                ControlFlow::Continue(())
            };
            for block in blocks {
                let mut events = block.events();
                while let Some(event) = events.next() {
                    let Ok(mut event) = event else {
                        damaged += 1;
                        break;
                    };
                    // As among steps, an event comes after kernel events of the same time.
                    put_kernel_events(Ticks(event.ticks.0.saturating_add(1)), outlet)?;
                    if let EventBody::Data { kind, data } = &mut event.body {
                        let bytes = events.data(*data);
                        if !wants(*kind, *data, bytes) {
                            continue;
                        }
                        *data = outlet.keep(bytes, *data);
                    }
                    outlet.put(Item::Event(event))?;
                }
            }
            put_kernel_events(Ticks(u64::MAX), outlet)?;
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

/// The kind of an event, as a word.
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
            DataKind::Kernel(_) => "kernel",
        },
        EventBody::Cpu { .. } => "processor",
        EventBody::Unwound { .. } => "unwound",
        EventBody::UnmatchedExit => "unmatched-exit",
        EventBody::Lost { .. } => "lost",
    }
}

/// Whether the event begins a call.
pub(super) fn is_entry(body: &EventBody) -> bool {
    matches!(
        body,
        EventBody::Call {
            kind: CallKind::Enter,
            ..
        }
    )
}
