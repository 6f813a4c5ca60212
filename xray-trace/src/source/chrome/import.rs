//! Turns trace events into a trace: names of processes, threads and functions, and the moments of
//! each thread.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead};

use super::event::{Args, TraceEvent};
use super::moments::{self, How, Misplaced, Moment, UserEvent, What};
use super::scan::Scanner;
use crate::model::{DataKind, FunctionId, ModuleId, ProcessId, ThreadId, Trace, Values};
use crate::source::builder::TraceBuilder;
use crate::source::damage::Damage;
use crate::source::ids::next_id;
use crate::source::{OpenError, Options};

/// The number of the first process or thread without a number that Linux could give. The kernel's
/// numbers are smaller.
const FIRST_UNNUMBERED: u32 = 1 << 31;

/// The names in the exports of `sink::chrome`.
const CUSTOM_EVENT: &str = "custom event";
const LOST: &str = "events lost";

/// Imports trace events.
#[derive(Debug)]
struct Importer {
    builder: TraceBuilder,
    processes: HashMap<String, ProcessId>,
    threads: HashMap<(ProcessId, String), ThreadId>,
    /// The moments of each thread, by id.
    moments: Vec<Vec<Moment>>,
    functions: HashMap<String, FunctionId>,
    /// The module of all functions; `None` before the first one.
    module: Option<ModuleId>,
    /// The names of processes in metadata.
    process_names: HashMap<ProcessId, String>,
    /// The names of threads in metadata.
    thread_names: HashMap<ThreadId, String>,
    counts: Counts,
    /// The reason why the trace cannot be written.
    failed: Option<io::Error>,
}

/// Counts of what is not in the trace.
#[derive(Debug, Default)]
struct Counts {
    /// Events of phases that are not read, by phase; `None` without a phase.
    phases: BTreeMap<Option<u8>, u64>,
    /// Events without a usable time.
    timeless: u64,
    /// Metadata other than names of processes and threads.
    metadata: u64,
    /// Events of kernel tracepoints.
    kernel_events: u64,
    /// Events with arguments that are not kept.
    args: u64,
    /// Names of processes that replaced another name.
    renamed_processes: u64,
    /// Names of threads that replaced another name.
    renamed_threads: u64,
    misplaced: Misplaced,
}

/// Imports a file of trace events.
pub(in crate::source) fn import(
    input: impl BufRead,
    options: &Options,
) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
    let mut damage = Damage::new(options.mode);
    let mut importer = Importer {
        builder: TraceBuilder::new()?,
        processes: HashMap::new(),
        threads: HashMap::new(),
        moments: Vec::new(),
        functions: HashMap::new(),
        module: None,
        process_names: HashMap::new(),
        thread_names: HashMap::new(),
        counts: Counts::default(),
        failed: None,
    };
    Scanner::new(input).each_event(&mut damage, |bytes| {
        let event = TraceEvent::read(bytes)?;
        if let Err(error) = importer.add(event) {
            importer.failed.get_or_insert(error);
        }
        Ok(())
    })?;
    importer.finish(damage)
}

// === impl Importer ===

