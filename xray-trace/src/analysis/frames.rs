//! The calls of a thread that are open. They are held as small as can be: most of what an analysis does is to open and to close them.

use super::step::{Call, Ending, Open};
use crate::container::OpenCall;
use crate::function_map::FunctionMap;
use crate::model::{FunctionId, ThreadId, Ticks, Values};

/// A moment: the counter, and `CLOCK_MONOTONIC` in nanoseconds.
pub(super) type Moment = (Ticks, u64);

/// The calls that are open.
#[derive(Debug)]
pub(super) struct Frames {
    thread: ThreadId,
    /// Outermost first.
    frames: Vec<Frame>,
    /// The arguments of those that have any, and how many calls each of these stands within; outermost first.
    args: Vec<(usize, Values)>,
    /// How often each function is open.
    open: FunctionMap<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    function: FunctionId,
    /// How many calls of the same function it stands within.
    nesting: u32,
    start: Ticks,
    start_ns: u64,
    /// Time within the calls it made, in nanoseconds.
    callees_ns: u64,
}

// === impl Frames ===

impl Frames {
    /// Those of a thread that none is open in.
    pub(super) fn new(thread: ThreadId) -> Self {
        Self {
            thread,
            frames: Vec::new(),
            args: Vec::new(),
            open: FunctionMap::default(),
        }
    }

    /// How many are open.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// How many began before that; they are the outermost.
    pub(super) fn begun_before(&self, ticks: Ticks) -> usize {
        self.frames.partition_point(|frame| frame.start < ticks)
    }

    /// When the innermost began.
    pub(super) fn innermost_start(&self) -> Option<Ticks> {
        self.frames.last().map(|frame| frame.start)
    }

    /// The functions, innermost first.
    pub(super) fn functions(&self) -> impl Iterator<Item = FunctionId> {
        self.frames.iter().rev().map(|frame| frame.function)
    }

    /// How many calls the innermost call of that function stands within; `None` if it is not open.
    pub(super) fn depth_of(&mut self, function: FunctionId) -> Option<usize> {
        if *self.open.entry(function) == 0 {
            return None;
        }
        self.frames
            .iter()
            .rposition(|frame| frame.function == function)
    }

    /// All of them, outermost first.
    pub(super) fn opens(&self) -> impl ExactSizeIterator<Item = Open> + Clone {
        let frames = self.frames.iter().enumerate();
        frames.map(|(depth, frame)| {
            let at = self.args.binary_search_by_key(&depth, |(depth, _)| *depth);
            let args = at.map_or(Values::NONE, |at| self.args[at].1);
            self.open(frame, depth, args)
        })
    }

    /// The same, as a file holds them.
    pub(super) fn open_calls(&self) -> impl ExactSizeIterator<Item = OpenCall> + Clone {
        self.opens().map(|open| OpenCall {
            function: open.function,
            start: open.start,
            args: open.args,
        })
    }

    /// Time so far within what they called counts no more.
    pub(super) fn forget_callees(&mut self) {
        for frame in &mut self.frames {
            frame.callees_ns = 0;
        }
    }

    /// A call begins.
    #[inline(always)]
    pub(super) fn enter(
        &mut self,
        function: FunctionId,
        args: Values,
        (start, start_ns): Moment,
    ) -> Open {
        let count = self.open.entry(function);
        let nesting = *count;
        *count = nesting.saturating_add(1);
        let frame = Frame {
            function,
            nesting,
            start,
            start_ns,
            callees_ns: 0,
        };
        let depth = self.frames.len();
        if !args.is_empty() {
            self.args.push((depth, args));
        }
        self.frames.push(frame);
        self.open(&frame, depth, args)
    }

    /// The innermost call ends, if it is one of that function.
    #[inline(always)]
    pub(super) fn leave(
        &mut self,
        function: FunctionId,
        how: Ending,
        end: Moment,
        result: Option<u64>,
    ) -> Option<Call> {
        let frame = self.frames.pop_if(|frame| frame.function == function)?;
        Some(self.left(frame, how, end, result))
    }

    /// The innermost call ends, whichever it is.
    pub(super) fn close(&mut self, how: Ending, end: Moment, result: Option<u64>) -> Option<Call> {
        let frame = self.frames.pop()?;
        Some(self.left(frame, how, end, result))
    }

    /// That frame, which stood innermost, is no more.
    #[inline(always)]
    fn left(
        &mut self,
        frame: Frame,
        how: Ending,
        (end, end_ns): Moment,
        result: Option<u64>,
    ) -> Call {
        let duration = end_ns.saturating_sub(frame.start_ns);
        if let Some(caller) = self.frames.last_mut() {
            caller.callees_ns = caller.callees_ns.saturating_add(duration);
        }
        *self.open.entry(frame.function) = frame.nesting;
        let depth = self.frames.len();
        let args = if self.args.is_empty() {
            Values::NONE
        } else {
            self.take_args(depth)
        };
        Call {
            open: self.open(&frame, depth, args),
            end,
            end_ns,
            self_ns: duration.saturating_sub(frame.callees_ns),
            how,
            result,
        }
    }

    #[cold]
    fn take_args(&mut self, depth: usize) -> Values {
        let its = self.args.pop_if(|(of, _)| *of == depth);
        its.map_or(Values::NONE, |(_, args)| args)
    }

    #[inline(always)]
    fn open(&self, frame: &Frame, depth: usize, args: Values) -> Open {
        Open {
            thread: self.thread,
            function: frame.function,
            depth,
            nesting: frame.nesting,
            start: frame.start,
            start_ns: frame.start_ns,
            args,
        }
    }
}
