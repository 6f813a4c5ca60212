//! Each path through the trampolines, one at a time: the words that it leaves in the ring, and
//! nothing else.

use shm_ring::{
    Item, Word,
    layout::{GUARD_BYTES, PROBES, bucket, control, rings, slot},
};

use crate::{
    function::Function,
    machine::{COPIES, Machine, now},
    registers::Registers,
};

/// Words of a chunk's guard.
const GUARD: u64 = GUARD_BYTES / 8;
/// Words of the smallest chunk.
const CHUNK: u64 = 512;

fn words(machine: &Machine, words: std::ops::Range<u64>) -> Vec<Word> {
    let home = machine.home();
    words
        .map(|word| Word::decode(machine.word(home, word)))
        .collect()
}

/// The words that began the slot's view.
fn view(machine: &Machine, index: u32) -> [Word; 2] {
    [
        Word::Sync(machine.slot(index, slot::SINCE)),
        Word::Stack(machine.slot(index, slot::BASE)),
    ]
}

fn is_call(word: Word, site: u32) -> bool {
    matches!(word, Word::Call { site: s, .. } if s == site)
}

#[test]
fn the_first_event_claims_a_slot_and_begins_a_chunk() {
    let machine = Machine::new();
    let home = machine.home();
    machine.call(Function::Entry, 3, 0);

    assert_eq!(
        machine.slot(home, slot::TID) & 0xffff_ffff,
        u64::from(machine.tid())
    );
    assert_eq!(
        machine.control(home, control::OWNER),
        u64::from(machine.tid())
    );
    assert_eq!(
        (
            machine.slot(home, slot::STARTED),
            machine.control(home, control::STARTED)
        ),
        (1, 1)
    );
    assert_eq!(
        machine.slot(home, slot::HEAD),
        machine.ring_address(home) + GUARD_BYTES
    );
    let end = machine.ring_address(home) + machine.geometry.ring_bytes();
    assert_eq!(machine.slot(home, slot::LIMIT), end);
    assert_eq!(machine.control(home, control::BUSY), 0);
    let first = words(&machine, 0..GUARD + 1);
    assert_eq!(first[..2], view(&machine, home));
    assert!(first[2..63].iter().all(|&word| word == Word::Filler));
    assert!(is_call(first[63], machine.site(Function::Entry, 3)));
    assert_eq!(first[64], Word::Empty);
}

#[test]
fn every_flavour_records_its_site_and_keeps_registers_and_flags() {
    let machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    // The slow path once, and then the hot path.
    for round in 0..3u64 {
        for function in Function::PLAIN {
            for flags in [0, 0x8d5, 0x801, 0x0d4, 0x800, 0x400 | 0x40] {
                if round == 0 {
                    machine.reset();
                    consumer = machine.consumer(home);
                }
                let argument = 0x1234_5678_9abc_def0 ^ round;
                let registers = Registers::arbitrary()
                    .with_argument(argument)
                    .with_flags(flags);
                let stack = machine.call_with(function, 1, registers);
                let items = machine.drain(&mut consumer);
                let [
                    Item::Call {
                        site,
                        sp,
                        argument: got,
                        ..
                    },
                ] = items[..]
                else {
                    panic!("{function:?}: {items:x?}")
                };
                assert_eq!(site, machine.site(function, 1), "{function:?}");
                assert_eq!(sp, stack, "{function:?}");
                let expected = (function == Function::Argument).then_some(argument);
                assert_eq!(got, expected, "{function:?}");
            }
        }
    }
}

#[test]
fn counters_are_those_of_the_calls() {
    let machine = Machine::new();
    let mut consumer = machine.consumer(machine.home());
    let mut before = now();
    for _ in 0..2000 {
        machine.call(Function::Exit, 0, 0);
        let after = now();
        let items = machine.drain(&mut consumer);
        let [Item::Call { ticks, .. }] = items[..] else {
            panic!("{items:?}")
        };
        assert!(
            (before..=after).contains(&ticks),
            "{before} {ticks} {after}"
        );
        before = ticks;
    }
}

