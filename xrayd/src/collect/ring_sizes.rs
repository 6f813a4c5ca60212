//! How large the rings of a process become: as large as was asked for, or as its limits on memory
//! allow. And how many of its slots threads may take at first.

use std::sync::Arc;

use shm_ring::{Geometry, SlotOwners, layout};

use super::ring_budget::{Promise, Promises, RingBudget};
use crate::{
    inject::{RingPlan, RingsNeeded},
    pid::Pid,
    refusal::{Reason, Refusal, Result},
    target::{RingRoom, Threads, has_locked_memory},
};

/// Smaller rings have room for so many threads at least, or for twice as many as there are.
const LEAST_THREADS: u32 = 32;

/// The sizes of one process's rings.
#[derive(Debug)]
pub(crate) struct RingSizes {
    pid: Pid,
    wanted: Geometry,
    promises: Arc<Promises>,
    /// What was chosen last. Emptied when something else is chosen.
    chosen: Option<Chosen>,
}

/// Sizes that were chosen.
#[derive(Debug)]
struct Chosen {
    sizes: Sizes,
    promise: Option<Promise>,
    /// Why they are not as they were wanted.
    note: Option<String>,
}

/// Rings, and how many of their slots threads may take: those of the others are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    geometry: Geometry,
    open_slots: u32,
}

/// Whether rings can become more later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    Possible,
    /// The mapping is no larger than what is used of it.
    Impossible,
}

// === impl RingSizes ===

impl RingSizes {
    /// Sizes for the rings of a process, at most these.
    pub(crate) fn new(pid: Pid, wanted: Geometry, promises: Arc<Promises>) -> Self {
        Self {
            pid,
            wanted,
            promises,
            chosen: None,
        }
    }

    /// Chooses them.
    ///
    /// # Errors
    /// A limit leaves no room for the smallest.
    pub(crate) fn choose(&mut self, needed: RingsNeeded) -> Result<RingPlan> {
        // The last choice came to nothing.
        self.chosen = None;
        let tids = Threads::of(self.pid);
        let threads = u32::try_from(tids.len()).unwrap_or(u32::MAX).max(1);
        // The whole mapping counts against the limit on locked memory for a moment.
        let locks = || Threads::live(self.pid).is_some_and(|tid| has_locked_memory(self.pid, tid));
        let growth = match locks() {
            true => Growth::Impossible,
            false => Growth::Possible,
        };
        let ((sizes, note), promise) = self.promises.promise(self.pid, |rooms| {
            let sizes = match needed {
                RingsNeeded::New => fit(self.wanted, threads, rooms, growth),
                RingsNeeded::NewOfSize(geometry) => fit_slots(geometry, threads, rooms),
                RingsNeeded::Present {
                    geometry,
                    open_slots,
                } => Ok(Sizes {
                    geometry,
                    open_slots,
                }),
            };
            let sizes = sizes.map_err(|short| self.refuse(threads, &short))?;
            let bytes = bytes_of_threads(sizes.geometry, sizes.open_slots);
            Ok(match needed {
                RingsNeeded::New => ((sizes, self.note(sizes, rooms)), bytes),
                RingsNeeded::NewOfSize(_) => ((sizes, None), bytes),
                RingsNeeded::Present { .. } => {
                    // They are there, whatever the limits say, and the process says how many. It
                    // takes no more room from others than new ones would.
                    let most = tightest(rooms).map_or(u64::MAX, |room| room.bytes);
                    ((sizes, None), bytes.min(most))
                }
            })
        })?;
        let closed = match needed {
            RingsNeeded::Present { .. } => Vec::new(),
            RingsNeeded::New | RingsNeeded::NewOfSize(_) => closed_slots(sizes, || {
                let inner = |tid| Threads::inner_id(self.pid, tid);
                tids.into_iter().filter_map(inner).collect()
            }),
        };
        self.chosen = Some(Chosen {
            sizes,
            promise,
            note,
        });
        Ok(RingPlan {
            geometry: sizes.geometry,
            closed,
        })
    }

    /// The budget and the note of the last choice, of these sizes.
    pub(crate) fn into_parts(self, geometry: Geometry) -> (RingBudget, Option<String>) {
        let (open_slots, promise, note) = match self.chosen {
            Some(Chosen {
                sizes,
                promise,
                note,
            }) => (sizes.open_slots, promise, note),
            None => (geometry.slots(), None, None),
        };
        let budget = RingBudget::new(self.pid, (geometry, open_slots), self.promises, promise);
        (budget, note)
    }

