//! The call tree of a trace: callers and callees, with start and duration.
//!
//! ```text
//!   DURATION     TID  FUNCTION
//! server (4711)
//!               4711  main() {
//!   1.234 µs    4711    parse();
//!   2.100 µs    4711    next();  × 29, max 471 ns
//!   5.678 ms    4711  } main
//!
//! worker (4712)
//!     50 ns     4712  work();
//! ```

mod lines;

use std::cell::RefCell;
use std::io;

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};
use xray_trace::analysis::{Call, Ending, Open, TreeLine, UserEvent};
use xray_trace::event_format::EventFormats;
use xray_trace::model::{DataKind, ThreadId, Trace};

use super::event_data::EventData;
use super::folded_lines::{EqualCalls, KnownTime};
use super::{Look, Names, Tone, text, units};

pub(super) use lines::render_heading;
pub(crate) use lines::{FirstLines, Layout, render};

/// Calls nested deeper than this are not indented further, so that a runaway recursion stays
/// readable.
const DEEPEST: usize = 60;
const DURATION_WIDTH: usize = 10;
const TID_WIDTH: usize = 7;
/// Indentation leaves this many characters for the name if the terminal has them.
const NARROWEST: usize = 16;
/// The least part of a name that is worth a line of its own figures.
const SHORTEST: usize = 8;
/// The part of a name that the time without a processor does not cut.
const MUCH_OF_A_NAME: usize = 24;

/// One line of the tree, with all its values.
#[derive(Debug, Serialize)]
pub(crate) struct TreeRow {
    kind: Kind,
    tid: u32,
    depth: usize,
    /// Time since the begin of the trace; absent for a loss.
    start_ns: Option<u64>,
    /// Present if the call's end is known.
    duration_ns: Option<u64>,
    /// For a call without an exit: the time for which it is known to have been open.
    #[serde(skip_serializing_if = "Option::is_none")]
    open_ns: Option<u64>,
    /// The time within an ended call for which its thread had no processor, if it is known.
    #[serde(
        rename = "off_cpu_ns",
        serialize_with = "known_ns",
        skip_serializing_if = "is_unknown"
    )]
    off_cpu: KnownTime,
    function: Option<String>,
    /// The first arguments that were recorded.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    arguments: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<u64>,
    lost: Option<u64>,
    /// What a user event holds.
    #[serde(flatten)]
    event: Option<EventData>,
    /// The calls that a line of text stands for, if they are several. JSON has a row for each.
    #[serde(skip)]
    equal: Option<EqualCalls>,
}

/// The tree up to the limit. Each line is made when it is written, and forgotten then, so any
/// number of lines fits. Serialising the tree consumes it.
#[derive(Debug)]
pub(crate) struct CallTree<'a, L> {
    lines: RefCell<L>,
    trace: ShownTrace<'a>,
    /// The begin of the trace.
    origin_ns: u64,
    /// The number of lines to show.
    limit: usize,
}

/// A trace, and the fields in the data of its user events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShownTrace<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) formats: &'a EventFormats,
}

/// Rows that exist only while they are written.
struct Rows<R>(RefCell<R>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    /// A call that called nothing.
    Leaf,
    /// A call begins.
    Begin,
    /// A call ends.
    End,
    /// A call whose exit was not seen, and that called nothing.
    LeafUnfinished,
    /// The last line of a call whose exit was not seen.
    EndUnfinished,
    /// A custom event of the program.
    CustomEvent,
    /// A typed event of the program, with the number of its type.
    TypedEvent,
    /// An event of a kernel tracepoint.
    KernelEvent,
    /// Events are missing here.
    Lost,
}

// === impl CallTree ===

impl<'a, L> CallTree<'a, L> {
    /// The first `limit` of these lines.
    pub(crate) fn new(lines: L, trace: ShownTrace<'a>, origin_ns: u64, limit: usize) -> Self {
        Self {
            lines: RefCell::new(lines),
            trace,
            origin_ns,
            limit,
        }
    }
}

impl<L: Iterator<Item = TreeLine>> Serialize for CallTree<'_, L> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut lines = self.lines.borrow_mut();
        let shown = lines.by_ref().take(self.limit);
        let rows = shown.map(|line| TreeRow::new(&line, self.trace, self.origin_ns));
        let mut tree = serializer.serialize_struct("CallTree", 2)?;
        tree.serialize_field("lines", &Rows(RefCell::new(rows)))?;
        // Counting them would take as long as showing them.
        tree.serialize_field("more", &lines.next().is_some())?;
        tree.end()
    }
}

// === impl Rows ===

impl<R: Iterator<Item = TreeRow>> Serialize for Rows<R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&mut *self.0.borrow_mut())
    }
}

