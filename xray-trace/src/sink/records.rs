//! The records of a trace's threads: thread by thread, or all in one order of time, for formats
//! that have no separate threads.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::io;
use std::ops::ControlFlow;

use super::Report;
use super::processor::{self, Processor};
use super::unpack_thread::{Bytes, Outlet, ahead};
use crate::analysis::{Call, Ending, Notes, Open, Order, Step, Steps, UserEvent, Visitor};
use crate::event_format::EventFilter;
use crate::model::{Clock, DataKind, DataRef, FunctionId, ThreadId, Ticks, Trace, Values};

/// A record of one thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    /// The index of the thread in [`threads`].
    pub(super) thread: usize,
    /// The function. A user event has the function of the previous record of its thread.
    pub(super) function: FunctionId,
    pub(super) ticks: Ticks,
    /// The time on `CLOCK_MONOTONIC` in nanoseconds.
    pub(super) ns: u64,
    /// The processor; 0 if unknown.
    pub(super) cpu: u16,
    pub(super) what: What,
}

/// The kind of a record. Every entry has its exit.
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// An entry, with its first arguments if recorded.
    Enter(Values),
    /// An exit, with its result if recorded.
    Leave(Ending, Option<u64>),
    Data(DataKind, DataRef),
    /// This number of events is missing.
    Lost(u64),
}

/// The report's text for formats with room for one argument of a call.
pub(super) const VALUES: &str = "arguments of calls after the first, and results";
/// The report's text for formats that cannot mark a cut user event.
pub(super) const CUT: &str = "original sizes of custom and typed events that a limit has cut";

/// Facts that no record contains, or not all formats.
#[derive(Debug, Default)]
pub(super) struct Met {
    pub(super) notes: Notes,
    /// The number of processor events.
    pub(super) processors: u64,
    /// The number of processor events that no record reflects.
    pub(super) left_out: u64,
    /// The number of records whose processor is not known.
    pub(super) unknown: u64,
}

/// A thread, and its next records.
struct Thread<'a> {
    steps: Steps<'a>,
    clock: &'a Clock,
    index: usize,
    processor: Processor,
    /// The function of the last record before these.
    function: FunctionId,
    /// Records of one batch; making many at once is much faster. Only the last one can be a user
    /// event.
    records: Vec<Record>,
    /// The number of these records that were put.
    put: usize,
    /// The user event of the last record, if it is one.
    user_event: Option<UserEvent>,
}

/// Makes records of calls, up to [`AT_ONCE`].
struct Calls<'a> {
    thread: usize,
    records: &'a mut Vec<Record>,
}

/// The most records in a batch. In order of time each thread holds so many in memory.
const AT_ONCE: usize = 64;

/// The order of records: by time, then by the index of the thread.
type Due = (Ticks, usize);

/// The events with data that have a record.
#[derive(Debug, Clone, Copy)]
pub(super) enum DataEvents<'a> {
    /// The custom, typed and kernel events that the filter selects.
    Selected(&'a EventFilter),
    /// All custom and typed events.
    OfProgram,
}

/// The threads that can have records.
pub(super) fn threads(trace: &Trace) -> impl Iterator<Item = ThreadId> {
    trace.blocks_by_thread().into_keys()
}

/// Passes every record to `take`, with the bytes that it refers to.
///
/// # Errors
///
/// The errors of `take`.
pub(super) fn each_record(
    trace: &Trace,
    data_events: DataEvents<'_>,
    order: Order,
    take: impl FnMut(&Record, &Bytes) -> io::Result<()>,
) -> io::Result<Met> {
    let make = |outlet: &mut Outlet<Record>| {
        let threads = (0..).zip(Steps::of_threads(trace));
        let threads = threads.map(|(index, steps)| {
            let steps = match data_events {
                DataEvents::OfProgram => steps,
                DataEvents::Selected(filter) => steps
                    .with_kernel_events(trace)
                    .with_user_events(trace, filter),
            };
            Thread::new(trace, index, steps)
        });
        let mut met = Met::default();
        match order {
            Order::ByThread => {
                for mut thread in threads {
                    thread.run(None, outlet)?;
                    met.add(&thread);
                }
            }
            Order::ByTime => {
                let mut threads = threads.collect::<Vec<_>>();
                merge(&mut threads, outlet)?;
                threads.iter().for_each(|thread| met.add(thread));
            }
        }
        ControlFlow::Continue(met)
    };
    ahead(make, take)
}