    /// Why rings are not as they were wanted, if they are not.
    fn note(&self, chosen: Sizes, rooms: &[RingRoom]) -> Option<String> {
        let room = tightest(rooms)?;
        let Sizes {
            geometry,
            open_slots,
        } = chosen;
        let note = || {
            let more = match open_slots < geometry.slots() {
                true => format!(", and for up to {} as they come,", geometry.slots() / 2),
                false => String::new(),
            };
            format!(
                "rings of {} KiB for {} threads{more} instead of {} KiB for {}: {}, and rings may take half of that",
                geometry.ring_bytes() >> 10,
                open_slots / 2,
                self.wanted.ring_bytes() >> 10,
                self.wanted.slots() / 2,
                room.limit,
            )
        };
        let is_wanted = geometry == self.wanted && open_slots == geometry.slots();
        (!is_wanted).then(note)
    }

    fn refuse(&self, threads: u32, short: &Short) -> Refusal {
        let message = format!(
            "process {}: rings for its {threads} threads take {} KiB; {}, and rings may take half of that",
            self.pid,
            short.bytes.div_ceil(1024),
            short.limit,
        );
        Refusal::new(Reason::NoMemory, message)
    }
}

/// A limit that leaves too little.
#[derive(Debug, PartialEq, Eq)]
struct Short {
    /// What is needed at least.
    bytes: u64,
    limit: String,
}

impl Short {
    fn of(bytes: u64, room: &RingRoom) -> Self {
        Self {
            bytes,
            limit: room.limit.clone(),
        }
    }
}

fn tightest(rooms: &[RingRoom]) -> Option<&RingRoom> {
    rooms.iter().min_by_key(|room| room.bytes)
}

/// Address space of rings of these sizes; their memory, if as many threads as have room fill them.
fn mapped_bytes(geometry: Geometry) -> u64 {
    // The mapping begins at any page, the rings in it at a multiple of a chunk.
    geometry.rings_bytes() + geometry.chunk_bytes()
}

/// What all threads together write, and what each of them can write, of rings of these sizes.
fn shares(geometry: Geometry) -> (u64, u64) {
    let each = geometry.ring_bytes() + geometry.counts_bytes() + layout::filter::PAGE_BYTES;
    let shared = geometry.filter_offset(0) + 8 * geometry.names();
    (shared, each)
}

/// What so many threads can write of rings of these sizes.
pub(crate) fn bytes_of_threads(geometry: Geometry, threads: u32) -> u64 {
    let (shared, each) = shares(geometry);
    let threads = u64::from(threads.min(geometry.slots()));
    (shared + threads * each).min(mapped_bytes(geometry))
}

/// The most slots whose threads write no more than that.
pub(crate) fn slots_within(geometry: Geometry, bytes: u64) -> u32 {
    let (shared, each) = shares(geometry);
    let slots = bytes.saturating_sub(shared) / each;
    u32::try_from(slots).map_or(geometry.slots(), |slots| slots.min(geometry.slots()))
}

/// How many threads rings are made for where memory is limited, at most `most`: twice as many as
/// there are.
fn with_spare(threads: u32, most: u32) -> u32 {
    threads.saturating_mul(2).max(LEAST_THREADS).min(most)
}

/// The largest sizes, up to those wanted, that every limit leaves room for. The number of threads
/// goes down first, to twice as many as there are; then the ring of each; then the spare threads
/// go.
fn fit(
    wanted: Geometry,
    threads: u32,
    rooms: &[RingRoom],
    growth: Growth,
) -> std::result::Result<Sizes, Short> {
    let all_of = |geometry: Geometry| Sizes {
        geometry,
        open_slots: geometry.slots(),
    };
    let Some(tightest) = tightest(rooms) else {
        return Ok(all_of(wanted));
    };
    // What counts as soon as it is mapped is mapped for the threads that there are, and some.
    let counts_mapped = rooms.iter().any(|room| room.counts_mapped);
    if !counts_mapped && mapped_bytes(wanted) <= tightest.bytes {
        return Ok(all_of(wanted));
    }
    let most = wanted.slots() / 2;
    let mut least = mapped_bytes(wanted);
    for threads in [with_spare(threads, most), threads.min(most)] {
        let mut ring_bytes = wanted.ring_bytes();
        while ring_bytes >= Geometry::MIN_RING_BYTES {
            if let Ok(geometry) = Geometry::new(ring_bytes, threads) {
                least = mapped_bytes(geometry);
                if least <= tightest.bytes {
                    let sizes = all_of(geometry);
                    return Ok(match counts_mapped || growth == Growth::Impossible {
                        true => sizes,
                        false => with_closed_slots(sizes, wanted.slots(), tightest.bytes),
                    });
                }
            }
            ring_bytes /= 2;
        }
    }
    Err(Short::of(least, tightest))
}

