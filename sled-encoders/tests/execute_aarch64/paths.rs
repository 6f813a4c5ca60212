//! Each path through the trampolines, one at a time: the words that it leaves in the ring, and
//! nothing else.

use std::{thread, time::Duration};

use shm_ring::{
    Item, Word,
    layout::{GUARD_BYTES, PROBES, bucket, control, rings, slot},
};

use crate::machine::{COPIES, Function, Machine, OTHER_STACK, SP, TID, site};

/// Words of a chunk's guard, and of the smallest chunk.
const GUARD: u64 = GUARD_BYTES / 8;
const CHUNK: u64 = 512;
/// Calls that fill a chunk. The first one stands in its guard.
const CALLS: u64 = CHUNK - GUARD + 1;

fn is_call(item: &Item, expected: u32) -> bool {
    matches!(item, Item::Call { site, .. } if *site == expected)
}

#[test]
fn the_first_event_claims_a_slot_and_begins_a_chunk() {
    let mut machine = Machine::new();
    let home = machine.home();
    machine.call(Function::Entry, 3, 0);
    assert_eq!(machine.slot(home, slot::TID) & 0xffff_ffff, u64::from(TID));
    assert_eq!(machine.control(home, control::OWNER), u64::from(TID));
    assert_eq!(machine.slot(home, slot::STARTED), 1);
    assert_eq!(machine.control(home, control::STARTED), 1);
    let ring = machine.ring_address(home);
    assert_eq!(machine.slot(home, slot::HEAD), ring + GUARD_BYTES);
    let end = ring + machine.geometry.ring_bytes();
    assert_eq!(machine.slot(home, slot::LIMIT), end);
    assert_eq!(machine.control(home, control::BUSY), 0);
    let first = |word| Word::decode(machine.word(home, word));
    assert_eq!(first(0), Word::Sync(machine.slot(home, slot::SINCE)));
    assert_eq!(first(1), Word::Stack(machine.slot(home, slot::BASE)));
    assert!((2..GUARD - 1).all(|word| first(word) == Word::Filler));
    let last = first(GUARD - 1);
    assert!(matches!(last, Word::Call { site: s, .. } if s == site(Function::Entry, 3)));
    assert_eq!(first(GUARD), Word::Empty);
}

#[test]
fn every_flavour_records_its_site_and_keeps_every_register() {
    let mut machine = Machine::new();
    let mut consumer = machine.consumer(machine.home());
    // The slow path once, and then the hot path.
    for round in 0..3u64 {
        for function in Function::PLAIN {
            for copy in 0..COPIES {
                if round == 0 {
                    machine.reset();
                    consumer = machine.consumer(machine.home());
                }
                let argument = 0xfedc_5678_9abc_def0 ^ round;
                for flags in [0, 0xf000_0000, 0x6000_0000, 0x9000_0000] {
                    let mut registers = machine.at(function, copy, argument);
                    registers.cpsr = registers.cpsr & 0x0fff_ffff | flags;
                    machine.call_with(&registers);
                    let items = machine.drain(&mut consumer);
                    let [
                        Item::Call {
                            argument: got, sp, ..
                        },
                    ] = &items[..]
                    else {
                        panic!("{function:?}: {items:x?}")
                    };
                    let expected = (function == Function::Argument).then_some(argument);
                    assert_eq!((*got, *sp), (expected, SP), "{function:?}");
                    assert!(is_call(&items[0], site(function, copy)), "{function:?}");
                }
            }
        }
    }
}

#[test]
fn an_event_that_is_too_late_or_too_far_away_gets_a_view() {
    let mut machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    for function in Function::PLAIN {
        for (field, above) in [
            (slot::SINCE, 0),
            (slot::BASE, 0),
            (slot::VIEW, OTHER_STACK),
            (slot::VIEW, 0),
        ] {
            machine.call(function, 0, 0);
            machine.drain(&mut consumer);
            if field == slot::VIEW {
                machine.refresh_view();
            } else {
                machine.set_slot(home, field, 0);
            }
            let before = machine.slot(home, slot::HEAD);
            let mut registers = machine.at(function, 4, 1);
            registers.sp += above;
            machine.call_with(&registers);
            let at = (before - machine.ring_address(home)) / 8;
            let word = |at| Word::decode(machine.word(home, at));
            if above > 0 || field != slot::VIEW {
                assert_eq!(word(at), Word::Sync(machine.slot(home, slot::SINCE)));
                assert_eq!(word(at + 1), Word::Stack(machine.slot(home, slot::BASE)));
            }
            let items = machine.drain(&mut consumer);
            let [Item::Call { sp, .. }] = items[..] else {
                panic!("{items:?}")
            };
            assert_eq!(sp, SP + above);
        }
    }
}

