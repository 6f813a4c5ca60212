//! The filter: of any calls, exactly those that it selects are recorded, and the others are
//! counted.

use std::cell::Cell;

use proptest::{prelude::*, test_runner::TestCaseError};
use shm_ring::{
    Item,
    layout::{control, filter, table},
};
use sled_encoders::x86_64::DispatchMode;

use crate::{
    function::Function,
    machine::{COPIES, Machine, now},
    step::{HandlerStack, Stepper},
};

/// So long that no call of a test takes it by itself.
const LONG: u64 = 4_000_000;

/// A call and the calls in it.
#[derive(Debug, Clone)]
struct Call {
    copy: u32,
    entry: Function,
    /// `None` for a call that is left by a jump.
    exit: Option<Function>,
    /// True if the call lasts longer than [`LONG`].
    long: bool,
    /// True if an event of the program's own comes first.
    event: bool,
    calls: Vec<Call>,
}

#[derive(Debug, Clone)]
struct Wanted {
    shortest: u64,
    max_depth: u32,
    one_in: u32,
    inside: Option<Vec<u32>>,
    muted: bool,
}

/// The surroundings of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    Nothing,
    Kept(u32),
    Outside,
    Left,
}

/// The expected result of calls: events, and the number of those left out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    sites: Vec<u32>,
    left_out: u64,
    trees: u32,
}

// === impl Call ===

impl Call {
    /// Makes the call. All calls in it are made further down the stack.
    #[inline(never)]
    fn make(&self, machine: &Machine, spun: &Cell<u64>) {
        let functions = [Some(self.entry), self.exit];
        let mut stacks = Vec::new();
        for (at, function) in functions.into_iter().enumerate() {
            if at == 1 {
                if self.event {
                    say(machine, self.copy);
                }
                if self.long {
                    let begun = now();
                    while now() - begun <= LONG {}
                    spun.set(spun.get() + (now() - begun));
                }
                // Not before: a call that is left by a jump lasts until an event shows its end.
                for call in &self.calls {
                    call.make(machine, spun);
                }
            }
            stacks.extend(function.map(|function| machine.call(function, self.copy, 7)));
        }
        assert!(stacks.iter().all(|stack| *stack == stacks[0]), "one place");
    }

    /// Adds the expected result of the call to `outcome`.
    fn expect(&self, wanted: &Wanted, machine: &Machine, within: Within, outcome: &mut Outcome) {
        let is_wanted = |list: &Vec<u32>| list.contains(&machine.site(self.entry, self.copy));
        let mut begin = || {
            let turn = wanted.one_in <= 1 || outcome.trees == 0;
            if wanted.muted {
                return Within::Left;
            }
            outcome.trees = (outcome.trees + 1) % wanted.one_in.max(1);
            if turn { Within::Kept(1) } else { Within::Left }
        };
        let becomes = match within {
            Within::Left => Within::Left,
            Within::Kept(_) if wanted.muted => Within::Left,
            Within::Kept(depth) if depth >= wanted.max_depth => Within::Left,
            Within::Kept(depth) => Within::Kept(depth + 1),
            Within::Nothing | Within::Outside => match &wanted.inside {
                Some(list) if !is_wanted(list) => Within::Outside,
                _ => begin(),
            },
        };
        let Within::Kept(_) = becomes else {
            outcome.left_out += 1 + u64::from(self.event);
            for call in &self.calls {
                call.expect(wanted, machine, becomes, outcome);
            }
            return;
        };
        let place = outcome.sites.len();
        if self.event {
            outcome
                .sites
                .push(machine.site(Function::Custom, self.copy));
        }
        for call in &self.calls {
            call.expect(wanted, machine, becomes, outcome);
        }
        let waits = wanted.shortest > 0 && self.entry == Function::Entry;
        let lasts = wanted.shortest <= LONG && self.has_long();
        if waits && outcome.sites.len() == place && !lasts {
            outcome.left_out += 1;
            return;
        }
        outcome
            .sites
            .insert(place, machine.site(self.entry, self.copy));
        outcome
            .sites
            .extend(self.exit.map(|exit| machine.site(exit, self.copy)));
    }