#[test]
fn a_stub_records_only_jumps_that_are_taken_and_keeps_the_red_zone() {
    /// True if condition `c` holds with these flags (Intel SDM, volume 2, appendix B).
    fn holds(c: u8, flags: u64) -> bool {
        let flag = |bit: u32| flags >> bit & 1 == 1;
        let (carry, parity, zero, sign, overflow) = (flag(0), flag(2), flag(6), flag(7), flag(11));
        let positive = match c >> 1 {
            0 => overflow,
            1 => carry,
            2 => zero,
            3 => carry || zero,
            4 => sign,
            5 => parity,
            6 => sign != overflow,
            _ => zero || sign != overflow,
        };
        positive != (c & 1 == 1)
    }
    let machine = Machine::new();
    let mut consumer = machine.consumer(machine.home());
    for condition in 0..16 {
        for bits in 0..64u64 {
            let flags = [0, 2, 4, 6, 7, 11]
                .into_iter()
                .enumerate()
                .filter(|(i, _)| bits >> i & 1 == 1)
                .map(|(_, bit)| 1u64 << bit)
                .sum();
            let function = Function::Conditional(condition);
            let registers = Registers::arbitrary().with_flags(flags);
            // SAFETY: a function of the machine.
            let after = unsafe { registers.call(machine.address(function, 2)) };
            registers.assert_kept(&after, Registers::STATUS_FLAGS, (function, flags));
            registers.assert_red_zone_kept(&after);
            let items = machine.drain(&mut consumer);
            if holds(condition, flags) {
                let site = machine.site(function, 2);
                let [Item::Call { site: s, sp, .. }] = items[..] else {
                    panic!("{items:?}")
                };
                assert_eq!((s, sp), (site, after.stack()));
            } else {
                assert_eq!(items, [], "condition {condition:#x}, flags {flags:#x}");
            }
        }
    }
}

#[test]
fn chunks_follow_each_other_and_wrap() {
    let machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    let chunks = machine.geometry.chunks();
    let (mut begun, mut calls, mut read) = (0, 0, 0);
    while begun < 3 * chunks {
        machine.call(Function::Tail, 0, 0);
        calls += 1;
        let started = machine.control(home, control::STARTED);
        if started > begun {
            assert_eq!(started, begun + 1, "call {calls}");
            let at = (begun % chunks) * CHUNK;
            assert_eq!(words(&machine, at..at + 2), view(&machine, home));
            begun = started;
        }
        if calls % 100 == 0 {
            read += machine.drain(&mut consumer).len();
        }
    }
    assert_eq!(read + machine.drain(&mut consumer).len(), calls);
}

#[test]
fn a_full_ring_counts_and_a_gap_tells() {
    let machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    let mut calls = 0;
    while machine.control(home, control::LOST) < 1000 {
        machine.call(Function::Entry, 0, 0);
        calls += 1;
    }
    assert_eq!(machine.control(home, control::BUSY), 0);
    assert_eq!(machine.unreported(&consumer), 1000);
    assert_eq!(machine.drain(&mut consumer).len() + 1000, calls);
    machine.call(Function::Entry, 1, 0);
    let items = machine.drain(&mut consumer);
    let site = machine.site(Function::Entry, 1);
    assert!(
        matches!(items[..], [Item::Lost(1000), Item::Call { site: s, .. }] if s == site),
        "{items:?}"
    );
    assert_eq!(machine.unreported(&consumer), 0);
    assert_eq!(machine.slot(home, slot::REPORTED), 1000);
}

