//! The open calls of a thread. They are stored as compactly as possible, because an analysis spends
//! most of its time on opening and closing calls. The frames do not interpret events; `stack` does.

use std::sync::Arc;

use super::step::{Call, Ending, Open};
use crate::container::OpenCall;
use crate::function_map::FunctionMap;
use crate::model::{FunctionId, OffCpu, ThreadId, ThreadRuns, Ticks, Values};

/// A moment: the counter, and `CLOCK_MONOTONIC` in nanoseconds.
pub(super) type Moment = (Ticks, u64);

/// The open calls.
#[derive(Debug)]
pub(super) struct Frames {
    thread: ThreadId,
    /// Outermost first.
    frames: Vec<Frame>,
    /// The arguments of calls that have any, with the depth of the call; outermost first.
    args: Vec<(usize, Values)>,
    /// The number of open calls of each function.
    open: FunctionMap<u32>,
    /// When the thread had a processor; `None` if the trace has nothing about it.
    runs: Option<Arc<ThreadRuns>>,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    function: FunctionId,
    /// The number of calls of the same function around it.
    nesting: u32,
    start: Ticks,
    start_ns: u64,
    /// The time within its callees so far, in nanoseconds.
    callees_ns: u64,
    /// The part of it without a processor.
    callees_off_ns: u64,
}

// === impl Frames ===

impl Frames {
    /// The frames of a thread without an open call.
    pub(super) fn new(thread: ThreadId) -> Self {
        Self {
            thread,
            frames: Vec::new(),
            args: Vec::new(),
            open: FunctionMap::default(),
            runs: None,
        }
    }

    /// Gives calls the time for which their thread had no processor.
    pub(super) fn use_runs(&mut self, runs: Option<ThreadRuns>) {
        self.runs = runs.filter(|runs| !runs.is_empty()).map(Arc::new);
    }

    /// When the thread had a processor; `None` if that is not known.
    pub(super) fn runs(&self) -> Option<Arc<ThreadRuns>> {
        self.runs.clone()
    }

    /// The number of open calls.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// The number of calls that began before `ticks`. They are the outermost ones.
    pub(super) fn begun_before(&self, ticks: Ticks) -> usize {
        self.frames.partition_point(|frame| frame.start < ticks)
    }

    /// The begin of the innermost call.
    pub(super) fn innermost_start(&self) -> Option<Ticks> {
        self.frames.last().map(|frame| frame.start)
    }

    /// The functions of the open calls, innermost first.
    pub(super) fn functions(&self) -> impl Iterator<Item = FunctionId> {
        self.frames.iter().rev().map(|frame| frame.function)
    }

    /// The depth of the innermost call of this function; `None` if the function is not open.
    pub(super) fn depth_of(&mut self, function: FunctionId) -> Option<usize> {
        if *self.open.entry(function) == 0 {
            return None;
        }
        self.frames
            .iter()
            .rposition(|frame| frame.function == function)
    }

    /// All open calls, outermost first.
    pub(super) fn opens(&self) -> impl ExactSizeIterator<Item = Open> + Clone {
        let frames = self.frames.iter().enumerate();
        frames.map(|(depth, frame)| {
            let at = self.args.binary_search_by_key(&depth, |(depth, _)| *depth);
            let args = at.map_or(Values::NONE, |at| self.args[at].1);
            self.open(frame, depth, args)
        })
    }

    /// All open calls, as a file stores them.
    pub(super) fn open_calls(&self) -> impl ExactSizeIterator<Item = OpenCall> + Clone {
        self.opens().map(|open| OpenCall {
            function: open.function,
            start: open.start,
            args: open.args,
        })
    }

    /// Resets the time within callees to 0.
    pub(super) fn forget_callees(&mut self) {
        for frame in &mut self.frames {
            frame.callees_ns = 0;
            frame.callees_off_ns = 0;
        }
    }

    /// Opens a call.
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
            callees_off_ns: 0,
        };
        let depth = self.frames.len();
        if !args.is_empty() {
            self.args.push((depth, args));
        }
        self.frames.push(frame);
        self.open(&frame, depth, args)
    }

    /// Closes the innermost call, if it is a call of this function.
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

    /// Closes the innermost call.
    pub(super) fn close(&mut self, how: Ending, end: Moment, result: Option<u64>) -> Option<Call> {
        let frame = self.frames.pop()?;
        Some(self.left(frame, how, end, result))
    }

    /// Makes the ended call of a frame that was just removed.
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
        let off_cpu = match self.runs {
            None => None,
            Some(_) => self.off_cpu(&frame, end_ns),
        };
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
            off_cpu,
            how,
            result,
        }
    }

    /// The time within an ended call without a processor.
    #[inline(never)]
    fn off_cpu(&mut self, frame: &Frame, end_ns: u64) -> Option<OffCpu> {
        let off = self.runs.as_ref()?.off_between(frame.start_ns, end_ns)?;
        if let Some(caller) = self.frames.last_mut() {
            caller.callees_off_ns = caller.callees_off_ns.saturating_add(off.total_ns);
        }
        let self_ns = off.total_ns.saturating_sub(frame.callees_off_ns);
        Some(OffCpu { self_ns, ..off })
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
