//! Which calls of one thread are still open. The position of the thread's stack at each event shows
//! it.
//!
//! A call may end without an exit: by an exception, a `longjmp` or a switch of stacks. The event
//! after it shows that: the stack stands where the call's return address was, or above.
//!
//! ```text
//!  higher   main  ●                      sp at entry and exit: place of the return address
//!           parse ●
//!           item  ●  ◄── entry of skip   at this place: item and name are over, parse is not
//!  lower    name  ●
//! ```
//!
//! A thread may run on several stacks: signal handlers have one of their own, and each fiber has
//! one. Open calls are therefore kept in *segments*, each a chain without great gaps. An event far
//! away from all segments is on another stack. It is within the code that was interrupted or that
//! switched stacks, and begins a segment. An event at an older segment shows that the newer
//! segments were left.
//!
//! ```text
//!  frames    main ● parse ● item ● │ on_timer ● account ● │ …         outermost first
//!            segment 0             │ segment 1            │
//! ```
//!
//! The addresses come from the target, so they may be anything. Whatever they are, a call is open
//! at most once, and memory and time are bounded.
//!
//! What becomes of a call that is over, and whether it is kept, is decided in `thread_decoder` and
//! `keep`.

mod frameless;

use xray_trace::model::{FunctionId, Ticks};

use self::frameless::{Frameless, NEAR};
use super::frame_budget::{FrameBudget, Share};

/// An exit of the right function this near belongs to the call, though its return address has
/// moved: a tail call may have made room for arguments.
const MOVED: u64 = 64;

/// The open calls of a thread.
#[derive(Debug)]
pub(super) struct ShadowStack {
    /// Outermost first. Within a segment, each frame stands lower than the one before. The capacity
    /// is what the share has taken.
    frames: Vec<Frame>,
    /// The room for `frames`.
    share: Share,
    /// The places in `frames` where segments begin, without the first segment, which begins at 0.
    /// No segment in this list is empty.
    segments: Vec<usize>,
    /// The calls within those of `frames` for which there was no room.
    frameless: Frameless,
    /// No frame from this place on is suspected.
    suspects: usize,
    /// The least number of frames since the last call of `take_least`.
    least: usize,
}

/// A frame of whole words, which stay in registers on their way into memory. For a half and a byte
/// the compiler makes a copy whose load waits for both stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    /// The function's id, and `SUSPECT`.
    what: u64,
    sp: u64,
    /// The begin of the call.
    start: u64,
}

/// The call may have ended unseen. It is open for certain only while a call within it is.
const SUSPECT: u64 = 1 << 32;

/// The result of an exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    /// The number of innermost calls that had ended before, without an exit.
    pub(super) over: u64,
    /// The call that the exit belongs to.
    pub(super) of: Exit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// The innermost of the remaining calls.
    Innermost,
    /// No open call: an unmatched exit.
    Unmatched,
    /// Not known.
    Unknown,
}

// === impl ShadowStack ===

impl ShadowStack {
    /// A stack without open calls.
    pub(super) fn new(room: &FrameBudget) -> Self {
        Self {
            frames: Vec::new(),
            share: room.share(),
            segments: Vec::new(),
            frameless: Frameless::default(),
            suspects: 0,
            least: 0,
        }
    }

    /// The number of outermost calls that were open all the time since the last call of this.
    /// `None` if that is not known, because calls had no room.
    pub(super) fn take_least(&mut self) -> Option<usize> {
        let had_frameless = self.frameless.take_seen();
        let least = std::mem::replace(&mut self.least, self.frames.len());
        (!had_frameless).then_some(least)
    }

    /// The open calls that have room, outermost first, each with its begin.
    pub(super) fn calls(&self) -> impl ExactSizeIterator<Item = (FunctionId, Ticks)> {
        let frames = self.frames.iter();
        frames.map(|frame| (frame.function(), Ticks(frame.start)))
    }

    /// Suspects the open calls of these functions. They may have ended unseen, and other calls of
    /// the same functions may stand in their places.
    #[cold]
    pub(super) fn suspect(&mut self, functions: impl Fn(FunctionId) -> bool) {
        for (at, frame) in self.frames.iter_mut().enumerate() {
            if functions(frame.function()) {
                frame.what |= SUSPECT;
                self.suspects = self.suspects.max(at + 1);
            }
        }
        // The functions of calls without room are not known.
        self.frameless.suspect();
    }

    /// Drops the innermost calls that are suspected, before an event. They may have ended unseen,
    /// and count as over. Returns their number.
    #[inline]
    pub(super) fn drop_suspects(&mut self) -> u64 {
        // An empty stack wraps to the maximum: it has no suspects.
        match self.frames.len().wrapping_sub(1) < self.suspects || self.frameless.are_suspected() {
            true => self.drop_innermost_suspects(),
            false => 0,
        }
    }

