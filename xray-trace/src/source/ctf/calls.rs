//! The meaning of events: calls and user events of xrayctl's export, and calls of LTTng.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;

use super::decode::{Fields, Value};
use super::stream::{Decoded, Losses};
use crate::model::{CallKind, DataKind, FunctionId, ModuleId, ProcessId, ThreadId, Trace, Values};
use crate::source::OpenError;
use crate::source::builder::{Body, TraceBuilder};
use crate::source::damage::Damage;
use crate::source::ids::next_id;

/// The most open calls of a thread whose functions are remembered.
const DEEPEST: usize = 1 << 16;
/// The most bytes of all names of processes, threads and functions. Names beyond are empty.
const MOST_NAMES: usize = 256 << 20;

/// Adds events to a trace.
#[derive(Debug)]
pub(super) struct Calls {
    builder: TraceBuilder,
    /// Ticks per second of the clock.
    frequency: u64,
    /// By pid and a hash of the name.
    processes: HashMap<(u32, u64), ProcessId>,
    /// By the process, tid and a hash of the name.
    threads: HashMap<(ProcessId, u32, u64), Known>,
    modules: HashMap<ProcessId, ModuleId>,
    functions: HashMap<Function, FunctionId>,
    /// Open calls of threads whose exits have no function.
    open: HashMap<ThreadId, Open>,
    /// Bytes that names may still take.
    names_left: usize,
    /// Events that are no calls.
    others: u64,
    /// Calls without a thread.
    threadless: u64,
    /// Calls without a function: exits without an entry, too.
    unmatched: u64,
    missing_packets: u64,
}

/// Open calls of a thread.
#[derive(Debug, Default)]
struct Open {
    functions: Vec<FunctionId>,
    /// Calls within these that are not remembered.
    deeper: u64,
}

/// The identity of a function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Function {
    /// A number of xrayctl's export.
    Numbered(u64),
    /// An address in a process.
    At(ProcessId, u64),
}

/// A thread of the trace.
#[derive(Debug, Clone, Copy)]
struct Known {
    process: ProcessId,
    thread: ThreadId,
}

/// What an event is.
enum What {
    Call(CallKind),
    Custom,
    Typed,
    Cpu,
    Lost,
    Unwound,
    UnmatchedExit,
}

// === impl Calls ===

impl Calls {
    /// `frequency`: ticks per second of the clock. Without a clock, times are in nanoseconds.
    pub(super) fn new(frequency: Option<u64>) -> io::Result<Self> {
        Ok(Self {
            builder: TraceBuilder::new()?,
            frequency: frequency.unwrap_or(1_000_000_000),
            processes: HashMap::new(),
            threads: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            open: HashMap::new(),
            names_left: MOST_NAMES,
            others: 0,
            threadless: 0,
            unmatched: 0,
            missing_packets: 0,
        })
    }

    /// Adds what is missing of a file.
    pub(super) fn lost(&mut self, losses: Losses) {
        if losses == Losses::default() {
            return;
        }
        self.builder.lost(losses.events);
        self.missing_packets = self.missing_packets.saturating_add(losses.packets);
        // Which entries are missing is unknown.
        self.forget_open();
    }

    /// A name, unless all names together are too long.
    fn named(&mut self, name: &[u8]) -> String {
        match self.names_left.checked_sub(name.len()) {
            Some(left) => {
                self.names_left = left;
                String::from_utf8_lossy(name).into_owned()
            }
            None => String::new(),
        }
    }

    /// Forgets which calls are open, since exits may be missing.
    pub(super) fn forget_open(&mut self) {
        self.open.clear();
    }

