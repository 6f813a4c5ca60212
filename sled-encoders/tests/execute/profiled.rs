//! Adding up: every call of a thread is in the sums of its stack, and nothing is recorded.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

use proptest::{prelude::*, test_runner::TestCaseError};
use shm_ring::{
    Item,
    layout::{bucket, profile, slot},
    profile::{DurationRange, Limits, LongCalls, Profile},
};
use sled_encoders::x86_64::DispatchMode;

use crate::{
    forks,
    function::Function,
    machine::{COPIES, Machine, now},
    step::{HandlerStack, Stepper},
};

/// A call and the calls in it.
#[derive(Debug, Clone)]
struct Call {
    copy: u32,
    entry: Function,
    /// `None` for a call that is left by a jump.
    exit: Option<Function>,
    calls: Vec<Call>,
}

/// Calls with an exit, and calls without one, by the entries' sites, outermost first.
type Sums = BTreeMap<Vec<u32>, (u64, u64)>;

// === impl Call ===

impl Call {
    fn leaf(copy: u32) -> Self {
        Self {
            copy,
            entry: Function::Entry,
            exit: Some(Function::Exit),
            calls: vec![],
        }
    }

    /// Makes the call. All calls in it are made further down the stack.
    #[inline(never)]
    fn make(&self, machine: &Machine) {
        let functions = [Some(self.entry), self.exit];
        for (at, function) in functions.into_iter().enumerate() {
            if at == 1 {
                for call in &self.calls {
                    call.make(machine);
                }
            }
            if let Some(function) = function {
                machine.call(function, self.copy, 7);
            }
        }
    }

    fn expect(&self, machine: &Machine, path: &mut Vec<u32>, sums: &mut Sums) {
        path.push(machine.site(self.entry, self.copy));
        let sum = sums.entry(path.clone()).or_default();
        match self.exit {
            Some(_) => sum.0 += 1,
            None => sum.1 += 1,
        }
        for call in &self.calls {
            call.expect(machine, path, sums);
        }
        path.pop();
    }
}

fn adding_up() -> Machine {
    adding_up_in(DispatchMode::Profile)
}

fn adding_up_in(dispatch_mode: DispatchMode) -> Machine {
    let machine = Machine::with_profiles();
    machine.set_dispatch_mode(dispatch_mode);
    machine
}

/// The sums of a profile. 0 stands for stacks that have none of their own.
fn sums(profile: &Profile) -> Sums {
    let mut paths = Vec::<Vec<u32>>::new();
    let mut sums = Sums::new();
    for stack in &profile.stacks {
        let mut path = stack.caller.map_or_else(Vec::new, |at| paths[at].clone());
        path.push(stack.site.unwrap_or(0));
        paths.push(path.clone());
        let finished = stack.finished();
        if finished > 0 {
            assert!(stack.shortest <= stack.longest && stack.longest <= stack.total);
            assert!(stack.total >= stack.shortest.saturating_mul(finished));
        }
        if finished + stack.left > 0 {
            let sum = sums.entry(path).or_default();
            sum.0 += finished;
            sum.1 += stack.left;
        }
    }
    sums
}

fn is_over(profile: &Profile) -> bool {
    profile.open.is_empty() && profile.unmatched == 0 && profile.not_followed == 0
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let (entry, exit) = (Function::entries(), Function::exits());
    let one = (0..COPIES - 1, entry, exit).prop_map(|(copy, entry, exit)| Call {
        copy,
        entry,
        exit,
        calls: vec![],
    });
    let tree = one.prop_recursive(6, 60, 4, |inner| {
        (inner.clone(), prop::collection::vec(inner, 0..4)).prop_map(|(mut call, calls)| {
            call.calls.extend(calls);
            call
        })
    });
    prop::collection::vec(tree, 1..6)
}

