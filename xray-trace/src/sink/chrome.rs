//! The JSON that `chrome://tracing`, Perfetto and Speedscope read (trace_event). Each call has a
//! begin and an end.
//!
//! Times are `CLOCK_MONOTONIC` in microseconds, with the nanoseconds as three decimals. They are
//! written digit by digit, so floating point loses none of them. The events of a thread are in
//! order, which nests calls of zero length correctly.
//!
//! Readers join processes with one pid, and threads with one tid in a process. So the second one
//! gets another number.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use super::fields::{self, Integers};
use super::kernel_ids::KernelIds;
use super::per_function::PerFunction;
use super::records::{self, DataEvents, Record, What, each_record};
use super::text::{self, Text};
use super::unpack_thread::Bytes;
use super::wording::{calibration, user_event_name};
use super::{EventSink, Report, Sink};
use crate::analysis::{Ending, Order};
use crate::event_format::EventOptions;
use crate::model::{DataKind, DataRef, FunctionId, ProcessId, ThreadId, Trace};

/// Chrome's trace_event JSON.
#[derive(Debug, Clone, Copy)]
pub struct Chrome;

/// The first number for a process or thread whose own number is in use. Further ones are smaller.
/// Kernels have no such numbers. An import keeps it, because it is below 2^31.
const FIRST_FREE: u32 = (1 << 31) - 1;

/// The separator between two events.
const SEPARATOR: &str = ",\n";

struct Output<'a> {
    trace: &'a Trace,
    options: &'a EventOptions,
    text: Text<'a>,
    /// True before the first event, which has no comma before it.
    first: bool,
    ids: DistinctIds,
    /// The text after the time of a call's begin.
    names: PerFunction<Vec<u8>>,
    /// The current thread.
    of: ThreadId,
    /// The common first parts of its events.
    heads: Heads,
}

/// The text of an event up to its time, for each phase, with a comma before it.
#[derive(Default)]
struct Heads {
    begin: String,
    end: String,
    instant: String,
}

/// The ids of processes and threads. No two processes have one pid, and no two threads of a process
/// have one tid.
#[derive(Debug)]
struct DistinctIds {
    pids: HashMap<ProcessId, u32>,
    threads: HashMap<ThreadId, KernelIds>,
    /// The number of processes whose pid differs from the kernel's.
    changed_pids: u64,
    /// The number of threads whose tid differs from the kernel's.
    changed_tids: u64,
}

/// Gives out numbers, each once.
#[derive(Debug)]
struct FreeNumbers {
    used: HashSet<u32>,
    next: u32,
}

// === impl Chrome ===

impl Sink for Chrome {
    fn name(&self) -> &'static str {
        "chrome"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["json"]
    }

    fn about(&self) -> &'static str {
        "trace events, for ui.perfetto.dev and chrome://tracing"
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        EventSink::write(self, trace, &EventOptions::default(), output)
    }

    fn of_events(&self) -> Option<&dyn EventSink> {
        Some(self)
    }
}

impl EventSink for Chrome {
    fn write(
        &self,
        trace: &Trace,
        options: &EventOptions,
        output: &mut dyn Write,
    ) -> io::Result<Report> {
        let mut report = Report::default();
        let names = PerFunction::new(trace, |function| {
            let mut name = b",\"name\":".to_vec();
            text::json(&mut name, &function.name);
            name
        });
        let mut output = Output {
            trace,
            options,
            text: Text::new(output),
            first: true,
            ids: DistinctIds::of(trace),
            names,
            of: ThreadId(0),
            heads: Heads::default(),
        };
        output
            .text
            .put("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
        output.tables()?;
        let threads: Vec<_> = records::threads(trace).collect();
        let mut current = None;
        let data_events = DataEvents::Selected(&options.filter);
        let met = each_record(trace, data_events, Order::ByThread, |record, bytes| {
            if current.replace(record.thread) != Some(record.thread) {
                output.thread(threads[record.thread]);
            }
            report.calls += u64::from(matches!(record.what, What::Enter(_)));
            output.record(record, bytes);
            output.text.pass()
        })?;
        let Output { mut text, ids, .. } = output;
        text.put("\n],\"otherData\":{\"clock\":\"CLOCK_MONOTONIC\",\"calibration\":\"");
        text.put(calibration(trace));
        text.put("\"}}\n");
        text.finish()?;
        met.tell_of_processors(trace, &mut report);
        report.leave_out(
            "pids of processes, replaced because another process has the same",
            ids.changed_pids,
        );
        report.leave_out(
            "tids of threads, replaced because another thread of the process has the same",
            ids.changed_tids,
        );
        Ok(report)
    }
}

// === impl DistinctIds ===

impl DistinctIds {
    fn of(trace: &Trace) -> Self {
        let mut ids = Self {
            pids: HashMap::new(),
            threads: HashMap::new(),
            changed_pids: 0,
            changed_tids: 0,
        };
        let mut free_pids = FreeNumbers::default();
        for process in trace.processes() {
            let pid = free_pids.take(process.pid);
            ids.changed_pids += u64::from(pid != process.pid);
            ids.pids.insert(process.id, pid);
        }
        let mut free_tids = HashMap::<ProcessId, FreeNumbers>::new();
        for thread in trace.threads() {
            let free = free_tids.entry(thread.process).or_default();
            let tid = free.take(thread.tid);
            ids.changed_tids += u64::from(tid != thread.tid);
            let pid = ids.pids.get(&thread.process).copied().unwrap_or(0);
            ids.threads.insert(thread.id, KernelIds { pid, tid });
        }
        ids
    }

