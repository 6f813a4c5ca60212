//! The contents of a trace: its processes, its time, its numbers, and its gaps.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;
use xray_trace::analysis::Notes;
use xray_trace::container::VERSION;
use xray_trace::llvm::Format as LogFormat;
use xray_trace::model::{CallKind, DataKind, EventBody, ProcessId, ThreadId, Ticks, Trace};

use super::trace_summary::TraceSummary;
use super::{Cell, Column, Look, Table, Tone, text, units};

/// The contents of a trace.
#[derive(Debug, Serialize)]
pub(crate) struct TraceInfo {
    trace: TraceSummary,
    format: &'static str,
    /// The version of our own format; absent for logs, whose version is not kept.
    version: Option<u16>,
    bytes: u64,
    event_bytes: u64,
    blocks: usize,
    events: EventCounts,
    clock: ClockInfo,
    event_types: Vec<EventTypeInfo>,
    /// The descriptions that the modules have of the data of their events.
    event_formats: Vec<String>,
    /// The kernel tracepoints, and the numbers of their events.
    tracepoints: Vec<TracepointInfo>,
    /// Kernel events that are missing, at most.
    lost_kernel_events: u64,
    /// Time of the first event, by `CLOCK_MONOTONIC`.
    begin_ns: Option<u64>,
    modules: Vec<ModuleInfo>,
    threads: Vec<ThreadInfo>,
}

/// Numbers of events of each kind.
#[derive(Debug, Default, Serialize)]
struct EventCounts {
    entries: u64,
    entries_with_arguments: u64,
    exits: u64,
    exits_with_result: u64,
    tail_exits: u64,
    custom_events: u64,
    typed_events: u64,
    cpu_changes: u64,
    losses: u64,
    unwindings: u64,
    astray_exits: u64,
}

#[derive(Debug, Serialize)]
struct ClockInfo {
    anchors: usize,
    frequency: Option<u64>,
}

/// A type of typed events that has a name, or events.
#[derive(Debug, Serialize)]
struct EventTypeInfo {
    pid: Option<u32>,
    number: u16,
    name: Option<String>,
    events: u64,
}

/// A kernel tracepoint whose events were recorded.
#[derive(Debug, Serialize)]
struct TracepointInfo {
    name: String,
    events: u64,
}

#[derive(Debug, Serialize)]
struct ModuleInfo {
    pid: Option<u32>,
    path: String,
    build_id: Option<String>,
    functions: u64,
    /// The times in which the module was loaded; empty if it was there all the time.
    lifetimes: Vec<LifetimeInfo>,
}

/// Times by `CLOCK_MONOTONIC`.
#[derive(Debug, Serialize)]
struct LifetimeInfo {
    loaded_ns: Option<u64>,
    unloaded_ns: Option<u64>,
}

#[derive(Debug, Serialize)]
struct ThreadInfo {
    pid: Option<u32>,
    tid: u32,
    name: String,
    events: u64,
    lost: u64,
}

// === impl TraceInfo ===

