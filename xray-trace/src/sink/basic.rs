//! LLVM's log of basic ("naive") mode, version 3, as `llvm-xray` reads it (checked with LLVM 19).
//!
//! All threads' records stand in one order of time, which is what `llvm-xray account` wants. Only calls are written that
//! begin and end within the trace.
//!
//! ```text
//! header    u16 version 3, u16 type 0, u32 counter constant and nonstop, u64 ticks per second, 16 bytes free
//! record    u16 0, u8 processor, u8 kind, i32 function, u64 counter, u32 tid, u32 pid, 8 bytes free
//! argument  u16 1, 2 bytes free, i32 function, u32 tid, u32 pid, u64 argument, 8 bytes free
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};

use super::function_ids::{FunctionIds, Misfit};
use super::{Place, Report, Sink};
use crate::analysis::{Ending, Step, Steps};
use crate::model::{FunctionId, Ticks, Trace};

/// LLVM's log of basic mode.
#[derive(Debug, Clone, Copy)]
pub struct Basic;

mod kind {
    pub(super) const ENTER: u8 = 0;
    pub(super) const EXIT: u8 = 1;
    pub(super) const TAIL_EXIT: u8 = 2;
    pub(super) const ENTER_ARG: u8 = 3;
}

/// A thread, and its next record.
struct Thread<'a> {
    steps: Steps<'a>,
    place: Place,
    next: Option<Call>,
}

/// An entry or an exit.
#[derive(Clone, Copy)]
struct Call {
    kind: u8,
    function: FunctionId,
    ticks: Ticks,
    arg: Option<u64>,
}

// === impl Basic ===

impl Sink for Basic {
    fn name(&self) -> &'static str {
        "basic"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["basic"]
    }

    fn about(&self) -> &'static str {
        "LLVM's log of basic mode, in order of time, for llvm-xray account"
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        let mut report = Report::default();
        let ids = FunctionIds::new(trace);
        let mut header = [0; 32];
        header[0] = 3;
        // The counter ticks at a constant rate, and does not stop.
        header[4] = 3;
        // Without a measured rate a tick counts as a nanosecond, here as everywhere.
        let frequency = trace.clock().frequency().unwrap_or(1_000_000_000);
        header[8..16].copy_from_slice(&frequency.to_le_bytes());
        output.write_all(&header)?;
        let mut threads = Steps::of_threads(trace)
            .map(|steps| Thread {
                place: Place::of(trace, steps.thread()),
                steps,
                next: None,
            })
            .collect::<Vec<_>>();
        // Which thread is next, by time; at the same time, by its place.
        let mut order = BinaryHeap::new();
        for (at, thread) in threads.iter_mut().enumerate() {
            thread.advance(&mut report);
            order.extend(thread.next.map(|call| Reverse((call.ticks, at))));
        }
        let (mut unknown, mut too_great) = (0, 0);
        while let Some(Reverse((_, at))) = order.pop() {
            let Some(thread) = threads.get_mut(at) else {
                continue;
            };
            if let Some(call) = thread.next {
                match ids.get(call.function) {
                    Ok(id) => {
                        report.calls +=
                            u64::from(matches!(call.kind, kind::ENTER | kind::ENTER_ARG));
                        output.write_all(&record(id, &call, thread.place))?;
                        if let Some(arg) = call.arg {
                            output.write_all(&argument(id, arg, thread.place))?;
                        }
                    }
                    Err(_) if matches!(call.kind, kind::EXIT | kind::TAIL_EXIT) => {}
                    Err(Misfit::Unknown) => unknown += 1,
                    Err(Misfit::TooGreat) => too_great += 1,
                }
            }
            thread.advance(&mut report);
            order.extend(thread.next.map(|call| Reverse((call.ticks, at))));
        }
        for thread in &threads {
            report.leave_out_of_steps(&thread.steps);
        }
        report.leave_out("calls of functions whose id does not fit", too_great);
        report.leave_out(
            "calls of functions that the trace does not describe",
            unknown,
        );
        report.leave_out_unplaced(trace);
        Ok(report)
    }
}

fn record(id: u32, call: &Call, place: Place) -> [u8; 32] {
    let mut record = [0; 32];
    record[3] = call.kind;
    record[4..8].copy_from_slice(&id.to_le_bytes());
    record[8..16].copy_from_slice(&call.ticks.0.to_le_bytes());
    record[16..20].copy_from_slice(&place.tid.to_le_bytes());
    record[20..24].copy_from_slice(&place.pid.to_le_bytes());
    record
}

fn argument(id: u32, arg: u64, place: Place) -> [u8; 32] {
    let mut record = [0; 32];
    record[0] = 1;
    record[4..8].copy_from_slice(&id.to_le_bytes());
    record[8..12].copy_from_slice(&place.tid.to_le_bytes());
    record[12..16].copy_from_slice(&place.pid.to_le_bytes());
    record[16..24].copy_from_slice(&arg.to_le_bytes());
    record
}

// === impl Thread ===

impl Thread<'_> {
    /// Goes on to the next record.
    fn advance(&mut self, report: &mut Report) {
        self.next = self.steps.by_ref().find_map(|step| match step {
            Step::Enter(open) => Some(Call {
                kind: if open.arg.is_some() {
                    kind::ENTER_ARG
                } else {
                    kind::ENTER
                },
                function: open.function,
                ticks: open.start,
                arg: open.arg,
            }),
            Step::Leave(call) => {
                let closed = u64::from(call.how == Ending::Closed);
                report.leave_out(
                    "exits that were not seen, added where the call was last seen open",
                    closed,
                );
                Some(Call {
                    kind: if call.how == Ending::TailExit {
                        kind::TAIL_EXIT
                    } else {
                        kind::EXIT
                    },
                    function: call.open.function,
                    ticks: call.end,
                    arg: None,
                })
            }
            Step::Data(_) => {
                report.leave_out("custom and typed events", 1);
                None
            }
            Step::Lost { events, .. } => {
                report.leave_out("lost events", events);
                None
            }
        });
    }
}