    #[cold]
    fn drop_innermost_suspects(&mut self) -> u64 {
        let mut over = self.frameless.take_suspects();
        while self.frameless.is_empty() && self.frames.pop_if(|top| top.is_suspect()).is_some() {
            over += 1;
        }
        self.note_least();
        self.trim();
        let innermost = self.frames.iter().rposition(|frame| frame.is_suspect());
        self.suspects = innermost.map_or(0, |at| at + 1);
        over
    }

    /// Opens a call that begins at `start`, with its return address at `sp`. Returns the number of
    /// innermost calls that had ended before, without an exit.
    #[expect(clippy::inline_always, reason = "as `DecoderSink::take`")]
    #[inline(always)]
    pub(super) fn enter(&mut self, function: FunctionId, sp: u64, start: u64) -> u64 {
        let frame = Frame::new(function, sp, start);
        match self.frames.last() {
            // Below the innermost call, by no more than a frame.
            Some(top) if top.sp.wrapping_sub(sp).wrapping_sub(1) < NEAR => self.push(frame, 0),
            None => {
                let over = self.frameless.leave(sp, 0);
                self.push(frame, over)
            }
            Some(_) => {
                let over = self.settle(sp, sp);
                self.push(frame, over)
            }
        }
    }

    /// Ends a call with its return address at `sp`.
    #[expect(clippy::inline_always, reason = "as `DecoderSink::take`")]
    #[inline(always)]
    pub(super) fn exit(&mut self, function: FunctionId, sp: u64) -> Shown {
        match self.frames.pop_if(|top| top.is(function, sp)) {
            Some(_) => {
                self.note_least();
                self.trim();
                let over = self.frameless.take();
                let of = Exit::Innermost;
                Shown { over, of }
            }
            None => self.exit_elsewhere(function, sp),
        }
    }

    /// Takes note of another event with the stack at `sp`, within a function's frame. Returns the
    /// number of innermost calls that had ended before.
    #[inline]
    pub(super) fn pass(&mut self, sp: u64) -> u64 {
        match self.frames.last() {
            Some(top) if top.sp.wrapping_sub(sp) < NEAR => 0,
            None => self.frameless.leave(sp, 1),
            Some(_) => {
                // A call whose return address is at `sp` itself contains the event.
                let over = self.settle(sp, sp.wrapping_sub(1));
                self.trim();
                over
            }
        }
    }

    /// The number of open calls.
    #[inline]
    pub(super) fn depth(&self) -> u64 {
        self.frames.len() as u64 + self.frameless.len()
    }

    /// The calls that are open for certain, outermost first, each with its begin. Calls of
    /// `suspected` functions may have ended unseen, unless a certain call is within them. `None` if
    /// some calls had no room.
    pub(super) fn certain(
        &self,
        suspected: impl Fn(FunctionId) -> bool,
    ) -> Option<impl Iterator<Item = (FunctionId, Ticks)>> {
        if !self.frameless.is_empty() {
            return None;
        }
        let certain = |frame: &Frame| !frame.is_suspect() && !suspected(frame.function());
        let innermost = self.frames.iter().rposition(certain);
        let certain = self.frames.iter().take(innermost.map_or(0, |at| at + 1));
        Some(certain.map(|frame| (frame.function(), Ticks(frame.start))))
    }