impl Importer {
    fn add(&mut self, event: TraceEvent<'_>) -> io::Result<()> {
        let TraceEvent {
            phase,
            pid,
            tid,
            ns,
            duration_ns,
            name,
            is_of_kernel,
            mut args,
        } = event;
        match phase {
            Some(b'i' | b'I') if is_of_kernel => {
                self.counts.kernel_events += 1;
                return Ok(());
            }
            Some(b'B' | b'E' | b'X' | b'i' | b'I') => {}
            Some(b'M') => return self.add_name(&pid, &tid, name.as_deref(), args),
            other => {
                let printable = other.filter(u8::is_ascii_graphic);
                *self.counts.phases.entry(printable).or_default() += 1;
                return Ok(());
            }
        }
        let Some(ns) = ns.filter(|_| phase != Some(b'X') || duration_ns.is_some()) else {
            self.counts.timeless += 1;
            return Ok(());
        };
        let process = self.process(&pid)?;
        let thread = self.thread(process, &tid)?;
        let what = match phase {
            Some(b'E') => end(&mut args),
            Some(b'B') => {
                let values = boxed(std::mem::take(&mut args.values));
                What::Begin(self.function(process, name)?, values)
            }
            Some(b'X') => {
                let values = boxed(std::mem::take(&mut args.values));
                let function = self.function(process, name)?;
                What::Complete(function, duration_ns.unwrap_or(0), values)
            }
            _ => self.instant(process, name, &mut args),
        };
        self.counts.args += u64::from(args.has_rest());
        let Some(moments) = self.moments.get_mut(thread.0 as usize) else {
            return Err(io::Error::other("a thread without moments"));
        };
        moments.push(Moment { ns, what });
        Ok(())
    }

    /// An event without a duration. An instant of another program becomes a custom event with its
    /// name as data. Takes the fields of `args` that the event keeps.
    fn instant(
        &mut self,
        process: ProcessId,
        name: Option<Cow<'_, str>>,
        args: &mut Args<'_>,
    ) -> What {
        let name = name.unwrap_or_default();
        if name == LOST
            && let Some(events) = args.lost.take()
        {
            return What::Lost(events);
        }
        let is_ours = args.event_type.is_some() || name == CUSTOM_EVENT;
        let Some(data) = args.data.take_if(|_| is_ours) else {
            // The size is not the size of the name.
            return user_event(DataKind::Custom, None, &name);
        };
        let kind = match args.event_type.take() {
            Some(number) => {
                let type_name = match *name == *format!("typed event {number}") {
                    true => "",
                    false => &*name,
                };
                let number = self.builder.event_type(process, number, type_name);
                DataKind::Typed(number)
            }
            None => DataKind::Custom,
        };
        user_event(kind, args.size.take(), &data)
    }

    /// Sets the name of a process or a thread. Counts a name that replaces another one, because two
    /// processes or threads may then have one number.
    fn add_name(
        &mut self,
        pid: &str,
        tid: &str,
        what: Option<&str>,
        mut args: Args<'_>,
    ) -> io::Result<()> {
        match (what, args.name.take()) {
            (Some("process_name"), Some(name)) => {
                let process = self.process(pid)?;
                self.builder.name_process(process, &name);
                let former = self.process_names.insert(process, name.to_string());
                let is_other = former.is_some_and(|former| *former != *name);
                self.counts.renamed_processes += u64::from(is_other);
            }
            (Some("thread_name"), Some(name)) => {
                let process = self.process(pid)?;
                let thread = self.thread(process, tid)?;
                self.builder.name_thread(thread, &name);
                let former = self.thread_names.insert(thread, name.to_string());
                let is_other = former.is_some_and(|former| *former != *name);
                self.counts.renamed_threads += u64::from(is_other);
            }
            _ => {
                self.counts.metadata += 1;
                return Ok(());
            }
        }
        self.counts.args += u64::from(args.has_rest());
        Ok(())
    }

    /// The id of a process. A process without a number that Linux could give has its text as its
    /// name until metadata names it.
    fn process(&mut self, pid: &str) -> io::Result<ProcessId> {
        if let Some(known) = self.processes.get(pid) {
            return Ok(*known);
        }
        let (number, name) = numbered(pid, self.processes.len())?;
        let id = self.builder.process(number, name)?;
        self.processes.insert(pid.to_owned(), id);
        Ok(id)
    }

    /// The id of a thread, likewise.
    fn thread(&mut self, process: ProcessId, tid: &str) -> io::Result<ThreadId> {
        let key = (process, tid.to_owned());
        if let Some(known) = self.threads.get(&key) {
            return Ok(*known);
        }
        let (number, name) = numbered(tid, self.threads.len())?;
        let id = self.builder.thread(process, number, name)?;
        self.threads.insert(key, id);
        self.moments.push(Vec::new());
        Ok(id)
    }

