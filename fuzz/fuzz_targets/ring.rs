//! The ring's consumer over memory whose words the input chooses, perhaps differently at each load.
//! The consumer stays within its ring, does bounded work, and does not panic.
#![no_main]

use std::cell::Cell;

use libfuzzer_sys::fuzz_target;
use shm_ring::{
    Consumer, Geometry, Producer, SharedMemory,
    newest::{self, RingCopy, Words},
};

const INDEX: u32 = 3;

/// Memory whose loads return the input, byte by byte, and zero once the input is used up.
struct Memory<'a> {
    geometry: Geometry,
    input: &'a [u8],
    at: Cell<usize>,
    accesses: Cell<u64>,
}

// === impl Memory ===

impl Memory<'_> {
    fn byte(&self) -> u8 {
        let at = self.at.replace(self.at.get() + 1);
        self.input.get(at).copied().unwrap_or(0)
    }

    /// A word that the input describes. Meaningful words need few bytes.
    fn word(&self) -> u64 {
        let shape = self.byte();
        let low = match shape & 7 {
            0 => 0,
            // Sync, gap, filler, halves of an argument, size, type, payload, stack.
            tag @ 1..=5 if shape & 0x40 == 0 => u64::from(tag) * 2,
            tag @ 1..=5 => u64::from(tag.min(4)) * 2 + 10,
            6 => u64::from(self.byte()) | 1,
            _ => u64::from(u32::from_le_bytes(std::array::from_fn(|_| self.byte()))),
        };
        let high = match shape >> 3 & 3 {
            0 => 0,
            1 => u64::from(u32::MAX),
            2 => u64::from(self.byte()),
            _ => u64::from(u32::from_le_bytes(std::array::from_fn(|_| self.byte()))),
        };
        // An odd byte behind a word of one byte repeats that word without end.
        if shape & 0x80 != 0 {
            self.at
                .set(self.at.get().saturating_sub(usize::from(self.byte() & 1)));
        }
        high << 32 | low
    }

    fn check(&self, offset: u64, bytes: u64) {
        let g = self.geometry;
        let line = g.control_offset(INDEX);
        let ring = g.ring_offset(INDEX);
        let inside = |start: u64, length: u64| offset >= start && offset + bytes <= start + length;
        assert!(offset.is_multiple_of(8), "{offset:#x}");
        assert!(
            inside(line, 64) || inside(ring, g.ring_bytes()),
            "{offset:#x} {bytes}"
        );
        self.accesses.set(self.accesses.get() + bytes / 8);
    }
}

impl SharedMemory for Memory<'_> {
    fn load(&self, offset: u64) -> u64 {
        self.check(offset, 8);
        self.word()
    }

    fn store(&self, offset: u64, _: u64) {
        self.check(offset, 8);
    }

    fn fill(&self, offset: u64, bytes: u64, _: u64) {
        self.check(offset, bytes);
    }
}

fuzz_target!(|input: &[u8]| {
    let Ok(geometry) = Geometry::new(Geometry::MIN_RING_BYTES, 1) else {
        return;
    };
    let memory = Memory {
        geometry,
        input,
        at: Cell::new(0),
        accesses: Cell::new(0),
    };
    let mut consumer = Consumer::resume(&memory, geometry, INDEX);
    if memory.byte() & 1 == 0 {
        consumer = consumer.with_payloads();
    }
    let chunk = geometry.chunk_bytes() / 8;
    let mut now = 0u64;
    for _ in 0..8 {
        let shape = memory.byte();
        let producer = if shape & 1 == 0 {
            Producer::Alive
        } else {
            Producer::Gone
        };
        now = now.wrapping_add(u64::from(shape >> 4) * 300);
        let max = u64::from(memory.byte()) * 8;
        memory.accesses.set(0);
        consumer.drain(&memory, producer, now, max, |_| {});
        assert!(
            memory.accesses.get() <= 8 * (max + 3 * chunk) + 64,
            "bounded work"
        );
        assert!(consumer.backlog(&memory) <= geometry.ring_bytes());
        if shape & 2 != 0 {
            consumer.tell_losses(&memory, |_| {});
        }
        if shape & 4 != 0 {
            consumer = Consumer::resume(&memory, geometry, INDEX);
        }
    }
    memory.accesses.set(0);
    let words = Words::of(&memory, geometry, INDEX);
    assert!(words.overwritten <= words.begun);
    let copy = RingCopy::take(&memory, geometry, INDEX, u64::from(memory.byte()));
    newest::finish_taking(&memory, geometry, INDEX);
    let most = geometry.ring_bytes() / 8;
    assert!(memory.accesses.get() <= 2 * most, "bounded work");
    assert!(copy.bytes() <= geometry.ring_bytes());
    let mut items = 0;
    let mut reader = copy.consumer().with_payloads();
    reader.drain(&copy, Producer::Gone, 0, u64::MAX, |_| items += 1);
    assert!(items <= 2 * most, "{items} of {most} words");
});