/// The same with more slots, which are closed: doubled as long as the limit leaves room for all of
/// them, up to `most`.
fn with_closed_slots(fitting: Sizes, most: u32, bytes: u64) -> Sizes {
    let mut sizes = fitting;
    while sizes.geometry.slots() < most
        && bytes_of_threads(sizes.geometry, sizes.geometry.slots()) <= bytes
    {
        let (ring_shift, slots_shift) = (sizes.geometry.ring_shift(), sizes.geometry.slots_shift());
        match Geometry::from_shifts(ring_shift, slots_shift + 1) {
            // What all threads share grows with the slots.
            Ok(geometry) if bytes_of_threads(geometry, sizes.open_slots) <= bytes => {
                sizes.geometry = geometry;
            }
            _ => break,
        }
    }
    sizes
}

/// As many slots of rings whose sizes are fixed as every limit leaves room for, at most twice as
/// many as threads are counted on.
fn fit_slots(
    geometry: Geometry,
    threads: u32,
    rooms: &[RingRoom],
) -> std::result::Result<Sizes, Short> {
    let mut sizes = Sizes {
        geometry,
        open_slots: geometry.slots(),
    };
    let Some(room) = tightest(rooms) else {
        return Ok(sizes);
    };
    let mapped = mapped_bytes(geometry);
    if mapped <= room.bytes {
        return Ok(sizes);
    }
    if rooms.iter().any(|room| room.counts_mapped) {
        return Err(Short::of(mapped, room));
    }
    let spare = threads.saturating_mul(2);
    sizes.open_slots = slots_within(geometry, room.bytes).min(spare);
    match sizes.open_slots < threads.min(geometry.slots()) {
        true => Err(Short::of(bytes_of_threads(geometry, threads), room)),
        false => Ok(sizes),
    }
}

