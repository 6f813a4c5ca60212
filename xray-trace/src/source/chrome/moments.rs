//! The moments of a thread: begins and ends of calls, and events. Puts them in order, and nests the
//! calls.
//!
//! The ends of complete events are put where they belong. A call that ends after its caller ends
//! with the caller.

use std::io;

use crate::model::{CallKind, DataKind, FunctionId, ThreadId, Values};
use crate::source::builder::{Body, TraceBuilder};

/// A moment of a thread.
#[derive(Debug)]
pub(super) struct Moment {
    pub(super) ns: u64,
    pub(super) what: What,
}

/// The kind of a moment, with its data.
#[derive(Debug)]
pub(super) enum What {
    /// A call begins.
    Begin(FunctionId, Option<Box<Values>>),
    /// The innermost call that has begun ends.
    End(How, Option<u64>),
    /// A call begins, and ends after this number of nanoseconds.
    Complete(FunctionId, u64, Option<Box<Values>>),
    /// A custom or typed event.
    Data(Box<UserEvent>),
    /// This number of events is missing.
    Lost(u64),
}

/// The way in which a call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Exit,
    TailExit,
    /// Without an exit.
    Unwound,
}

/// A custom or typed event.
#[derive(Debug)]
pub(super) struct UserEvent {
    pub(super) kind: DataKind,
    pub(super) size: Option<u32>,
    pub(super) data: Box<[u8]>,
}

/// Counts of ends that have no place.
#[derive(Debug, Default)]
pub(super) struct Misplaced {
    /// Ends of calls without a begin.
    pub(super) ends: u64,
    /// Calls that end after their callers.
    pub(super) late: u64,
}

/// A step of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    ns: u64,
    /// The order of steps at the same time.
    rank: Rank,
    /// The order within the rank.
    key: u64,
    /// The index of the moment.
    moment: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The end of a complete event, the inner ones first.
    CompleteEnd,
    /// Anything in the order of the file.
    InOrder,
    /// The begin of a complete event, the longer ones first.
    CompleteBegin,
}

/// A call that a thread is in, or whose end is still to come.
#[derive(Debug, Clone, Copy)]
enum Open {
    /// A call that a moment of its own ends.
    Begun(FunctionId),
    /// A complete event, with its moment.
    Complete(FunctionId, usize),
    /// This number of calls that ended with their callers, before their own ends. 0 after
    /// the last of these ends.
    Ended(usize),
}

/// The open calls of a thread.
#[derive(Debug)]
struct Calls<'a> {
    builder: &'a mut TraceBuilder,
    thread: ThreadId,
    misplaced: &'a mut Misplaced,
    /// The innermost call is last.
    open: Vec<Open>,
    /// The indexes in `open` of all [`Open::Begun`], and of each [`Open::Ended`] with a count above
    /// 0.
    begun_at: Vec<usize>,
    /// The complete events that ended with their callers, by moment.
    cut: Vec<bool>,
}

/// Adds the moments of a thread to a trace.
pub(super) fn add(
    builder: &mut TraceBuilder,
    thread: ThreadId,
    moments: &[Moment],
    misplaced: &mut Misplaced,
) -> io::Result<()> {
    let mut calls = Calls {
        builder,
        thread,
        misplaced,
        open: Vec::new(),
        begun_at: Vec::new(),
        cut: vec![false; moments.len()],
    };
    for step in steps(moments) {
        let Some(moment) = moments.get(step.moment) else {
            continue;
        };
        match &moment.what {
            What::Begin(function, values) => {
                let open = Open::Begun(*function);
                calls.begun_at.push(calls.open.len());
                calls.begin(step.ns, *function, values.as_deref(), open)?;
            }
            What::End(how, result) => calls.end(step.ns, *how, *result)?,
            What::Complete(function, duration, values) => {
                if step.rank == Rank::CompleteEnd {
                    calls.end_complete(step.ns, step.moment)?;
                } else {
                    let open = Open::Complete(*function, step.moment);
                    calls.begin(step.ns, *function, values.as_deref(), open)?;
                    if end_of(moment.ns, *duration) == moment.ns {
                        calls.end_complete(step.ns, step.moment)?;
                    }
                }
            }
            What::Data(event) => {
                let UserEvent { kind, size, data } = &**event;
                let body = Body::Data {
                    kind: *kind,
                    function: None,
                    size: *size,
                    data,
                };
                calls.push(step.ns, body)?;
            }
            What::Lost(events) => calls.push(step.ns, Body::Lost(*events))?,
        }
    }
    Ok(())
}

