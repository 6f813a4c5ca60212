//! Lines of a tree, with equal calls in a row folded into one line.
//!
//! ```text
//!  next();          ┐
//!  next();          ├─► next();  × 3
//!  next();          ┘
//!  parse() {        ──► parse() {
//! ```
//!
//! Only one line is held at a time, so any number of lines fits. The order stays as it is.

use xray_trace::analysis::{Call, Ending, TreeLine};

/// The treatment of equal calls in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Folding {
    /// Each call has its line.
    None,
    /// Finished calls that called nothing are one line if they have the same thread, depth,
    /// function, arguments and result.
    EqualCalls,
}

/// The calls of a line that stands for several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EqualCalls {
    pub(super) calls: u64,
    pub(super) total_ns: u64,
    pub(super) longest_ns: u64,
    /// The known time for which their thread had no processor.
    pub(super) off_cpu: KnownTime,
}

/// A time for which the thread of calls had no processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct KnownTime {
    pub(super) ns: u64,
    /// True if it is known of all of the calls.
    pub(super) is_whole: bool,
}

/// A line, and the calls that it stands for if they are several. The line is that of the first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoldedLine {
    pub(super) line: TreeLine,
    pub(super) equal: Option<EqualCalls>,
}

/// The folded lines.
#[derive(Debug)]
pub(super) struct FoldedLines<L> {
    lines: L,
    folding: Folding,
    /// The line after the newest folded one, if it was read already.
    held: Option<TreeLine>,
}

// === impl EqualCalls ===

impl EqualCalls {
    fn of(call: &Call) -> Self {
        let ns = call.duration_ns();
        Self {
            calls: 1,
            total_ns: ns,
            longest_ns: ns,
            off_cpu: KnownTime::of(call),
        }
    }

    fn add(&mut self, call: &Call) {
        let ns = call.duration_ns();
        self.calls = self.calls.saturating_add(1);
        self.total_ns = self.total_ns.saturating_add(ns);
        self.longest_ns = self.longest_ns.max(ns);
        let KnownTime { ns, is_whole } = KnownTime::of(call);
        self.off_cpu.ns = self.off_cpu.ns.saturating_add(ns);
        self.off_cpu.is_whole &= is_whole;
    }
}

// === impl KnownTime ===

impl KnownTime {
    /// The time without a processor of a call. Of a call without an exit, none is known.
    pub(super) fn of(call: &Call) -> Self {
        match call.off_cpu {
            Some(off) if call.how != Ending::Closed => Self {
                ns: off.total_ns,
                is_whole: true,
            },
            Some(_) | None => Self::default(),
        }
    }
}

// === impl FoldedLines ===

impl<L: Iterator<Item = TreeLine>> FoldedLines<L> {
    pub(super) fn new(lines: L, folding: Folding) -> Self {
        Self {
            lines,
            folding,
            held: None,
        }
    }

    /// Whether lines are left. It reads at most one line.
    pub(super) fn has_more(&mut self) -> bool {
        if self.held.is_none() {
            self.held = self.lines.next();
        }
        self.held.is_some()
    }
}

impl<L: Iterator<Item = TreeLine>> Iterator for FoldedLines<L> {
    type Item = FoldedLine;

    fn next(&mut self) -> Option<FoldedLine> {
        let line = self.held.take().or_else(|| self.lines.next())?;
        let TreeLine::Leaf(first) = &line else {
            return Some(FoldedLine { line, equal: None });
        };
        let mut equal = EqualCalls::of(first);
        while self.folding == Folding::EqualCalls {
            match self.lines.next() {
                Some(TreeLine::Leaf(call)) if are_equal(first, &call) => equal.add(&call),
                other => {
                    self.held = other;
                    break;
                }
            }
        }
        let equal = (equal.calls > 1).then_some(equal);
        Some(FoldedLine { line, equal })
    }
}

/// Whether two calls differ in nothing but their times. A call without an exit is never equal to
/// another, because its line says so.
fn are_equal(one: &Call, other: &Call) -> bool {
    let is_finished = |call: &Call| call.how != Ending::Closed;
    is_finished(one)
        && is_finished(other)
        && one.open.thread == other.open.thread
        && one.open.depth == other.open.depth
        && one.open.function == other.open.function
        && one.open.args == other.open.args
        && one.result == other.result
}

#[cfg(test)]
pub(super) mod tests {
    use xray_trace::analysis::Open;
    use xray_trace::model::{FunctionId, OffCpu, ThreadId, Ticks, Values};

    use super::*;