#[test]
fn counters_are_those_of_the_calls() {
    let mut machine = Machine::new();
    let mut consumer = machine.consumer(machine.home());
    let mut before = machine.now();
    for _ in 0..50 {
        machine.burst((Function::Exit, 0), 20);
        let after = machine.now();
        let items = machine.drain(&mut consumer);
        assert_eq!(items.len(), 20);
        for item in items {
            let Item::Call { ticks, .. } = item else {
                panic!("{item:?}")
            };
            assert!(
                (before..=after).contains(&ticks),
                "{before} {ticks} {after}"
            );
            before = ticks;
        }
    }
}

#[test]
fn a_full_ring_counts_and_a_gap_tells() {
    let mut machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    let room = machine.geometry.chunks() * CALLS;
    // Views take some room.
    machine.burst((Function::Exit, 0), room + 1000);
    let lost = machine.lost();
    assert!(lost >= 1000, "{lost}");
    assert_eq!(machine.control(home, control::BUSY), 0);
    assert_eq!(machine.unreported(&consumer), lost);
    let recorded = machine.drain(&mut consumer).len() as u64;
    assert_eq!(recorded + lost, room + 1000);
    machine.call(Function::Entry, 1, 0);
    let items = machine.drain(&mut consumer);
    assert_eq!(items[0], Item::Lost(lost));
    assert!(items.len() == 2 && is_call(&items[1], site(Function::Entry, 1)));
    assert_eq!(machine.unreported(&consumer), 0);
}

#[test]
fn more_losses_than_a_gap_word_holds_take_two() {
    let mut machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    machine.set_control(home, control::LOST, 0x1_0000_0005);
    machine.call(Function::Entry, 0, 0);
    // Another slow path: the rest of the losses.
    machine.set_slot(home, slot::SINCE, 0);
    machine.call(Function::Entry, 0, 0);
    let items = machine.drain(&mut consumer).into_iter();
    let losses: Vec<Item> = items.filter(|item| matches!(item, Item::Lost(_))).collect();
    assert_eq!(losses, [Item::Lost(0xffff_ffff), Item::Lost(6)]);
}

#[test]
fn an_argument_does_not_straddle_a_chunks_end() {
    let mut machine = Machine::new();
    for left in 0..8u64 {
        machine.reset();
        let mut consumer = machine.consumer(machine.home());
        machine.burst((Function::Entry, 0), CALLS - left);
        machine.drain(&mut consumer);
        let expected = [0xfeed_0000_beef + left, 7];
        for argument in expected {
            machine.call(Function::Argument, 0, argument);
        }
        let items = machine.drain(&mut consumer).into_iter();
        let arguments: Vec<Option<u64>> = items
            .map(|item| match item {
                Item::Call { argument, .. } => argument,
                Item::Data(_) | Item::Lost(_) | Item::Waited(_) => None,
            })
            .collect();
        assert_eq!(arguments, expected.map(Some), "{left} words left");
    }
}

#[test]
fn a_slot_that_is_taken_sends_the_thread_to_the_next() {
    let mut machine = Machine::new();
    let slots = machine.geometry.slots();
    for taken in [1, 2] {
        machine.reset();
        for i in 0..taken {
            machine.set_slot((machine.home() + i) % slots, slot::TID, u32::MAX.into());
        }
        let mut consumer = machine.consumer((machine.home() + taken) % slots);
        for _ in 0..3 {
            for function in Function::PLAIN {
                machine.call(function, 0, 5);
            }
        }
        let expected = 3 * Function::PLAIN.len();
        assert_eq!(machine.drain(&mut consumer).len(), expected);
        assert_eq!(machine.no_slot(), 0);
    }
}

/// A closed slot ends the search, whatever is free behind it. Once it is open, it is the thread's.
#[test]
fn a_closed_slot_ends_the_search() {
    let mut machine = Machine::new();
    let slots = machine.geometry.slots();
    for taken in [0, 1, 2] {
        machine.reset();
        for i in 0..taken {
            machine.set_slot((machine.home() + i) % slots, slot::TID, u32::MAX.into());
        }
        let index = (machine.home() + taken) % slots;
        machine.set_slot(index, slot::TID, slot::CLOSED.into());
        for function in Function::PLAIN {
            machine.call(function, 0, 5);
        }
        let bucket = machine.home() % machine.geometry.buckets();
        let lost = Function::PLAIN.len() as u64;
        assert_eq!(machine.bucket(bucket, bucket::LOST), lost, "after {taken}");
        let owner = |machine: &Machine, index| machine.slot(index, slot::TID) & 0xffff_ffff;
        assert_eq!(owner(&machine, (index + 1) % slots), 0);
        assert_eq!(owner(&machine, index), u64::from(slot::CLOSED));

        machine.set_slot(index, slot::TID, 0);
        let mut consumer = machine.consumer(index);
        for function in Function::PLAIN {
            machine.call(function, 0, 5);
        }
        let recorded = machine.drain(&mut consumer).len();
        assert_eq!(recorded, Function::PLAIN.len());
        assert_eq!(machine.bucket(bucket, bucket::LOST), lost);
    }
}

