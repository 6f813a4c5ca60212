//! Which calls of one thread are still open, told by where its stack stands at each event.
//!
//! A call that an exception, a `longjmp` or a switch of stacks has left shows in the event after it: the stack stands where the call's
//! return address was, or above.
//!
//! ```text
//!  higher   main  ●                      sp of an entry and of an exit: where its return address stands
//!           parse ●
//!           item  ●  ◄── entry of skip   its return address stands here: item and name are over, parse is not
//!  lower    name  ●
//! ```
//!
//! A thread may run on several stacks: handlers have one of their own, fibers have one each. Open calls are therefore kept in *segments*, each a
//! chain without great gaps. What happens far away from all of them is on another stack, within what it interrupted or was called by: it begins
//! a segment. What happens at an older segment again shows that the newer ones were left.
//!
//! ```text
//!  frames    main ● parse ● item ● │ on_timer ● account ● │ …         outermost first
//!            segment 0             │ segment 1            │
//! ```
//!
//! The addresses are a stranger's: whatever they are, a call is open at most once, and memory and time are bounded.

use xray_trace::model::{FunctionId, Ticks};

use super::room::{Room, Share};

/// The most that neighbours in a segment are apart. Frames are smaller as a rule, and stacks of their own are further away. A call with a
/// greater frame begins a segment, too, which is left like a handler's.
const NEAR: u64 = 16 << 10;
/// An exit of the right function so near is that call's, though its return address has moved: a tail call can have made room for arguments.
const MOVED: u64 = 64;

/// The open calls of a thread.
#[derive(Debug)]
pub(super) struct ShadowStack {
    /// Outermost first. Within a segment each stands lower than the one before. Has room for as many as the share says.
    frames: Vec<Frame>,
    /// What `frames` may take.
    share: Share,
    /// Where segments begin in `frames`, but for the first, which begins at 0. None of these is empty.
    segments: Vec<usize>,
    /// Calls further in than those, for which there was no room. While there are any, no frame is added.
    beyond: u64,
    /// Where the outermost of those stands.
    beyond_from: u64,
    /// No frame from here on is suspected.
    suspects: usize,
    /// Those for which there was no room are.
    beyond_suspect: bool,
}

/// Whole words, which stay in registers on their way into memory: of a half and a byte the compiler
/// makes a copy whose load waits for both stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    /// The function, and `SUSPECT`.
    what: u64,
    sp: u64,
    /// When the call began.
    start: u64,
}

/// It may have ended unseen: it is open for certain only while one further in is.
const SUSPECT: u64 = 1 << 32;

/// What an exit shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    /// So many of the innermost calls had ended before, without an exit.
    pub(super) over: u64,
    /// Whose exit it is.
    pub(super) of: Exit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// That of the innermost call which is left.
    Innermost,
    /// Of none that is open.
    Astray,
    /// Not known.
    Unknown,
}

// === impl ShadowStack ===

impl ShadowStack {
    /// Nothing is open.
    pub(super) fn new(room: &Room) -> Self {
        Self {
            frames: Vec::new(),
            share: room.share(),
            segments: Vec::new(),
            beyond: 0,
            beyond_from: 0,
            suspects: 0,
            beyond_suspect: false,
        }
    }

    /// Calls of these functions may have ended unseen, and others of the same functions may stand in their places.
    #[cold]
    pub(super) fn suspect(&mut self, functions: impl Fn(FunctionId) -> bool) {
        for (at, frame) in self.frames.iter_mut().enumerate() {
            if functions(frame.function()) {
                frame.what |= SUSPECT;
                self.suspects = self.suspects.max(at + 1);
            }
        }
        // Which functions those are nobody knows.
        self.beyond_suspect = self.beyond > 0;
    }

    /// Something happens: says how many of the innermost calls may have ended before, unseen. They count as over.
    #[inline]
    pub(super) fn shed(&mut self) -> u64 {
        // Without a frame none is suspected.
        match self.frames.len().wrapping_sub(1) < self.suspects || self.beyond_suspect {
            true => self.shed_suspects(),
            false => 0,
        }
    }

    #[cold]
    fn shed_suspects(&mut self) -> u64 {
        let mut over = 0;
        if std::mem::take(&mut self.beyond_suspect) {
            over = std::mem::take(&mut self.beyond);
        }
        while self.beyond == 0 && self.frames.pop_if(|top| top.is_suspect()).is_some() {
            over += 1;
        }
        self.trim();
        let innermost = self.frames.iter().rposition(|frame| frame.is_suspect());
        self.suspects = innermost.map_or(0, |at| at + 1);
        over
    }