    fn of_thread(&self, trace: &Trace, thread: ThreadId) -> KernelIds {
        let known = self.threads.get(&thread);
        known
            .copied()
            .unwrap_or_else(|| KernelIds::of(trace, thread))
    }
}

// === impl FreeNumbers ===

impl Default for FreeNumbers {
    fn default() -> Self {
        Self {
            used: HashSet::new(),
            next: FIRST_FREE,
        }
    }
}

impl FreeNumbers {
    /// Takes this number, or the next free one if it is in use.
    fn take(&mut self, wanted: u32) -> u32 {
        let mut number = wanted;
        while !self.used.insert(number) {
            number = self.next;
            self.next = self.next.wrapping_sub(1);
        }
        number
    }
}

// === impl Output ===

impl Output<'_> {
    /// Writes the names of processes and threads.
    fn tables(&mut self) -> io::Result<()> {
        let trace = self.trace;
        for process in trace.processes() {
            let pid = self.ids.pids.get(&process.id).copied();
            let pid = pid.unwrap_or(process.pid);
            let kernel = KernelIds { pid, tid: pid };
            self.table(kernel, "process_name", &process.command)?;
        }
        for thread in trace.threads() {
            let kernel = self.ids.of_thread(trace, thread.id);
            self.table(kernel, "thread_name", &thread.name)?;
        }
        Ok(())
    }

    fn table(&mut self, kernel: KernelIds, what: &str, name: &str) -> io::Result<()> {
        let KernelIds { pid, tid } = kernel;
        let text = &mut self.text;
        text.put(if std::mem::take(&mut self.first) {
            ""
        } else {
            SEPARATOR
        });
        text.put("{\"ph\":\"M\",\"pid\":");
        text.number(pid);
        text.put(",\"tid\":");
        text.number(tid);
        text.put(",\"name\":\"");
        text.put(what);
        text.put("\",\"args\":{\"name\":");
        text.json(name);
        text.put("}}");
        text.pass()
    }

    /// Begins the events of this thread.
    fn thread(&mut self, thread: ThreadId) {
        self.of = thread;
        let KernelIds { pid, tid } = self.ids.of_thread(self.trace, thread);
        let head =
            |phase| format!("{SEPARATOR}{{\"ph\":\"{phase}\",\"pid\":{pid},\"tid\":{tid},\"ts\":");
        self.heads = Heads {
            begin: head("B"),
            end: head("E"),
            instant: head("i"),
        };
    }

    fn record(&mut self, record: &Record, bytes: &Bytes) {
        let head = match record.what {
            What::Enter(_) => &self.heads.begin,
            What::Leave(..) => &self.heads.end,
            What::Data(..) | What::Lost(_) => &self.heads.instant,
        };
        let first = std::mem::take(&mut self.first);
        let skip = if first { SEPARATOR.len() } else { 0 };
        self.text.put(head.get(skip..).unwrap_or_default());
        self.text.decimal::<3>(record.ns);
        match record.what {
            What::Enter(args) => {
                self.name(record.function);
                for (number, arg) in (1..).zip(args.as_slice()) {
                    self.text.put(if number == 1 { ",\"args\":{" } else { "," });
                    // As text, because readers take numbers for floating point.
                    self.text.put(&format!("\"arg{number}\":\"{arg:#x}\""));
                }
                self.text.put(if args.is_empty() { "}" } else { "}}" });
            }
            What::Leave(Ending::Normal, Some(result)) => self
                .text
                .put(&format!(",\"args\":{{\"result\":\"{result:#x}\"}}}}")),
            What::Leave(how, _) => self.text.put(match how {
                Ending::Normal => "}",
                Ending::TailExit => ",\"args\":{\"end\":\"tail exit\"}}",
                Ending::Closed => ",\"args\":{\"end\":\"no exit seen\"}}",
            }),
            What::Data(kind, data) => self.put_user_event(kind, data, bytes),
            What::Lost(events) => {
                self.text
                    .put(",\"name\":\"events lost\",\"s\":\"t\",\"args\":{\"events\":\"");
                self.text.number(events);
                self.text.put("\"}}");
            }
        }
    }

    fn put_user_event(&mut self, kind: DataKind, data: DataRef, bytes: &Bytes) {
        self.text.put(",\"name\":");
        self.text.json(&user_event_name(self.trace, self.of, kind));
        if matches!(kind, DataKind::Kernel(_)) {
            self.text.put(",\"cat\":\"kernel\"");
        }
        self.text.put(",\"s\":\"t\",\"args\":{");
        let of = (self.of, kind);
        let decoded = fields::decoded(self.options, self.trace, of, bytes.get(data));
        let has_data = !fields::replace_data(kind, decoded.as_ref());
        if has_data {
            self.text.put("\"data\":");
            self.text.json_bytes(bytes.get(data));
        }
        if let Some(decoded) = decoded {
            let object = fields::json(&decoded, Integers::TextIfLarge);
            self.text.put(if has_data {
                ",\"fields\":"
            } else {
                "\"fields\":"
            });
            self.text.bytes(&object);
        }
        if let DataKind::Typed(number) = kind {
            self.text.put(",\"type\":\"");
            self.text.number(number);
            self.text.put("\"");
        }
        if data.is_cut() {
            self.text.put(",\"size\":\"");
            self.text.number(data.size());
            self.text.put("\"");
        }
        self.text.put("}}");
    }

    fn name(&mut self, function: FunctionId) {
        match self.names.get(function) {
            Some(name) => self.text.bytes(name),
            None => {
                self.text.put(",\"name\":");
                self.text.json(&self.trace.function_name(function));
            }
        }
    }
}