    fn has_long(&self) -> bool {
        self.long || self.calls.iter().any(Self::has_long)
    }
}

/// Makes an event of the program's own, further down the stack than the call around it.
#[inline(never)]
fn say(machine: &Machine, copy: u32) {
    let room = std::hint::black_box([0u8; 1024]);
    machine.call(Function::Custom, copy, u64::from(room[0]) + 7);
}

fn set(machine: &Machine, wanted: &Wanted) {
    machine.set_shortest(wanted.shortest);
    machine.set_header(table::MAX_DEPTH, wanted.max_depth);
    machine.set_header(table::ONE_IN, wanted.one_in);
    match &wanted.inside {
        Some(sites) => machine.set_inside(2, sites),
        None => machine.set_header(table::INSIDE, 0),
    }
    machine.set_page(machine.home(), filter::MUTED, u64::from(wanted.muted));
}

fn sites(items: &[Item]) -> Vec<u32> {
    let site = |item: &Item| match item {
        Item::Call { site, .. } => Some(*site),
        Item::Data(data) => Some(data.site),
        Item::Lost(_) | Item::Waited(_) => None,
    };
    items.iter().filter_map(site).collect()
}

/// Makes calls, and returns the expected and the actual result. `None` if the machine was so busy
/// that short calls were long.
fn run(machine: &Machine, wanted: &Wanted, calls: &[Call]) -> Option<(Outcome, Outcome)> {
    machine.reset();
    set(machine, wanted);
    let home = machine.home();
    let (begun, spun) = (now(), Cell::new(0));
    for call in calls {
        call.make(machine, &spun);
    }
    // These calls show the end of calls that were left by a jump.
    for function in [Function::Entry, Function::Exit] {
        machine.call(function, COPIES - 1, 7);
    }
    let took = now() - begun - spun.get();
    let mut expected = Outcome::default();
    let last = Call {
        copy: COPIES - 1,
        entry: Function::Entry,
        exit: Some(Function::Exit),
        long: false,
        event: false,
        calls: vec![],
    };
    for call in calls.iter().chain([&last]) {
        call.expect(wanted, machine, Within::Nothing, &mut expected);
    }
    expected.trees = 0;
    let got = Outcome {
        sites: sites(&machine.drain(&mut machine.consumer(home))),
        left_out: machine.page(home, filter::LEFT_OUT),
        trees: 0,
    };
    assert_eq!(machine.control(home, control::LOST), 0);
    assert_eq!(
        machine.page(home, filter::OPEN) & 0xffff_ffff,
        0,
        "all is over"
    );
    (took < LONG / 2).then_some((expected, got))
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let (entry, exit) = (Function::entries(), Function::exits());
    let one =
        (0..COPIES - 1, entry, exit, 0..25, 0..8).prop_map(|(copy, entry, exit, long, event)| {
            Call {
                copy,
                entry,
                exit,
                long: long == 0,
                event: event == 0,
                calls: vec![],
            }
        });
    let tree = one.prop_recursive(6, 40, 4, |inner| {
        (inner.clone(), prop::collection::vec(inner, 0..4)).prop_map(|(mut call, calls)| {
            call.calls.extend(calls);
            call
        })
    });
    prop::collection::vec(tree, 1..5)
}

fn wanted(machine: &Machine) -> impl Strategy<Value = Wanted> + use<> {
    let site = |copy| machine.site(Function::Entry, copy);
    let inside = [vec![site(0), site(3)], vec![site(1)], vec![]];
    (
        prop_oneof![Just(0), Just(LONG), Just(u64::MAX)],
        prop_oneof![Just(u32::MAX), 1..5u32],
        prop_oneof![Just(0), Just(1), 2..4u32],
        prop::option::weighted(0.4, prop::sample::select(inside.to_vec())),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(shortest, max_depth, one_in, inside, muted)| Wanted {
            shortest,
            max_depth,
            one_in,
            inside,
            muted,
        })
}

