//! YAML as `llvm-xray convert -f yaml` prints it, with names. All threads' records stand in one order of time, and it calls
//! itself version 1, since `llvm-xray` reads no other back.

use std::borrow::Cow;
use std::io::{self, Write};

use super::by_time::{What, each_record};
use super::{Report, Sink};
use crate::analysis::Order;
use crate::function_map::FunctionMap;
use crate::llvm::yaml::{Callee, Kind, Record, TraceHeader, Writer};
use crate::model::{DataKind, NoXrayId, Trace, XrayIds};

/// LLVM's YAML.
#[derive(Debug, Clone, Copy)]
pub struct Yaml {
    order: Order,
}

// === impl Yaml ===

impl Yaml {
    /// The records of all threads in one order of time.
    pub const BY_TIME: Self = Self {
        order: Order::ByTime,
    };
    /// The records of one thread after those of the other.
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
            // Without a measured rate a tick counts as a nanosecond, here as everywhere.
            cycle_frequency: trace.clock().frequency().unwrap_or(1_000_000_000),
        };
        let mut writer = Writer::new(output, &header);
        let mut callees = FunctionMap::<Option<Callee>>::default();
        let (mut unknown, mut too_great) = (0, 0);
        each_record(trace, self.order, &mut report, |record| {
            let (mut record_type, mut args, mut data) = (0, &[][..], &[][..]);
            let kind = match &record.what {
                What::Enter(None) => Kind::Enter,
                What::Enter(Some(arg)) => {
                    args = std::slice::from_ref(arg);
                    Kind::EnterArg
                }
                What::Exit => Kind::Exit,
                What::TailExit => Kind::TailExit,
                What::Data(kind, bytes) => {
                    data = bytes.as_slice();
                    match kind {
                        DataKind::Custom => Kind::Custom,
                        DataKind::Typed(event_type) => {
                            record_type = *event_type;
                            Kind::Typed
                        }
                    }
                }
            };
            let id = match ids.packed(record.function) {
                // LLVM reads a signed number, of which the object has the upper bits.
                Ok(id) => id.cast_signed(),
                Err(_) if matches!(record.what, What::Data(..)) => 0,
                Err(misfit) => {
                    let entered = u64::from(matches!(record.what, What::Enter(_)));
                    match misfit {
                        NoXrayId::Unknown => unknown += entered,
                        NoXrayId::TooGreat => too_great += entered,
                    }
                    return Ok(false);
                }
            };
            let callee = callees.entry(record.function).get_or_insert_with(|| {
                let function = trace.function(record.function);
                Callee::new(id, function.map_or("", |function| &function.name))
            });
            let record = Record {
                record_type,
                function_id: id,
                function: Cow::Borrowed(""),
                args: Cow::Borrowed(args),
                cpu: record.cpu,
                thread: record.place.tid,
                process: record.place.pid,
                kind,
                tsc: record.ticks.0,
                data: Cow::Borrowed(data),
            };
            writer.record_of(callee, &record)?;
            Ok(true)
        })?;
        report.leave_out("events whose data is no text", writer.altered());
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
