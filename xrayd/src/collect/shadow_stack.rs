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

use xray_trace::model::{FunctionId, Ticks};

use super::frame_budget::{FrameBudget, Share};

/// The greatest distance between neighbours in a segment. Frames are smaller as a rule, and other
/// stacks are further away. A call with a greater frame begins a segment, too, which is left like a
/// handler's.
const NEAR: u64 = 16 << 10;
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
    /// The number of calls within those of `frames` for which there was no room. While it is not 0,
    /// no frame is added.
    beyond: u64,
    /// The place of the outermost of those calls.
    beyond_from: u64,
    /// No frame from this place on is suspected.
    suspects: usize,
    /// True if the calls without room are suspected.
    beyond_suspect: bool,
    /// The least number of frames since the last call of `take_least`.
    least: usize,
    /// True if calls had no room since then.
    had_beyond: bool,
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
            beyond: 0,
            beyond_from: 0,
            suspects: 0,
            beyond_suspect: false,
            least: 0,
            had_beyond: false,
        }
    }

    /// The number of outermost calls that were open all the time since the last call of this.
    /// `None` if that is not known, because calls had no room.
    pub(super) fn take_least(&mut self) -> Option<usize> {
        let had_beyond = std::mem::replace(&mut self.had_beyond, self.beyond > 0);
        let least = std::mem::replace(&mut self.least, self.frames.len());
        (!had_beyond).then_some(least)
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
        self.beyond_suspect = self.beyond > 0;
    }

    /// Drops the innermost calls that are suspected, before an event. They may have ended unseen,
    /// and count as over. Returns their number.
    #[inline]
    pub(super) fn drop_suspects(&mut self) -> u64 {
        // An empty stack wraps to the maximum: it has no suspects.
        match self.frames.len().wrapping_sub(1) < self.suspects || self.beyond_suspect {
            true => self.drop_innermost_suspects(),
            false => 0,
        }
    }

    #[cold]
    fn drop_innermost_suspects(&mut self) -> u64 {
        let mut over = 0;
        if std::mem::take(&mut self.beyond_suspect) {
            over = std::mem::take(&mut self.beyond);
        }
        while self.beyond == 0 && self.frames.pop_if(|top| top.is_suspect()).is_some() {
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
                let over = self.leave_beyond(sp, 0);
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
                let over = match self.beyond {
                    0 => 0,
                    _ => std::mem::take(&mut self.beyond),
                };
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
            None => self.leave_beyond(sp, 1),
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
        self.frames.len() as u64 + self.beyond
    }

    /// The calls that are open for certain, outermost first, each with its begin. Calls of
    /// `suspected` functions may have ended unseen, unless a certain call is within them. `None` if
    /// some calls had no room.
    pub(super) fn certain(
        &self,
        suspected: impl Fn(FunctionId) -> bool,
    ) -> Option<impl Iterator<Item = (FunctionId, Ticks)>> {
        if self.beyond > 0 {
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
        self.beyond = 0;
        self.suspects = 0;
        self.beyond_suspect = false;
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
            if self.beyond == 0 {
                self.beyond_from = frame.sp;
            }
            self.beyond = self.beyond.saturating_add(1);
            self.had_beyond = true;
        }
        over
    }

    /// Ends the calls without room when no other call is open. They are over if the stack stands
    /// where the outermost of them stands, or at least `above` higher. Returns the number of calls
    /// that were left.
    #[inline]
    fn leave_beyond(&mut self, sp: u64, above: u64) -> u64 {
        let higher = sp.wrapping_sub(self.beyond_from);
        if self.beyond > 0 && (above..NEAR).contains(&higher) {
            std::mem::take(&mut self.beyond)
        } else {
            0
        }
    }

    /// True if a frame can be added. Makes room for it.
    #[inline]
    fn has_room(&mut self) -> bool {
        self.beyond == 0 && (self.frames.len() < self.share.taken() || self.grow())
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
        if self.frames.is_empty() && self.beyond > 0 {
            // The exit of the outermost call without room, or of a call around or within it.
            let over = match self.leave_beyond(sp, 0) {
                0 => {
                    self.beyond -= 1;
                    0
                }
                left if sp == self.beyond_from => left - 1,
                left => left,
            };
            let of = Exit::Unknown;
            return Shown { over, of };
        }
        let segments = 0..=self.segments.len();
        let fitting = segments.rev().find(|segment| self.fits(*segment, sp));
        let further_in = fitting.is_none() || self.frames.last().is_some_and(|top| sp < top.sp);
        let exiting = match self.exiting(function, sp, 0) {
            None if self.beyond > 0 && further_in => {
                self.beyond -= 1;
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
        over.saturating_add(std::mem::take(&mut self.beyond))
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: FunctionId = FunctionId(1);
    const B: FunctionId = FunctionId(2);
    const C: FunctionId = FunctionId(3);
    const TOP: u64 = 0x7ffd_0000_f008;

    fn stacks() -> ShadowStack {
        ShadowStack::new(&FrameBudget::new())
    }

    fn shown(over: u64, of: Exit) -> Shown {
        Shown { over, of }
    }

    /// A thread without any room is followed again when its open calls are over, even if they are
    /// left without exits.
    #[test]
    fn calls_without_room_are_over_where_their_outermost_one_is() {
        type Next = fn(&mut ShadowStack) -> u64;
        let full = FrameBudget::with(0, 64, 4);
        let rows: [(Next, u64); 4] = [
            (|stacks| stacks.exit(A, TOP).over, 2),
            (|stacks| stacks.exit(C, TOP + 64).over, 3),
            (|stacks| stacks.enter(B, TOP, 0), 3),
            (|stacks| stacks.pass(TOP + 8), 3),
        ];
        for (next, over) in rows {
            let mut stacks = ShadowStack::new(&full);
            for (function, depth) in [(A, 0), (B, 64), (C, 128)] {
                assert_eq!(stacks.enter(function, TOP - depth, 0), 0);
            }
            assert_eq!(stacks.pass(TOP), 0, "within the outermost");
            assert_eq!(stacks.exit(C, TOP - 128), shown(0, Exit::Unknown));
            assert_eq!(stacks.enter(C, TOP - 128, 0), 0);
            assert_eq!(next(&mut stacks), over);
            let entered = stacks.frames.len() as u64 + stacks.beyond;
            assert!(entered <= 1, "{stacks:?}");
        }
    }

    /// The open functions, outermost first, and their places.
    fn open(stacks: &ShadowStack) -> Vec<(u32, u64)> {
        let frames = stacks.frames.iter();
        frames.map(|frame| (frame.function().0, frame.sp)).collect()
    }

    /// P31: `A` calls `B` calls `C`, which throws. `A` catches, and calls `C` at the place of its
    /// call of `B`.
    #[test]
    fn a_call_at_the_place_of_one_that_is_over_shows_it() {
        let mut stacks = stacks();
        assert_eq!(stacks.enter(A, TOP, 0), 0);
        assert_eq!(stacks.enter(B, TOP - 64, 0), 0);
        assert_eq!(stacks.enter(C, TOP - 128, 0), 0);
        assert_eq!(stacks.enter(C, TOP - 64, 0), 2);
        assert_eq!(stacks.exit(C, TOP - 64), shown(0, Exit::Innermost));
        assert_eq!(stacks.exit(A, TOP), shown(0, Exit::Innermost));
        assert_eq!(open(&stacks), []);
    }

    /// P31: in a recursion, an outer call catches. The inner calls have the same function.
    #[test]
    fn recursion_is_distinguished_by_the_stack() {
        let mut stacks = stacks();
        for depth in 0..100 {
            assert_eq!(stacks.enter(A, TOP - 48 * depth, 0), 0);
        }
        assert_eq!(stacks.exit(A, TOP - 48 * 9), shown(90, Exit::Innermost));
        assert_eq!(stacks.exit(A, TOP - 48 * 8), shown(0, Exit::Innermost));
        // An exit whose entry was not seen.
        assert_eq!(stacks.exit(A, TOP - 48 * 30), shown(0, Exit::Unmatched));
        assert_eq!(stacks.exit(A, TOP - 48 * 7), shown(0, Exit::Innermost));
    }

    #[test]
    fn an_exit_whose_return_address_has_moved_a_little_is_that_calls() {
        for moved in [TOP - 64 - 32, TOP - 64 + 16] {
            let mut stacks = stacks();
            stacks.enter(A, TOP, 0);
            stacks.enter(B, TOP - 64, 0);
            assert_eq!(stacks.exit(B, moved), shown(0, Exit::Innermost));
            assert_eq!(stacks.exit(A, TOP), shown(0, Exit::Innermost));
        }
    }

    #[test]
    fn a_handler_on_another_stack_is_within_what_it_interrupts() {
        for other in [TOP + (1 << 30), TOP - (1 << 30)] {
            let mut stacks = stacks();
            stacks.enter(A, TOP, 0);
            stacks.enter(B, TOP - 64, 0);
            assert_eq!(stacks.enter(C, other, 0), 0);
            assert_eq!(stacks.enter(A, other - 100, 0), 0);
            assert_eq!(stacks.exit(A, other - 100), shown(0, Exit::Innermost));
            assert_eq!(stacks.exit(C, other), shown(0, Exit::Innermost));
            // And a handler that leaves by a jump.
            assert_eq!(stacks.enter(C, other, 0), 0);
            assert_eq!(stacks.exit(B, TOP - 64), shown(1, Exit::Innermost));
            assert_eq!(open(&stacks), [(1, TOP)]);
        }
    }

    /// Calls on a fiber are over for now when the thread is back where it came from. A later exit
    /// on the fiber is unmatched.
    #[test]
    fn calls_of_a_stack_that_was_left_are_over_and_their_exits_astray() {
        let fiber = TOP - (1 << 30);
        let mut stacks = stacks();
        stacks.enter(A, TOP, 0);
        stacks.enter(A, fiber, 0);
        assert_eq!(stacks.enter(B, TOP - 64, 0), 1);
        assert_eq!(stacks.exit(B, TOP - 64), shown(0, Exit::Innermost));
        // The fiber goes on.
        assert_eq!(stacks.enter(C, fiber - 64, 0), 0);
        assert_eq!(stacks.exit(C, fiber - 64), shown(0, Exit::Innermost));
        assert_eq!(stacks.exit(A, fiber), shown(0, Exit::Unmatched));
        assert_eq!(stacks.exit(A, TOP), shown(0, Exit::Innermost));
    }

    #[test]
    fn a_user_event_shows_the_ended_calls_and_not_its_own() {
        let mut stacks = stacks();
        stacks.enter(A, TOP, 0);
        stacks.enter(B, TOP - 64, 0);
        stacks.enter(C, TOP - 128, 0);
        assert_eq!(stacks.pass(TOP - 200), 0);
        // A leaf without a frame.
        assert_eq!(stacks.pass(TOP - 128), 0);
        assert_eq!(stacks.pass(TOP - 56), 2);
        assert_eq!(stacks.pass(TOP - (1 << 30)), 0);
        assert_eq!(open(&stacks), [(1, TOP)]);
        assert!(stacks.segments.is_empty());
    }

    /// Calls of switched functions count as over where no call within them is known to be open. No
    /// exit belongs to them.
    #[test]
    fn a_call_whose_function_was_switched_is_open_while_one_within_it_is() {
        let mut stacks = stacks();
        for (function, depth) in [(A, 0), (B, 64), (C, 128), (B, 192), (B, 256)] {
            assert_eq!(stacks.enter(function, TOP - depth, 0), 0);
        }
        stacks.suspect(|function| function == B);
        assert_eq!(stacks.drop_suspects(), 2, "the innermost two");
        assert_eq!(stacks.drop_suspects(), 0);
        assert_eq!(open(&stacks), [(1, TOP), (2, TOP - 64), (3, TOP - 128)]);
        // A call that has begun since is known.
        assert_eq!(stacks.enter(B, TOP - 192, 0), 0);
        assert_eq!(stacks.drop_suspects(), 0);
        assert_eq!(stacks.exit(B, TOP - 192), shown(0, Exit::Innermost));
        assert_eq!(stacks.drop_suspects(), 0);
        // An exit at the outer call's place does not belong to it. `C` has been left then, too.
        let mut other = ShadowStack::new(&FrameBudget::new());
        other.enter(A, TOP, 0);
        other.enter(B, TOP - 64, 0);
        other.enter(C, TOP - 128, 0);
        other.suspect(|function| function == B);
        assert_eq!(other.drop_suspects(), 0);
        assert_eq!(other.exit(B, TOP - 64), shown(2, Exit::Unmatched));
        assert_eq!(other.drop_suspects(), 0);
        assert_eq!(open(&other), [(1, TOP)]);

        assert_eq!(stacks.exit(C, TOP - 128), shown(0, Exit::Innermost));
        assert_eq!(stacks.drop_suspects(), 1);
        assert_eq!(stacks.exit(B, TOP - 64), shown(0, Exit::Unmatched));
        assert_eq!(stacks.exit(A, TOP), shown(0, Exit::Innermost));
        assert_eq!(stacks.drop_suspects(), 0);
    }

    /// The functions of calls without room are not known.
    #[test]
    fn calls_without_room_are_over_at_a_switch() {
        let mut stacks = ShadowStack::new(&FrameBudget::with(0, 64, 4));
        stacks.enter(A, TOP, 0);
        stacks.enter(B, TOP - 64, 0);
        stacks.suspect(|function| function == C);
        assert_eq!(stacks.drop_suspects(), 2);
        assert_eq!(stacks.drop_suspects(), 0);
        assert_eq!(stacks.exit(B, TOP - 64), shown(0, Exit::Unknown));
    }

    /// A limit: events further apart than neighbours do not show whether they are on the same
    /// stack.
    #[test]
    fn a_call_that_was_left_far_away_stays_open_until_something_happens_near_it_or_further_out() {
        // `B` is far below `A`, with untraced calls between. `A` catches, and the next call is far
        // below `B`, so it seems to be within `B`.
        for near in [TOP - NEAR, TOP - 64] {
            let mut stacks = stacks();
            stacks.enter(A, TOP, 0);
            stacks.enter(B, TOP - 2 * NEAR, 0);
            assert_eq!(stacks.enter(C, TOP - 4 * NEAR, 0), 0);
            assert_eq!(stacks.exit(C, TOP - 4 * NEAR), shown(0, Exit::Innermost));
            assert_eq!(stacks.enter(C, near, 0), 1);
            assert_eq!(open(&stacks), [(1, TOP), (3, near)]);
        }
        // `B` was left. Each call far above seems to be within it.
        let mut stacks = stacks();
        stacks.enter(B, TOP - 2 * NEAR, 0);
        for _ in 0..10 {
            assert_eq!(stacks.enter(A, TOP, 0), 0);
            assert_eq!(stacks.exit(A, TOP), shown(0, Exit::Innermost));
        }
        assert_eq!(open(&stacks), [(2, TOP - 2 * NEAR)]);
        assert_eq!(stacks.enter(A, TOP - NEAR, 0), 1);
    }

    /// Calls without room stand further from the last known call than neighbours do.
    #[test]
    fn calls_without_end_take_bounded_memory() {
        let room = FrameBudget::new();
        let all = room.left();
        let mut stacks = ShadowStack::new(&room);
        let place = |depth: usize| TOP - 64 * depth as u64;
        let mut depth = 0;
        while stacks.beyond < 1000 {
            assert_eq!(stacks.enter(A, place(depth), 0), 0);
            depth += 1;
        }
        let known = depth - 1000;
        assert_eq!(stacks.frames.len(), known);
        assert_eq!(all - room.left(), known);
        assert!(stacks.segments.is_empty());
        assert_eq!(stacks.pass(place(depth) + 8), 0);
        assert_eq!(stacks.exit(A, place(depth - 1)), shown(0, Exit::Unknown));
        assert!(stacks.segments.is_empty());
        let innermost = |over| shown(over, Exit::Innermost);
        assert_eq!(stacks.exit(A, place(known - 1)), innermost(999));
        assert_eq!(stacks.exit(A, place(known - 2)), innermost(0));
        // The stack is followed as before.
        assert_eq!(stacks.enter(B, place(10), 0), known as u64 - 12);
        for other in 1..1000 {
            assert_eq!(stacks.enter(B, TOP + (other << 20), 0), 0);
        }
        assert_eq!(stacks.segments.len(), stacks.share.segments());
        assert_eq!(stacks.exit(A, TOP), innermost(9 + 1 + 999));
        assert_eq!(open(&stacks), []);
        assert_eq!(room.left(), all - known, "in case that it recurses again");
        stacks.tidy();
        assert!(stacks.frames.capacity() < 1000 && room.left() > all - 1000);
        drop(stacks);
        assert_eq!(room.left(), all);
    }

    /// A thread without room gets room when another thread's recursion is over, but not in the
    /// middle of its calls.
    #[test]
    fn room_that_comes_back_is_used_from_the_outermost_call_on() {
        let room = FrameBudget::with(64, 64, 4);
        let mut first = ShadowStack::new(&room);
        for depth in 0..64 {
            first.enter(A, TOP - 64 * depth, 0);
        }
        let mut second = ShadowStack::new(&room);
        second.enter(A, TOP, 0);
        drop(first);
        second.enter(B, TOP - 64, 0);
        assert_eq!((open(&second), second.beyond), (vec![], 2));
        assert_eq!(second.exit(B, TOP - 64), shown(0, Exit::Unknown));
        assert_eq!(second.exit(A, TOP), shown(0, Exit::Unknown));
        second.enter(C, TOP, 0);
        assert_eq!((open(&second), second.beyond), (vec![(3, TOP)], 0));
    }

    /// One step of the simulated machine.
    #[derive(Debug, Clone)]
    enum Act {
        /// Calls a function with a frame of this many bytes. The last field says whether it is
        /// traced.
        Call(u32, u64, bool),
        /// The innermost call returns.
        Return,
        /// The innermost call ends in a jump to another function.
        TailCall(u32),
        /// The traced call of this number, from the outermost and modulo their count, catches an
        /// exception.
        Throw(usize),
        /// A signal handler begins on the thread's other stack, if none is there already.
        Signal,
        /// The handler returns, with all that it called.
        HandlerReturns,
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let call = (0..4u32, 2..200u64, prop::bool::weighted(0.7));
        let act = prop_oneof![
            8 => call.prop_map(|(function, words, traced)| Act::Call(function, 16 * words, traced)),
            6 => Just(Act::Return),
            1 => (0..4u32).prop_map(Act::TailCall),
            2 => any::<usize>().prop_map(Act::Throw),
            1 => Just(Act::Signal),
            1 => Just(Act::HandlerReturns),
        ];
        prop::collection::vec(act, 1..300)
    }

    #[derive(Debug, Clone, Copy)]
    struct Call {
        function: FunctionId,
        sp: u64,
        frame: u64,
        traced: bool,
        /// The first call on the handlers' stack.
        of_signal: bool,
    }

    /// A thread, and the shadow stack that follows it.
    struct Machine {
        calls: Vec<Call>,
        other: u64,
        stacks: ShadowStack,
        /// Open calls in the view of a reader who sees only functions and the shadow stack's
        /// results.
        read: Vec<FunctionId>,
    }

    // === impl Machine ===

    impl Machine {
        fn call(&mut self, function: u32, frame: u64, traced: bool) {
            let sp = self.calls.last().map_or(TOP, |call| call.sp - call.frame);
            self.begin(function, sp, frame, traced, false);
        }

        fn begin(&mut self, function: u32, sp: u64, frame: u64, traced: bool, of_signal: bool) {
            let function = FunctionId(function);
            if traced {
                let over = self.stacks.enter(function, sp, 0);
                self.unwind(over);
                self.check();
                self.read.push(function);
            }
            self.calls.push(Call {
                function,
                sp,
                frame,
                traced,
                of_signal,
            });
        }

        fn end(&mut self) {
            let Some(call) = self.calls.pop() else { return };
            if !call.traced {
                return;
            }
            let beyond = self.stacks.beyond > 0;
            let shown = self.stacks.exit(call.function, call.sp);
            assert!(shown.of == Exit::Innermost || beyond && shown.of == Exit::Unknown);
            self.unwind(shown.over);
            assert_eq!(self.read.pop(), Some(call.function));
            self.check();
        }

        fn unwind(&mut self, calls: u64) {
            let keep = self.read.len() - usize::try_from(calls).unwrap();
            self.read.truncate(keep);
        }

        /// Checks, after an event and before an entry counts, that the open calls are known.
        fn check(&self) {
            let open = self.calls.iter().filter(|call| call.traced);
            let open: Vec<FunctionId> = open.map(|call| call.function).collect();
            assert_eq!(self.read, open);
        }

        fn in_handler(&self) -> bool {
            self.calls.iter().any(|call| call.of_signal)
        }
    }

    proptest! {
        /// Exceptions, handlers on another stack above or below, tail calls, untraced functions:
        /// the open calls are known at each event. A function that catches goes on with a traced
        /// call from the place of an earlier call, or returns. Without room for more calls that
        /// holds as well, except for exceptions.
        #[test]
        fn open_calls_are_known_at_each_event(acts in acts(), above in any::<bool>(), frames in prop_oneof![1..20usize, Just(1 << 10)]) {
            let other = if above { TOP + (1 << 24) } else { TOP - (1 << 30) };
            let (calls, read) = (Vec::new(), Vec::new());
            let stacks = ShadowStack::new(&FrameBudget::with(1 << 10, frames, 32));
            let mut machine = Machine { calls, other, stacks, read };
            for act in acts {
                match act {
                    Act::Call(function, frame, traced) => machine.call(function, frame, traced),
                    Act::Return => {
                        if machine.calls.last().is_some_and(|call| !call.of_signal) {
                            machine.end();
                        }
                    }
                    Act::TailCall(function) => {
                        if let Some(call) = machine.calls.last().copied().filter(|call| !call.of_signal) {
                            machine.end();
                            machine.begin(function, call.sp, call.frame, call.traced, false);
                        }
                    }
                    Act::Throw(_) if machine.stacks.beyond > 0 => {}
                    Act::Throw(number) => {
                        // Not out of a handler, which no program survives.
                        let signal = machine.calls.iter().rposition(|call| call.of_signal);
                        let first = signal.map_or(0, |signal| signal + 1);
                        let catchers: Vec<usize> = (first..machine.calls.len())
                            .filter(|&at| machine.calls[at].traced)
                            .collect();
                        if catchers.is_empty() {
                            continue;
                        }
                        let catcher = catchers[number % catchers.len()];
                        machine.calls.truncate(catcher + 1);
                        if number % 2 == 0 {
                            machine.call(3, 64, true);
                            machine.end();
                        } else {
                            machine.end();
                        }
                    }
                    Act::Signal => {
                        if !machine.in_handler() {
                            let sp = machine.other;
                            machine.begin(3, sp, 96, true, true);
                        }
                    }
                    Act::HandlerReturns => {
                        while machine.in_handler() {
                            machine.end();
                        }
                    }
                }
            }
        }

        /// Any addresses: no panic, never more calls over than there were, and no more frames than
        /// there is room for.
        #[test]
        fn any_addresses_are_survived(
            events in prop::collection::vec((0..5u8, 0..3u32, any::<u8>(), 0..40u64), 0..400),
            (frames, segments) in prop_oneof![(1..20usize, 0..4usize), Just((1 << 10, 32))],
        ) {
            let room = FrameBudget::with(1 << 10, frames, segments);
            let mut stacks = ShadowStack::new(&room);
            for (what, function, far, near) in events {
                let sp = match far {
                    0 => u64::MAX - 8 * near,
                    1 => 8 * near,
                    _ => (u64::from(far % 5) << 20) + 512 * near,
                };
                let there = stacks.frames.len() as u64 + stacks.beyond;
                let (over, others) = match what {
                    0 | 3 => (stacks.enter(FunctionId(function), sp, 0), 1),
                    1 => {
                        let shown = stacks.exit(FunctionId(function), sp);
                        let ended = shown.of == Exit::Innermost || shown.of == Exit::Unknown && there > 0;
                        (shown.over, -i64::from(ended))
                    }
                    2 => (stacks.pass(sp), 0),
                    _ => {
                        stacks.tidy();
                        (0, 0)
                    }
                };
                prop_assert!(over <= there);
                let left = (there - over).checked_add_signed(others);
                prop_assert_eq!(left, Some(stacks.frames.len() as u64 + stacks.beyond));
                prop_assert!(stacks.frames.len() <= frames && stacks.segments.len() <= segments);
                prop_assert!(stacks.segments.first().is_none_or(|first| *first > 0));
                prop_assert!(stacks.segments.is_sorted_by(|a, b| a < b));
                prop_assert!(stacks.segments.last().is_none_or(|last| *last < stacks.frames.len()));
            }
        }
    }
}
