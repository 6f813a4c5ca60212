//! The meaning of events: calls and user events of xrayctl's export, and calls of LTTng.

use std::collections::HashMap;
use std::io;

use super::decode::{Fields, Value};
use super::stream::Decoded;
use crate::model::{CallKind, DataKind, FunctionId, ModuleId, ProcessId, ThreadId, Trace, Values};
use crate::source::OpenError;
use crate::source::builder::{Body, TraceBuilder};
use crate::source::damage::Damage;
use crate::source::ids::next_id;

/// The most open calls of a thread whose functions are remembered.
const DEEPEST: usize = 1 << 16;

/// Adds events to a trace.
#[derive(Debug)]
pub(super) struct Calls {
    builder: TraceBuilder,
    /// Ticks per second of the clock.
    frequency: u64,
    /// By pid and name.
    processes: HashMap<(u32, Vec<u8>), ProcessId>,
    threads: HashMap<(ProcessId, u32, Vec<u8>), Known>,
    modules: HashMap<ProcessId, ModuleId>,
    functions: HashMap<Function, FunctionId>,
    /// Open calls of threads whose exits have no function.
    open: HashMap<ThreadId, Vec<FunctionId>>,
    /// Events that are no calls.
    others: u64,
    /// Calls without a thread.
    threadless: u64,
    /// Exits without a function and without an entry.
    unmatched: u64,
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
    pub(super) fn new(frequency: u64) -> io::Result<Self> {
        Ok(Self {
            builder: TraceBuilder::new()?,
            frequency,
            processes: HashMap::new(),
            threads: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            open: HashMap::new(),
            others: 0,
            threadless: 0,
            unmatched: 0,
        })
    }

    /// Adds an event.
    pub(super) fn add(&mut self, event: &Decoded<'_>) -> io::Result<()> {
        let Some(what) = meaning(event.name) else {
            self.others += 1;
            return Ok(());
        };
        let fields = &event.fields;
        let Some(known) = self.thread(fields)? else {
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
                    data: fields.text("data").unwrap_or_default(),
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
    fn thread(&mut self, fields: &Fields<'_>) -> io::Result<Option<Known>> {
        let id = |name| fields.number(name).and_then(|id| u32::try_from(id).ok());
        let tid = id("vtid").or_else(|| id("tid"));
        let pid = id("vpid").or_else(|| id("pid"));
        let Some(tid) = tid else {
            return Ok(None);
        };
        let pid = pid.unwrap_or(tid);
        let name = |name: &str| {
            let text = fields.text(name).unwrap_or_default();
            let end = text.iter().position(|&byte| byte == 0);
            text.get(..end.unwrap_or(text.len())).unwrap_or_default()
        };
        let (process_name, thread_name) = (name("process"), name("thread"));
        // LTTng's name of the process is that of its thread.
        let thread_name = match thread_name {
            [] => name("procname"),
            thread_name => thread_name,
        };
        let process = match self.processes.get(&(pid, process_name.to_vec())) {
            Some(known) => *known,
            None => {
                let text = String::from_utf8_lossy(process_name);
                let id = self.builder.process(pid, &text)?;
                self.processes.insert((pid, process_name.to_vec()), id);
                id
            }
        };
        let key = (process, tid, thread_name.to_vec());
        if let Some(known) = self.threads.get(&key) {
            return Ok(Some(*known));
        }
        let text = String::from_utf8_lossy(thread_name);
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
            _ => {
                let open = self.open.get_mut(&known.thread);
                return Ok(open.and_then(Vec::pop));
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
                        let name = names.next().map(str::to_owned);
                        name.unwrap_or_else(|| format!("#{number}"))
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
                CallKind::Enter if open.len() < DEEPEST => open.push(id),
                CallKind::Enter => {}
                CallKind::Exit | CallKind::TailExit => {
                    open.pop();
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
            ("exits without a function", self.unmatched),
        ];
        let own = own.into_iter().filter(|(_, count)| *count > 0);
        notes.extend(own.map(|(what, count)| (what.to_owned(), count)));
        Ok((trace, notes))
    }
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
