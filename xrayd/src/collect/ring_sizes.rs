//! The sizes of a process's rings, and the number of slots that threads may take at first. They are
//! as wanted, or as large as limits on memory allow. Later growth is in `ring_budget`.

use std::sync::Arc;

use shm_ring::{Geometry, SlotOwners};

use super::{
    ring_budget::{Promise, Promises, RingBudget},
    ring_bytes::{Beside, bytes_of_all, bytes_of_threads, mapped_bytes, slots_within},
};
use crate::{
    inject::{RingPlan, RingsNeeded},
    pid::Pid,
    refusal::{Reason, Refusal, Result},
    target::{RingRoom, Threads, has_limited_address_space, has_locked_memory},
};

/// Smaller rings have room for at least this many threads, or for twice the present number.
const LEAST_THREADS: u32 = 32;

/// The sizes of one process's rings.
#[derive(Debug)]
pub(crate) struct RingSizes {
    pid: Pid,
    wanted: Geometry,
    promises: Arc<Promises>,
    /// The last choice. Emptied when the next one begins.
    chosen: Option<Chosen>,
}

/// A choice of sizes.
#[derive(Debug)]
struct Chosen {
    sizes: Sizes,
    promise: Option<Promise>,
    /// The reason why they are not as wanted.
    note: Option<String>,
}

/// The sizes of rings, and the number of slots that threads may take. The other slots are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    geometry: Geometry,
    open_slots: u32,
}

/// Whether more slots can be opened later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    Possible,
    /// The mapping is no larger than the part of it that is used.
    Impossible,
}

// === impl RingSizes ===

impl RingSizes {
    /// Sizes for the rings of a process, at most the wanted ones.
    pub(crate) fn new(pid: Pid, wanted: Geometry, promises: Arc<Promises>) -> Self {
        Self {
            pid,
            wanted,
            promises,
            chosen: None,
        }
    }