#[test]
fn each_call_is_in_the_sums_of_its_stack() {
    let machine = adding_up();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&(calls(), 1..4_u32), |(calls, rounds)| {
            machine.reset();
            let last = Call::leaf(COPIES - 1);
            let mut expected = Sums::new();
            for _ in 0..rounds {
                for call in &calls {
                    call.make(&machine);
                }
                // Shows the end of calls that were left by a jump.
                for function in [last.entry, Function::Exit] {
                    machine.call(function, last.copy, 7);
                }
                for call in calls.iter().chain([&last]) {
                    call.expect(&machine, &mut Vec::new(), &mut expected);
                }
            }
            let profile = machine.profile(machine.home());
            let got = sums(&profile);
            if !is_over(&profile) || got != expected {
                return Err(TestCaseError::fail(format!(
                    "{expected:x?}, not {profile:x?}"
                )));
            }
            Ok(())
        })
        .unwrap();
    let events = machine.drain(&mut machine.consumer(machine.home()));
    assert!(events.is_empty(), "nothing is recorded");
    // Without a dispatch mode, events are recorded again.
    machine.set_dispatch_mode(DispatchMode::None);
    machine.call(Function::Entry, 0, 0);
    let events = machine.drain(&mut machine.consumer(machine.home()));
    assert_eq!(events.len(), 1);
}

/// In the other mode of adding up, the events are in the ring, too.
#[test]
fn calls_are_added_up_and_recorded() {
    let machine = adding_up_in(DispatchMode::ProfileAndRecord);
    let inner = Call {
        entry: Function::Argument,
        exit: Some(Function::Tail),
        ..Call::leaf(1)
    };
    let call = Call {
        calls: vec![inner, Call::leaf(2)],
        ..Call::leaf(0)
    };
    let mut expected = Sums::new();
    for _ in 0..3 {
        call.make(&machine);
        call.expect(&machine, &mut Vec::new(), &mut expected);
    }
    let profile = machine.profile(machine.home());
    assert!(is_over(&profile));
    assert_eq!(sums(&profile), expected);
    let site = |function, copy| machine.site(function, copy);
    let once = [
        site(Function::Entry, 0),
        site(Function::Argument, 1),
        site(Function::Tail, 1),
        site(Function::Entry, 2),
        site(Function::Exit, 2),
        site(Function::Exit, 0),
    ];
    let events = machine.drain(&mut machine.consumer(machine.home()));
    let got: Vec<u32> = events
        .iter()
        .filter_map(|item| match item {
            Item::Call { site, .. } => Some(*site),
            _ => None,
        })
        .collect();
    assert_eq!(got, [once, once, once].concat());
    // A thread without a slot loses each event once.
    for index in 0..machine.geometry.slots() {
        machine.set_slot_owner(index, 1);
    }
    call.make(&machine);
    let buckets = 0..machine.geometry.buckets();
    let lost: u64 = buckets
        .map(|index| machine.bucket(index, bucket::LOST))
        .sum();
    assert_eq!(lost, once.len() as u64);
}

/// Calls that take long enough, in the order of their ends, until their notes are overwritten.
#[test]
fn long_calls_are_noted() {
    const LONG: u64 = 3_000_000;
    let machine = adding_up();
    let leaf = Call::leaf(1);
    machine.set_long_call(LONG);
    leaf.make(&machine);
    assert_eq!(machine.long_calls(), (LongCalls::default(), 0));
    let begun = now();
    machine.call(Function::Entry, 0, 0);
    leaf.make(&machine);
    while now() - begun < 2 * LONG {}
    machine.call(Function::Exit, 0, 0);
    let ended = now();
    let (LongCalls { calls, missed }, seen) = machine.long_calls();
    let [call] = calls[..] else {
        panic!("{calls:?}")
    };
    assert_eq!((missed, seen, machine.told_long_calls()), (0, 1, 1));
    assert_eq!(call.site, machine.site(Function::Exit, 0));
    assert!((LONG..=ended - begun).contains(&call.ticks), "{call:?}");
    assert!((begun + call.ticks..=ended).contains(&call.ended));
    let outer = &machine.profile(machine.home()).stacks[1];
    assert_eq!(outer.total, call.ticks);
    // Without a frame of its own, and more of them than there are notes.
    machine.reset();
    machine.limit_profiles(Limits {
        nodes: 8,
        ..Limits::most(machine.geometry)
    });
    machine.set_long_call(1);
    for at in 0..2 * profile::NOTES {
        Call::leaf(u32::try_from(at % 8).unwrap()).make(&machine);
    }
    let (LongCalls { calls, missed }, seen) = machine.long_calls();
    assert_eq!((missed, seen), (profile::NOTES, 2 * profile::NOTES));
    let sites = calls.iter().map(|call| call.site);
    let expected = (0..8).map(|copy| machine.site(Function::Exit, copy));
    let expected = expected.cycle().take(calls.len());
    assert!(calls.len() as u64 == profile::NOTES && sites.eq(expected));
}