    /// Forgets all calls, since events are missing. Any call may have ended, and another call of
    /// the same function may stand in its place.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.note_least();
        self.segments.clear();
        self.frameless.clear();
        self.suspects = 0;
    }

    /// Gives back the memory of a recursion that is over. To be called from time to time.
    #[inline]
    pub(super) fn tidy(&mut self) {
        if self.share.shrink(self.frames.len()) {
            self.frames.shrink_to(self.share.taken());
        }
    }

    #[inline]
    fn push(&mut self, frame: Frame, over: u64) -> u64 {
        if self.has_room() {
            self.frames.push(frame);
        } else {
            self.frameless.add(frame.sp);
        }
        over
    }

    /// True if a frame can be added. Makes room for it.
    #[inline]
    fn has_room(&mut self) -> bool {
        self.frameless.is_empty() && (self.frames.len() < self.share.taken() || self.grow())
    }

    #[cold]
    fn grow(&mut self) -> bool {
        let grown = self.share.grow();
        if grown {
            let more = self.share.taken() - self.frames.len();
            self.frames.reserve_exact(more);
        }
        grown
    }

    /// Moves to the segment of `sp`: leaves the newer segments, and the calls at `dead` and lower
    /// in this one. If `sp` belongs to no segment, a segment begins. Returns the number of calls
    /// that were left.
    #[cold]
    fn settle(&mut self, sp: u64, dead: u64) -> u64 {
        for segment in (0..=self.segments.len()).rev() {
            if self.fits(segment, sp) {
                let keep = self.above(segment, dead);
                return self.leave(keep, segment);
            }
        }
        // A call without room has no frame that could begin a segment.
        if self.segments.len() < self.share.segments() && self.has_room() {
            self.segments.push(self.frames.len());
        }
        0
    }

    #[cold]
    fn exit_elsewhere(&mut self, function: FunctionId, sp: u64) -> Shown {
        if self.frames.is_empty() && !self.frameless.is_empty() {
            let over = self.frameless.exit(sp);
            let of = Exit::Unknown;
            return Shown { over, of };
        }
        let segments = 0..=self.segments.len();
        let fitting = segments.rev().find(|segment| self.fits(*segment, sp));
        let further_in = fitting.is_none() || self.frames.last().is_some_and(|top| sp < top.sp);
        let exiting = match self.exiting(function, sp, 0) {
            None if !self.frameless.is_empty() && further_in => {
                self.frameless.pop();
                let of = Exit::Unknown;
                return Shown { over: 0, of };
            }
            None => self.exiting(function, sp, MOVED),
            exact => exact,
        };
        if let Some((segment, frame)) = exiting {
            let over = self.leave(frame + 1, segment);
            self.frames.pop();
            self.note_least();
            self.trim();
            let of = Exit::Innermost;
            return Shown { over, of };
        }
        if self.frames.is_empty() {
            let of = Exit::Unknown;
            return Shown { over: 0, of };
        }
        // A function that returns from there has no open call there or below.
        let over = fitting.map_or(0, |segment| {
            let keep = self.above(segment, sp);
            self.leave(keep, segment)
        });
        self.trim();
        let of = Exit::Unmatched;
        Shown { over, of }
    }

    /// The call that this exit belongs to, and its segment. Its return address has moved by `moved`
    /// at most.
    fn exiting(&self, function: FunctionId, sp: u64, moved: u64) -> Option<(usize, usize)> {
        (0..=self.segments.len()).rev().find_map(|segment| {
            let at = self.above(segment, sp);
            let range = self.range(segment);
            // The first call that is not above, or else the last one that is.
            let candidates = [Some(at), at.checked_sub(1)];
            let it = candidates.into_iter().flatten().find(|at| {
                let frame = self.frames.get(*at).filter(|_| range.contains(at));
                frame.is_some_and(|frame| {
                    frame.function() == function
                        && !frame.is_suspect()
                        && frame.sp.abs_diff(sp) <= moved
                })
            });
            it.map(|frame| (segment, frame))
        })
    }

    /// The place of the first call in a segment that stands at `sp` or lower.
    fn above(&self, segment: usize, sp: u64) -> usize {
        let range = self.range(segment);
        let frames = self.frames.get(range.clone()).unwrap_or_default();
        range.start + frames.partition_point(|frame| frame.sp > sp)
    }

    /// True if the stack of the segment can stand at `sp`.
    fn fits(&self, segment: usize, sp: u64) -> bool {
        let frames = self.frames.get(self.range(segment)).unwrap_or_default();
        let (Some(first), Some(last)) = (frames.first(), frames.last()) else {
            return false;
        };
        let lowest = first.sp.min(last.sp).saturating_sub(NEAR);
        (lowest..=first.sp.saturating_add(NEAR)).contains(&sp)
    }

    fn range(&self, segment: usize) -> std::ops::Range<usize> {
        let begin = segment.checked_sub(1).map_or(0, |at| self.segments[at]);
        let end = self.segments.get(segment).copied();
        begin..end.unwrap_or(self.frames.len())
    }

    /// Leaves all calls but the first `keep`, the last of which are in `segment`. Returns the
    /// number of calls that were left.
    fn leave(&mut self, keep: usize, segment: usize) -> u64 {
        let over = (self.frames.len() - keep.min(self.frames.len())) as u64;
        self.frames.truncate(keep);
        self.note_least();
        self.segments.truncate(segment);
        over.saturating_add(self.frameless.take())
    }

    #[inline]
    fn note_least(&mut self) {
        self.least = self.least.min(self.frames.len());
    }

    /// Removes segments without open calls.
    #[inline]
    fn trim(&mut self) {
        while self
            .segments
            .pop_if(|at| *at >= self.frames.len())
            .is_some()
        {}
    }
}

// === impl Frame ===

impl Frame {
    #[inline]
    const fn new(function: FunctionId, sp: u64, start: u64) -> Self {
        let what = function.0 as u64;
        Self { what, sp, start }
    }

    /// True for an unsuspected call of the function at this place.
    #[inline]
    const fn is(self, function: FunctionId, sp: u64) -> bool {
        self.what == function.0 as u64 && self.sp == sp
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the half is meant")]
    const fn function(self) -> FunctionId {
        FunctionId(self.what as u32)
    }

    #[inline]
    const fn is_suspect(self) -> bool {
        self.what & SUSPECT != 0
    }
}

#[cfg(test)]
mod tests;