/// Puts the records of all threads in order of time.
fn merge(threads: &mut [Thread<'_>], outlet: &mut Outlet<Record>) -> ControlFlow<()> {
    let mut others = BinaryHeap::new();
    for thread in &mut *threads {
        thread.make();
        others.extend(thread.due().map(Reverse));
    }
    let mut first = others.pop();
    while let Some(Reverse((_, index))) = first {
        let thread = &mut threads[index];
        thread.run(others.peek().map(|Reverse(due)| *due), outlet)?;
        first = match (thread.due(), others.peek_mut()) {
            (Some(due), Some(mut next)) => Some(std::mem::replace(&mut *next, Reverse(due))),
            (None, Some(next)) => Some(PeekMut::pop(next)),
            (_, None) => None,
        };
    }
    ControlFlow::Continue(())
}

// === impl Thread ===

impl<'a> Thread<'a> {
    fn new(trace: &'a Trace, index: usize, steps: Steps<'a>) -> Self {
        Self {
            clock: trace.clock(),
            index,
            function: FunctionId(u32::MAX),
            processor: Processor::of(trace, steps.thread()),
            steps,
            records: Vec::new(),
            put: 0,
            user_event: None,
        }
    }

    /// The time of the next record, if there is one.
    fn due(&self) -> Option<Due> {
        let next = self.records.get(self.put)?;
        Some((next.ticks, self.index))
    }

    /// Puts the records that come before those of the other threads.
    fn run(&mut self, others: Option<Due>, outlet: &mut Outlet<Record>) -> ControlFlow<()> {
        loop {
            let before =
                |record: &Record| others.is_none_or(|others| (record.ticks, self.index) <= others);
            let rest = self.records.get_mut(self.put..).unwrap_or_default();
            let count = match rest.last() {
                Some(last) if before(last) => rest.len(),
                _ => rest.iter().take_while(|record| before(record)).count(),
            };
            let (due, later) = rest.split_at_mut(count);
            if let (Some(last), Some(user_event)) = (due.last_mut(), &self.user_event)
                && let What::Data(_, data) = &mut last.what
            {
                *data = outlet.keep(self.steps.data(user_event), user_event.data);
            }
            self.put += count;
            outlet.put_all(due)?;
            if !later.is_empty() {
                break;
            }
            self.make();
            if self.records.is_empty() {
                break;
            }
        }
        ControlFlow::Continue(())
    }

    /// The function of the latest record.
    fn latest(&self) -> FunctionId {
        let latest = self.records.last();
        latest.map_or(self.function, |latest| latest.function)
    }

    /// Makes the next batch, after all records were put. The batch is empty at the end of the
    /// thread.
    fn make(&mut self) {
        self.function = self.latest();
        self.records.clear();
        self.put = 0;
        loop {
            let made = self.records.len();
            let processor = self.steps.processor();
            let mut calls = Calls {
                thread: self.index,
                records: &mut self.records,
            };
            self.steps.visit_run(&mut calls);
            let enough = calls.enough();
            if self.records.len() > made {
                self.processor.note(&self.steps);
            }
            for record in self.records.iter_mut().skip(made) {
                record.cpu = self.processor.at(processor, record.ns);
            }
            if enough {
                break;
            }
            let Some(record) = self.advance() else { break };
            self.records.push(record);
            if matches!(record.what, What::Data(..)) {
                break;
            }
        }
    }

    /// Takes the next step as a record.
    fn advance(&mut self) -> Option<Record> {
        let (function, ticks, ns, what) = match self.steps.next()? {
            Step::Enter(open) => {
                let what = What::Enter(open.args);
                (open.function, open.start, open.start_ns, what)
            }
            Step::Leave(call) => {
                let what = What::Leave(call.how, call.result);
                (call.open.function, call.end, call.end_ns, what)
            }
            Step::Data(user_event) => {
                self.user_event = Some(user_event);
                let what = What::Data(user_event.kind, user_event.data);
                (self.latest(), user_event.ticks, user_event.ns, what)
            }
            Step::Lost { ticks, events } => {
                let ns = self.clock.monotonic_ns(ticks);
                (self.latest(), ticks, ns, What::Lost(events))
            }
        };
        let cpu = match what {
            // Formats with the processor of a record have no record for a loss.
            What::Lost(_) => 0,
            _ => self.processor.of_record(&self.steps, ns),
        };
        Some(Record {
            thread: self.index,
            function,
            ticks,
            ns,
            cpu,
            what,
        })
    }
}

// === impl What ===

impl What {
    /// The number of its arguments and results that [`VALUES`] counts.
    pub(super) fn values_but_first(&self) -> u64 {
        match self {
            Self::Enter(args) => args.len().saturating_sub(1) as u64,
            Self::Leave(_, result) => u64::from(result.is_some()),
            Self::Data(..) | Self::Lost(_) => 0,
        }
    }
}

// === impl Calls ===

impl Calls<'_> {
    #[inline(always)]
    fn push(&mut self, function: FunctionId, ticks: Ticks, ns: u64, what: What) {
        self.records.push(Record {
            thread: self.thread,
            function,
            ticks,
            ns,
            // It is set when the batch is made.
            cpu: 0,
            what,
        });
    }
}

