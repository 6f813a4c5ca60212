//! The calls and events of all threads in one order, as a rule that of time, for formats that have no threads of their own.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::io;

use super::processor::{self, Processor};
use super::{Place, Report};
use crate::analysis::{Ending, Order, Step, Steps};
use crate::model::{DataKind, FunctionId, Ticks, Trace};

/// Something that one thread did.
pub(super) struct Record {
    pub(super) place: Place,
    /// The function; of an event of the program's own, that of the record before in its thread.
    pub(super) function: FunctionId,
    pub(super) ticks: Ticks,
    /// On which processor; 0 if it is not known.
    pub(super) cpu: u16,
    pub(super) what: What,
}

/// What it did. Every entry has its exit.
pub(super) enum What {
    /// With the first argument, where recorded.
    Enter(Option<u64>),
    Exit,
    TailExit,
    Data(DataKind, Vec<u8>),
}

/// A thread, and its next record.
struct Thread<'a> {
    steps: Steps<'a>,
    place: Place,
    /// The function of the latest record.
    function: FunctionId,
    next: Option<Record>,
    processor: Processor,
}

/// Hands every record to `take`, which says whether it wrote it, and puts into the report what is none. At the same time the
/// thread with the smaller id is first.
pub(super) fn each_record(
    trace: &Trace,
    order: Order,
    report: &mut Report,
    mut take: impl FnMut(&Record) -> io::Result<bool>,
) -> io::Result<()> {
    let threads = Steps::of_threads(trace).map(|steps| Thread {
        place: Place::of(trace, steps.thread()),
        steps,
        function: FunctionId(u32::MAX),
        next: None,
        processor: Processor::default(),
    });
    let mut threads = threads.collect::<Vec<_>>();
    // When the next record of a thread is due, and the thread's index.
    let due = |record: &Record, at| {
        let ticks = match order {
            Order::ByTime => record.ticks,
            Order::ByThread => Ticks(0),
        };
        Reverse((ticks, at))
    };
    let mut next = BinaryHeap::new();
    for (at, thread) in threads.iter_mut().enumerate() {
        thread.advance(report);
        next.extend(thread.next.as_ref().map(|record| due(record, at)));
    }
    while let Some(mut first) = next.peek_mut() {
        let Reverse((_, at)) = *first;
        let thread = &mut threads[at];
        if let Some(record) = &thread.next {
            let entered = matches!(record.what, What::Enter(_));
            report.calls += u64::from(take(record)? && entered);
        }
        thread.advance(report);
        match &thread.next {
            Some(record) => *first = due(record, at),
            None => drop(PeekMut::pop(first)),
        }
    }
    for thread in &threads {
        report.leave_out_of_notes(&thread.steps);
        report.leave_out(processor::UNSAID, thread.processor.unsaid(&thread.steps));
    }
    report.leave_out_unplaced(trace);
    Ok(())
}

// === impl Thread ===

impl Thread<'_> {
    /// Goes on to the next record.
    fn advance(&mut self, report: &mut Report) {
        self.next = None;
        while let Some(step) = self.steps.next() {
            let (ticks, what) = match step {
                Step::Enter(open) => {
                    self.function = open.function;
                    (open.start, What::Enter(open.arg))
                }
                Step::Leave(call) => {
                    self.function = call.open.function;
                    report.leave_out(
                        "exits that were not seen, added where the call was last seen open",
                        u64::from(call.how == Ending::Closed),
                    );
                    let tail = call.how == Ending::TailExit;
                    (call.end, if tail { What::TailExit } else { What::Exit })
                }
                Step::Data(said) => {
                    let data = self.steps.data(&said).to_vec();
                    (said.ticks, What::Data(said.kind, data))
                }
                Step::Lost { events, .. } => {
                    report.leave_out("lost events", events);
                    continue;
                }
            };
            self.next = Some(Record {
                place: self.place,
                function: self.function,
                ticks,
                cpu: self.processor.of_record(&self.steps),
                what,
            });
            return;
        }
    }
}