    /// Adds an event of the packet with these bytes.
    pub(super) fn add(&mut self, event: &Decoded<'_>, bytes: &[u8]) -> io::Result<()> {
        let Some(what) = meaning(event.name) else {
            self.others += 1;
            return Ok(());
        };
        let fields = &event.fields;
        let Some(known) = self.thread(fields, bytes)? else {
            self.threadless += 1;
            return Ok(());
        };
        let ns = u128::from(event.time) * 1_000_000_000 / u128::from(self.frequency);
        let ns = u64::try_from(ns).unwrap_or(u64::MAX);
        let number = |name| fields.number(name).unwrap_or(0);
        let body = match what {
            What::Call(kind) => {
                let Some(function) = self.function(known, kind, fields)? else {
                    self.unmatched += 1;
                    return Ok(());
                };
                let values = match kind {
                    CallKind::Enter => Values::new(fields.numbers("args").map(low)),
                    CallKind::Exit => fields.number("result").into(),
                    CallKind::TailExit => Values::default(),
                };
                Body::Call {
                    function,
                    kind,
                    values,
                }
            }
            What::Custom | What::Typed => {
                let kind = match fields.get("type") {
                    Some(Value::Named(number, of)) if matches!(what, What::Typed) => {
                        // Several processes may name a type differently.
                        let names = of.names(number).collect::<Vec<_>>().join(" | ");
                        let number = u16::try_from(number).unwrap_or(u16::MAX);
                        let number = self.builder.event_type(known.process, number, &names);
                        DataKind::Typed(number)
                    }
                    Some(Value::Number(number)) if matches!(what, What::Typed) => {
                        DataKind::Typed(u16::try_from(number).unwrap_or(u16::MAX))
                    }
                    _ => DataKind::Custom,
                };
                Body::Data {
                    kind,
                    function: None,
                    size: u32::try_from(number("original_size")).ok(),
                    data: fields
                        .text_behind(bytes, event.own, "data")
                        .unwrap_or_default(),
                }
            }
            What::Cpu => Body::Cpu(u16::try_from(number("cpu")).unwrap_or(u16::MAX)),
            What::Lost => Body::Lost(number("events")),
            What::Unwound => Body::Unwound(number("calls")),
            What::UnmatchedExit => Body::UnmatchedExit,
        };
        self.builder.push(known.thread, ns, body)
    }

    /// The thread of an event.
    fn thread(&mut self, fields: &Fields<'_>, bytes: &[u8]) -> io::Result<Option<Known>> {
        let id = |name| fields.number(name).and_then(|id| u32::try_from(id).ok());
        let tid = id("vtid").or_else(|| id("tid"));
        let pid = id("vpid").or_else(|| id("pid"));
        let Some(tid) = tid else {
            return Ok(None);
        };
        let pid = pid.unwrap_or(tid);
        let name = |name: &str| {
            let text = fields.text(bytes, name).unwrap_or_default();
            let end = text.iter().position(|&byte| byte == 0);
            text.get(..end.unwrap_or(text.len())).unwrap_or_default()
        };
        let (process_name, thread_name) = (name("process"), name("thread"));
        // LTTng calls the name of a thread `procname`.
        let thread_name = match thread_name {
            [] => name("procname"),
            thread_name => thread_name,
        };
        let key = (pid, hash_of(process_name));
        let process = match self.processes.get(&key) {
            Some(known) => *known,
            None => {
                let text = self.named(process_name);
                let id = self.builder.process(pid, &text)?;
                self.processes.insert(key, id);
                id
            }
        };
        let key = (process, tid, hash_of(thread_name));
        if let Some(known) = self.threads.get(&key) {
            return Ok(Some(*known));
        }
        let text = self.named(thread_name);
        let thread = self.builder.thread(process, tid, &text)?;
        let known = Known { process, thread };
        self.threads.insert(key, known);
        Ok(Some(known))
    }

