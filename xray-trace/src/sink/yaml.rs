//! YAML with names, as `llvm-xray convert -f yaml` prints it. The records of all threads are in one
//! order of time. The file declares version 1, because `llvm-xray` reads no other version back.

use std::borrow::Cow;
use std::io::{self, Write};

use super::kernel_ids::KernelIds;
use super::records::{self, CUT, DataEvents, VALUES, What, each_record};
use super::{Report, Sink};
use crate::analysis::{Ending, Order};
use crate::function_map::FunctionMap;
use crate::llvm::yaml::{Callee, Kind, Record, RecordPrefix as PlaceText, TraceHeader, Writer};
use crate::model::{DataKind, FunctionId, NoXrayId, ThreadId, Trace, XrayIds};

/// LLVM's YAML.
#[derive(Debug, Clone, Copy)]
pub struct Yaml {
    order: Order,
}

/// The data of a function in records.
struct Known {
    /// The reason why its calls are left out.
    misfit: Option<NoXrayId>,
    callee: Callee,
}

/// The data of a thread in records.
struct Thread {
    kernels: KernelIds,
    /// The processor of its latest record.
    cpu: u16,
    text: PlaceText,
}

// === impl Yaml ===

impl Yaml {
    /// The records of all threads in one order of time.
    pub const BY_TIME: Self = Self {
        order: Order::ByTime,
    };
    /// The records thread by thread.
    pub const BY_THREAD: Self = Self {
        order: Order::ByThread,
    };
}

impl Sink for Yaml {
    fn name(&self) -> &'static str {
        "yaml"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["yaml", "yml"]
    }

    fn about(&self) -> &'static str {
        "LLVM's YAML, in order of time, for llvm-xray and people"
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        let mut report = Report::default();
        let ids = XrayIds::new(trace);
        let header = TraceHeader {
            version: 1,
            log: 0,
            constant_tsc: true,
            nonstop_tsc: true,
            // Without a measured rate, all sinks take a tick for a nanosecond.
            cycle_frequency: trace.clock().frequency().unwrap_or(1_000_000_000),
        };
        let mut writer = Writer::new(output, &header);
        let mut known = FunctionMap::<Option<Known>>::default();
        let threads = records::threads(trace).map(|thread| Thread::new(trace, thread));
        let mut threads: Vec<_> = threads.collect();
        let (mut unknown, mut too_great, mut values, mut cut) = (0, 0, 0, 0);
        let met = each_record(trace, DataEvents::OfProgram, self.order, |record, bytes| {
            let Known { misfit, callee } = known
                .entry(record.function)
                .get_or_insert_with(|| Known::new(trace, &ids, record.function));
            if let (Some(misfit), false) = (misfit, matches!(record.what, What::Data(..))) {
                let entered = u64::from(matches!(record.what, What::Enter(_)));
                match misfit {
                    NoXrayId::Unknown => unknown += entered,
                    NoXrayId::TooGreat => too_great += entered,
                }
                return Ok(());
            }
            values += record.what.values_but_first();
            let place = threads[record.thread].on(record.cpu);
            let tsc = record.ticks.0;
            match record.what {
                What::Enter(args) => {
                    report.calls += 1;
                    match args.as_slice().first_chunk() {
                        None => writer.call(callee, place, Kind::Enter, tsc),
                        Some(first @ [_]) => {
                            let entry = with(Kind::EnterArg, tsc, 0, first, b"");
                            writer.record_of(callee, place, &entry)
                        }
                    }
                }
                What::Leave(Ending::Normal | Ending::Closed, _) => {
                    writer.call(callee, place, Kind::Exit, tsc)
                }
                What::Leave(Ending::TailExit, _) => writer.call(callee, place, Kind::TailExit, tsc),
                What::Data(kind, data) => {
                    let (kind, record_type) = match kind {
                        DataKind::Typed(event_type) => (Kind::Typed, event_type),
                        DataKind::Custom | DataKind::Kernel(_) => (Kind::Custom, 0),
                    };
                    cut += u64::from(data.is_cut());
                    let data = bytes.get(data);
                    writer.record_of(callee, place, &with(kind, tsc, record_type, &[], data))
                }
                What::Lost(_) => Ok(()),
            }
        })?;
        met.tell(trace, &mut report);
        report.leave_out_kernel_events(trace);
        report.leave_out("events whose data is not text", writer.altered());
        report.leave_out(CUT, cut);
        report.leave_out(VALUES, values);
        writer.finish()?;
        report.leave_out("calls of functions whose id does not fit 32 bits (more than 256 modules, or 2^24 functions in one)", too_great);
        report.leave_out(
            "calls of functions that the trace does not describe",
            unknown,
        );
        Ok(report)
    }

    fn by_thread(&self) -> Option<&'static dyn Sink> {
        Some(&Self::BY_THREAD)
    }
}

/// A record with this data. Its function and its place are empty.
fn with<'a>(kind: Kind, tsc: u64, record_type: u16, args: &'a [u64], data: &'a [u8]) -> Record<'a> {
    Record {
        record_type,
        function_id: 0,
        function: Cow::Borrowed(""),
        args: Cow::Borrowed(args),
        cpu: 0,
        thread: 0,
        process: 0,
        kind,
        tsc,
        data: Cow::Borrowed(data),
    }
}

// === impl Known ===

impl Known {
    fn new(trace: &Trace, ids: &XrayIds<'_>, function: FunctionId) -> Self {
        let id = ids.packed(function);
        let function = trace.function(function);
        let name = function.map_or("", |function| &function.name);
        Self {
            misfit: id.err(),
            // LLVM reads a signed number whose upper bits are the object.
            callee: Callee::new(id.unwrap_or(0).cast_signed(), name),
        }
    }
}

// === impl Thread ===

impl Thread {
    fn new(trace: &Trace, thread: ThreadId) -> Self {
        let kernels = KernelIds::of(trace, thread);
        Self {
            kernels,
            cpu: 0,
            text: PlaceText::new(0, kernels.tid, kernels.pid),
        }
    }

    /// The place of the thread on a processor.
    fn on(&mut self, cpu: u16) -> &PlaceText {
        if cpu != self.cpu {
            self.cpu = cpu;
            self.text = PlaceText::new(cpu, self.kernels.tid, self.kernels.pid);
        }
        &self.text
    }
}