impl TraceInfo {
    /// Reads every event, one block at a time.
    pub(crate) fn new(file: &str, bytes: u64, trace: &Trace, format: LogFormat) -> Self {
        let mut events = EventCounts::default();
        let mut notes = Notes::default();
        let mut threads = BTreeMap::<ThreadId, (u64, u64)>::new();
        let named = trace.event_types().iter();
        let named = named.map(|named| {
            let name = Some(named.name.clone());
            ((Some(named.process), named.number), (name, 0))
        });
        let mut event_types = named.collect::<BTreeMap<_, (_, u64)>>();
        for block in trace.blocks() {
            let process = trace.thread(block.thread).map(|thread| thread.process);
            let thread = threads.entry(block.thread).or_default();
            for event in block.events() {
                let Ok(event) = event else {
                    notes.damaged_blocks += 1;
                    break;
                };
                thread.0 += u64::from(event.body != EventBody::Unwound { calls: 0 });
                if let EventBody::Lost { events } = event.body {
                    thread.1 = thread.1.saturating_add(events);
                }
                if let EventBody::Data {
                    kind: DataKind::Typed(number),
                    ..
                } = event.body
                {
                    event_types.entry((process, number)).or_default().1 += 1;
                }
                events.add(event.body);
            }
        }
        for (thread, lost) in &trace.coverage().losses {
            let thread = threads.entry(*thread).or_default();
            thread.1 = thread.1.saturating_add(*lost);
        }
        let pid = |process: ProcessId| trace.process(process).map(|process| process.pid);
        let mut functions = BTreeMap::<_, u64>::new();
        for function in trace.functions() {
            *functions.entry(function.module).or_default() += 1;
        }
        let mut lifetimes = BTreeMap::<_, Vec<_>>::new();
        for lifetime in &trace.coverage().lifetimes {
            let ns = |ticks: Option<Ticks>| Some(trace.clock().monotonic_ns(ticks?));
            lifetimes
                .entry(lifetime.module)
                .or_default()
                .push(LifetimeInfo {
                    loaded_ns: ns(lifetime.loaded),
                    unloaded_ns: ns(lifetime.unloaded),
                });
        }
        let begin = trace.begin();
        let modules = trace.modules().iter().map(|module| ModuleInfo {
            pid: pid(module.process),
            path: module.path.clone(),
            build_id: module.build_id.as_ref().map(ToString::to_string),
            functions: functions.get(&module.id).copied().unwrap_or(0),
            lifetimes: lifetimes.remove(&module.id).unwrap_or_default(),
        });
        let event_types = event_types
            .into_iter()
            .map(|((process, number), (name, events))| EventTypeInfo {
                pid: process.and_then(pid),
                number,
                name,
                events,
            });
        let counts = trace.kernel_event_counts();
        let tracepoints = trace.tracepoints();
        let tracepoints = tracepoints.map(|(number, tracepoint)| TracepointInfo {
            name: tracepoint.name.clone(),
            events: counts.get(&number).copied().unwrap_or(0),
        });
        let threads = threads.into_iter().map(|(id, (events, lost))| {
            let thread = trace.thread(id);
            ThreadInfo {
                pid: thread.and_then(|thread| pid(thread.process)),
                tid: thread.map_or(id.0, |thread| thread.tid),
                name: thread.map(|thread| thread.name.clone()).unwrap_or_default(),
                events,
                lost,
            }
        });
        Self {
            trace: TraceSummary::new(file, trace, notes),
            format: match format {
                LogFormat::Xtrace => "xtrace",
                LogFormat::Fdr(_) => "fdr",
                LogFormat::Basic(_) => "basic",
                LogFormat::Yaml => "yaml",
                LogFormat::Unknown => "mixed",
                LogFormat::JsonLines => "jsonl",
                LogFormat::Csv => "csv",
                LogFormat::Chrome => "chrome",
                LogFormat::Ctf => "ctf",
                LogFormat::PerfData => "perf",
                _ => "other",
            },
            version: (format == LogFormat::Xtrace).then_some(VERSION),
            bytes,
            event_bytes: trace.totals().encoded_len,
            blocks: trace.blocks().len(),
            events,
            clock: ClockInfo {
                anchors: trace.clock().anchors().len(),
                frequency: trace.clock().frequency(),
            },
            event_types: event_types.collect(),
            event_formats: trace.event_formats().texts().collect(),
            tracepoints: tracepoints.collect(),
            lost_kernel_events: trace.lost_kernel_events(),
            begin_ns: begin.map(|ticks| trace.clock().monotonic_ns(ticks)),
            modules: modules.collect(),
            threads: threads.collect(),
        }
    }

