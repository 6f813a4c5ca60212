//! LLVM's flight-data-recorder log, version 5, as `llvm-xray` reads it (checked with LLVM 19).
//!
//! Every thread is one block, of any length. `llvm-xray` sorts the blocks of a thread with a broken
//! comparison (seconds *and* microseconds must be smaller), and mixes up the blocks of a thread
//! that has more than 16. A block begins with its length, so the sink goes through each thread
//! twice: to count, and to write.
//!
//! The file contains only calls that begin and end within the trace, because `llvm-xray` rejects a
//! log with an exit without entry. `llvm-xray account` also needs the records of all threads in one
//! order of time, which the format cannot have. A log of several threads has to go through
//! `llvm-xray convert` first.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::processor::{self, Processor};
use super::records::{CUT, VALUES};
use super::{Report, Sink};
use crate::analysis::{Ending, Step, Steps, UserEvent};
use crate::container::Block;
use crate::model::{DataKind, FunctionId, NoXrayId, ProcessId, ThreadId, Ticks, Trace, XrayIds};

/// LLVM's flight-data-recorder log.
#[derive(Debug, Clone, Copy)]
pub struct Fdr;

const VERSION: u16 = 5;
const TYPE_FDR: u16 = 1;
/// The counter ticks at a constant rate, and does not stop.
const CONSTANT_AND_NONSTOP: u32 = 3;

mod metadata {
    pub(super) const NEW_BUFFER: u8 = 0;
    pub(super) const NEW_CPU: u8 = 2;
    pub(super) const TSC_WRAP: u8 = 3;
    pub(super) const WALL_TIME: u8 = 4;
    pub(super) const CUSTOM_EVENT: u8 = 5;
    pub(super) const CALL_ARGUMENT: u8 = 6;
    pub(super) const BUFFER_EXTENTS: u8 = 7;
    pub(super) const TYPED_EVENT: u8 = 8;
    pub(super) const PID: u8 = 9;
}

mod kind {
    pub(super) const ENTER: u32 = 0;
    pub(super) const EXIT: u32 = 1;
    pub(super) const TAIL_EXIT: u32 = 2;
    pub(super) const ENTER_ARG: u32 = 3;
}

/// A kernel thread. It is several threads of the trace if the kernel reused the thread id; these
/// share a block.
struct KernelThread<'a> {
    tid: i32,
    pid: i32,
    threads: Vec<(ThreadId, Vec<&'a Block>)>,
}

/// Counts of data that the file cannot contain.
#[derive(Debug, Default)]
struct LeftOut {
    function_does_not_fit: u64,
    function_unknown: u64,
    thread_unknown: u64,
    exits_without_entry: u64,
    exits_added: u64,
    empty_events: u64,
    cut: u64,
    values: u64,
    processors: u64,
    unknown_processors: u64,
    lost: u64,
}

// === impl Fdr ===

impl Sink for Fdr {
    fn name(&self) -> &'static str {
        "fdr"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["fdr", "xray"]
    }

    fn about(&self) -> &'static str {
        "LLVM's flight data recorder log, for llvm-xray"
    }

    fn is_text(&self) -> bool {
        false
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        let ids = XrayIds::new(trace);
        let mut left_out = LeftOut::default();
        // Without a measured rate, all sinks take a tick for a nanosecond.
        header(trace.clock().frequency().unwrap_or(1_000_000_000), output)?;
        let mut calls = 0;
        for thread in kernel_threads(trace, &mut left_out) {
            let mut len = 0_u64;
            thread.write(trace, &ids, &mut LeftOut::default(), &mut |record| {
                len += record.len() as u64;
                Ok(())
            })?;
            output.write_all(&metadata(metadata::BUFFER_EXTENTS, &[&len.to_le_bytes()]))?;
            calls += thread.write(trace, &ids, &mut left_out, &mut |record| {
                output.write_all(record)
            })?;
        }
        left_out.lost = trace
            .coverage()
            .losses
            .iter()
            .fold(left_out.lost, |sum, loss| sum.saturating_add(loss.1));
        let mut report = left_out.report(calls);
        report.leave_out_kernel_events(trace);
        Ok(report)
    }
}

fn header(frequency: u64, output: &mut dyn Write) -> io::Result<()> {
    let mut header = Vec::with_capacity(32);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&TYPE_FDR.to_le_bytes());
    header.extend_from_slice(&CONSTANT_AND_NONSTOP.to_le_bytes());
    header.extend_from_slice(&frequency.to_le_bytes());
    // The size of the runtime's buffers, which do not exist here, and free space.
    header.extend_from_slice(&[0; 16]);
    output.write_all(&header)
}