    /// Chooses the sizes.
    ///
    /// # Errors
    /// A limit leaves no room for the smallest rings.
    pub(crate) fn choose(&mut self, needed: RingsNeeded) -> Result<RingPlan> {
        // The last choice was not used.
        self.chosen = None;
        let tids = Threads::of(self.pid);
        let threads = u32::try_from(tids.len()).unwrap_or(u32::MAX).max(1);
        // The whole mapping counts against the limit on locked memory for a moment.
        let locks = || Threads::live(self.pid).is_some_and(|tid| has_locked_memory(self.pid, tid));
        let growth = match locks() {
            true => Growth::Impossible,
            false => Growth::Possible,
        };
        // Profiles take four times the address space of the rest, and are not needed.
        let is_limited = growth == Growth::Impossible || has_limited_address_space(self.pid);
        let wanted = match is_limited {
            true => self.wanted.without_profiles(),
            false => self.wanted,
        };
        let ((sizes, note), promise) = self.promises.promise(self.pid, |rooms| {
            let sizes = match needed {
                RingsNeeded::New | RingsNeeded::Beside => fit(wanted, threads, rooms, growth),
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
            let bytes = bytes_of_threads(sizes.geometry, sizes.open_slots, Beside::Counts);
            Ok(match needed {
                RingsNeeded::New | RingsNeeded::Beside => ((sizes, self.note(sizes, rooms)), bytes),
                RingsNeeded::NewOfSize(_) => ((sizes, None), bytes),
                RingsNeeded::Present { .. } => {
                    // The rings exist, whatever the limits are, and the process itself reports
                    // their number. They take no more room from other processes than new rings
                    // would.
                    let most = tightest(rooms).map_or(u64::MAX, |room| room.bytes);
                    ((sizes, None), bytes.min(most))
                }
            })
        })?;
        let closed = match needed {
            RingsNeeded::Present { .. } => Vec::new(),
            RingsNeeded::New | RingsNeeded::Beside | RingsNeeded::NewOfSize(_) => {
                closed_slots(sizes, || {
                    let inner = |tid| Threads::inner_id(self.pid, tid);
                    tids.into_iter().filter_map(inner).collect()
                })
            }
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

    /// The budget and the note of the last choice, for rings of this geometry.
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

    /// The reason why rings are not as wanted, if they are not.
    fn note(&self, chosen: Sizes, rooms: &[RingRoom]) -> Option<String> {
        let room = tightest(rooms)?;
        let Sizes {
            geometry,
            open_slots,
        } = chosen;
        let note = || {
            let more = match open_slots < geometry.slots() {
                true => format!(", growing to at most {},", geometry.slots() / 2),
                false => String::new(),
            };
            format!(
                "rings of {} KiB for {} threads{more} instead of {} KiB for {}: {}, and rings may \
                 take half of that",
                geometry.ring_bytes() >> 10,
                open_slots / 2,
                self.wanted.ring_bytes() >> 10,
                self.wanted.slots() / 2,
                room.limit,
            )
        };
        let sizes = |geometry: Geometry| geometry.without_profiles();
        let is_wanted = sizes(geometry) == sizes(self.wanted) && open_slots == geometry.slots();
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

/// A limit that leaves too little memory.
#[derive(Debug, PartialEq, Eq)]
struct Short {
    /// The bytes that are needed at least.
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

/// The number of threads that rings are made for where memory is limited: twice the present number,
/// and `most` at most.
fn with_spare(threads: u32, most: u32) -> u32 {
    threads.saturating_mul(2).max(LEAST_THREADS).min(most)
}

/// The largest sizes, up to the wanted ones, that every limit leaves room for. First the number of
/// threads goes down, to twice the present number. Then the ring of each thread gets smaller. Then
/// the spare threads go.
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
    // Rings whose memory counts when they are mapped are made for the present threads and a
    // reserve.
    let counts_mapped = rooms.iter().any(|room| room.counts_mapped);
    let wanted = match counts_mapped {
        true => wanted.without_profiles(),
        false => wanted,
    };
    if !counts_mapped && bytes_of_all(wanted) <= tightest.bytes {
        return Ok(all_of(wanted));
    }
    let most = wanted.slots() / 2;
    // The bytes that count against the tightest limit, and whether all limits leave room.
    let counted = |geometry: Geometry| match tightest.counts_mapped {
        true => mapped_bytes(geometry),
        false => bytes_of_all(geometry),
    };
    let fits = |geometry: Geometry| {
        rooms.iter().all(|room| match room.counts_mapped {
            true => mapped_bytes(geometry) <= room.bytes,
            false => bytes_of_all(geometry) <= room.bytes,
        })
    };
    let mut least = counted(wanted);
    for threads in [with_spare(threads, most), threads.min(most)] {
        let mut ring_bytes = wanted.ring_bytes();
        while ring_bytes >= Geometry::MIN_RING_BYTES {
            if let Ok(geometry) = Geometry::new(ring_bytes, threads) {
                let geometry = match wanted.has_profiles() {
                    true => geometry,
                    false => geometry.without_profiles(),
                };
                least = counted(geometry);
                if fits(geometry) {
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

/// The same sizes with more slots, which are closed. Slots are doubled as long as the limit leaves
/// room for all of them, up to `most`.
fn with_closed_slots(fitting: Sizes, most: u32, bytes: u64) -> Sizes {
    let mut sizes = fitting;
    while sizes.geometry.slots() < most && bytes_of_all(sizes.geometry) <= bytes {
        let (ring_shift, slots_shift) = (sizes.geometry.ring_shift(), sizes.geometry.slots_shift());
        match Geometry::from_shifts(ring_shift, slots_shift + 1) {
            // The part that all threads share grows with the slots.
            Ok(geometry)
                if bytes_of_threads(geometry, sizes.open_slots, Beside::Counts) <= bytes =>
            {
                sizes.geometry = geometry;
            }
            _ => break,
        }
    }
    sizes
}

/// The number of slots for rings of a fixed size that every limit leaves room for. It is twice
/// `threads` at most.
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
    let counts_mapped = |room: &&RingRoom| room.counts_mapped;
    if let Some(room) = rooms
        .iter()
        .filter(counts_mapped)
        .min_by_key(|room| room.bytes)
        && mapped > room.bytes
    {
        return Err(Short::of(mapped, room));
    }
    if bytes_of_all(geometry) <= room.bytes {
        return Ok(sizes);
    }
    let spare = threads.saturating_mul(2);
    sizes.open_slots = slots_within(geometry, room.bytes, Beside::Counts).min(spare);
    match sizes.open_slots < threads.min(geometry.slots()) {
        true => Err(Short::of(
            bytes_of_threads(geometry, threads, Beside::Counts),
            room,
        )),
        false => Ok(sizes),
    }
}

/// The slots that are closed at first, in a process with these threads. Open are the slots that its
/// threads look at first. The remaining open slots are those that the next threads look at first.
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
                    false => bytes_of_threads(geometry, open_slots, Beside::Counts) <= room.bytes,
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
        // Rings that count in full are sized by the threads, whatever room is left.
        check(1, &[room(1 << 40, true)], Some((1 << 20, 32)));
        check(40, &[room(1 << 40, true)], Some((1 << 20, 128)));
        check(
            1,
            &[room(1 << 40, true), room(20 << 20, false)],
            Some((128 << 10, 32)),
        );
        check(5000, &[room(1 << 40, true)], Some((1 << 20, 1024)));
        // The smallest rings do not get larger.
        let wanted = Geometry::new(64 << 10, 4).unwrap();
        let found = fit(wanted, 1, &[room(1 << 30, true)], Growth::Possible);
        assert_eq!(
            found.map(|sizes| sizes.geometry),
            Ok(wanted.without_profiles())
        );
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
        // 84 KiB for each slot.
        check(&[room(6 << 20, false)], possible, (128, 64));
        check(&[room(10 << 20, false)], possible, (128, 64));
        check(&[room(12 << 20, false)], possible, (256, 64));
        check(&[room(100 << 20, false)], possible, (2048, 64));
        // Rings that count when they are mapped have no closed slots.
        check(&[room(12 << 20, true)], possible, (64, 64));
        let both = [room(12 << 20, false), room(1 << 40, true)];
        check(&both, possible, (64, 64));
        check(&[room(12 << 20, false)], Growth::Impossible, (64, 64));
        // No room for the shared part of more slots.
        let geometry = Geometry::new(1 << 16, 2048).unwrap();
        let sizes = Sizes {
            geometry,
            open_slots: geometry.slots(),
        };
        let tight = bytes_of_all(geometry);
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
        // There may be more threads than open slots, and there may be none.
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
                for beside in [Beside::Counts, Beside::Profiles] {
                    let bytes = bytes_of_threads(geometry, slots, beside);
                    assert_eq!(slots_within(geometry, bytes, beside), slots);
                    assert_eq!(slots_within(geometry, bytes - 1, beside), slots - 1);
                }
            }
            let within = |bytes| slots_within(geometry, bytes, Beside::Counts);
            assert_eq!((within(u64::MAX), within(0)), (geometry.slots(), 0));
        }
    }

    #[test]
    fn rings_of_fixed_sizes_hold_what_the_threads_write() {
        let fixed = Geometry::new(1 << 20, 1024).unwrap().without_profiles();
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
        let all = bytes_of_threads(fixed, u32::MAX, Beside::Counts);
        assert!(all <= mapped_bytes(fixed));
    }
}