    /// A call of a function on thread 0, at depth 1.
    pub(in crate::output) fn call(function: u32, start_ns: u64, duration_ns: u64) -> Call {
        let end_ns = start_ns + duration_ns;
        Call {
            open: Open {
                thread: ThreadId(0),
                function: FunctionId(function),
                depth: 1,
                nesting: 0,
                start: Ticks(start_ns),
                start_ns,
                args: Values::NONE,
            },
            end: Ticks(end_ns),
            end_ns,
            off_cpu: None,
            self_ns: duration_ns,
            how: Ending::Normal,
            result: None,
        }
    }

    fn folded(folding: Folding, lines: Vec<TreeLine>) -> Vec<(u64, u64, u64)> {
        let lines = FoldedLines::new(lines.into_iter(), folding);
        let equal = lines.map(|folded| match folded.equal {
            None => (1, 0, 0),
            Some(equal) => (equal.calls, equal.total_ns, equal.longest_ns),
        });
        equal.collect()
    }

    #[test]
    fn equal_calls_in_a_row_are_one_line() {
        let lines = || {
            let [a, b] = [call(1, 0, 10), call(2, 0, 10)];
            vec![
                TreeLine::Begin(a.open),
                TreeLine::Leaf(call(2, 1, 5)),
                TreeLine::Leaf(call(2, 7, 9)),
                TreeLine::Leaf(call(2, 20, 1)),
                TreeLine::Leaf(call(1, 30, 1)),
                TreeLine::Leaf(b),
                TreeLine::End(a),
                TreeLine::Leaf(call(2, 50, 3)),
                TreeLine::Leaf(call(2, 60, 4)),
            ]
        };
        let one = (1, 0, 0);
        assert_eq!(
            folded(Folding::EqualCalls, lines()),
            [one, (3, 15, 9), one, one, one, (2, 7, 4)]
        );
        assert_eq!(folded(Folding::None, lines()), [one; 9]);
        assert_eq!(folded(Folding::EqualCalls, Vec::new()), []);
    }

    /// The time without a processor is the sum of the calls of which it is known.
    #[test]
    fn equal_calls_have_the_known_time_without_a_processor() {
        let off = |total_ns| {
            Some(OffCpu {
                total_ns,
                ..OffCpu::default()
            })
        };
        let known = |times: [Option<OffCpu>; 3]| {
            let calls = times.map(|off_cpu| {
                TreeLine::Leaf(Call {
                    off_cpu,
                    ..call(1, 0, 10)
                })
            });
            let mut lines = FoldedLines::new(calls.into_iter(), Folding::EqualCalls);
            lines.next().unwrap().equal.unwrap().off_cpu
        };
        let whole = |ns| KnownTime { ns, is_whole: true };
        let part = |ns| KnownTime {
            ns,
            is_whole: false,
        };
        assert_eq!(known([off(3), off(0), off(4)]), whole(7));
        assert_eq!(known([off(3), None, off(4)]), part(7));
        assert_eq!(known([None, off(0), None]), part(0));
    }

    #[test]
    fn calls_that_differ_are_not_folded() {
        let first = call(1, 0, 10);
        let other = |change: fn(&mut Call)| {
            let mut call = first;
            change(&mut call);
            call
        };
        for changed in [
            other(|call| call.open.thread = ThreadId(1)),
            other(|call| call.open.depth = 2),
            other(|call| call.open.function = FunctionId(2)),
            other(|call| call.open.args = Values::new([7])),
            other(|call| call.result = Some(0)),
            other(|call| call.how = Ending::Closed),
        ] {
            let lines = [first, changed].map(TreeLine::Leaf);
            assert_eq!(folded(Folding::EqualCalls, lines.into()).len(), 2);
        }
        let unfinished = other(|call| call.how = Ending::Closed);
        let lines = [unfinished, unfinished].map(TreeLine::Leaf);
        assert_eq!(folded(Folding::EqualCalls, lines.into()).len(), 2);
        let tail = other(|call| call.how = Ending::TailExit);
        let lines = [first, tail].map(TreeLine::Leaf);
        assert_eq!(folded(Folding::EqualCalls, lines.into()).len(), 1);
    }

    #[test]
    fn a_line_that_was_read_ahead_is_not_lost() {
        let lines = [call(1, 0, 1), call(1, 2, 1), call(2, 4, 1)].map(TreeLine::Leaf);
        let mut lines = FoldedLines::new(lines.into_iter(), Folding::EqualCalls);
        assert!(lines.has_more() && lines.has_more());
        assert_eq!(lines.next().unwrap().equal.unwrap().calls, 2);
        assert!(lines.has_more());
        assert!(lines.next().is_some());
        assert!(!lines.has_more());
        assert_eq!(lines.next(), None);
    }
}