/// The id of a function in a record, which has 28 bits for it.
fn id_in(ids: &XrayIds<'_>, function: FunctionId) -> Result<u32, NoXrayId> {
    let id = ids.packed(function)?;
    if id >> 28 == 0 {
        Ok(id)
    } else {
        Err(NoXrayId::TooGreat)
    }
}

/// The threads that can be written, in order of their kernel thread ids.
fn kernel_threads<'a>(trace: &'a Trace, left_out: &mut LeftOut) -> Vec<KernelThread<'a>> {
    let mut threads = BTreeMap::<(ProcessId, i32), KernelThread<'a>>::new();
    for (id, blocks) in trace.blocks_by_thread() {
        let known = trace.thread(id).and_then(|thread| {
            let process = trace.process(thread.process)?;
            let pid = i32::try_from(process.pid).ok()?;
            Some((process.id, i32::try_from(thread.tid).ok()?, pid))
        });
        let Some((process, tid, pid)) = known else {
            left_out.thread_unknown += blocks
                .iter()
                .map(|block| u64::from(block.calls))
                .sum::<u64>();
            continue;
        };
        let thread = KernelThread {
            tid,
            pid,
            threads: Vec::new(),
        };
        threads
            .entry((process, tid))
            .or_insert(thread)
            .threads
            .push((id, blocks));
    }
    threads.into_values().collect()
}

// === impl KernelThread ===

impl KernelThread<'_> {
    /// Passes every record of the thread's block to `put`. Returns the number of calls.
    fn write(
        &self,
        trace: &Trace,
        ids: &XrayIds<'_>,
        left_out: &mut LeftOut,
        put: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<u64> {
        let first = self
            .threads
            .iter()
            .flat_map(|(_, blocks)| blocks)
            .map(|block| block.first);
        let first = first.min().unwrap_or(Ticks(0));
        let wall_ns = trace.clock().wall_ns(first);
        let seconds = wall_ns / 1_000_000_000;
        let micros = u32::try_from(wall_ns / 1000 % 1_000_000).unwrap_or(0);
        put(&metadata(metadata::NEW_BUFFER, &[&self.tid.to_le_bytes()]))?;
        put(&metadata(
            metadata::WALL_TIME,
            &[&seconds.to_le_bytes(), &micros.to_le_bytes()],
        ))?;
        put(&metadata(metadata::PID, &[&self.pid.to_le_bytes()]))?;
        let mut records = Records {
            now: first,
            cpu: 0,
            put,
        };
        // The format requires a record of this kind here. A second one precedes the first event
        // unless that event is on processor 0.
        records.new_cpu(0, first)?;
        let mut calls = 0;
        for (thread, blocks) in &self.threads {
            let mut steps = Steps::new(trace.clock(), *thread, blocks.clone());
            let mut processor = Processor::of(trace, *thread);
            while let Some(step) = steps.next() {
                match step {
                    // Legal, but `llvm-xray` rejects the whole log for one.
                    Step::Data(user_event) if user_event.data.is_empty() => {
                        left_out.empty_events += 1
                    }
                    Step::Data(user_event) => {
                        left_out.cut += u64::from(user_event.data.is_cut());
                        records
                            .run_on(processor.of_record(&steps, user_event.ns), user_event.ticks)?;
                        records.put_user_event(&user_event, steps.data(&user_event))?;
                    }
                    Step::Enter(open) => match id_in(ids, open.function) {
                        Ok(id) => {
                            calls += 1;
                            records
                                .run_on(processor.of_record(&steps, open.start_ns), open.start)?;
                            left_out.values += open.args.len().saturating_sub(1) as u64;
                            records.enter(id, open.start, open.args.first())?;
                        }
                        Err(NoXrayId::Unknown) => left_out.function_unknown += 1,
                        Err(NoXrayId::TooGreat) => left_out.function_does_not_fit += 1,
                    },
                    Step::Leave(call) => {
                        let Ok(id) = id_in(ids, call.open.function) else {
                            continue;
                        };
                        left_out.values += u64::from(call.result.is_some());
                        if call.how == Ending::Closed {
                            left_out.exits_added += 1;
                        }
                        let tail = call.how == Ending::TailExit;
                        let kind = if tail { kind::TAIL_EXIT } else { kind::EXIT };
                        records.run_on(processor.of_record(&steps, call.end_ns), call.end)?;
                        records.function(kind, id, call.end)?;
                    }
                    Step::Lost { events, .. } => {
                        left_out.lost = left_out.lost.saturating_add(events)
                    }
                }
            }
            left_out.exits_without_entry += steps.notes().exits_without_entry;
            left_out.processors += processor.left_out(&steps);
            left_out.unknown_processors += processor.unknown();
        }
        Ok(calls)
    }
}