#[test]
fn more_losses_than_a_gap_word_holds_take_two() {
    let machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    machine.set_control(home, control::LOST, 0x1_0000_0005);
    machine.call(Function::Entry, 0, 0);
    // Another slow path: the rest of the losses.
    machine.set_slot(home, slot::SINCE, 0);
    machine.call(Function::Entry, 0, 0);
    let losses: Vec<u64> = machine
        .drain(&mut consumer)
        .into_iter()
        .filter_map(|item| {
            if let Item::Lost(n) = item {
                Some(n)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(losses, [0xffff_ffff, 6]);
}

#[test]
fn an_argument_does_not_straddle_a_chunks_end() {
    let machine = Machine::new();
    let home = machine.home();
    for left in 0..8u64 {
        let mut consumer = loop {
            let (mut consumer, _) = machine.fill(1, left, 0);
            machine.drain(&mut consumer);
            machine.refresh_view();
            let views = machine.views();
            machine.call(Function::Argument, 0, 0xfeed_0000_beef + left);
            machine.call(Function::Argument, 1, 7);
            // Once more if that took too long.
            if left < 6 || machine.views() == views {
                break consumer;
            }
        };
        let rest = words(&machine, CHUNK - left..CHUNK);
        let items = machine.drain(&mut consumer);
        let arguments: Vec<_> = items
            .iter()
            .map(|item| {
                if let Item::Call { argument, .. } = item {
                    *argument
                } else {
                    None
                }
            })
            .collect();
        assert_eq!(
            arguments,
            [Some(0xfeed_0000_beef + left), Some(7)],
            "{left} words left"
        );
        let started = machine.control(home, control::STARTED);
        assert_eq!(started, if left < 6 { 2 } else { 1 }, "{left} words left");
        if left < 3 {
            assert!(rest.iter().all(|&word| word == Word::Filler), "{rest:?}");
        }
    }
}

#[test]
fn an_event_that_is_too_late_or_too_far_away_gets_a_view() {
    let machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    for function in Function::EACH {
        for field in [slot::SINCE, slot::BASE] {
            machine.call(function, 0, 1);
            machine.set_slot(home, field, 0);
            let before = machine.slot(home, slot::HEAD);
            let (views, earliest) = (machine.views(), now());
            let stack = machine.call(function, 0, 1);
            let at = (before - machine.ring_address(home)) / 8;
            assert_eq!(words(&machine, at..at + 2), view(&machine, home));
            assert_eq!(machine.views(), views + 1);
            let items = machine.drain(&mut consumer);
            let (ticks, sp) = match &items[..] {
                [_, Item::Call { ticks, sp, .. }] => (*ticks, *sp),
                [_, Item::Data(data)] => (data.ticks, data.sp),
                other => panic!("{other:?}"),
            };
            assert_eq!(sp, stack);
            assert!((earliest..=now()).contains(&ticks));
        }
    }
}

/// Events from ever deeper in the stack, and on the way back.
#[test]
fn the_stack_position_is_known_at_any_depth() {
    #[inline(never)]
    fn descend(machine: &Machine, depth: u32, stacks: &mut Vec<u64>) {
        // Takes at least this many bytes of stack.
        let room = std::hint::black_box([0u8; 5000]);
        stacks.push(machine.call(Function::EACH[depth as usize % 5], 0, 0));
        if depth > 0 {
            descend(machine, depth - 1, stacks);
        }
        stacks.push(machine.call(Function::Exit, 1, 0));
        std::hint::black_box(room);
    }
    let machine = Machine::new();
    let mut consumer = machine.consumer(machine.home());
    let mut stacks = Vec::new();
    for depth in [40, 3, 100] {
        descend(&machine, depth, &mut stacks);
    }
    let items = machine.drain(&mut consumer).into_iter();
    let places: Vec<u64> = items
        .map(|item| match item {
            Item::Call { sp, .. } => sp,
            Item::Data(data) => data.sp,
            item => panic!("{item:?}"),
        })
        .collect();
    assert_eq!(places, stacks);
    assert!(machine.views() > 10, "{} views", machine.views());
}

#[test]
fn a_slot_that_is_taken_sends_the_thread_to_the_next() {
    let machine = Machine::new();
    let slots = machine.geometry.slots();
    let home = machine.home();
    for taken in [1, 2, PROBES - 1] {
        machine.reset();
        for i in 0..taken {
            machine.set_slot_owner((home + i) % slots, u32::MAX);
        }
        let index = (home + taken) % slots;
        let mut consumer = machine.consumer(index);
        for _ in 0..3 {
            for function in Function::EACH {
                machine.call(function, 0, 5);
            }
        }
        assert_eq!(machine.drain(&mut consumer).len(), 3 * Function::EACH.len());
        assert_eq!(
            machine.slot(index, slot::TID) & 0xffff_ffff,
            u64::from(machine.tid())
        );
        assert_eq!(machine.no_slot(), 0);
    }
}

/// A closed slot ends the search, whatever is free behind it. Once it is open, it is the thread's.
#[test]
fn a_closed_slot_ends_the_search() {
    let machine = Machine::new();
    let slots = machine.geometry.slots();
    for taken in [0, 1, 2] {
        machine.reset();
        for i in 0..taken {
            machine.set_slot_owner((machine.home() + i) % slots, u32::MAX);
        }
        let index = (machine.home() + taken) % slots;
        machine.set_slot_owner(index, slot::CLOSED);
        for function in Function::EACH {
            machine.call(function, 0, 5);
        }
        let bucket = machine.tid() & (machine.geometry.buckets() - 1);
        let lost = Function::EACH.len() as u64;
        assert_eq!(machine.bucket(bucket, bucket::LOST), lost, "after {taken}");
        let owner = |index| machine.slot(index, slot::TID) & 0xffff_ffff;
        assert_eq!(owner((index + 1) % slots), 0);
        assert_eq!(owner(index), u64::from(slot::CLOSED));

        machine.set_slot_owner(index, 0);
        let mut consumer = machine.consumer(index);
        for function in Function::EACH {
            machine.call(function, 0, 5);
        }
        let recorded = machine.drain(&mut consumer).len();
        assert_eq!(recorded, Function::EACH.len());
        assert_eq!(machine.bucket(bucket, bucket::LOST), lost);
    }
}

/// A loss counts in the thread's bucket, which is its home bucket or the next free one. Without a
/// bucket it counts for all threads.
#[test]
fn without_a_slot_events_are_counted() {
    let machine = Machine::new();
    let buckets = machine.geometry.buckets();
    let home = machine.tid() & (buckets - 1);
    for taken in [0, 1, 5, PROBES - 1, PROBES] {
        machine.reset();
        for index in 0..machine.geometry.slots() {
            machine.set_slot_owner(index, u32::MAX);
        }
        for i in 0..taken {
            machine.set_bucket((home + i) % buckets, bucket::TID, u32::MAX.into());
        }
        for _ in 0..3 {
            for function in Function::EACH {
                machine.call(function, 0, 0);
            }
        }
        let lost = 3 * Function::EACH.len() as u64;
        if taken == PROBES {
            assert_eq!((machine.no_slot(), machine.buckets_taken()), (lost, 0));
            continue;
        }
        let index = (home + taken) % buckets;
        let owner = machine.bucket(index, bucket::TID);
        assert_eq!(owner, u64::from(machine.tid()), "after {taken}");
        assert_eq!(machine.bucket(index, bucket::LOST), lost);
        assert_eq!((machine.no_slot(), machine.buckets_taken()), (0, 1));
    }
}

#[test]
fn a_freed_slot_is_as_new_for_its_next_owner() {
    let machine = Machine::new();
    let home = machine.home();
    for _ in 0..3 {
        let mut consumer = machine.consumer(home);
        for _ in 0..100 {
            machine.call(Function::Entry, 0, 0);
        }
        assert_eq!(machine.drain(&mut consumer).len(), 100);
        assert_eq!(machine.control(home, control::STARTED), 1);
        assert_eq!(
            machine.control(home, control::OWNER),
            u64::from(machine.tid())
        );
        machine.free_home();
    }
}

#[test]
fn a_stale_head_is_not_used_without_a_limit() {
    let machine = Machine::new();
    let home = machine.home();
    for function in Function::EACH {
        machine.call(function, 0, 0);
        let started = machine.control(home, control::STARTED);
        machine.set_slot(home, slot::LIMIT, 0);
        machine.call(function, 0, 0);
        assert_eq!(machine.control(home, control::STARTED), started + 1);
    }
    assert_eq!(machine.control(home, control::LOST), 0);
}

#[test]
fn losses_reported_early_are_not_reported_again() {
    let machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    while machine.control(home, control::LOST) < 7 {
        machine.call(Function::Entry, 0, 0);
    }
    machine.drain(&mut consumer);
    assert_eq!(machine.tell_losses(&mut consumer), [Item::Lost(7)]);
    assert_eq!(machine.tell_losses(&mut consumer), []);
    // The next collector goes on from there.
    let mut consumer = machine.consumer(home);
    machine.call(Function::Entry, 1, 0);
    let items = machine.drain(&mut consumer);
    assert!(matches!(items[..], [Item::Call { .. }]), "{items:?}");
    assert_eq!(machine.unreported(&consumer), 0);
}

#[test]
fn a_busy_slow_path_is_not_disturbed() {
    let machine = Machine::new();
    let home = machine.home();
    for function in Function::PLAIN {
        for left in [CHUNK - GUARD, 1, 0] {
            let (mut consumer, calls) = machine.fill(1, left, CHUNK);
            // As if the slow path were interrupted right after it parked the head.
            let parked = slot::parked_by(8);
            machine.set_control(home, control::BUSY, parked);
            machine.set_slot(home, slot::HEAD, parked);
            for copy in 0..COPIES {
                machine.call(function, copy, 0);
            }
            assert_eq!(machine.slot(home, slot::HEAD), parked, "as it was");
            assert_eq!(machine.control(home, control::LOST), u64::from(COPIES));
            assert_eq!(machine.drain(&mut consumer).len() as u64, calls);
        }
        // As if it were interrupted before that, or left: no context has the head.
        machine.reset();
        let mut consumer = machine.consumer(home);
        machine.call(Function::Entry, 0, 0);
        machine.set_control(home, control::BUSY, slot::parked_by(8));
        machine.set_slot(home, slot::SINCE, 0);
        machine.call(function, 0, 0);
        assert_eq!(machine.drain(&mut consumer).len(), 2);
        assert_eq!(machine.control(home, control::BUSY), 0);
    }
}

#[test]
fn recording_closes_itself_once_the_deadline_is_over() {
    let machine = Machine::new();
    let home = machine.home();
    for function in Function::EACH {
        machine.reset();
        let mut consumer = machine.consumer(home);
        machine.set_rings_word(rings::DEADLINE, u64::MAX);
        machine.call(Function::Entry, 0, 0);
        machine.set_rings_word(rings::DEADLINE, 1);
        // The hot path does not look.
        machine.refresh_view();
        machine.call(Function::Entry, 0, 0);
        assert_eq!(machine.closed_at(), 0, "{function:?}");
        machine.set_slot(home, slot::SINCE, 0);
        let head = machine.slot(home, slot::HEAD);
        machine.call(function, 0, 0);
        let owner = || machine.slot(home, slot::TID) & 0xffff_ffff;
        assert_ne!(machine.closed_at(), 0, "{function:?}");
        assert_eq!(machine.live(), 0);
        assert_eq!(owner(), u64::from(slot::PAUSED));
        assert_eq!(machine.slot(home, slot::HEAD), head);
        assert_eq!(machine.control(home, control::BUSY), 0);
        for copy in 0..COPIES {
            machine.call(function, copy, 0);
        }
        assert_eq!(machine.slot(home, slot::HEAD), head, "nothing is recorded");
        assert_eq!(
            machine.control(home, control::LOST),
            1,
            "the event that closed"
        );
        assert_eq!(machine.no_slot(), 0);

        // A collector opens it.
        machine.set_rings_word(rings::DEADLINE, 0);
        machine.set_closed_at(0);
        machine.set_live(1);
        machine.call(function, 0, 0);
        assert_eq!(owner(), machine.tid().into(), "taken back");
        let read = machine.drain(&mut consumer);
        let lost = read.iter().position(|item| *item == Item::Lost(1));
        assert_eq!((read.len(), lost), (4, Some(2)), "{function:?} {read:?}");

        // Another thread has closed it.
        machine.reset();
        machine.call(Function::Entry, 0, 0);
        machine.set_live(0);
        machine.set_slot(home, slot::SINCE, 0);
        machine.call(function, 0, 0);
        assert_eq!(owner(), u64::from(slot::PAUSED), "{function:?}");
        assert_eq!(machine.control(home, control::LOST), 0);
    }
}

#[test]
fn a_wiped_table_records_nothing() {
    let machine = Machine::new();
    machine.set_live(0);
    for function in Function::EACH {
        machine.call(function, 0, 0);
    }
    let home = machine.home();
    assert_eq!(machine.slot(home, slot::TID), 0);
    assert_eq!(machine.word(home, 0), 0);
    assert_eq!(machine.control(home, control::STARTED), 0);
    assert_eq!(machine.no_slot(), 0);
}