/// The slots that are closed at first, if the process has threads of these numbers. Open are those
/// that its threads look at first. The rest are those that the next threads look at first.
fn closed_slots(sizes: Sizes, threads: impl FnOnce() -> Vec<u32>) -> Vec<u32> {
    let Sizes {
        geometry,
        open_slots,
    } = sizes;
    if open_slots >= geometry.slots() {
        return Vec::new();
    }
    let threads = threads();
    let mut owners = SlotOwners::all_closed(geometry);
    let mut left = open_slots as usize;
    for thread in &threads {
        if left > 0 && owners.open_for(*thread).is_some() {
            left -= 1;
        }
    }
    let newest = threads.iter().max().copied().unwrap_or(0);
    owners.open_behind(newest, left);
    owners.closed().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(bytes: u64, counts_mapped: bool) -> RingRoom {
        RingRoom {
            bytes,
            limit: format!("{bytes}"),
            counts_mapped,
        }
    }

    #[test]
    fn rings_are_as_large_as_limits_allow() {
        let wanted = Geometry::new(1 << 20, 1024).unwrap();
        let check = |threads, rooms: &[RingRoom], expected: Option<(u64, u32)>| {
            let found = fit(wanted, threads, rooms, Growth::Possible);
            let sizes = found.as_ref().ok();
            let sizes = sizes.map(|it| (it.geometry.ring_bytes(), it.open_slots / 2));
            assert_eq!(sizes, expected, "{threads} threads in {rooms:?}: {found:?}");
            if let Ok(Sizes {
                geometry,
                open_slots,
            }) = found
            {
                let fits = |room: &RingRoom| match room.counts_mapped {
                    true => mapped_bytes(geometry) <= room.bytes,
                    false => bytes_of_threads(geometry, open_slots) <= room.bytes,
                };
                assert!(rooms.iter().all(fits));
            }
        };
        check(5000, &[], Some((1 << 20, 1024)));
        check(1, &[room(4 << 30, false)], Some((1 << 20, 1024)));
        // Fewer threads first, then smaller rings.
        check(1, &[room(1 << 30, false)], Some((1 << 20, 32)));
        check(300, &[room(1 << 31, false)], Some((512 << 10, 1024)));
        check(100, &[room(128 << 20, false)], Some((128 << 10, 256)));
        check(1, &[room(10 << 20, false)], Some((64 << 10, 32)));
        // Without room for more threads than there are.
        check(33, &[room(20 << 20, false)], Some((64 << 10, 64)));
        check(3, &[room(4 << 20, false)], None);
        check(3, &[room(0, true)], None);
        // What counts in full is sized by the threads, whatever is left.
        check(1, &[room(1 << 40, true)], Some((1 << 20, 32)));
        check(40, &[room(1 << 40, true)], Some((1 << 20, 128)));
        check(
            1,
            &[room(1 << 40, true), room(20 << 20, false)],
            Some((128 << 10, 32)),
        );
        check(5000, &[room(1 << 40, true)], Some((1 << 20, 1024)));
        // The smallest is not made larger.
        let wanted = Geometry::new(64 << 10, 4).unwrap();
        let found = fit(wanted, 1, &[room(1 << 30, true)], Growth::Possible);
        assert_eq!(found.map(|sizes| sizes.geometry), Ok(wanted));
    }

    #[test]
    fn tables_have_closed_slots_for_what_memory_is_left() {
        let wanted = Geometry::new(1 << 16, 1024).unwrap();
        let check = |rooms: &[RingRoom], growth, expected: (u32, u32)| {
            let sizes = fit(wanted, 1, rooms, growth).unwrap();
            let found = (sizes.geometry.slots(), sizes.open_slots);
            assert_eq!(found, expected, "{rooms:?} {growth:?}");
            let closed = closed_slots(sizes, || vec![7, 3000]);
            assert_eq!(closed.len(), (found.0 - found.1) as usize);
        };
        let possible = Growth::Possible;
        check(&[], possible, (2048, 2048));
        check(&[room(1 << 30, false)], possible, (2048, 2048));
        // 84 KiB for each.
        check(&[room(6 << 20, false)], possible, (128, 64));
        check(&[room(10 << 20, false)], possible, (128, 64));
        check(&[room(12 << 20, false)], possible, (256, 64));
        check(&[room(100 << 20, false)], possible, (2048, 64));
        // What counts when it is mapped has no closed slots.
        check(&[room(12 << 20, true)], possible, (64, 64));
        let both = [room(12 << 20, false), room(1 << 40, true)];
        check(&both, possible, (64, 64));
        check(&[room(12 << 20, false)], Growth::Impossible, (64, 64));
        // No room for what more slots share.
        let geometry = Geometry::new(1 << 16, 2048).unwrap();
        let sizes = Sizes {
            geometry,
            open_slots: geometry.slots(),
        };
        let tight = mapped_bytes(geometry);
        assert_eq!(with_closed_slots(sizes, 1 << 16, tight), sizes);
    }

    #[test]
    fn threads_that_exist_and_the_next_ones_have_their_first_choices() {
        let geometry = Geometry::new(1 << 16, 1024).unwrap();
        let sizes = Sizes {
            geometry,
            open_slots: 64,
        };
        let threads: Vec<u32> = (5000..5010).collect();
        let closed = closed_slots(sizes, || threads.clone());
        assert_eq!(closed.len(), 2048 - 64);
        for thread in 5000..5000 + 64 {
            assert!(!closed.contains(&(thread % 2048)), "{thread}");
        }
        // More threads than slots may be open, and none.
        let sizes = Sizes {
            geometry,
            open_slots: 8,
        };
        assert_eq!(closed_slots(sizes, || threads).len(), 2040);
        assert_eq!(closed_slots(sizes, Vec::new).len(), 2040);
    }

    #[test]
    fn slots_within_a_room_are_the_most_that_fit() {
        for (ring, threads) in [(1 << 16, 4), (1 << 20, 1024), (1 << 30, 64)] {
            let geometry = Geometry::new(ring, threads).unwrap();
            for slots in [1, 2, geometry.slots() - 1] {
                let bytes = bytes_of_threads(geometry, slots);
                assert_eq!(slots_within(geometry, bytes), slots);
                assert_eq!(slots_within(geometry, bytes - 1), slots - 1);
            }
            assert_eq!(slots_within(geometry, u64::MAX), geometry.slots());
            assert_eq!(slots_within(geometry, 0), 0);
        }
    }

    #[test]
    fn rings_of_fixed_sizes_hold_what_the_threads_write() {
        let fixed = Geometry::new(1 << 20, 1024).unwrap();
        let check = |threads, rooms: &[RingRoom], expected: Option<u32>| {
            let found = fit_slots(fixed, threads, rooms);
            let open = found.as_ref().ok().map(|sizes| sizes.open_slots);
            assert_eq!(open, expected, "{threads} threads in {rooms:?}: {found:?}");
        };
        check(10, &[], Some(2048));
        check(10, &[room(4 << 30, false)], Some(2048));
        check(10, &[room(1 << 30, false)], Some(20));
        check(100, &[room(1 << 30, false)], Some(200));
        check(10, &[room(20 << 20, false)], Some(15));
        check(20, &[room(20 << 20, false)], None);
        check(10, &[room(1 << 30, true)], None);
        check(10, &[room(4 << 30, true)], Some(2048));
        let all = bytes_of_threads(fixed, u32::MAX);
        assert!(all <= mapped_bytes(fixed));
    }
}