    /// Writes the information as text.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        self.trace.render_head(out, look)?;
        self.trace.render_notes(out, look)?;
        let format = self.format;
        let version = self
            .version
            .map_or_else(String::new, |version| format!(" version {version}"));
        let (bytes, blocks) = (units::bytes(self.bytes), self.blocks as u64);
        let blocks = units::counted(blocks, "block");
        writeln!(out, "{format}{version}, {bytes}, {blocks} of events")?;
        let anchors = units::counted(self.clock.anchors as u64, "anchor");
        match self.clock.frequency {
            Some(hertz) => writeln!(out, "clock: {} Hz, {anchors}", units::count(hertz))?,
            None => writeln!(out, "clock: unknown rate, {anchors}")?,
        }
        let EventCounts {
            entries,
            entries_with_arguments,
            exits_with_result,
            exits,
            tail_exits,
            custom_events,
            typed_events,
            cpu_changes,
            losses,
            unwindings,
            astray_exits,
        } = self.events;
        for (number, what) in [
            (entries, "entries"),
            (entries_with_arguments, "entries with arguments"),
            (exits, "exits"),
            (exits_with_result, "exits with a result"),
            (tail_exits, "tail exits"),
            (custom_events, "custom events"),
            (typed_events, "typed events"),
            (cpu_changes, "changes of processor"),
            (losses, "losses"),
            (unwindings, "exceptions and jumps that left calls"),
            (astray_exits, "exits without an open call"),
        ] {
            if number > 0 {
                writeln!(out, "{:>15} {what}", units::count(number))?;
            }
        }
        let number = |number: Option<u32>| number.map_or_else(String::new, |pid| pid.to_string());
        let mut table = Table::new([
            Column::right("PID"),
            Column::right("TID"),
            Column::right("EVENTS"),
            Column::right("LOST").minor(1),
            Column::elastic("THREAD"),
        ]);
        for thread in &self.threads {
            table.push([
                number(thread.pid).into(),
                thread.tid.to_string().into(),
                units::count(thread.events).into(),
                units::count(thread.lost).into(),
                Cell::toned(&thread.name, Tone::Name),
            ]);
        }
        table.render(out, look)?;
        if !self.event_types.is_empty() {
            let mut table = Table::new([
                Column::right("PID"),
                Column::right("TYPE"),
                Column::right("EVENTS"),
                Column::elastic("NAME"),
            ]);
            for event_type in &self.event_types {
                let name = event_type.name.as_deref().map(text::printable);
                table.push([
                    number(event_type.pid).into(),
                    event_type.number.to_string().into(),
                    units::count(event_type.events).into(),
                    name.unwrap_or_else(|| "-".to_owned()).into(),
                ]);
            }
            table.render(out, look)?;
        }
        if !self.event_formats.is_empty() {
            let mut table = Table::new([Column::elastic("DESCRIBED EVENTS")]);
            for text in &self.event_formats {
                table.push([text::printable(text).into()]);
            }
            table.render(out, look)?;
        }
        if !self.tracepoints.is_empty() {
            let mut table = Table::new([Column::right("EVENTS"), Column::elastic("TRACEPOINT")]);
            for tracepoint in &self.tracepoints {
                table.push([
                    units::count(tracepoint.events).into(),
                    text::printable(&tracepoint.name).into(),
                ]);
            }
            table.render(out, look)?;
        }
        if self.lost_kernel_events > 0 {
            let lost = units::counted(self.lost_kernel_events, "kernel event");
            writeln!(out, "up to {lost} missing")?;
        }
        let mut table = Table::new([
            Column::right("PID"),
            Column::right("FUNCTIONS"),
            Column::left("BUILD ID").minor(1),
            Column::elastic("MODULE"),
        ]);
        for module in &self.modules {
            table.push([
                number(module.pid).into(),
                units::count(module.functions).into(),
                module.build_id.as_deref().unwrap_or("-").into(),
                text::printable(&module.path).into(),
            ]);
        }
        table.render(out, look)?;
        self.render_lifetimes(out, look)?;
        match self.trace.unrecorded() {
            Some(unrecorded) => unrecorded.render_more(self.begin_ns, out, look),
            None => Ok(()),
        }
    }

    /// Writes the modules that were not there all the time. Times count from the first event.
    fn render_lifetimes(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let passing = self
            .modules
            .iter()
            .filter(|module| !module.lifetimes.is_empty());
        let mut table = Table::new([
            Column::right("LOADS"),
            Column::right("FIRST"),
            Column::right("UNTIL"),
            Column::elastic("MODULE"),
        ]);
        let mut any = false;
        for module in passing {
            any = true;
            let since = |ns: Option<u64>| match (ns, self.begin_ns) {
                (Some(ns), Some(begin)) if ns >= begin => units::time(ns - begin),
                _ => "before".to_owned(),
            };
            let first = module.lifetimes.first().and_then(|first| first.loaded_ns);
            let last = module.lifetimes.last().and_then(|last| last.unloaded_ns);
            table.push([
                units::count(module.lifetimes.len() as u64).into(),
                since(first).into(),
                last.map_or_else(|| "end".to_owned(), |last| since(Some(last)))
                    .into(),
                text::printable(&module.path).into(),
            ]);
        }
        if any { table.render(out, look) } else { Ok(()) }
    }
}

// === impl EventCounts ===

impl EventCounts {
    fn add(&mut self, body: EventBody) {
        let count = match body {
            EventBody::Call { kind, values, .. } => {
                let with_values = u64::from(!values.is_empty());
                match kind {
                    CallKind::Enter => self.entries_with_arguments += with_values,
                    CallKind::Exit | CallKind::TailExit => self.exits_with_result += with_values,
                }
                match kind {
                    CallKind::Enter => &mut self.entries,
                    CallKind::Exit => &mut self.exits,
                    CallKind::TailExit => &mut self.tail_exits,
                }
            }
            EventBody::Data { kind, .. } => match kind {
                DataKind::Custom => &mut self.custom_events,
                DataKind::Typed(_) => &mut self.typed_events,
                // They are not in blocks.
                DataKind::Kernel(_) => return,
            },
            EventBody::Cpu { .. } => &mut self.cpu_changes,
            EventBody::Lost { .. } => &mut self.losses,
            // This event only marks a time at which calls are known to be open.
            EventBody::Unwound { calls: 0 } => return,
            EventBody::Unwound { .. } => &mut self.unwindings,
            EventBody::UnmatchedExit => &mut self.astray_exits,
        };
        *count += 1;
    }
}
