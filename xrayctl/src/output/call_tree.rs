//! The call tree of a trace: who called whom, when, for how long.
//!
//! ```text
//!   DURATION     TID  FUNCTION
//!               4711  main() {
//!   1.234 µs    4711    parse();
//!   5.678 ms    4711  } main
//! ```

use std::io;

use serde::Serialize;
use xray_trace::analysis::{Call, Ending, Open, TreeLine};
use xray_trace::model::{ThreadId, Trace};

use super::{Look, Tone, text, units};

/// Calls nested deeper than this are not indented further, so that a runaway recursion stays readable.
const DEEPEST: usize = 60;
const DURATION_WIDTH: usize = 10;

/// A line of the tree, with everything it takes to show it.
#[derive(Debug, Serialize)]
pub(crate) struct TreeRow {
    kind: Kind,
    tid: u32,
    depth: usize,
    /// Since the trace began; absent for a loss.
    start_ns: Option<u64>,
    /// Present where the call's end is known.
    duration_ns: Option<u64>,
    function: Option<String>,
    argument: Option<u64>,
    lost: Option<u64>,
}

/// The tree as far as it is shown.
#[derive(Debug, Serialize)]
pub(crate) struct CallTree {
    /// Lines that were left out after the last one shown.
    left_out: u64,
    lines: Vec<TreeRow>,
}

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
    /// The last that is known of a call whose exit was not seen.
    EndUnfinished,
    /// Events are missing here.
    Lost,
}

// === impl CallTree ===

impl CallTree {
    /// The first `limit` lines, all in memory at once.
    pub(crate) fn new(
        mut lines: impl Iterator<Item = TreeLine>,
        trace: &Trace,
        origin_ns: u64,
        limit: usize,
    ) -> Self {
        let shown = lines.by_ref().take(limit);
        let shown = shown
            .map(|line| TreeRow::new(&line, trace, origin_ns))
            .collect();
        Self {
            lines: shown,
            left_out: lines.map(|_| 1_u64).sum(),
        }
    }
}

/// Writes the first `limit` lines as they come, however many that are.
pub(crate) fn render(
    mut lines: impl Iterator<Item = TreeLine>,
    trace: &Trace,
    limit: usize,
    out: &mut dyn io::Write,
    look: Look,
) -> io::Result<()> {
    let heading = format!("{:>DURATION_WIDTH$}  {:>7}  FUNCTION", "DURATION", "TID");
    writeln!(out, "{}", look.paint(Tone::Heading, &heading))?;
    for line in lines.by_ref().take(limit) {
        TreeRow::new(&line, trace, 0).render(out, look)?;
    }
    let left_out = lines.map(|_| 1_u64).sum();
    if left_out > 0 {
        let more = units::counted(left_out, "more line");
        let line = format!("… {more}; --limit 0 shows everything");
        writeln!(out, "{}", look.paint(Tone::Dim, &line))?;
    }
    Ok(())
}

// === impl TreeRow ===

impl TreeRow {
    fn new(line: &TreeLine, trace: &Trace, origin_ns: u64) -> Self {
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
            TreeLine::Lost {
                thread,
                ticks: _,
                events,
            } => Self {
                kind: Kind::Lost,
                tid: tid(trace, *thread),
                depth: 0,
                start_ns: None,
                duration_ns: None,
                function: None,
                argument: None,
                lost: Some(*events),
            },
        }
    }

    fn of_call(kind: Kind, call: &Call, trace: &Trace, origin_ns: u64) -> Self {
        let duration_ns = (call.how != Ending::Closed).then(|| call.duration_ns());
        Self {
            duration_ns,
            ..Self::of_open(kind, &call.open, trace, origin_ns)
        }
    }

    fn of_open(kind: Kind, open: &Open, trace: &Trace, origin_ns: u64) -> Self {
        Self {
            kind,
            tid: tid(trace, open.thread),
            depth: open.depth,
            start_ns: Some(open.start_ns.saturating_sub(origin_ns)),
            duration_ns: None,
            function: Some(trace.function_name(open.function).into_owned()),
            argument: open.arg,
            lost: None,
        }
    }

    fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let indent = 2 * self.depth.min(DEEPEST);
        let duration = self.duration_ns.map(units::time).unwrap_or_default();
        let width = look.width.map_or(usize::MAX, |width| {
            width
                .saturating_sub(DURATION_WIDTH + 2 + 7 + 2 + indent)
                .max(16)
        });
        let (body, tone) = self.body();
        let body = look.paint(tone, &text::cut(&body, width));
        writeln!(
            out,
            "{duration:>DURATION_WIDTH$}  {:>7}  {:indent$}{body}",
            self.tid, ""
        )
    }

    fn body(&self) -> (String, Tone) {
        let name = text::printable(self.function.as_deref().unwrap_or_default());
        let call = called(&name, self.argument);
        match self.kind {
            Kind::Leaf => (format!("{call};"), Tone::Plain),
            Kind::Begin => (format!("{call} {{"), Tone::Plain),
            Kind::End => (format!("}} {name}"), Tone::Dim),
            Kind::LeafUnfinished => (format!("{call}; // no exit seen"), Tone::Warning),
            Kind::EndUnfinished => (format!("}} {name} // no exit seen"), Tone::Warning),
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

/// A name as it is called. A demangled name brings its parameters along; a plain one gets brackets.
fn called(name: &str, argument: Option<u64>) -> String {
    match argument {
        Some(argument) => format!("{}({argument:#x})", name.split('(').next().unwrap_or(name)),
        None if name.ends_with(')') || name.ends_with(") const") => name.to_owned(),
        None => format!("{name}()"),
    }
}

fn tid(trace: &Trace, thread: ThreadId) -> u32 {
    trace.thread(thread).map_or(0, |thread| thread.tid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_called_with_one_pair_of_brackets() {
        for (name, argument, expected) in [
            ("main", None, "main()"),
            ("ns::f(int)", None, "ns::f(int)"),
            ("ns::f(int) const", None, "ns::f(int) const"),
            (
                "alloc::vec::Vec<T>::push",
                None,
                "alloc::vec::Vec<T>::push()",
            ),
            ("ns::f(int)", Some(255), "ns::f(0xff)"),
            ("main", Some(1), "main(0x1)"),
        ] {
            assert_eq!(called(name, argument), expected);
        }
    }
}
