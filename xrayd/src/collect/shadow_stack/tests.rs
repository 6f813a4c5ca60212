//! Tests of `shadow_stack`.

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
        let entered = stacks.depth();
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
    while stacks.frameless.len() < 1000 {
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
    assert_eq!((open(&second), second.frameless.len()), (vec![], 2));
    assert_eq!(second.exit(B, TOP - 64), shown(0, Exit::Unknown));
    assert_eq!(second.exit(A, TOP), shown(0, Exit::Unknown));
    second.enter(C, TOP, 0);
    assert_eq!((open(&second), second.frameless.len()), (vec![(3, TOP)], 0));
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
        let beyond = !self.stacks.frameless.is_empty();
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
                Act::Throw(_) if !machine.stacks.frameless.is_empty() => {}
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
            let there = stacks.depth();
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
            prop_assert_eq!(left, Some(stacks.depth()));
            prop_assert!(stacks.frames.len() <= frames && stacks.segments.len() <= segments);
            prop_assert!(stacks.segments.first().is_none_or(|first| *first > 0));
            prop_assert!(stacks.segments.is_sorted_by(|a, b| a < b));
            prop_assert!(stacks.segments.last().is_none_or(|last| *last < stacks.frames.len()));
        }
    }
}
