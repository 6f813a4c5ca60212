//! Notes of long calls: unfinished ones, ones that are overwritten, and numbers that no thread has
//! given.
#![cfg(not(any(loom, miri)))]

mod support;

use shm_ring::{
    Geometry, SharedMemory,
    layout::profile::{self, NOTES},
    profile::{LongCall, LongCalls},
};
use support::Words;

/// The first profile of a memory.
struct Notes {
    geometry: Geometry,
    memory: Words,
}

// === impl Notes ===

impl Notes {
    fn new() -> Self {
        let geometry = Geometry::new(Geometry::MIN_RING_BYTES, 1).expect("the least sizes");
        let memory = Words::new(geometry);
        Self { geometry, memory }
    }

    fn at(&self, offset: u64) -> u64 {
        let region = self.geometry.profile_region();
        region.profile_offset(0) + offset
    }

    fn set_noted(&self, noted: u64) {
        let header = self.geometry.profile_region().header_at();
        self.memory.store(self.at(header + profile::NOTED), noted);
    }

    /// Writes a note as a thread does, in the place of `number`, with this number in it.
    fn write(&self, number: u64, its: u64) {
        let notes = self.geometry.profile_region().notes_at();
        let note = self.at(notes + (number - 1) % NOTES * profile::NOTE_BYTES);
        for (field, value) in [
            (profile::NOTE_ENDED, 1000 + number),
            (profile::NOTE_TICKS, number),
            (profile::NOTE_NAME, 7),
            (profile::NOTE_NUMBER, its),
        ] {
            self.memory.store(note + field, value);
        }
    }

    /// The numbers of the calls that are read, and how many were missed.
    fn read(&self, seen: &mut u64) -> (Vec<u64>, u64) {
        let LongCalls { calls, missed } = LongCalls::read(&self.memory, self.geometry, 0, seen);
        let number = |call: &LongCall| {
            assert_eq!((call.site, call.ended), (7, 1000 + call.ticks));
            call.ticks
        };
        (calls.iter().map(number).collect(), missed)
    }
}

#[test]
fn a_note_that_is_being_written_is_read_later_or_counted_as_missed() {
    let (notes, mut seen) = (Notes::new(), 0);
    notes.write(1, 1);
    notes.write(2, 0);
    notes.set_noted(2);
    assert_eq!(notes.read(&mut seen), (vec![1], 0));
    assert_eq!(notes.read(&mut seen), (vec![], 0));
    notes.write(2, 2);
    assert_eq!(notes.read(&mut seen), (vec![2], 0));
    // Its handler has left it by a jump, and a later one is whole.
    notes.write(3, 0);
    notes.write(4, 4);
    notes.set_noted(4);
    assert_eq!(notes.read(&mut seen), (vec![4], 1));
    assert_eq!((notes.read(&mut seen), seen), ((vec![], 0), 4));
}

#[test]
fn numbers_that_no_thread_has_given_end_the_reading_all_the_same() {
    let (notes, mut seen) = (Notes::new(), 0);
    notes.write(1, 1);
    for noted in [u64::MAX, NOTES + 5, 0, u64::MAX, 1] {
        notes.set_noted(noted);
        let (calls, _) = notes.read(&mut seen);
        assert!(
            calls.len() as u64 <= NOTES && seen <= noted,
            "{noted}: {seen}"
        );
    }
    assert_eq!(notes.read(&mut seen), (vec![], 0));
    // A profile that was emptied begins anew.
    seen = 100;
    assert_eq!((notes.read(&mut seen), seen), ((vec![1], 0), 1));
}
