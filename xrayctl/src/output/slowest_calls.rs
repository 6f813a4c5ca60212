//! The slowest calls of a trace, each with the lines of its tree.
//!
//! ```text
//! Slowest calls
//!   DURATION      TID  FUNCTION
//! worker (4712), 1.5 s after the begin, 12.00 ms
//!                4712  handle() {
//!   11.90 ms     4712    hash();
//!   12.00 ms     4712  } handle
//! … 3 calls shorter than 120.0 µs or more than 8 levels deep
//! ```

use std::io;

use serde::{Serialize, Serializer};
use xray_trace::analysis::{Call, LeastTimes, SlowCall, SlowCallLines, SlowestOptions};
use xray_trace::model::OffCpu;

use super::call_tree::{self, ShownTrace, TreeRow};
use super::folded_lines::{FoldedLine, FoldedLines, Folding};
use super::{Look, Tone, text, units};

/// The most lines of one call.
const MOST_LINES: usize = 20;
/// The most levels of one call, the call itself included.
const MOST_LEVELS: usize = 8;
/// A call within a slow one has a line if it takes one in so many parts of its time.
const SHORTEST_PART: u64 = 100;

/// The calls, the slowest first. The rows of a call are made when they are written.
#[derive(Debug)]
pub(crate) struct SlowestCalls<'a> {
    calls: Vec<SlowCall>,
    shown: ShownTrace<'a>,
    /// The begin of the trace.
    origin_ns: u64,
}

/// A slow call in JSON.
#[derive(Debug, Serialize)]
struct SlowCallRow {
    pid: Option<u32>,
    tid: u32,
    thread: String,
    function: String,
    /// Time since the begin of the trace.
    start_ns: u64,
    duration_ns: u64,
    /// The time without a processor, and the part of it in which the thread could have gone on;
    /// absent if the trace does not show them.
    #[serde(skip_serializing_if = "Option::is_none")]
    off_cpu_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ready_ns: Option<u64>,
    /// The first lines of its tree.
    lines: Vec<TreeRow>,
    /// Lines behind them.
    lines_left_out: u64,
    /// Calls without a line, because they are too short or too deep.
    calls_left_out: u64,
}

/// The time without a processor, for the end of a heading.
fn off_cpu(off: OffCpu) -> String {
    let OffCpu {
        total_ns, ready_ns, ..
    } = off;
    match (total_ns, ready_ns) {
        (0, _) => String::new(),
        (total, 0) => format!(", {} of it without a processor", units::time(total)),
        (total, ready) => format!(
            ", {} of it without a processor ({} ready to run)",
            units::time(total),
            units::time(ready)
        ),
    }
}

/// The options of an analysis for the `most` slowest calls that took at least these times.
pub(crate) fn options(most: usize, least: LeastTimes) -> SlowestOptions {
    SlowestOptions {
        most,
        least,
        lines: SlowCallLines {
            levels: MOST_LEVELS,
            parts: SHORTEST_PART,
            user_events: MOST_LINES as u64,
        },
    }
}

// === impl SlowestCalls ===

impl<'a> SlowestCalls<'a> {
    /// The calls that an analysis with [`options`] found.
    pub(crate) fn new(calls: Vec<SlowCall>, shown: ShownTrace<'a>, origin_ns: u64) -> Self {
        Self {
            calls,
            shown,
            origin_ns,
        }
    }