    fn function(
        &mut self,
        process: ProcessId,
        name: Option<Cow<'_, str>>,
    ) -> io::Result<FunctionId> {
        let name = name.unwrap_or("[no name]".into());
        if let Some(known) = self.functions.get(&*name) {
            return Ok(*known);
        }
        let module = match self.module {
            Some(module) => module,
            None => *self.module.insert(self.builder.module(process, "")?),
        };
        let id = FunctionId(next_id(self.functions.len())?);
        self.builder.function(id, module, &name);
        self.functions.insert(name.into_owned(), id);
        Ok(id)
    }

    fn finish(mut self, damage: Damage) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        for (id, moments) in (0..).zip(std::mem::take(&mut self.moments)) {
            let misplaced = &mut self.counts.misplaced;
            moments::add(&mut self.builder, ThreadId(id), &moments, misplaced)?;
        }
        let (trace, kept) = self.builder.finish()?;
        let mut notes = damage.into_list();
        notes.extend(kept);
        notes.extend(self.counts.into_list());
        Ok((trace, notes))
    }
}

/// The number of a process or a thread, and its first name. A text that is no number of 31 bits
/// gets the number after `known` others.
fn numbered(text: &str, known: usize) -> io::Result<(u32, &str)> {
    if text.is_empty() {
        return Ok((0, ""));
    }
    match text.parse() {
        Ok(number) if number < FIRST_UNNUMBERED => Ok((number, "")),
        _ => {
            let number = next_id(known)?.checked_add(FIRST_UNNUMBERED);
            let number = number.ok_or_else(|| io::Error::other("more than 2^31 threads"))?;
            Ok((number, text))
        }
    }
}

/// The end of a call, as `sink::chrome` writes it. Takes the fields of `args` that the end keeps.
fn end(args: &mut Args<'_>) -> What {
    let how = match args.end.as_deref() {
        Some("tail exit") => How::TailExit,
        Some("no exit seen") => How::Unwound,
        // Other texts stay in `args`.
        _ => return What::End(How::Exit, args.result.take()),
    };
    args.end = None;
    // A call without an exit has no result.
    let result = args.result.take_if(|_| how != How::Unwound);
    What::End(how, result)
}

fn user_event(kind: DataKind, size: Option<u32>, data: &str) -> What {
    What::Data(Box::new(UserEvent {
        kind,
        size,
        data: data.as_bytes().into(),
    }))
}

fn boxed(values: Values) -> Option<Box<Values>> {
    (!values.is_empty()).then(|| Box::new(values))
}

// === impl Counts ===

impl Counts {
    /// The counts with their descriptions, without those that are 0.
    fn into_list(self) -> Vec<(String, u64)> {
        let Self {
            phases,
            timeless,
            metadata,
            kernel_events,
            args,
            renamed_processes,
            renamed_threads,
            misplaced: Misplaced { ends, late },
        } = self;
        let phases = phases.into_iter().map(|(phase, count)| {
            let what = match phase {
                Some(phase) => format!(
                    "ignored trace events of phase {}, which are neither calls nor instants",
                    char::from(phase)
                ),
                None => "ignored trace events without a phase of one character".to_owned(),
            };
            (what, count)
        });
        let others = [
            ("ignored trace events without a usable time", timeless),
            (
                "ignored metadata other than names of processes and threads",
                metadata,
            ),
            ("events of kernel tracepoints", kernel_events),
            ("trace events whose args are not all kept", args),
            (
                "names of processes that replaced another name of the same pid",
                renamed_processes,
            ),
            (
                "names of threads that replaced another name of the same tid",
                renamed_threads,
            ),
            ("ignored ends of calls without a begin", ends),
            (
                "calls that would end after their callers, cut at the callers' ends",
                late,
            ),
        ];
        let others = others.into_iter();
        let others = others.map(|(what, count)| (what.to_owned(), count));
        phases
            .chain(others)
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}