/// The trace without descriptions of the data of its events.
#[cfg(test)]
pub(super) fn without_formats(trace: &Trace) -> ShownTrace<'_> {
    static NONE: std::sync::LazyLock<EventFormats> =
        std::sync::LazyLock::new(EventFormats::default);
    ShownTrace {
        trace,
        formats: &NONE,
    }
}

/// The name and the id of a thread, and its process if the trace has several.
pub(super) fn thread_header(trace: &Trace, id: ThreadId) -> String {
    let thread = trace.thread(id);
    let name = thread.map(|thread| text::printable(&thread.name));
    let name = name.filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| "thread".to_owned());
    let header = format!("{name} ({})", tid(trace, id));
    let process = thread.and_then(|thread| trace.process(thread.process));
    match process.filter(|_| trace.processes().len() > 1) {
        None => header,
        Some(process) => {
            let program = process.executable.rsplit('/').next();
            let program = program.filter(|program| !program.is_empty());
            match text::printable(program.unwrap_or(&process.command)) {
                program if program.is_empty() => format!("{header} of process {}", process.pid),
                program => format!("{header} of {program} ({})", process.pid),
            }
        }
    }
}

/// The indentation of a name at that depth, where so many characters are left for both. Even a deep
/// call on a narrow terminal shows a part of its name.
pub(super) fn indent(depth: usize, room: usize) -> usize {
    let deepest = room.saturating_sub(NARROWEST).max(room / 2);
    (2 * depth.min(DEEPEST)).min(deepest)
}

// === impl TreeRow ===

impl TreeRow {
    pub(super) fn new(line: &TreeLine, shown: ShownTrace<'_>, origin_ns: u64) -> Self {
        let trace = shown.trace;
        match line {
            TreeLine::Leaf(call) if call.how == Ending::Closed => {
                Self::of_call(Kind::LeafUnfinished, call, trace, origin_ns)
            }
            TreeLine::Leaf(call) => Self::of_call(Kind::Leaf, call, trace, origin_ns),
            TreeLine::End(call) if call.how == Ending::Closed => {
                Self::of_call(Kind::EndUnfinished, call, trace, origin_ns)
            }
            TreeLine::End(call) => Self::of_call(Kind::End, call, trace, origin_ns),
            TreeLine::Begin(open) => Self::of_open(Kind::Begin, open, trace, origin_ns),
            TreeLine::Data { user_event, data } => {
                Self::of_user_event(user_event, data, shown, origin_ns)
            }
            TreeLine::Lost {
                thread,
                ticks: _,
                events,
            } => Self {
                lost: Some(*events),
                ..Self::bare(Kind::Lost, tid(trace, *thread), 0)
            },
        }
    }

    fn bare(kind: Kind, tid: u32, depth: usize) -> Self {
        Self {
            kind,
            tid,
            depth,
            start_ns: None,
            duration_ns: None,
            open_ns: None,
            off_cpu: KnownTime::default(),
            function: None,
            arguments: Vec::new(),
            result: None,
            lost: None,
            event: None,
            equal: None,
        }
    }

    fn of_user_event(
        user_event: &UserEvent,
        data: &[u8],
        shown: ShownTrace<'_>,
        origin_ns: u64,
    ) -> Self {
        let ShownTrace { trace, formats } = shown;
        let kind = match user_event.kind {
            DataKind::Custom => Kind::CustomEvent,
            DataKind::Typed(_) => Kind::TypedEvent,
            DataKind::Kernel(_) => Kind::KernelEvent,
        };
        let of = trace.type_of(user_event.thread, user_event.kind);
        Self {
            // A kernel event may be earlier than the first event of the program.
            start_ns: user_event.ns.checked_sub(origin_ns),
            // Our own traces have the function. Foreign logs do not.
            function: user_event
                .data
                .function()
                .map(|function| trace.function_name(function).into_owned()),
            event: Some(EventData::new(data, user_event.data.size(), of, formats)),
            ..Self::bare(kind, tid(trace, user_event.thread), user_event.depth)
        }
    }

    fn of_call(kind: Kind, call: &Call, trace: &Trace, origin_ns: u64) -> Self {
        let (duration_ns, open_ns) = match call.how {
            Ending::Normal | Ending::TailExit => (Some(call.duration_ns()), None),
            Ending::Closed => (None, Some(call.duration_ns())),
        };
        Self {
            duration_ns,
            open_ns,
            off_cpu: KnownTime::of(call),
            result: call.result,
            ..Self::of_open(kind, &call.open, trace, origin_ns)
        }
    }

    fn of_open(kind: Kind, open: &Open, trace: &Trace, origin_ns: u64) -> Self {
        Self {
            start_ns: Some(open.start_ns.saturating_sub(origin_ns)),
            function: Some(trace.function_name(open.function).into_owned()),
            arguments: open.args.as_slice().to_vec(),
            ..Self::bare(kind, tid(trace, open.thread), open.depth)
        }
    }

