//! Adds rows to a trace. Gives out the ids of processes, threads and modules by their names.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io;

use super::row::Row;
use crate::model::{CallKind, DataKind, FunctionId, ModuleId, ProcessId, ThreadId, Trace, Values};
use crate::source::OpenError;
use crate::source::builder::{Body, TraceBuilder};
use crate::source::damage::Damage;

/// Imports rows.
#[derive(Debug)]
pub(super) struct RowImporter {
    builder: TraceBuilder,
    processes: HashMap<ProcessKey, ProcessId>,
    threads: HashMap<ThreadKey, ThreadId>,
    /// The thread of the latest row. Most rows have the thread of the row before.
    latest: Option<(ThreadKey, ProcessId, ThreadId)>,
    modules: HashMap<(ProcessId, String), ModuleId>,
    /// The first function with each number.
    functions: HashMap<u32, KnownFunction>,
    /// Other functions with the same number, from a file that was joined from several exports.
    others: HashMap<(u32, String, String), FunctionId>,
    /// The ids in use.
    ids: HashSet<FunctionId>,
    /// The next id to try for one of `others`.
    next: u32,
    more_arguments: u64,
    kernel_events: u64,
}

/// A process by its number and name.
type ProcessKey = (u32, String);

/// A thread by the process, and its own number and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ThreadKey {
    process: ProcessKey,
    tid: u32,
    name: String,
}

/// The names of a function, and its id.
#[derive(Debug)]
struct KnownFunction {
    name: String,
    module: String,
    id: FunctionId,
}

/// The kind of a row's event, with its data. It has no ids yet.
#[derive(Debug)]
enum What<'a> {
    /// The begin or the end of a call.
    Call(CallKind, Values),
    /// A custom or typed event, with its data.
    Data(DataKind, Cow<'a, [u8]>),
    /// An event without a function.
    Other(Body<'static>),
}

/// The reason why a row was not added.
#[derive(Debug)]
pub(super) enum RowError {
    /// The trace cannot be written.
    Io(io::Error),
    /// The row is invalid, for this reason.
    Invalid(String),
}

// === impl RowError ===

impl From<io::Error> for RowError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<String> for RowError {
    fn from(why: String) -> Self {
        Self::Invalid(why)
    }
}

// === impl RowImporter ===

impl RowImporter {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            builder: TraceBuilder::new()?,
            processes: HashMap::new(),
            threads: HashMap::new(),
            latest: None,
            modules: HashMap::new(),
            functions: HashMap::new(),
            others: HashMap::new(),
            ids: HashSet::new(),
            next: u32::MAX,
            more_arguments: 0,
            kernel_events: 0,
        })
    }

    /// Adds the event of a row. A row that is invalid adds no process, thread or function.
    pub(super) fn add(&mut self, row: &Row<'_>) -> Result<(), RowError> {
        if row.event == "kernel" {
            self.kernel_events += 1;
            return Ok(());
        }
        let ns = needed("time_ns", row.time_ns)?;
        let pid = needed("pid", row.pid)?;
        let tid = needed("tid", row.tid)?;
        let what = what(row)?;
        let (process, thread) = self.thread(pid, tid, row)?;
        let function = self.function(process, row)?;
        let body = match &what {
            What::Call(kind, values) => Body::Call {
                function: needed("function_id", function)?,
                kind: *kind,
                values: *values,
            },
            What::Data(kind, data) => Body::Data {
                kind: match *kind {
                    DataKind::Custom | DataKind::Kernel(_) => DataKind::Custom,
                    DataKind::Typed(number) => {
                        let name = &*row.event_type_name;
                        DataKind::Typed(self.builder.event_type(process, number, name))
                    }
                },
                function,
                size: row.size,
                data,
            },
            What::Other(body) => *body,
        };
        if let What::Call(CallKind::Enter, _) = what {
            let args = row.arguments.as_deref().unwrap_or_default();
            self.more_arguments += args.len().saturating_sub(Values::MOST) as u64;
        }
        Ok(self.builder.push(thread, ns, body)?)
    }

    /// The trace, and the counts of data that was not kept.
    pub(super) fn finish(self, damage: Damage) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
        let (trace, kept) = self.builder.finish()?;
        let mut notes = damage.into_list();
        notes.extend(kept);
        if self.more_arguments > 0 {
            let what = format!("arguments beyond the first {} of a call", Values::MOST);
            notes.push((what, self.more_arguments));
        }
        if self.kernel_events > 0 {
            let what = "events of kernel tracepoints".to_owned();
            notes.push((what, self.kernel_events));
        }
        Ok((trace, notes))
    }

    /// The ids of the process and the thread of a valid row. Adds them before their first event.
    fn thread(&mut self, pid: u32, tid: u32, row: &Row<'_>) -> io::Result<(ProcessId, ThreadId)> {
        if let Some((key, process, thread)) = &self.latest
            && (key.process.0, key.tid) == (pid, tid)
            && (&*key.process.1, &*key.name) == (&*row.process, &*row.thread)
        {
            return Ok((*process, *thread));
        }
        let key = ThreadKey {
            process: (pid, row.process.clone().into_owned()),
            tid,
            name: row.thread.clone().into_owned(),
        };
        let process = match self.processes.get(&key.process) {
            Some(known) => *known,
            None => {
                let id = self.builder.process(pid, &row.process)?;
                self.processes.insert(key.process.clone(), id);
                id
            }
        };
        let thread = match self.threads.get(&key) {
            Some(known) => *known,
            None => {
                let id = self.builder.thread(process, tid, &row.thread)?;
                self.threads.insert(key.clone(), id);
                id
            }
        };
        self.latest = Some((key, process, thread));
        Ok((process, thread))
    }

    /// The id of the row's function. It is the number in the row, unless that belongs to a function
    /// with other names.
    fn function(&mut self, process: ProcessId, row: &Row<'_>) -> io::Result<Option<FunctionId>> {
        let Some(number) = row.function_id else {
            return Ok(None);
        };
        let known = self.functions.get(&number);
        if let Some(known) = known
            && (&*known.name, &*known.module) == (&*row.function, &*row.module)
        {
            return Ok(Some(known.id));
        }
        let is_first = known.is_none();
        let key = || (number, row.function.to_string(), row.module.to_string());
        if !is_first && let Some(known) = self.others.get(&key()) {
            return Ok(Some(*known));
        }
        let id = self.free_id(FunctionId(number))?;
        if !row.function.is_empty() {
            let module = self.module(process, &row.module)?;
            self.builder.function(id, module, &row.function);
        }
        if is_first {
            let (_, name, module) = key();
            let known = KnownFunction { name, module, id };
            self.functions.insert(number, known);
        } else {
            self.others.insert(key(), id);
        }
        Ok(Some(id))
    }

    /// An id that no function has: this one if possible.
    fn free_id(&mut self, wanted: FunctionId) -> io::Result<FunctionId> {
        let mut id = wanted;
        while !self.ids.insert(id) {
            id = FunctionId(self.next);
            self.next = self
                .next
                .checked_sub(1)
                .ok_or_else(|| io::Error::other("the rows have more than 2^32 functions"))?;
        }
        Ok(id)
    }

    fn module(&mut self, process: ProcessId, path: &str) -> io::Result<ModuleId> {
        let key = (process, path.to_owned());
        if let Some(known) = self.modules.get(&key) {
            return Ok(*known);
        }
        let id = self.builder.module(process, path)?;
        self.modules.insert(key, id);
        Ok(id)
    }
}