#[test]
fn selected_calls_are_recorded_and_the_rest_is_counted() {
    let machine = Machine::new();
    machine.set_dispatch_mode(DispatchMode::Filter);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let compared = Cell::new(0);
    runner
        .run(&(wanted(&machine), calls()), |(wanted, calls)| {
            let ran = (0..20).find_map(|_| run(&machine, &wanted, &calls));
            if let Some((expected, got)) = ran {
                compared.set(compared.get() + 1);
                if expected != got {
                    return Err(TestCaseError::fail(format!("{expected:x?}, not {got:x?}")));
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(compared.get() > 500, "{} were compared", compared.get());
}

/// A thread with more open calls than a page has records.
#[test]
fn calls_deeper_than_the_page_are_recorded() {
    #[inline(never)]
    fn descend(machine: &Machine, depth: u64) {
        for function in [Function::Entry, Function::Exit] {
            if function == Function::Exit && depth > 0 {
                descend(machine, depth - 1);
            }
            machine.call(function, 0, 0);
        }
    }
    let machine = Machine::new();
    machine.set_dispatch_mode(DispatchMode::Filter);
    for shortest in [0, u64::MAX] {
        for deep in [filter::MOST - 1, filter::MOST, filter::MOST + 30] {
            machine.reset();
            machine.set_shortest(shortest);
            machine.set_header(table::MAX_DEPTH, u32::MAX);
            descend(&machine, deep - 1);
            let items = machine.drain(&mut machine.consumer(machine.home()));
            let recorded = shortest == 0 || deep > filter::MOST;
            let (events, left_out) = if recorded { (2 * deep, 0) } else { (0, deep) };
            assert_eq!(
                items.len() as u64,
                events,
                "{deep} deep, at least {shortest}"
            );
            assert_eq!(machine.page(machine.home(), filter::LEFT_OUT), left_out);
            assert_eq!(machine.page(machine.home(), filter::OPEN) & 0xffff_ffff, 0);
        }
    }
}

/// Whatever a page holds, the thread goes on.
#[test]
fn a_page_that_was_written_over_is_harmless() {
    let machine = Machine::new();
    machine.set_dispatch_mode(DispatchMode::Filter);
    for open in [filter::MOST, filter::MOST + 1, 0xffff_ffff, u64::MAX] {
        for word in [0, u64::MAX, 0x0001_0001_0000_0000] {
            machine.reset();
            machine.set_header(table::MAX_DEPTH, 3);
            machine.set_shortest(1);
            for field in (0..filter::PAGE_BYTES).step_by(8) {
                machine.set_page(machine.home(), field, word);
            }
            machine.set_page(machine.home(), filter::OPEN, open);
            for function in Function::EACH {
                machine.call(function, 0, 0);
            }
        }
    }
}

/// Makes calls, each in the one before it; the last is of copy 0, with the events 0 and 1.
#[inline(never)]
fn nest(make: &dyn Fn(usize, Function, u32), calls: &[(Function, Function)]) {
    let Some(((entry, exit), inner)) = calls.split_first() else {
        return;
    };
    let copy = if inner.is_empty() { 0 } else { 2 };
    for (at, function) in [*entry, *exit].into_iter().enumerate() {
        if at == 1 {
            nest(make, inner);
        }
        make(if inner.is_empty() { at } else { 2 }, function, copy);
    }
}

/// A call that is interrupted at each of its instructions in turn, by a handler that makes a call
/// itself.
#[test]
fn a_handler_at_any_instruction_loses_and_doubles_nothing() {
    let machine = Machine::new();
    machine.set_dispatch_mode(DispatchMode::Filter);
    let pairs = [
        (Function::Entry, Function::Exit),
        (Function::Entry, Function::Result),
        (Function::Argument, Function::Tail),
        (Function::Arguments(3), Function::Exit),
    ];
    let all = [0, 1, u64::MAX];
    for (handlers, shortests, pairs) in [
        (HandlerStack::Same, &all[..], &pairs[..1]),
        (HandlerStack::Same, &all[1..], &pairs[1..]),
        (HandlerStack::Other, &all[1..], &pairs[..1]),
    ] {
        let stepper = Stepper::new(handlers);
        machine.reset();
        for &shortest in shortests {
            for &(entry, exit) in pairs {
                for (of_handler, stepped) in [
                    (Function::Entry, 0),
                    (Function::Entry, 1),
                    (Function::Arguments(1), 0),
                    (Function::Arguments(1), 1),
                ] {
                    let calls = [(Function::Entry, Function::Exit), (entry, exit)];
                    let set_up = || {
                        machine.renew_home();
                        machine.set_shortest(shortest);
                        machine.set_header(table::MAX_DEPTH, u32::MAX);
                    };
                    set_up();
                    let places = Cell::new(Vec::new());
                    let look = |event: usize, function: Function, copy| match event {
                        event if event == stepped => {
                            let call = (function, copy, 7);
                            places.set(stepper.places(&machine, call, usize::MAX));
                        }
                        _ => {
                            machine.call(function, copy, 7);
                        }
                    };
                    nest(&look, &calls);
                    let mut reached = 0;
                    for place in places.into_inner() {
                        set_up();
                        // The way may be shorter than before, because less time has passed.
                        let handled = Cell::new(false);
                        let make = |event: usize, function: Function, copy| {
                            // All events have the same way to their call, so that an exit finds its
                            // entry by the place on the stack.
                            stepper.interrupt(&machine, (function, copy, 7), place, &|| {
                                if event != stepped {
                                    return;
                                }
                                handled.set(true);
                                for function in [of_handler, Function::Exit] {
                                    machine.call(function, 1, 7);
                                }
                            });
                        };
                        nest(&make, &calls);
                        if !handled.get() {
                            continue;
                        }
                        reached += 1;
                        let home = machine.home();
                        let sites = sites(&machine.drain(&mut machine.consumer(home)));
                        let count = |function, copy| {
                            let site = machine.site(function, copy);
                            sites.iter().filter(|other| **other == site).count() as u64
                        };
                        let what = format!(
                            "{handlers:?} {entry:?} {exit:?} at least {shortest}, handler's {of_handler:?} at {place:x?} of {stepped}: {sites:x?}"
                        );
                        let calls = [
                            (entry, exit, 0),
                            (of_handler, Function::Exit, 1),
                            (Function::Entry, Function::Exit, 2),
                        ];
                        // A handler that interrupts the slow path loses its event, as without a
                        // filter.
                        let lost = machine.control(home, control::LOST);
                        let mut recorded = 0;
                        for (entry, exit, copy) in calls {
                            let events = [count(entry, copy), count(exit, copy)];
                            assert!(events.iter().all(|count| *count <= 1), "{what}");
                            assert!(lost > 0 || events[0] == events[1], "{what}");
                            recorded += events[0] + events[1];
                        }
                        let left_out = machine.page(home, filter::LEFT_OUT);
                        assert_eq!(recorded + lost + 2 * left_out, 6, "{what}");
                        if shortest <= 1 {
                            assert_eq!(left_out, 0, "{what}");
                        }
                        assert_eq!(machine.page(home, filter::OPEN) & 0xffff_ffff, 0, "{what}");
                        assert_eq!(machine.page(home, filter::WRITING), 0, "{what}");
                    }
                    assert!(reached > 15, "it stepped: {reached}");
                }
            }
        }
    }
}