/// Durations are within an eighth, and the time in a caller includes that in its callees.
#[test]
fn durations_are_those_of_the_calls() {
    const LONG: u64 = 2_000_000;
    let machine = adding_up();
    for _ in 0..10 {
        machine.reset();
        let begun = now();
        machine.call(Function::Entry, 0, 0);
        let inner = Call::leaf(1);
        for _ in 0..3 {
            inner.make(&machine);
        }
        while now() - begun < LONG {}
        let before = now() - begun;
        machine.call(Function::Exit, 0, 0);
        let after = now() - begun;
        let profile = machine.profile(machine.home());
        let [outer, inner] = &profile.stacks[..] else {
            panic!("{profile:?}")
        };
        assert!(
            (LONG / 2..=after).contains(&outer.total),
            "{outer:?} {before} {after}"
        );
        assert_eq!((outer.shortest, outer.longest), (outer.total, outer.total));
        let [(range, 1)] = outer.durations[..] else {
            panic!("{outer:?}")
        };
        let (low, high) = range.bounds();
        assert!((low..=high).contains(&outer.total) && high - low <= low / 8);
        assert_eq!(inner.finished(), 3);
        assert!(inner.total < outer.total && inner.caller == Some(0));
        assert!(inner.shortest > 0);
    }
}

/// A call that takes any time is in the range of its duration.
#[test]
fn each_duration_is_in_its_range() {
    let machine = adding_up();
    let mut ranges = BTreeSet::new();
    for spin in (0..3000).map(|at| at * 7) {
        machine.reset();
        machine.call(Function::Entry, 0, 0);
        let begun = now();
        while now() - begun < spin {}
        machine.call(Function::Exit, 0, 0);
        let profile = machine.profile(machine.home());
        let [stack] = &profile.stacks[..] else {
            panic!("{profile:?}")
        };
        let [(range, 1)] = stack.durations[..] else {
            panic!("{stack:?}")
        };
        assert_eq!(range, DurationRange::of(stack.total), "{stack:?}");
        ranges.insert(range);
    }
    assert!(ranges.len() > 8, "{ranges:?}");
}

/// An open call, an exit without an entry, and an exit of an outer call.
#[test]
fn open_calls_and_unmatched_exits_are_shown() {
    let machine = adding_up();
    machine.call(Function::Exit, 0, 0);
    machine.call(Function::Entry, 1, 0);
    let profile = machine.profile(machine.home());
    assert_eq!((profile.unmatched, profile.open.len()), (1, 1));
    assert_eq!(profile.open[0].stack, 0);
    assert!(sums(&profile).is_empty());
}

#[test]
fn a_thread_adds_up_where_its_slot_is_and_what_finds_none_is_lost() {
    let machine = adding_up();
    let home = machine.home();
    let next = (home + 1) % machine.geometry.slots();
    machine.set_slot_owner(home, 1);
    let call = || {
        for function in [Function::Entry, Function::Exit] {
            machine.call(function, 0, 0);
        }
    };
    call();
    call();
    let owner = machine.slot(next, slot::TID) & 0xffff_ffff;
    assert_eq!(owner, u64::from(machine.tid()));
    let expected = Sums::from([(vec![machine.site(Function::Entry, 0)], (2, 0))]);
    assert_eq!(sums(&machine.profile(next)), expected);
    assert!(machine.profile(home).is_empty());
    for index in 0..machine.geometry.slots() {
        machine.set_slot_owner(index, 1);
    }
    call();
    assert_eq!(machine.buckets_taken(), 1);
    assert_eq!(sums(&machine.profile(next)), expected);
}

#[test]
fn a_wiped_table_adds_up_nothing() {
    let machine = adding_up();
    machine.wipe();
    for function in [Function::Entry, Function::Exit] {
        machine.call(function, 0, 0);
    }
    assert!(machine.profile(machine.home()).is_empty());
}

