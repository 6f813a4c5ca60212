//! The open calls of every thread, in the form of a debugger's stacks of all threads.
//!
//! ```text
//! worker-1 (4712): in svc::handle for 2.500 s
//!   #0    2.500 s  svc::handle(0x7)
//!   #1    2.612 s  svc::serve()
//! ```

use std::io;

use serde::Serialize;
use xray_trace::analysis::{Filter, OpenThread};
use xray_trace::model::{Overwritten, Ticks, Trace};

use super::call_tree::called;
use super::{Look, Tone, text, trace_summary, units};

/// Width of the times.
const TIME_WIDTH: usize = 9;

/// The threads that have open calls.
#[derive(Debug, Serialize)]
pub(crate) struct OpenCalls {
    threads: Vec<OpenStack>,
    /// Threads of the trace without a call that is known to be open.
    others: usize,
    /// All threads that may have unknown open calls, because their events were overwritten.
    overwritten: usize,
}

#[derive(Debug, Serialize)]
struct OpenStack {
    pid: Option<u32>,
    tid: u32,
    name: String,
    /// The time between the last event of the thread and the end; 0 if its calls are open at the
    /// end.
    unseen_ns: u64,
    /// The time after the trace's first event from which the thread's events are complete, if
    /// earlier ones were overwritten. Calls that began before may be missing.
    known_since_ns: Option<u64>,
    /// The innermost call first.
    calls: Vec<OpenCall>,
}

#[derive(Debug, Serialize)]
struct OpenCall {
    function: String,
    open_ns: u64,
    /// Time after the begin of the trace; absent if the call began before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    start_ns: Option<u64>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    arguments: Vec<u64>,
}

// === impl OpenCalls ===

impl OpenCalls {
    /// Converts the result of [`xray_trace::analysis::open_calls`].
    pub(crate) fn new(open: &[OpenThread], trace: &Trace, filter: &Filter) -> Self {
        let origin = trace
            .clock()
            .monotonic_ns(trace.begin().unwrap_or(Ticks(0)));
        let until = filter.until.map(|until| trace.clock().monotonic_ns(until));
        let last = trace_summary::span(trace).map_or(0, |(_, last)| last);
        let end = until.unwrap_or(last);
        let since = |overwritten: &Overwritten| {
            let ns = trace.clock().monotonic_ns(overwritten.until);
            ns.saturating_sub(origin)
        };
        let stack = |open: &OpenThread| {
            let thread = trace.thread(open.thread);
            let process = thread.and_then(|thread| trace.process(thread.process));
            let overwritten = trace.coverage().overwritten.iter();
            let mut overwritten = overwritten.filter(|its| its.thread == open.thread);
            OpenStack {
                pid: process.map(|process| process.pid),
                tid: thread.map_or(open.thread.0, |thread| thread.tid),
                name: thread.map(|thread| thread.name.clone()).unwrap_or_default(),
                unseen_ns: end.saturating_sub(open.seen_ns),
                known_since_ns: overwritten.next().map(since),
                calls: open
                    .calls
                    .iter()
                    .rev()
                    .map(|call| OpenCall {
                        function: trace.function_name(call.function).into_owned(),
                        open_ns: open.open_ns(call),
                        start_ns: call.start_ns.checked_sub(origin),
                        arguments: call.args.as_slice().to_vec(),
                    })
                    .collect(),
            }
        };
        let all = trace.blocks_by_thread();
        let wanted = all.keys().filter(|thread| filter.wants_thread(**thread));
        Self {
            threads: open.iter().map(stack).collect(),
            others: wanted.count().saturating_sub(open.len()),
            overwritten: trace.coverage().overwritten.len(),
        }
    }

    /// Writes the stacks as text.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        for (at, stack) in self.threads.iter().enumerate() {
            if at > 0 {
                writeln!(out)?;
            }
            stack.render(out, look)?;
        }
        let mut notes = Vec::new();
        let (no, some) = (
            self.threads.is_empty(),
            units::counted(self.others as u64, "thread"),
        );
        match self.others {
            0 if no => notes.push("no thread has an open call".to_owned()),
            0 => {}
            1 => notes.push("1 thread has no call that is known to be open".to_owned()),
            _ => notes.push(format!("{some} have no call that is known to be open")),
        }
        if self.overwritten > 0 {
            let threads = units::counted(self.overwritten as u64, "thread");
            notes.push(format!(
                "older events of {threads} were overwritten: open calls that began before the oldest event may be missing"
            ));
        }
        if !no && !notes.is_empty() {
            writeln!(out)?;
        }
        let mut notes = notes.iter();
        notes.try_for_each(|note| writeln!(out, "{}", look.paint(Tone::Dim, note)))
    }
}

// === impl OpenStack ===

impl OpenStack {
    fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let name = match text::printable(&self.name) {
            name if name.is_empty() => "thread".to_owned(),
            name => name,
        };
        let innermost = self.calls.first();
        let shown = |call: &OpenCall| text::printable(&look.names.show(&call.function));
        let function = innermost.map_or(String::new(), shown);
        let time = innermost.map_or(0, |call| call.open_ns);
        let at_least = match self.unseen_ns {
            0 => String::new(),
            unseen => format!(
                " or longer: the trace has no events of its last {}",
                units::time(unseen)
            ),
        };
        let head = format!("{name} ({})", self.tid);
        writeln!(
            out,
            "{}: in {function} for {}{at_least}",
            look.paint(Tone::Heading, &head),
            units::time(time),
        )?;
        let room = look.width.map_or(usize::MAX, |width| {
            width.saturating_sub("  #0000  ".len() + TIME_WIDTH + 2)
        });
        for (number, call) in self.calls.iter().enumerate() {
            let called = called(&shown(call), &call.arguments);
            writeln!(
                out,
                "  #{number:<4}{:>TIME_WIDTH$}  {}",
                units::time(call.open_ns),
                look.paint(Tone::Name, &text::cut(&called, room)),
            )?;
        }
        match self.known_since_ns {
            None => Ok(()),
            Some(since) => {
                let line = format!(
                    "  events of the first {} were overwritten: calls that began in that time may be missing",
                    units::time(since)
                );
                writeln!(out, "{}", look.paint(Tone::Dim, &line))
            }
        }
    }
}