    /// True if there is nothing to show.
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Writes the calls as text.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        writeln!(out, "{}", look.paint(Tone::Heading, "Slowest calls"))?;
        call_tree::render_heading(out, look)?;
        for (at, call) in self.calls.iter().enumerate() {
            if at > 0 {
                writeln!(out)?;
            }
            self.render_call(call, out, look)?;
        }
        Ok(())
    }

    fn render_call(
        &self,
        slow_call: &SlowCall,
        out: &mut dyn io::Write,
        look: Look,
    ) -> io::Result<()> {
        let SlowCall {
            call,
            lines,
            shortest_ns,
            hidden_calls,
            hidden_user_events,
        } = slow_call;
        let cut = |line: &str| text::cut(line, look.width.unwrap_or(usize::MAX));
        let header = format!(
            "{}, {} after the begin, {}{}",
            call_tree::thread_header(self.shown.trace, call.open.thread),
            units::exact_time(self.start_ns(call)),
            units::time(call.duration_ns()),
            call.off_cpu.map(off_cpu).unwrap_or_default()
        );
        writeln!(out, "{}", look.paint(Tone::Heading, &cut(&header)))?;
        let mut lines = FoldedLines::new(lines.iter().cloned(), Folding::EqualCalls);
        for FoldedLine { line, equal } in lines.by_ref().take(MOST_LINES) {
            let row = TreeRow::new(&line, self.shown, 0).standing_for(equal);
            row.outdented(call.open.depth).render(out, look)?;
        }
        let lines_left_out = lines.count() as u64 + hidden_user_events;
        let mut left_out = Vec::new();
        if lines_left_out > 0 {
            left_out.push(units::counted(lines_left_out, "more line"));
        }
        if *hidden_calls > 0 {
            let calls = units::counted(*hidden_calls, "call");
            let shortest = units::time(*shortest_ns);
            left_out.push(format!(
                "{calls} shorter than {shortest} or more than {MOST_LEVELS} levels deep"
            ));
        }
        if left_out.is_empty() {
            return Ok(());
        }
        let line = cut(&format!("… {}", left_out.join(", ")));
        writeln!(out, "{}", look.paint(Tone::Dim, &line))
    }

    fn row(&self, slow_call: &SlowCall) -> SlowCallRow {
        let SlowCall {
            call,
            lines,
            shortest_ns: _,
            hidden_calls,
            hidden_user_events,
        } = slow_call;
        let (lines, others) = lines.split_at(lines.len().min(MOST_LINES));
        let lines = lines.iter();
        let lines = lines.map(|line| TreeRow::new(line, self.shown, self.origin_ns));
        let thread = self.shown.trace.thread(call.open.thread);
        let process = thread.and_then(|thread| self.shown.trace.process(thread.process));
        SlowCallRow {
            pid: process.map(|process| process.pid),
            tid: thread.map_or(0, |thread| thread.tid),
            thread: thread.map(|thread| thread.name.clone()).unwrap_or_default(),
            function: self
                .shown
                .trace
                .function_name(call.open.function)
                .into_owned(),
            start_ns: self.start_ns(call),
            duration_ns: call.duration_ns(),
            off_cpu_ns: call.off_cpu.map(|off| off.total_ns),
            ready_ns: call.off_cpu.map(|off| off.ready_ns),
            lines: lines.collect(),
            lines_left_out: others.len() as u64 + hidden_user_events,
            calls_left_out: *hidden_calls,
        }
    }

    fn start_ns(&self, call: &Call) -> u64 {
        call.open.start_ns.saturating_sub(self.origin_ns)
    }
}

impl Serialize for SlowestCalls<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.calls.iter().map(|call| self.row(call)))
    }
}

#[cfg(test)]
mod tests {
    use xray_trace::analysis::{Filter, OnePass, OnePassOptions, Order, Shown, TableOption};
    use xray_trace::container::{BlockEncoder, Writer};
    use xray_trace::model::{
        CallKind, FunctionId, Process, ProcessId, Thread, ThreadId, Ticks, Trace,
    };

    use super::super::call_tree::without_formats;
    use super::super::golden;
    use super::*;

    /// One slow call with more calls than there are lines, very short calls, and a deep recursion.
    fn trace() -> Trace {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let process = Process {
            id: ProcessId(0),
            pid: 71,
            start_time_ticks: 0,
            command: "server".into(),
            executable: "/usr/bin/server".into(),
            host: None,
        };
        writer.add(&process).unwrap();
        let thread = Thread {
            id: ThreadId(0),
            process: ProcessId(0),
            tid: 72,
            name: "worker".into(),
        };
        writer.add(&thread).unwrap();
        let mut block = BlockEncoder::new(ThreadId(0));
        let mut at = 1000;
        let mut push = |after, function, kind| {
            at += after;
            block.push_call(Ticks(at), FunctionId(function), kind, None);
        };
        push(0, 9, CallKind::Enter);
        push(200, 9, CallKind::Exit);
        push(300, 0, CallKind::Enter);
        for function in [1, 1, 1, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3] {
            push(10, function, CallKind::Enter);
            push(500, function, CallKind::Exit);
            push(0, 4, CallKind::Enter);
            push(1, 4, CallKind::Exit);
        }
        for _ in 0..10 {
            push(5, 5, CallKind::Enter);
        }
        for _ in 0..10 {
            push(400, 5, CallKind::Exit);
        }
        push(5, 0, CallKind::Exit);
        writer.block(&block.finish().unwrap()).unwrap();
        Trace::read(writer.get_ref().as_slice()).unwrap()
    }

    #[test]
    fn a_slow_call_has_bounded_lines_and_says_what_it_leaves_out() {
        let trace = trace();
        let slowest = |min_ns, most| {
            let wanted = OnePassOptions {
                table: TableOption::NotesOnly,
                slowest: Some(options(most, LeastTimes::of_duration(min_ns))),
                shown: Shown::default(),
                order: Order::ByThread,
            };
            let filter = Filter::default();
            let calls = OnePass::new(&trace, &filter, wanted).finish().slowest;
            SlowestCalls::new(calls, without_formats(&trace), 1000)
        };
        golden::check("slowest.txt", |out| slowest(0, 2).render(out, Look::PLAIN));
        golden::check_narrow("slowest-narrow.txt", |out, look| {
            slowest(0, 1).render(out, look)
        });
        let json = serde_json::to_value(slowest(0, 1)).unwrap();
        let call = &json[0];
        assert_eq!(call["lines"].as_array().unwrap().len(), MOST_LINES);
        assert_eq!(call["start_ns"], 500);
        // 17 short calls, and three calls of the recursion.
        assert_eq!(call["calls_left_out"], 20, "{call}");
        assert!(slowest(1_000_000, 9).is_empty());
    }
}