impl Visitor for Calls<'_> {
    #[inline(always)]
    fn enter(&mut self, open: &Open) {
        let what = What::Enter(open.args);
        self.push(open.function, open.start, open.start_ns, what);
    }

    #[inline(always)]
    fn leave(&mut self, call: &Call) {
        let what = What::Leave(call.how, call.result);
        self.push(call.open.function, call.end, call.end_ns, what);
    }

    #[inline(always)]
    fn enough(&self) -> bool {
        self.records.len() >= AT_ONCE
    }
}

// === impl Met ===

impl Met {
    /// Adds the facts of a thread, all of whose records were put.
    fn add(&mut self, thread: &Thread<'_>) {
        let Thread {
            steps, processor, ..
        } = thread;
        self.notes.add(steps.notes());
        self.processors += steps.processors();
        self.left_out += processor.left_out(steps);
        self.unknown += processor.unknown();
    }

    /// Reports the losses of formats that have the processor of a thread, but neither the way in
    /// which a call ended nor lost events.
    pub(super) fn tell(&self, trace: &Trace, report: &mut Report) {
        let Self {
            notes,
            processors: _,
            left_out,
            unknown,
        } = self;
        report.leave_out(
            "missing exits, added where the call was last seen open",
            notes.unwound + notes.closed_by_outer_exit + notes.closed_by_loss + notes.closed_at_end,
        );
        report.leave_out("lost events", notes.lost);
        report.leave_out_of_notes(notes);
        report.leave_out(processor::LEFT_OUT, *left_out);
        report.leave_out(processor::UNKNOWN, *unknown);
        report.leave_out_unplaced(trace);
    }

    /// Reports the losses of formats that have all of these but the processor.
    pub(super) fn tell_of_processors(&self, trace: &Trace, report: &mut Report) {
        report.leave_out_of_notes(&self.notes);
        report.leave_out(processor::LEFT_OUT, self.processors);
        report.leave_out_unplaced(trace);
    }
}