/// Stacks for which there is no node, calls for which there is no frame, and durations for which
/// there is no block.
#[test]
fn full_profiles_count_what_they_can() {
    let machine = adding_up();
    let site = |copy| machine.site(Function::Entry, copy);
    let deep = Call {
        calls: vec![Call {
            calls: vec![Call::leaf(2)],
            ..Call::leaf(1)
        }],
        ..Call::leaf(0)
    };
    let limits = Limits::most(machine.geometry);
    let with = |limits| {
        machine.reset();
        machine.limit_profiles(limits);
        for _ in 0..3 {
            deep.make(&machine);
            Call::leaf(3).make(&machine);
        }
        let profile = machine.profile(machine.home());
        assert!(profile.open.is_empty() && profile.unmatched == 0);
        let sums = sums(&profile);
        (profile, sums)
    };
    let (profile, got) = with(limits);
    assert!(is_over(&profile) && got.len() == 4);
    let (profile, got) = with(Limits { nodes: 4, ..limits });
    let [outer, middle, inner] = [0, 1, 2].map(site);
    let expected = [
        (vec![outer], (3, 0)),
        (vec![outer, middle], (3, 0)),
        (vec![outer, middle, inner], (3, 0)),
    ];
    assert_eq!(profile.not_followed, 3);
    assert_eq!(got, Sums::from(expected));
    // Two open calls.
    let (profile, got) = with(Limits { open: 2, ..limits });
    assert_eq!(profile.not_followed, 3);
    let expected = [
        (vec![outer], (3, 0)),
        (vec![outer, middle], (3, 0)),
        (vec![site(3)], (3, 0)),
    ];
    assert_eq!(got, Sums::from(expected));
    let (profile, got) = with(Limits {
        blocks: 1,
        ..limits
    });
    assert_eq!(got.len(), 4);
    assert!(profile.stacks.iter().all(|stack| stack.unsorted == 3));
}

/// Stacks beyond the limit are counted together, within their known part.
#[test]
fn stacks_without_a_node_count_together() {
    let machine = adding_up();
    machine.limit_profiles(Limits {
        nodes: 8,
        ..Limits::most(machine.geometry)
    });
    let nested = Call {
        calls: vec![Call::leaf(1), Call::leaf(0)],
        ..Call::leaf(6)
    };
    for _ in 0..3 {
        for copy in 0..6 {
            Call::leaf(copy).make(&machine);
        }
        nested.make(&machine);
        Call::leaf(7).make(&machine);
    }
    let profile = machine.profile(machine.home());
    assert!(is_over(&profile));
    let site = |copy| machine.site(Function::Entry, copy);
    let mut expected: Sums = (0..6).map(|copy| (vec![site(copy)], (3, 0))).collect();
    expected.insert(vec![0], (12, 0));
    assert_eq!(sums(&profile), expected);
    let more = profile.stacks.iter().find(|stack| stack.site.is_none());
    let more = more.unwrap();
    assert!(more.nested > 0 && more.nested < more.total);
}

/// A function that was switched: calls from before may have ended unseen.
#[test]
fn calls_from_before_a_switch_are_left_if_their_function_was_switched() {
    let machine = adding_up();
    let entry = |copy| machine.site(Function::Entry, copy);
    let exit = |copy| machine.site(Function::Exit, copy);
    let inner = Call::leaf(3);
    // The switched sites; the calls with an exit, and those without one, of copy 0 and within it.
    for (switched, all, outer) in [
        (vec![], false, (1, 0)),
        (vec![entry(1), exit(1)], false, (1, 0)),
        (vec![entry(0), exit(0)], false, (0, 1)),
        // The sites of another function, whose exit comes at this place.
        (vec![exit(0)], false, (0, 1)),
        (vec![], true, (0, 1)),
    ] {
        machine.reset();
        machine.call(Function::Entry, 0, 0);
        machine.mark_switched(&switched, all);
        inner.make(&machine);
        machine.call(Function::Exit, 0, 0);
        let profile = machine.profile(machine.home());
        let is_left = outer == (0, 1);
        let own_stack = is_left && switched.len() != 1;
        let path = match own_stack {
            true => vec![entry(3)],
            false => vec![entry(0), entry(3)],
        };
        let expected = Sums::from([(vec![entry(0)], outer), (path, (1, 0))]);
        assert_eq!(sums(&profile), expected, "{switched:x?} {all}");
        assert_eq!(profile.unmatched, u64::from(is_left));
        // What begins afterwards is as always.
        Call::leaf(0).make(&machine);
        let profile = machine.profile(machine.home());
        assert_eq!(sums(&profile)[&vec![entry(0)]], (outer.0 + 1, outer.1));
    }
}

