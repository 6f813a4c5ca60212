//! LLVM's log of basic ("naive") mode, version 3, as `llvm-xray` reads it (checked with LLVM 19).
//!
//! The records of all threads are in one order of time, as `llvm-xray account` needs it. The file
//! contains only calls that begin and end within the trace.
//!
//! ```text
//! header    u16 version 3, u16 type 0, u32 counter constant and nonstop, u64 ticks per second,
//!           16 bytes free
//! record    u16 0, u8 processor, u8 kind, i32 function, u64 counter, u32 tid, u32 pid,
//!           8 bytes free
//! argument  u16 1, 2 bytes free, i32 function, u32 tid, u32 pid, u64 argument, 8 bytes free
//! ```

use std::io::{self, Write};

use super::kernel_ids::KernelIds;
use super::per_function::PerFunction;
use super::records::{self, DataEvents, Record, VALUES, What, each_record};
use super::{Report, Sink};
use crate::analysis::{Ending, Order};
use crate::model::{NoXrayId, Trace, XrayIds};

/// LLVM's log of basic mode.
#[derive(Debug, Clone, Copy)]
pub struct Basic {
    order: Order,
}

mod kind {
    pub(super) const ENTER: u8 = 0;
    pub(super) const EXIT: u8 = 1;
    pub(super) const TAIL_EXIT: u8 = 2;
    pub(super) const ENTER_ARG: u8 = 3;
}

// === impl Basic ===

impl Basic {
    /// The records of all threads in one order of time.
    pub const BY_TIME: Self = Self {
        order: Order::ByTime,
    };
    /// The records thread by thread.
    pub const BY_THREAD: Self = Self {
        order: Order::ByThread,
    };
}

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

    fn is_text(&self) -> bool {
        false
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        let mut report = Report::default();
        let ids = XrayIds::new(trace);
        let mut header = [0; 32];
        header[0] = 3;
        // The counter ticks at a constant rate, and does not stop.
        header[4] = 3;
        // Without a measured rate, all sinks take a tick for a nanosecond.
        let frequency = trace.clock().frequency().unwrap_or(1_000_000_000);
        header[8..16].copy_from_slice(&frequency.to_le_bytes());
        output.write_all(&header)?;
        let packed = PerFunction::new(trace, |function| ids.packed(function.id));
        let threads = records::threads(trace);
        let kernel_ids: Vec<_> = threads.map(|thread| KernelIds::of(trace, thread)).collect();
        let (mut unknown, mut too_great, mut data, mut cpus, mut values) = (0, 0, 0, 0, 0);
        let met = each_record(trace, DataEvents::OfProgram, self.order, |record, _| {
            let (kind, arg) = match record.what {
                What::Enter(args) => match args.first() {
                    None => (kind::ENTER, None),
                    arg => (kind::ENTER_ARG, arg),
                },
                What::Leave(Ending::Normal | Ending::Closed, _) => (kind::EXIT, None),
                What::Leave(Ending::TailExit, _) => (kind::TAIL_EXIT, None),
                What::Data(..) => {
                    data += 1;
                    return Ok(());
                }
                What::Lost(_) => return Ok(()),
            };
            let entered = u64::from(matches!(record.what, What::Enter(_)));
            let kernel = kernel_ids[record.thread];
            match packed
                .get(record.function)
                .copied()
                .unwrap_or(Err(NoXrayId::Unknown))
            {
                Ok(id) => {
                    report.calls += entered;
                    values += record.what.values_but_first();
                    cpus += u64::from(record.cpu > u8::MAX.into());
                    output.write_all(&function(kind, id, record, kernel))?;
                    if let Some(arg) = arg {
                        output.write_all(&argument(id, arg, kernel))?;
                    }
                }
                Err(NoXrayId::Unknown) => unknown += entered,
                Err(NoXrayId::TooGreat) => too_great += entered,
            }
            Ok(())
        })?;
        met.tell(trace, &mut report);
        report.leave_out("custom and typed events", data);
        report.leave_out_kernel_events(trace);
        report.leave_out(VALUES, values);
        report.leave_out("records of processors above 255", cpus);
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

fn function(kind: u8, id: u32, of: &Record, kernel: KernelIds) -> [u8; 32] {
    let mut record = [0; 32];
    record[2] = u8::try_from(of.cpu).unwrap_or(0);
    record[3] = kind;
    record[4..8].copy_from_slice(&id.to_le_bytes());
    record[8..16].copy_from_slice(&of.ticks.0.to_le_bytes());
    record[16..20].copy_from_slice(&kernel.tid.to_le_bytes());
    record[20..24].copy_from_slice(&kernel.pid.to_le_bytes());
    record
}

fn argument(id: u32, arg: u64, kernel: KernelIds) -> [u8; 32] {
    let mut record = [0; 32];
    record[0] = 1;
    record[4..8].copy_from_slice(&id.to_le_bytes());
    record[8..12].copy_from_slice(&kernel.tid.to_le_bytes());
    record[12..16].copy_from_slice(&kernel.pid.to_le_bytes());
    record[16..24].copy_from_slice(&arg.to_le_bytes());
    record
}