    pub(super) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let duration = self.duration_ns.map(units::time).unwrap_or_default();
        let room = look.width.map_or(usize::MAX, |width| {
            width.saturating_sub(DURATION_WIDTH + 2 + TID_WIDTH + 2)
        });
        let indent = indent(self.depth, room);
        let room = room - indent;
        let (body, tone) = self.body(look.names);
        let figures = self.figures();
        let off_cpu = self.off_cpu_figure();
        // The time without a processor gives way first, and then the name. The number of calls
        // stays while it has room.
        let left_by = |figures: &str| room.saturating_sub(figures.chars().count());
        let figures = match figures.clone() + &off_cpu {
            all if left_by(&all) >= SHORTEST.max(body.chars().count().min(MUCH_OF_A_NAME)) => all,
            _ => figures,
        };
        let body = match left_by(&figures) {
            left if left >= SHORTEST => text::cut(&body, left) + &figures,
            _ => text::cut(&(body + &figures), room),
        };
        let body = look.paint(tone, &body);
        writeln!(
            out,
            "{duration:>DURATION_WIDTH$}  {:>TID_WIDTH$}  {:indent$}{body}",
            self.tid, ""
        )
    }

    /// The row of the first of several equal calls, as the row of all of them.
    pub(super) fn standing_for(self, equal: Option<EqualCalls>) -> Self {
        match equal {
            None => self,
            Some(all) => Self {
                duration_ns: Some(all.total_ns),
                off_cpu: all.off_cpu,
                equal,
                ..self
            },
        }
    }

    /// The row with so many levels of indentation less.
    pub(super) fn outdented(self, levels: usize) -> Self {
        Self {
            depth: self.depth.saturating_sub(levels),
            ..self
        }
    }

    /// The number of calls and the longest one, for a line that stands for several.
    fn figures(&self) -> String {
        self.equal.map_or_else(String::new, |equal| {
            let calls = units::count(equal.calls);
            format!("  × {calls}, max {}", units::time(equal.longest_ns))
        })
    }

    /// The time without a processor, if there was any.
    fn off_cpu_figure(&self) -> String {
        let KnownTime { ns, is_whole } = self.off_cpu;
        match ns {
            0 => String::new(),
            _ => format!(
                "  {}{} off-CPU",
                if is_whole { "" } else { "≥" },
                units::time(ns)
            ),
        }
    }

    fn unfinished(&self) -> String {
        match self.open_ns {
            None | Some(0) => "// no exit seen".to_owned(),
            Some(open) => format!("// no exit seen, open for {} at least", units::time(open)),
        }
    }

    fn body(&self, names: Names) -> (String, Tone) {
        let name = self.function.as_deref().unwrap_or_default();
        let name = text::printable(&names.show(name));
        let call = called(&name, &self.arguments);
        let result = self.result.map(|result| format!(" = {result:#x}"));
        let result = result.unwrap_or_default();
        match self.kind {
            Kind::Leaf => (format!("{call}{result};"), Tone::Plain),
            Kind::Begin => (format!("{call} {{"), Tone::Plain),
            Kind::End => (format!("}} {name}{result}"), Tone::Dim),
            Kind::LeafUnfinished => (format!("{call}; {}", self.unfinished()), Tone::Warning),
            Kind::EndUnfinished => (format!("}} {name} {}", self.unfinished()), Tone::Warning),
            Kind::CustomEvent | Kind::TypedEvent | Kind::KernelEvent => {
                let line = self.event.as_ref().map(EventData::line);
                (line.unwrap_or_default(), Tone::Dim)
            }
            Kind::Lost => match self.lost {
                None | Some(0) => ("// events are missing here".to_owned(), Tone::Bad),
                Some(1) => ("// 1 event is missing here".to_owned(), Tone::Bad),
                Some(lost) => (
                    format!("// {} events are missing here", units::count(lost)),
                    Tone::Bad,
                ),
            },
        }
    }
}

/// Serialises a time that is known.
fn known_ns<S: Serializer>(time: &KnownTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.ns)
}

fn is_unknown(time: &KnownTime) -> bool {
    !time.is_whole
}

/// The name of a call. A demangled name has its parameters already; a plain name gets brackets.
pub(super) fn called(name: &str, arguments: &[u64]) -> String {
    match arguments {
        [] if name.ends_with(')') || name.ends_with(") const") => name.to_owned(),
        [] => format!("{name}()"),
        _ => {
            let arguments: Vec<_> = arguments
                .iter()
                .map(|value| format!("{value:#x}"))
                .collect();
            let name = name.split('(').next().unwrap_or(name);
            format!("{name}({})", arguments.join(", "))
        }
    }
}

fn tid(trace: &Trace, thread: ThreadId) -> u32 {
    trace.thread(thread).map_or(0, |thread| thread.tid)
}

#[cfg(test)]
mod tests;