/// The kind of a row's event, with its data.
///
/// # Errors
///
/// If a field that the event needs is missing or has an unusable value.
fn what<'a>(row: &'a Row<'_>) -> Result<What<'a>, String> {
    let call =
        |kind, values| needed("function_id", row.function_id).map(|_| What::Call(kind, values));
    match &*row.event {
        "enter" => {
            let args = row.arguments.as_deref().unwrap_or_default();
            call(CallKind::Enter, Values::new(args.iter().copied()))
        }
        "exit" => call(CallKind::Exit, row.result.into()),
        "tail-exit" => call(CallKind::TailExit, row.result.into()),
        "custom" => Ok(What::Data(DataKind::Custom, data(row)?)),
        "typed" => {
            let number = needed("event_type", row.event_type)?;
            Ok(What::Data(DataKind::Typed(number), data(row)?))
        }
        "processor" => needed("processor", row.processor).map(|cpu| What::Other(Body::Cpu(cpu))),
        "unwound" => {
            let calls = needed("unwound", row.unwound)?;
            Ok(What::Other(Body::Unwound(calls)))
        }
        "unmatched-exit" => Ok(What::Other(Body::UnmatchedExit)),
        "lost" => needed("lost", row.lost).map(|events| What::Other(Body::Lost(events))),
        "" => Err(missing("event")),
        other => {
            let start: String = other.chars().take(40).collect();
            Err(format!("there is no event {start:?}"))
        }
    }
}

/// The data of a user event.
fn data<'a>(row: &'a Row<'_>) -> Result<Cow<'a, [u8]>, String> {
    if row.data_hex.is_empty() {
        return Ok(row.data.as_bytes().into());
    }
    let wrong = || "data_hex has other characters than pairs of hexadecimal digits".to_owned();
    let digit = |byte: u8| {
        let digit = char::from(byte).to_digit(16).ok_or_else(wrong)?;
        u8::try_from(digit).map_err(|_| wrong())
    };
    let (pairs, rest) = row.data_hex.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(wrong());
    }
    let bytes = pairs
        .iter()
        .map(|[high, low]| Ok(digit(*high)? << 4 | digit(*low)?));
    bytes.collect::<Result<Vec<_>, String>>().map(Cow::Owned)
}

fn needed<T>(name: &str, value: Option<T>) -> Result<T, String> {
    value.ok_or_else(|| missing(name))
}

fn missing(name: &str) -> String {
    format!("the field {name} is missing")
}