/// A loss counts in the thread's bucket, which is its home bucket or the next free one. Without a
/// bucket it counts for all threads.
#[test]
fn without_a_slot_events_are_counted() {
    let mut machine = Machine::new();
    let buckets = machine.geometry.buckets();
    for taken in [0, 1, PROBES - 1, PROBES] {
        machine.reset();
        for index in 0..machine.geometry.slots() {
            machine.set_slot(index, slot::TID, u32::MAX.into());
        }
        for i in 0..taken {
            let index = (machine.home() + i) % buckets;
            machine.set_bucket(index, bucket::TID, u32::MAX.into());
        }
        for function in Function::PLAIN {
            machine.call(function, 0, 0);
        }
        let lost = Function::PLAIN.len() as u64;
        if taken == PROBES {
            assert_eq!((machine.no_slot(), machine.buckets_taken()), (lost, 0));
            continue;
        }
        let index = (machine.home() + taken) % buckets;
        assert_eq!(machine.bucket(index, bucket::LOST), lost, "after {taken}");
        assert_eq!((machine.no_slot(), machine.buckets_taken()), (0, 1));
    }
}

#[test]
fn a_busy_slow_path_is_not_disturbed() {
    let mut machine = Machine::new();
    let home = machine.home();
    for function in Function::PLAIN {
        for calls in [1, CALLS - 1, CALLS] {
            machine.reset();
            let mut consumer = machine.consumer(home);
            machine.burst((Function::Entry, 0), calls);
            // As if the slow path were interrupted right after it parked the head.
            let parked = slot::parked_by(8);
            machine.set_control(home, control::BUSY, parked);
            machine.set_slot(home, slot::HEAD, parked);
            for copy in 0..COPIES {
                machine.call(function, copy, 0);
            }
            assert_eq!(machine.slot(home, slot::HEAD), parked, "as it was");
            assert_eq!(machine.lost(), u64::from(COPIES));
            assert_eq!(machine.drain(&mut consumer).len() as u64, calls);
        }
    }
}

#[test]
fn recording_closes_itself_once_the_deadline_is_over() {
    let mut machine = Machine::new();
    let home = machine.home();
    let owner = |machine: &Machine| machine.slot(home, slot::TID) & 0xffff_ffff;
    for function in Function::PLAIN {
        machine.reset();
        let mut consumer = machine.consumer(home);
        machine.set_rings_word(rings::DEADLINE, i64::MAX.cast_unsigned());
        machine.call(Function::Entry, 0, 0);
        machine.set_rings_word(rings::DEADLINE, 1);
        machine.set_slot(home, slot::SINCE, 0);
        let head = machine.slot(home, slot::HEAD);
        machine.call(function, 0, 0);
        assert_ne!(machine.closed_at(), 0, "{function:?}");
        assert_eq!(machine.live(), 0);
        assert_eq!(owner(&machine), u64::from(slot::PAUSED));
        for copy in 0..COPIES {
            machine.call(function, copy, 0);
        }
        assert_eq!(machine.slot(home, slot::HEAD), head, "nothing is recorded");
        assert_eq!(machine.lost(), 1, "the event that closed");
        assert_eq!(machine.drain(&mut consumer).len(), 1, "{function:?}");
        machine.set_rings_word(rings::DEADLINE, 0);
        machine.set_live(1);
        machine.call(function, 0, 0);
        assert_eq!(owner(&machine), u64::from(TID), "taken back");
        assert_eq!(machine.drain(&mut consumer).len(), 2, "a loss and a call");

        // Another thread has closed it.
        machine.reset();
        machine.call(Function::Entry, 0, 0);
        machine.set_live(0);
        machine.set_slot(home, slot::SINCE, 0);
        machine.call(function, 0, 0);
        assert_eq!(owner(&machine), u64::from(slot::PAUSED), "{function:?}");
        assert_eq!(machine.lost(), 0);
    }
}

#[test]
fn a_wiped_table_records_nothing() {
    let mut machine = Machine::new();
    machine.set_live(0);
    for function in Function::PLAIN {
        machine.call(function, 0, 0);
    }
    let home = machine.home();
    assert_eq!(machine.slot(home, slot::TID), 0);
    assert_eq!(machine.word(home, 0), 0);
    assert_eq!(machine.control(home, control::STARTED), 0);
    assert_eq!(machine.no_slot(), 0);
}