/// Whatever a profile holds, the thread goes on.
#[test]
fn a_profile_that_was_written_over_is_harmless() {
    let machine = adding_up();
    let region = machine.geometry.profile_region();
    let calls = [
        Function::Entry,
        Function::Argument,
        Function::Exit,
        Function::Tail,
        Function::Exit,
    ];
    for open in [0, 1, 5, region.frames() - 2, region.frames(), u64::MAX] {
        for word in [1, u64::MAX, 0x0001_0001_0000_0000, 0x7fff_ffff_7fff_ff81] {
            machine.reset();
            machine.fill_profile(word);
            machine.set_profile_header(profile::OPEN, open);
            for function in calls {
                machine.call(function, 0, 0);
            }
            machine.mark_switched(&[machine.site(Function::Entry, 0)], false);
            for function in calls {
                machine.call(function, 0, 0);
            }
            machine.profile(machine.home());
        }
    }
    // The limits, too.
    for most in [0, u32::MAX] {
        machine.reset();
        machine.limit_profiles(Limits {
            nodes: most,
            blocks: most,
            open: most,
        });
        for function in calls {
            machine.call(function, 0, 0);
        }
    }
}

/// A call that is interrupted at each of its instructions in turn, by a handler that makes a call
/// itself, or that begins one and leaves it by a jump.
#[test]
fn a_handler_at_any_instruction_is_added_up_and_disturbs_nothing() {
    interrupt_everywhere(DispatchMode::Profile, u64::MAX);
}

/// The same for calls that are noted, and whose events are recorded.
#[test]
fn a_handler_at_any_instruction_of_a_long_call_disturbs_nothing() {
    interrupt_everywhere(DispatchMode::ProfileAndRecord, 1);
}

fn interrupt_everywhere(dispatch_mode: DispatchMode, long_call: u64) {
    let machine = adding_up_in(dispatch_mode);
    let handlers: [&[Function]; 2] = [&[Function::Entry, Function::Exit], &[Function::Entry]];
    let pairs = [
        (Function::Entry, Function::Exit),
        (Function::Argument, Function::Tail),
        (Function::Arguments(3), Function::Result),
    ];
    for on in [HandlerStack::Same, HandlerStack::Other] {
        let stepper = Stepper::new(on);
        for (of_handler, pair, is_known) in [
            (handlers[0], pairs[0], false),
            (handlers[0], pairs[0], true),
            (handlers[0], pairs[1], true),
            (handlers[0], pairs[2], true),
            (handlers[1], pairs[0], true),
            (handlers[1], pairs[0], false),
        ] {
            for stepped in [0, 1] {
                let events = [pair.0, pair.1];
                // The call is within another one, so that an outer frame is there.
                let run = |make: &dyn Fn(usize, Function)| {
                    machine.reset();
                    machine.set_long_call(long_call);
                    if is_known {
                        machine.call(Function::Entry, 2, 0);
                        at_depth(&|at| {
                            machine.call(events[at], 0, 7);
                        });
                        machine.call(Function::Exit, 2, 0);
                    }
                    machine.call(Function::Entry, 2, 0);
                    at_depth(&|at| make(at, events[at]));
                    machine.call(Function::Exit, 2, 0);
                    machine.call(Function::Entry, 3, 0);
                    machine.call(Function::Exit, 3, 0);
                };
                let places = RefCell::new(Vec::new());
                run(&|at, function| match at == stepped {
                    true => {
                        *places.borrow_mut() = stepper.places(&machine, (function, 0, 7), 3);
                    }
                    false => {
                        machine.call(function, 0, 7);
                    }
                });
                let mut reached = 0;
                for place in places.into_inner() {
                    let handled = Cell::new(0);
                    run(&|at, function| {
                        // All events have the same way to their call, so that an exit finds its
                        // entry by the place on the stack.
                        stepper.interrupt(&machine, (function, 0, 7), place, &|| {
                            if at != stepped {
                                return;
                            }
                            handled.set(handled.get() + 1);
                            for function in of_handler {
                                machine.call(*function, 1, 7);
                            }
                        });
                    });
                    reached += handled.get();
                    check(
                        &machine,
                        (of_handler, is_known, handled.get(), pair.0),
                        &format!("{on:?} {pair:?} {stepped} {place:x?}"),
                    );
                    assert_eq!(machine.told_long_calls() > 0, long_call == 1);
                }
                assert!(reached > 15, "{reached}");
            }
        }
    }
}