    /// The function of a call. `None` for an exit without one.
    fn function(
        &mut self,
        known: Known,
        kind: CallKind,
        fields: &Fields<'_>,
    ) -> io::Result<Option<FunctionId>> {
        let (function, names) = match (fields.get("function"), fields.number("addr")) {
            (Some(Value::Named(number, of)), _) => (Function::Numbered(low(number)), Some(of)),
            (Some(Value::Number(number)), _) => (Function::Numbered(low(number)), None),
            (_, Some(address)) => (Function::At(known.process, address), None),
            _ if kind == CallKind::Enter => return Ok(None),
            _ => {
                let open = self.open.get_mut(&known.thread);
                return Ok(open.and_then(Open::leave));
            }
        };
        let id = match self.functions.get(&function) {
            Some(known) => *known,
            None => {
                let id = FunctionId(next_id(self.functions.len())?);
                let module = match self.modules.get(&known.process) {
                    Some(known) => *known,
                    None => {
                        let id = self.builder.module(known.process, "")?;
                        self.modules.insert(known.process, id);
                        id
                    }
                };
                let name = match &function {
                    Function::Numbered(number) => {
                        let mut names = names.iter().flat_map(|of| of.names((*number).into()));
                        let name = names.next().map(str::as_bytes).unwrap_or_default();
                        match self.named(name) {
                            name if name.is_empty() => format!("#{number}"),
                            name => name,
                        }
                    }
                    Function::At(_, address) => format!("{address:#x}"),
                };
                self.builder.function(id, module, &name);
                self.functions.insert(function.clone(), id);
                id
            }
        };
        if let Function::At(..) = function {
            let open = self.open.entry(known.thread).or_default();
            match kind {
                CallKind::Enter => open.enter(id),
                CallKind::Exit | CallKind::TailExit => {
                    open.leave();
                }
            }
        }
        Ok(Some(id))
    }

    /// The trace, and the counts of data that was not kept.
    pub(super) fn finish(self, damage: Damage) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
        if self.threads.is_empty() && self.threadless > 0 {
            return Err(OpenError::CtfThreads);
        }
        let (trace, kept) = self.builder.finish()?;
        let mut notes = damage.into_list();
        notes.extend(kept);
        let own = [
            ("events that are no calls", self.others),
            ("calls without the id of their thread", self.threadless),
            ("calls without a function", self.unmatched),
            (
                "packets that are missing, with an unknown number of events",
                self.missing_packets,
            ),
        ];
        let own = own.into_iter().filter(|(_, count)| *count > 0);
        notes.extend(own.map(|(what, count)| (what.to_owned(), count)));
        Ok((trace, notes))
    }
}

// === impl Open ===

impl Open {
    fn enter(&mut self, function: FunctionId) {
        match self.functions.len() < DEEPEST {
            true => self.functions.push(function),
            false => self.deeper += 1,
        }
    }

    /// Ends the innermost call. Returns its function, if it is known.
    fn leave(&mut self) -> Option<FunctionId> {
        match self.deeper.checked_sub(1) {
            Some(deeper) => {
                self.deeper = deeper;
                None
            }
            None => self.functions.pop(),
        }
    }
}

/// The same for the same bytes, within a run.
fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// What the event with this name is.
fn meaning(name: &str) -> Option<What> {
    Some(match name {
        "function_enter" | "function_enter_args" => What::Call(CallKind::Enter),
        "function_exit" | "function_exit_result" => What::Call(CallKind::Exit),
        "function_tail_exit" => What::Call(CallKind::TailExit),
        "lttng_ust_cyg_profile:func_entry" | "lttng_ust_cyg_profile_fast:func_entry" => {
            What::Call(CallKind::Enter)
        }
        "lttng_ust_cyg_profile:func_exit" | "lttng_ust_cyg_profile_fast:func_exit" => {
            What::Call(CallKind::Exit)
        }
        "custom_event" => What::Custom,
        "typed_event" => What::Typed,
        "processor" => What::Cpu,
        "events_lost" => What::Lost,
        "calls_unwound" => What::Unwound,
        "exits_astray" => What::UnmatchedExit,
        _ => return None,
    })
}

/// The low 64 bits.
fn low(number: i128) -> u64 {
    u64::try_from(number & i128::from(u64::MAX)).unwrap_or(0)
}
