//! Events with a payload, one at a time: their words in the ring, and the memory that they leave
//! alone.

use std::cell::Cell;

use shm_ring::{
    Data, Item, Word,
    layout::{GUARD_BYTES, PAYLOAD_WORDS, control, slot},
};

use crate::{
    area::Area,
    function::Function,
    machine::Machine,
    registers::Registers,
    step::{Go, HandlerStack, Stepper},
};

const PAGE: usize = 4096;
/// The chunk of the smallest ring, in words.
const CHUNK: u64 = 512;

/// Bytes right before a page that cannot be read.
struct Edge {
    area: Area,
}

// === impl Edge ===

impl Edge {
    fn new() -> Self {
        let area = Area::private(4 * PAGE);
        for at in 0..3 * PAGE as u64 / 8 {
            area.write64(8 * at, at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        area.close_last_page();
        Self { area }
    }

    /// The address of the last `size` bytes, and their values.
    fn last(&self, size: usize) -> (u64, Vec<u8>) {
        let from = (3 * PAGE - size) as u64;
        let address = self.area.address() + from;
        (address, self.area.copy(from, size as u64))
    }
}

/// The data that a custom event with these arguments leaves.
fn record(machine: &Machine, pointer: u64, size: u64) -> Data {
    let mut consumer = machine.consumer(machine.home());
    let registers = Registers::arbitrary()
        .with_arguments(size, pointer, 0)
        .with_flags(0x8d5);
    let stack = machine.call_with(Function::Custom, 1, registers);
    let mut items = machine.drain(&mut consumer);
    match items.pop() {
        Some(Item::Data(data)) if items.is_empty() => {
            assert_eq!(data.sp, stack);
            *data
        }
        other => panic!("{other:?} after {items:?}"),
    }
}

#[test]
fn every_size_is_recorded_to_the_last_byte_and_nothing_behind_it_is_read() {
    let machine = Machine::new();
    let limit = usize::try_from(machine.geometry.payload_limit()).unwrap();
    let edge = Edge::new();
    let sizes = (0..300).chain([limit - 1, limit, limit + 1, 2 * PAGE]);
    for size in sizes {
        // The slow path and the hot path.
        machine.reset();
        for _ in 0..2 {
            let (address, bytes) = edge.last(size);
            let data = record(&machine, address, size as u64);
            assert_eq!(data.site, machine.site(Function::Custom, 1));
            assert_eq!(data.size as usize, size);
            assert_eq!(data.bytes, bytes[..size.min(limit)], "{size} bytes");
        }
        assert_eq!(machine.control(machine.home(), control::LOST), 0);
    }
}

#[test]
fn a_typed_event_has_its_type_wherever_clang_puts_it() {
    let machine = Machine::new();
    let mut consumer = machine.consumer(machine.home());
    for number in 0..3 {
        machine.call(Function::Typed, 2, number);
        let items = machine.drain(&mut consumer);
        let [Item::Data(data)] = &items[..] else {
            panic!("{items:?}")
        };
        assert_eq!((data.kind, Machine::number_of(data)), (7, number));
        assert_eq!(data.site, machine.site(Function::Typed, 2));
    }
}

/// Up to LLVM 16 the size is an int; the upper half of its register may hold anything.
#[test]
fn the_sizes_upper_half_does_not_count() {
    let machine = Machine::new();
    let edge = Edge::new();
    let (address, bytes) = edge.last(9);
    for _ in 0..2 {
        let data = record(&machine, address, 0xdead_beef_0000_0009);
        assert_eq!((data.size, &data.bytes), (9, &bytes));
    }
}

/// A result of `recv`: -1 does not stand for four billion bytes.
#[test]
fn a_negative_size_reads_nothing() {
    let machine = Machine::new();
    let edge = Edge::new();
    let (address, _) = edge.last(9);
    for size in [u32::MAX, 1 << 31] {
        for _ in 0..2 {
            let data = record(&machine, address, size.into());
            assert_eq!((data.size, data.bytes), (size, vec![]));
        }
    }
}

#[test]
fn an_unmapped_payload_reads_nothing() {
    let machine = Machine::new();
    for pointer in [
        0,
        1,
        4095,
        1 << 47 | 4096,
        1 << 56 | 4096,
        1 << 63,
        u64::MAX,
        u64::MAX - 4096,
    ] {
        for size in [0, 1, 8, 5000, u64::from(u32::MAX)] {
            let data = record(&machine, pointer, size);
            assert_eq!(
                (u64::from(data.size), data.bytes),
                (size, vec![]),
                "{pointer:#x}"
            );
        }
    }
}

/// However many words are left of a chunk, the words of one event stand in one chunk, one behind
/// the other, and nothing is lost.
#[test]
fn a_payload_does_not_straddle_a_chunks_end() {
    let machine = Machine::new();
    let home = machine.home();
    let edge = Edge::new();
    let room = CHUNK - GUARD_BYTES / 8;
    for size in [0, 7, 8, 100, 2048] {
        let (address, bytes) = edge.last(size);
        let words = PAYLOAD_WORDS + size.div_ceil(7) as u64;
        for left in (0..12).chain([words - 1, words, words + 1, words + 2, words + 3]) {
            if left > room {
                continue;
            }
            let data = loop {
                let (mut consumer, _) = machine.fill(1, left, 0);
                machine.drain(&mut consumer);
                machine.refresh_view();
                let views = machine.views();
                let data = record(&machine, address, size as u64);
                // Once more if that took too long.
                if words > left || machine.views() == views {
                    break data;
                }
            };
            assert_eq!(data.bytes, bytes, "{size} bytes with {left} words left");
            let chunks = machine.control(home, control::STARTED);
            let expected = if words <= left { 1 } else { 2 };
            assert_eq!(chunks, expected, "{size} bytes with {left} words left");
            let head = (machine.slot(home, slot::HEAD) - machine.ring_address(home)) / 8;
            if chunks == 2 {
                let end = CHUNK + (GUARD_BYTES / 8).max(words + 2);
                assert_eq!(head, end, "a view, the event, and the rest of the guard");
                let rest = CHUNK - left..CHUNK;
                let filled = rest.map(|word| Word::decode(machine.word(home, word)));
                // The consumer has given the first chunk back.
                assert!(filled.into_iter().all(|word| word == Word::Empty));
            } else {
                assert_eq!(head, CHUNK - left + words);
            }
            assert_eq!(machine.control(home, control::LOST), 0);
        }
    }
}

#[test]
fn a_full_ring_counts_events_and_says_so() {
    let machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    let events = machine.geometry.ring_bytes() / 8;
    for number in 0..events {
        machine.call(Function::Custom, 0, number);
    }
    let lost = machine.control(home, control::LOST);
    assert!(lost > 0 && lost < events);
    let mut next = 0;
    for item in machine.drain(&mut consumer) {
        let Item::Data(data) = item else {
            panic!("{item:?}")
        };
        assert_eq!(Machine::number_of(&data), next);
        next += 1;
    }
    assert_eq!(next + lost, events);
    machine.call(Function::Custom, 0, 5);
    let items = machine.drain(&mut consumer);
    assert!(
        matches!(&items[..], [Item::Lost(n), Item::Data(data)] if *n == lost && Machine::number_of(data) == 5),
        "{items:?}"
    );
}

/// P58: a handler forks between any two instructions. In the child, whose table is wiped, at most
/// one more of the event's words is stored: the ring is its parent's.
#[test]
fn a_child_that_is_forked_in_an_event_leaves_its_parents_ring_alone() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    let home = machine.home();
    // The hot path, and the slow path that begins a chunk: with the wiped table it meets `live`
    // first.
    for warm in [true, false] {
        let mut most = 0;
        for at in 0.. {
            machine.reset();
            if warm {
                machine.call(Function::Entry, 0, 0);
                machine.refresh_view();
            }
            let ring = || -> Vec<u64> { (0..CHUNK).map(|word| machine.word(home, word)).collect() };
            let at_fork = Cell::new(None);
            let steps = stepper.call(&machine, (Function::Custom, 0, 3), &|step| {
                if step.number < at {
                    return Go::Step;
                }
                machine.wipe();
                at_fork.set(Some(ring()));
                Go::Free
            });
            let Some(before) = at_fork.take() else {
                assert!(steps > 60, "it stepped: {steps}");
                break;
            };
            let there = |words: &[u64]| {
                let of_event =
                    |word| matches!(word, Word::Size(_) | Word::Type(_) | Word::Payload(_));
                let is = |word: &&u64| of_event(Word::decode(**word));
                words.iter().filter(is).count()
            };
            let after = ring();
            most = most.max(there(&after) - there(&before));
        }
        assert_eq!(most, 1, "a word that was in a register already");
    }
}