/// Runs `event` for the entry and the exit of a call, further down the stack.
#[inline(never)]
fn at_depth(event: &dyn Fn(usize)) {
    let room = std::hint::black_box([0_u8; 2048]);
    for (at, zero) in room.into_iter().enumerate().take(2) {
        event(at + usize::from(zero));
    }
}

/// Checks that each call is in the sums once, and the handler's calls, too.
fn check(
    machine: &Machine,
    (of_handler, is_known, handled, entry): (&[Function], bool, u64, Function),
    at: &str,
) {
    let profile = machine.profile(machine.home());
    let mut by_site = BTreeMap::<u32, (u64, u64)>::new();
    for (path, (finished, left)) in sums(&profile) {
        let sum = by_site.entry(*path.last().unwrap()).or_default();
        sum.0 += finished;
        sum.1 += left;
    }
    let calls = 1 + u64::from(is_known);
    let outer = machine.site(Function::Entry, 2);
    assert_eq!(by_site[&outer], (calls, 0), "{at}: {profile:x?}");
    let interrupted = by_site[&machine.site(entry, 0)];
    let handler = machine.site(Function::Entry, 1);
    let handler = by_site.get(&handler).copied().unwrap_or_default();
    assert_eq!(interrupted.0, calls, "{at}: {profile:x?}");
    match of_handler.len() {
        // The interrupted context may have written over the frame of the handler's call. Then that
        // call counts as one of the interrupted function.
        1 => {
            assert_eq!(handler.0, 0, "{at}: {profile:x?}");
            assert_eq!(handler.1 + interrupted.1, handled, "{at}: {profile:x?}");
        }
        _ => assert_eq!(
            (handler, interrupted.1),
            ((handled, 0), 0),
            "{at}: {profile:x?}"
        ),
    }
    let last = machine.site(Function::Entry, 3);
    assert_eq!(by_site[&last], (1, 0), "{at}: {profile:x?}");
    let (long, told) = (machine.long_calls(), machine.told_long_calls());
    if told > 0 {
        let finished: u64 = by_site.values().map(|(finished, _)| finished).sum();
        assert_eq!((long.1, told), (finished, finished), "{at}: {long:?}");
        assert_eq!((long.0.calls.len() as u64, long.0.missed), (finished, 0));
    }
    assert!(is_over(&profile), "{at}: {profile:x?}");
}

/// P58: a handler forks at each instruction of a call in turn. The child goes on with a wiped
/// table, and with its parent's profile.
#[test]
fn a_child_that_is_forked_at_any_instruction_leaves_its_parents_sums_alone() {
    let machine = adding_up();
    let stepper = Stepper::new(HandlerStack::Same);
    let events = [Function::Entry, Function::Exit];
    for (stepped, is_known) in [(0, false), (0, true), (1, false), (1, true)] {
        let run = |make: &dyn Fn(usize, Function)| {
            machine.reset();
            for _ in 0..u64::from(is_known) {
                at_depth(&|at| {
                    machine.call(events[at], 0, 7);
                });
            }
            at_depth(&|at| make(at, events[at]));
        };
        let places = RefCell::new(Vec::new());
        run(&|at, function| match at == stepped {
            true => *places.borrow_mut() = stepper.places(&machine, (function, 0, 7), 3),
            false => {
                machine.call(function, 0, 7);
            }
        });
        let mut disturbed = BTreeSet::new();
        for place in places.into_inner() {
            let in_child = Cell::new(false);
            run(&|at, function| {
                stepper.interrupt(&machine, (function, 0, 7), place, &|| {
                    if at == stepped {
                        in_child.set(forks::fork_and_wipe(&machine));
                    }
                });
                if in_child.get() {
                    forks::end_child();
                }
            });
            let profile = machine.profile(machine.home());
            let path = vec![machine.site(Function::Entry, 0)];
            let expected = Sums::from([(path, (1 + u64::from(is_known), 0))]);
            let total: u64 = profile.stacks.iter().map(|stack| stack.total).sum();
            let longest = profile.stacks.iter().map(|stack| stack.longest).max();
            let most = longest.unwrap_or(0) * (1 + u64::from(is_known));
            if !is_over(&profile) || sums(&profile) != expected || total > most {
                disturbed.insert(place.address);
            }
        }
        // Between a look at the table and the store behind it.
        assert!(
            disturbed.len() <= 12,
            "{stepped} {is_known}: {disturbed:x?}"
        );
    }
}