/// The steps of a thread in order.
fn steps(moments: &[Moment]) -> Vec<Step> {
    let mut steps = Vec::with_capacity(moments.len());
    for (index, moment) in moments.iter().enumerate() {
        let step = |ns, rank, key| Step {
            ns,
            rank,
            key,
            moment: index,
        };
        match moment.what {
            What::Complete(_, duration, _) => {
                steps.push(step(moment.ns, Rank::CompleteBegin, u64::MAX - duration));
                let end = end_of(moment.ns, duration);
                if end > moment.ns {
                    steps.push(step(end, Rank::CompleteEnd, u64::MAX - moment.ns));
                }
            }
            _ => steps.push(step(moment.ns, Rank::InOrder, index as u64)),
        }
    }
    steps.sort_unstable_by(|one, other| {
        let by_rank = one.cmp(other);
        // Of calls with the same begin and the same end, the later event of the file is inside.
        match (
            one.rank,
            (one.ns, one.rank, one.key) == (other.ns, other.rank, other.key),
        ) {
            (Rank::CompleteEnd, true) => by_rank.reverse(),
            _ => by_rank,
        }
    });
    steps
}

/// The end of a complete event.
fn end_of(ns: u64, duration_ns: u64) -> u64 {
    ns.saturating_add(duration_ns)
}

// === impl Calls ===

impl Calls<'_> {
    fn push(&mut self, ns: u64, body: Body<'_>) -> io::Result<()> {
        self.builder.push(self.thread, ns, body)
    }

    fn begin(
        &mut self,
        ns: u64,
        function: FunctionId,
        values: Option<&Values>,
        open: Open,
    ) -> io::Result<()> {
        self.open.push(open);
        let body = Body::Call {
            function,
            kind: CallKind::Enter,
            values: values.copied().unwrap_or_default(),
        };
        self.push(ns, body)
    }

    /// Ends the innermost call that is no complete event. If that call has ended with its caller,
    /// the end has no effect on other calls.
    fn end(&mut self, ns: u64, how: How, result: Option<u64>) -> io::Result<()> {
        let Some(index) = self.begun_at.last() else {
            self.misplaced.ends += 1;
            return Ok(());
        };
        if let Some(Open::Ended(count)) = self.open.get_mut(*index) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.begun_at.pop();
            }
            return Ok(());
        }
        while let Some(open) = self.pop() {
            let function = match open {
                Open::Begun(function) => function,
                Open::Complete(function, moment) => {
                    self.cut(moment);
                    self.push(ns, exit(function))?;
                    continue;
                }
                Open::Ended(_) => continue,
            };
            let kind = match how {
                How::Exit => CallKind::Exit,
                How::TailExit => CallKind::TailExit,
                How::Unwound => return self.push(ns, Body::Unwound(1)),
            };
            let values = result.into();
            let body = Body::Call {
                function,
                kind,
                values,
            };
            return self.push(ns, body);
        }
        Ok(())
    }

    /// Ends a complete event, with the calls in it.
    fn end_complete(&mut self, ns: u64, moment: usize) -> io::Result<()> {
        if self.cut.get(moment).copied().unwrap_or(true) {
            return Ok(());
        }
        let mut ended = 0;
        while let Some(open) = self.pop() {
            match open {
                Open::Begun(function) => {
                    ended += 1;
                    self.misplaced.late += 1;
                    self.push(ns, exit(function))?;
                }
                Open::Complete(function, inner) => {
                    self.push(ns, exit(function))?;
                    if inner == moment {
                        break;
                    }
                    self.cut(inner);
                }
                Open::Ended(count) => ended += count,
            }
        }
        if ended > 0 {
            self.expect_ends(ended);
        }
        Ok(())
    }

    /// Adds calls that have ended, but whose own ends come later. One entry for all keeps the work
    /// for each end small.
    fn expect_ends(&mut self, ended: usize) {
        let len = self.open.len();
        match self.open.last_mut() {
            Some(Open::Ended(count)) => {
                if *count == 0 {
                    self.begun_at.push(len - 1);
                }
                *count += ended;
            }
            _ => {
                self.begun_at.push(len);
                self.open.push(Open::Ended(ended));
            }
        }
    }

    /// Takes the innermost entry.
    fn pop(&mut self) -> Option<Open> {
        let open = self.open.pop()?;
        self.begun_at.pop_if(|index| *index == self.open.len());
        Some(open)
    }

    /// Notes that a complete event ended with its caller.
    fn cut(&mut self, moment: usize) {
        if let Some(cut) = self.cut.get_mut(moment) {
            *cut = true;
        }
        self.misplaced.late += 1;
    }
}

fn exit(function: FunctionId) -> Body<'static> {
    Body::Call {
        function,
        kind: CallKind::Exit,
        values: Values::NONE,
    }
}