    /// A call begins at `start`, with its return address at `sp`. Says how many of the innermost
    /// calls had ended before, without an exit.
    #[expect(clippy::inline_always, reason = "as `DecoderSink::take`")]
    #[inline(always)]
    pub(super) fn enter(&mut self, function: FunctionId, sp: u64, start: u64) -> u64 {
        let frame = Frame::new(function, sp, start);
        match self.frames.last() {
            // Below the innermost call, not further than a frame.
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

    /// A call ends, with its return address at `sp`.
    #[expect(clippy::inline_always, reason = "as `DecoderSink::take`")]
    #[inline(always)]
    pub(super) fn exit(&mut self, function: FunctionId, sp: u64) -> Shown {
        match self.frames.pop_if(|top| top.is(function, sp)) {
            Some(_) => {
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

    /// Something else happens with the stack at `sp`, within a function's frame. Says how many of the innermost calls had ended before.
    #[inline]
    pub(super) fn pass(&mut self, sp: u64) -> u64 {
        match self.frames.last() {
            Some(top) if top.sp.wrapping_sub(sp) < NEAR => 0,
            None => self.leave_beyond(sp, 1),
            Some(_) => {
                // A call whose return address is at `sp` itself is the one that this happens in.
                let over = self.settle(sp, sp.wrapping_sub(1));
                self.trim();
                over
            }
        }
    }

    /// How many calls are open.
    #[inline]
    pub(super) fn depth(&self) -> u64 {
        self.frames.len() as u64 + self.beyond
    }

    /// The calls that are open for certain, outermost first, each with its begin. Calls of
    /// functions that are `suspected` may have ended unseen, where nothing certain is within.
    /// `None` if there was no room for some.
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

    /// Events are missing: any call may have ended, and what stands where one was may be another one of the same function.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.segments.clear();
        self.beyond = 0;
        self.suspects = 0;
        self.beyond_suspect = false;
    }

    /// Gives back the memory of a recursion that is over. To be called now and then.
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
        }
        over
    }

    /// Nothing is open but, perhaps, calls for which there was no room, and the stack stands at `sp`: if that is where the outermost of them
    /// stands, or at least `above` higher, they are over. Says how many were left.
    #[inline]
    fn leave_beyond(&mut self, sp: u64, above: u64) -> u64 {
        let higher = sp.wrapping_sub(self.beyond_from);
        if self.beyond > 0 && (above..NEAR).contains(&higher) {
            std::mem::take(&mut self.beyond)
        } else {
            0
        }
    }

    /// Whether a frame can be added; makes room for it.
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

    /// The stack stands at `sp`: leaves the segments above the one that this belongs to, and of that the calls at `dead` and lower. If it belongs to
    /// none, a segment begins. Says how many calls were left.
    #[cold]
    fn settle(&mut self, sp: u64, dead: u64) -> u64 {
        for segment in (0..=self.segments.len()).rev() {
            if self.fits(segment, sp) {
                let keep = self.above(segment, dead);
                return self.leave(keep, segment);
            }
        }
        // The frame of a call for which there is no room can be none of a segment's.
        if self.segments.len() < self.share.segments() && self.has_room() {
            self.segments.push(self.frames.len());
        }
        0
    }

    #[cold]
    fn exit_elsewhere(&mut self, function: FunctionId, sp: u64) -> Shown {
        if self.frames.is_empty() && self.beyond > 0 {
            // Of the outermost call that had no room, of one further out, or of one further in.
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
            self.trim();
            let of = Exit::Innermost;
            return Shown { over, of };
        }
        if self.frames.is_empty() {
            let of = Exit::Unknown;
            return Shown { over: 0, of };
        }
        // What returns from there has nothing open there or below.
        let over = fitting.map_or(0, |segment| {
            let keep = self.above(segment, sp);
            self.leave(keep, segment)
        });
        self.trim();
        let of = Exit::Astray;
        Shown { over, of }
    }

    /// The call that such an exit is of, whose return address has moved by no more than `moved`, and its segment.
    fn exiting(&self, function: FunctionId, sp: u64, moved: u64) -> Option<(usize, usize)> {
        (0..=self.segments.len()).rev().find_map(|segment| {
            let at = self.above(segment, sp);
            let range = self.range(segment);
            // The first that is not above, or else the last that is.
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

    /// Where the calls of a segment begin that stand at `sp` or lower.
    fn above(&self, segment: usize, sp: u64) -> usize {
        let range = self.range(segment);
        let frames = self.frames.get(range.clone()).unwrap_or_default();
        range.start + frames.partition_point(|frame| frame.sp > sp)
    }

    /// Whether the stack of that segment can stand at `sp`.
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

    /// Leaves all calls but the first `keep`, the last of which are of this segment; says how many those were.
    fn leave(&mut self, keep: usize, segment: usize) -> u64 {
        let over = (self.frames.len() - keep.min(self.frames.len())) as u64;
        self.frames.truncate(keep);
        self.segments.truncate(segment);
        over.saturating_add(std::mem::take(&mut self.beyond))
    }

    /// A segment in which nothing is open is none.
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

    /// Whether it is a call of that function there, and not suspected.
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
        ShadowStack::new(&Room::new())
    }

    fn shown(over: u64, of: Exit) -> Shown {
        Shown { over, of }
    }

    /// A thread that got no room at all is followed again when what it had open is over, also if that is left without exits.
    #[test]
    fn calls_without_room_are_over_where_their_outermost_one_is() {
        type Next = fn(&mut ShadowStack) -> u64;
        let full = Room::with(0, 64, 4);
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

    /// The functions that are open, outermost first, and their places.
    fn open(stacks: &ShadowStack) -> Vec<(u32, u64)> {
        let frames = stacks.frames.iter();
        frames.map(|frame| (frame.function().0, frame.sp)).collect()
    }

    /// P31: `A` calls `B` calls `C`, which throws; `A` catches, and calls `C` where it had called `B`.
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

    /// P31: of a recursion the outer call catches; the inner one has the same function.
    #[test]
    fn recursion_is_told_apart_by_the_stack() {
        let mut stacks = stacks();
        for depth in 0..100 {
            assert_eq!(stacks.enter(A, TOP - 48 * depth, 0), 0);
        }
        assert_eq!(stacks.exit(A, TOP - 48 * 9), shown(90, Exit::Innermost));
        assert_eq!(stacks.exit(A, TOP - 48 * 8), shown(0, Exit::Innermost));
        // One whose entry was not seen.
        assert_eq!(stacks.exit(A, TOP - 48 * 30), shown(0, Exit::Astray));
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
            // And one that leaves by a jump.
            assert_eq!(stacks.enter(C, other, 0), 0);
            assert_eq!(stacks.exit(B, TOP - 64), shown(1, Exit::Innermost));
            assert_eq!(open(&stacks), [(1, TOP)]);
        }
    }

    /// What runs on a fiber is over for now when the thread is back where it came from, and an exit on the fiber is nobody else's.
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
        assert_eq!(stacks.exit(A, fiber), shown(0, Exit::Astray));
        assert_eq!(stacks.exit(A, TOP), shown(0, Exit::Innermost));
    }

    #[test]
    fn what_the_program_says_shows_what_is_over_and_not_the_call_that_it_is_in() {
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

    /// Calls whose functions were switched count as over where nothing further in is known to be open, and no exit is theirs.
    #[test]
    fn a_call_whose_function_was_switched_is_open_while_one_within_it_is() {
        let mut stacks = stacks();
        for (function, depth) in [(A, 0), (B, 64), (C, 128), (B, 192), (B, 256)] {
            assert_eq!(stacks.enter(function, TOP - depth, 0), 0);
        }
        stacks.suspect(|function| function == B);
        assert_eq!(stacks.shed(), 2, "the innermost two");
        assert_eq!(stacks.shed(), 0);
        assert_eq!(open(&stacks), [(1, TOP), (2, TOP - 64), (3, TOP - 128)]);
        // One that has begun since is known.
        assert_eq!(stacks.enter(B, TOP - 192, 0), 0);
        assert_eq!(stacks.shed(), 0);
        assert_eq!(stacks.exit(B, TOP - 192), shown(0, Exit::Innermost));
        assert_eq!(stacks.shed(), 0);
        // The outer one's place, whose exit it cannot be: `C` has been left then, too.
        let mut other = ShadowStack::new(&Room::new());
        other.enter(A, TOP, 0);
        other.enter(B, TOP - 64, 0);
        other.enter(C, TOP - 128, 0);
        other.suspect(|function| function == B);
        assert_eq!(other.shed(), 0);
        assert_eq!(other.exit(B, TOP - 64), shown(2, Exit::Astray));
        assert_eq!(other.shed(), 0);
        assert_eq!(open(&other), [(1, TOP)]);

        assert_eq!(stacks.exit(C, TOP - 128), shown(0, Exit::Innermost));
        assert_eq!(stacks.shed(), 1);
        assert_eq!(stacks.exit(B, TOP - 64), shown(0, Exit::Astray));
        assert_eq!(stacks.exit(A, TOP), shown(0, Exit::Innermost));
        assert_eq!(stacks.shed(), 0);
    }

    /// Of calls without room nobody knows the functions.
    #[test]
    fn calls_without_room_are_over_at_a_switch() {
        let mut stacks = ShadowStack::new(&Room::with(0, 64, 4));
        stacks.enter(A, TOP, 0);
        stacks.enter(B, TOP - 64, 0);
        stacks.suspect(|function| function == C);
        assert_eq!(stacks.shed(), 2);
        assert_eq!(stacks.shed(), 0);
        assert_eq!(stacks.exit(B, TOP - 64), shown(0, Exit::Unknown));
    }

    /// What cannot be seen: whether what happens more than a neighbour's distance away is on the same stack.
    #[test]
    fn a_call_that_was_left_far_away_stays_open_until_something_happens_near_it_or_further_out() {
        // `B` is far below `A`, with others between that are not traced. `A` catches, and the next call is far below `B`: within it, as it seems.
        for near in [TOP - NEAR, TOP - 64] {
            let mut stacks = stacks();
            stacks.enter(A, TOP, 0);
            stacks.enter(B, TOP - 2 * NEAR, 0);
            assert_eq!(stacks.enter(C, TOP - 4 * NEAR, 0), 0);
            assert_eq!(stacks.exit(C, TOP - 4 * NEAR), shown(0, Exit::Innermost));
            assert_eq!(stacks.enter(C, near, 0), 1);
            assert_eq!(open(&stacks), [(1, TOP), (3, near)]);
        }
        // `B` was left, and what is called far above is within it, as it seems, each time anew.
        let mut stacks = stacks();
        stacks.enter(B, TOP - 2 * NEAR, 0);
        for _ in 0..10 {
            assert_eq!(stacks.enter(A, TOP, 0), 0);
            assert_eq!(stacks.exit(A, TOP), shown(0, Exit::Innermost));
        }
        assert_eq!(open(&stacks), [(2, TOP - 2 * NEAR)]);
        assert_eq!(stacks.enter(A, TOP - NEAR, 0), 1);
    }

    /// Those that are not known stand further from the last that is than neighbours do.
    #[test]
    fn calls_without_end_take_bounded_memory() {
        let room = Room::new();
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
        // Where the stack stands is followed as before.
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

    /// A thread that got no room has it when somebody else's recursion is over, and not in the middle of its calls.
    #[test]
    fn room_that_comes_back_is_used_from_the_outermost_call_on() {
        let room = Room::with(64, 64, 4);
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
        /// Calls a function whose frame has so many bytes; whether it is traced.
        Call(u32, u64, bool),
        /// The innermost call returns.
        Return,
        /// It ends in a jump to another function.
        TailCall(u32),
        /// An exception is caught by the traced call of this number, from the outermost, or whichever is there.
        Throw(usize),
        /// A signal's handler begins on the thread's other stack, if it is not there already.
        Signal,
        /// It is left by its return, with all that it called.
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

    /// A thread, and the resolver beside it.
    struct Machine {
        calls: Vec<Call>,
        other: u64,
        stacks: ShadowStack,
        /// Open calls as a reader has them, who knows nothing but functions and what the resolver says.
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

        /// After an event, and before an entry counts: what is open is known.
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
        /// Exceptions, handlers on another stack above or below, tail calls, functions that are not traced: whoever follows knows at each
        /// event what is open. A function that catches goes on with a traced call from where it called before, or returns. Where there is no
        /// room for more calls that is so as well, but for exceptions.
        #[test]
        fn what_is_open_is_known_at_each_event(acts in acts(), above in any::<bool>(), frames in prop_oneof![1..20usize, Just(1 << 10)]) {
            let other = if above { TOP + (1 << 24) } else { TOP - (1 << 30) };
            let (calls, read) = (Vec::new(), Vec::new());
            let stacks = ShadowStack::new(&Room::with(1 << 10, frames, 32));
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
                        // Not out of a handler, which nobody could survive.
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

        /// Whatever a stranger says: no panic, never more calls over than there are, and no more kept than there is room for.
        #[test]
        fn any_addresses_are_survived(
            events in prop::collection::vec((0..5u8, 0..3u32, any::<u8>(), 0..40u64), 0..400),
            (frames, segments) in prop_oneof![(1..20usize, 0..4usize), Just((1 << 10, 32))],
        ) {
            let room = Room::with(1 << 10, frames, segments);
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