/// Writes the function records of a block. Each has the time since the previous record.
struct Records<'a> {
    now: Ticks,
    /// The processor that was written last.
    cpu: u16,
    put: &'a mut dyn FnMut(&[u8]) -> io::Result<()>,
}

// === impl Records ===

impl Records<'_> {
    /// Writes a change of the processor, if the following records are on another one.
    fn run_on(&mut self, cpu: u16, ticks: Ticks) -> io::Result<()> {
        if cpu == self.cpu {
            return Ok(());
        }
        self.new_cpu(cpu, ticks)
    }

    fn new_cpu(&mut self, cpu: u16, ticks: Ticks) -> io::Result<()> {
        self.cpu = cpu;
        self.now = ticks;
        let fields: [&[u8]; 2] = [&cpu.to_le_bytes(), &ticks.0.to_le_bytes()];
        (self.put)(&metadata(metadata::NEW_CPU, &fields))
    }

    fn enter(&mut self, id: u32, ticks: Ticks, arg: Option<u64>) -> io::Result<()> {
        match arg {
            None => self.function(kind::ENTER, id, ticks),
            Some(arg) => {
                self.function(kind::ENTER_ARG, id, ticks)?;
                (self.put)(&metadata(metadata::CALL_ARGUMENT, &[&arg.to_le_bytes()]))
            }
        }
    }

    fn function(&mut self, kind: u32, id: u32, ticks: Ticks) -> io::Result<()> {
        let delta = self.delta(ticks)?;
        let mut record = [0; 8];
        record[..4].copy_from_slice(&(kind << 1 | id << 4).to_le_bytes());
        record[4..].copy_from_slice(&delta.to_le_bytes());
        (self.put)(&record)
    }

    fn put_user_event(&mut self, user_event: &UserEvent, data: &[u8]) -> io::Result<()> {
        let delta = self.delta(user_event.ticks)?.to_le_bytes();
        let size = i32::try_from(data.len()).map_err(io::Error::other)?;
        let size = size.to_le_bytes();
        (self.put)(&match user_event.kind {
            // These steps have none.
            DataKind::Kernel(_) => return Ok(()),
            DataKind::Custom => metadata(metadata::CUSTOM_EVENT, &[&size, &delta]),
            DataKind::Typed(event_type) => metadata(
                metadata::TYPED_EVENT,
                &[&size, &delta, &event_type.to_le_bytes()],
            ),
        })?;
        (self.put)(data)
    }

    /// The time since the previous record. If it does not fit, the whole time is written first.
    fn delta(&mut self, ticks: Ticks) -> io::Result<i32> {
        let delta = ticks
            .0
            .checked_sub(self.now.0)
            .and_then(|delta| i32::try_from(delta).ok());
        if delta.is_none() {
            (self.put)(&metadata(metadata::TSC_WRAP, &[&ticks.0.to_le_bytes()]))?;
        }
        self.now = ticks;
        Ok(delta.unwrap_or(0))
    }
}

/// A metadata record: its kind, then its fields, then zeros.
fn metadata(kind: u8, fields: &[&[u8]]) -> [u8; 16] {
    let mut record = [0; 16];
    record[0] = kind << 1 | 1;
    let bytes = fields.iter().copied().flatten();
    record[1..]
        .iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = *from);
    record
}

// === impl LeftOut ===

impl LeftOut {
    fn report(self, calls: u64) -> Report {
        let Self {
            function_does_not_fit,
            function_unknown,
            thread_unknown,
            exits_without_entry,
            exits_added,
            empty_events,
            cut,
            values,
            processors,
            unknown_processors,
            lost,
        } = self;
        let mut report = Report {
            calls,
            left_out: Vec::new(),
        };
        report.leave_out(
            "calls of functions whose id does not fit 28 bits (more than 16 modules, or 2^24 functions in one)",
            function_does_not_fit,
        );
        report.leave_out(
            "calls of functions that the trace does not describe",
            function_unknown,
        );
        report.leave_out(
            "calls in threads that the trace does not describe",
            thread_unknown,
        );
        report.leave_out(
            "exits of calls that began before the trace or in a gap, or that were closed earlier",
            exits_without_entry,
        );
        report.leave_out(
            "missing exits, added where the call was last seen open",
            exits_added,
        );
        report.leave_out("custom and typed events without data", empty_events);
        report.leave_out(CUT, cut);
        report.leave_out(VALUES, values);
        report.leave_out(processor::LEFT_OUT, processors);
        report.leave_out(processor::UNKNOWN, unknown_processors);
        report.leave_out("lost events", lost);
        report
    }
}