#[test]
fn a_reader_follows_a_running_thread() {
    const CALLS: u64 = 200_000;
    let mut machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    let (mut next, mut lost, mut calls) = (0, 0, 0);
    let mut take = |item| match item {
        Item::Call { argument, .. } => {
            assert_eq!(argument, Some(next + lost), "in order");
            next += 1;
            calls += 1;
        }
        Item::Lost(count) => lost += count,
        item => panic!("{item:?}"),
    };
    machine.start_burst((Function::Argument, 7), CALLS);
    while machine.drain_running(&mut consumer, &mut take) > 0 || machine.is_running() {}
    machine.drain_running(&mut consumer, &mut take);
    let unreported = machine.unreported(&consumer);
    assert_eq!(calls + lost + unreported, CALLS);
    assert!(calls > CALLS / 100, "{calls} were recorded");
}

/// A full ring is waited for, once. The next event reports the wait.
#[test]
fn a_vain_wait_is_made_once() {
    let mut machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    machine.set_rings_word(rings::WAIT, 1000);
    while machine.lost() == 0 {
        machine.call(Function::Entry, 0, 0);
    }
    let words = machine.slot(home, slot::WAITED);
    let (waited, expired) = (words & 0xffff_ffff, words >> 32);
    assert!(waited >= 1000, "{waited}");
    assert_eq!(expired, machine.control(home, control::RELEASED) + 1);
    for lost in 2..100 {
        machine.call(Function::Entry, 0, 0);
        assert_eq!(machine.lost(), lost);
    }
    assert_eq!(machine.slot(home, slot::WAITED), words, "it waits no more");
    assert_eq!(machine.control(home, control::BUSY), 0);
    machine.drain(&mut consumer);
    machine.call(Function::Entry, 1, 0);
    let items = machine.drain(&mut consumer);
    let reported = u32::try_from(waited).unwrap();
    assert_eq!(items[..2], [Item::Lost(99), Item::Waited(reported)]);
    assert!(is_call(&items[2], site(Function::Entry, 1)));
    assert_eq!(machine.slot(home, slot::WAITED), expired << 32);
}

/// A wait is over at the very tick at which its time is.
#[test]
fn a_wait_of_exactly_its_time_is_over() {
    const WAIT: u64 = 1 << 28;
    /// `sub x6, x3, x6`: the wait less the longest one.
    const COMPARES: u32 = 0xcb06_0066;
    let mut machine = Machine::new();
    let home = machine.home();
    machine.burst((Function::Exit, 0), machine.geometry.chunks() * CALLS + 100);
    let lost = machine.lost();
    machine.set_rings_word(rings::WAIT, WAIT);
    let start = machine.at(Function::Exit, 0, 0);
    machine.gdb.set_registers(&start);
    machine.gdb.go_to(machine.only(COMPARES));
    let mut here = machine.gdb.registers();
    here.x[3] = WAIT;
    machine.gdb.set_registers(&here);
    machine.gdb.go();
    machine.assert_returned(start);
    let expired = machine.control(home, control::RELEASED) + 1;
    assert_eq!(machine.slot(home, slot::WAITED), expired << 32 | WAIT);
    assert_eq!(machine.lost(), lost + 1);
}

/// No event is lost if the thread waits for its reader.
#[test]
fn a_thread_waits_for_its_reader() {
    const CALLS: u64 = 100_000;
    let mut machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    machine.set_rings_word(rings::WAIT, 1 << 40);
    let (mut next, mut waits) = (0, 0);
    let mut take = |item| match item {
        Item::Call { argument, .. } => {
            assert_eq!(argument, Some(next), "in order");
            next += 1;
        }
        Item::Waited(_) => waits += 1,
        item => panic!("{item:?}"),
    };
    machine.start_burst((Function::Argument, 7), CALLS);
    // The reader looks only when the ring is full.
    while machine.is_running() {
        let unread = machine.slot(home, slot::STARTED) - machine.control(home, control::RELEASED);
        let is_full = machine.slot(home, slot::HEAD) >= machine.slot(home, slot::LIMIT);
        if unread == machine.geometry.chunks() && is_full {
            // The emulated thread is slower than the reader, and has to come to its wait.
            thread::sleep(Duration::from_millis(1));
            machine.drain_running(&mut consumer, &mut take);
        }
    }
    machine.drain_running(&mut consumer, &mut take);
    assert_eq!((next, machine.lost()), (CALLS, 0));
    assert!(waits > 0, "it waited");
}
