//! How large the rings of a process become: as large as was asked for, or as its limits on memory
//! allow.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use shm_ring::{Geometry, layout};

use crate::{
    inject::RingsNeeded,
    lock::lock,
    pid::Pid,
    refusal::{Reason, Refusal, Result},
    target::{MemoryGroup, RingRoom, Threads, ring_rooms},
};

/// Smaller rings have room for so many threads at least, or for twice as many as there are.
const LEAST_THREADS: u32 = 32;

/// Memory that rings may still take of control groups, by group. Without it each of the processes
/// in a group would be given a share of the same room, as rings take memory only when they are
/// written.
#[derive(Debug, Default)]
pub(super) struct Promises(Mutex<HashMap<PathBuf, u64>>);

/// What the rings of one process may take. Dropping it frees the room.
#[derive(Debug)]
pub(super) struct Promise {
    promises: Arc<Promises>,
    group: PathBuf,
    bytes: u64,
}

/// The sizes of one process's rings.
#[derive(Debug)]
pub(super) struct RingSizes {
    pid: Pid,
    wanted: Geometry,
    promises: Arc<Promises>,
    /// For the rings that were chosen last.
    promise: Option<Promise>,
    /// Why they are not as they were wanted.
    note: Option<String>,
}

// === impl Promises ===

impl Promises {
    /// Shows `choose` the limits on the memory of a process, and promises it what that wants to
    /// take.
    fn promise<T>(
        self: &Arc<Self>,
        pid: Pid,
        choose: impl FnOnce(&[RingRoom]) -> Result<(T, u64)>,
    ) -> Result<(T, Option<Promise>)> {
        let group = MemoryGroup::of(pid);
        // Held until the promise stands: the next process sees it.
        let mut promised = lock(&self.0);
        let below = |directory: &Path| promised_below(&promised, directory);
        let rooms = ring_rooms(group.as_ref(), below);
        let (chosen, bytes) = choose(&rooms)?;
        let promise = group.map(|group| {
            let group = group.directory().to_owned();
            let all = promised.entry(group.clone()).or_default();
            *all = all.saturating_add(bytes);
            Promise {
                promises: Arc::clone(self),
                group,
                bytes,
            }
        });
        Ok((chosen, promise))
    }
}

/// What is promised of a group: to it and to those in it.
fn promised_below(promised: &HashMap<PathBuf, u64>, group: &Path) -> u64 {
    let below = promised.iter().filter(|(one, _)| one.starts_with(group));
    below.map(|(_, bytes)| *bytes).fold(0, u64::saturating_add)
}

// === impl Promise ===

impl Drop for Promise {
    fn drop(&mut self) {
        let mut promised = lock(&self.promises.0);
        if let Some(all) = promised.get_mut(&self.group) {
            *all = all.saturating_sub(self.bytes);
            if *all == 0 {
                promised.remove(&self.group);
            }
        }
    }
}

// === impl RingSizes ===

impl RingSizes {
    /// Sizes for the rings of a process, at most these.
    pub(super) fn new(pid: Pid, wanted: Geometry, promises: Arc<Promises>) -> Self {
        Self {
            pid,
            wanted,
            promises,
            promise: None,
            note: None,
        }
    }

    /// Chooses them.
    ///
    /// # Errors
    /// A limit leaves no room for the smallest.
    pub(super) fn choose(&mut self, needed: RingsNeeded) -> Result<Geometry> {
        // The last choice came to nothing.
        self.promise = None;
        self.note = None;
        if let RingsNeeded::Present(geometry) = needed {
            return Ok(geometry);
        }
        let threads = Threads::of(self.pid).len();
        let threads = u32::try_from(threads).unwrap_or(u32::MAX).max(1);
        let promises = Arc::clone(&self.promises);
        let (chosen, promise) = promises.promise(self.pid, |rooms| match needed {
            RingsNeeded::New => fit(self.wanted, threads, rooms)
                .map(|geometry| {
                    let note = self.note(geometry, rooms);
                    ((geometry, note), mapped_bytes(geometry))
                })
                .map_err(|short| self.refuse(threads, &short)),
            RingsNeeded::NewOfSize(geometry) | RingsNeeded::Present(geometry) => {
                holds(geometry, threads, rooms)
                    .map(|()| ((geometry, None), bytes_of_threads(geometry, threads)))
                    .map_err(|short| self.refuse(threads, &short))
            }
        })?;
        let (geometry, note) = chosen;
        self.promise = promise;
        self.note = note;
        Ok(geometry)
    }

    /// The promise and the note of the last choice.
    pub(super) fn into_parts(self) -> (Option<Promise>, Option<String>) {
        (self.promise, self.note)
    }

    /// Why rings are not as they were wanted, if they are not.
    fn note(&self, chosen: Geometry, rooms: &[RingRoom]) -> Option<String> {
        let room = rooms.iter().min_by_key(|room| room.bytes)?;
        let note = || {
            format!(
                "rings of {} KiB for {} threads instead of {} KiB for {}: {}, and rings may take half of that",
                chosen.ring_bytes() >> 10,
                chosen.slots() / 2,
                self.wanted.ring_bytes() >> 10,
                self.wanted.slots() / 2,
                room.limit,
            )
        };
        (chosen != self.wanted).then(note)
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

/// Address space of rings of these sizes; their memory, if as many threads as have room fill them.
fn mapped_bytes(geometry: Geometry) -> u64 {
    // The mapping begins at any page, the rings in it at a multiple of a chunk.
    geometry.rings_bytes() + geometry.chunk_bytes()
}

/// What so many threads can write of rings of these sizes.
pub(super) fn bytes_of_threads(geometry: Geometry, threads: u32) -> u64 {
    let each = geometry.ring_bytes() + geometry.counts_bytes() + layout::filter::PAGE_BYTES;
    let shared = geometry.filter_offset(0) + 8 * geometry.names();
    let threads = u64::from(threads.min(geometry.slots()));
    (shared + threads * each).min(mapped_bytes(geometry))
}

/// The largest sizes, up to those wanted, that every limit leaves room for. The number of threads
/// goes down first, to twice as many as there are; then the ring of each; then the spare threads
/// go.
fn fit(wanted: Geometry, threads: u32, rooms: &[RingRoom]) -> std::result::Result<Geometry, Short> {
    let Some(tightest) = rooms.iter().min_by_key(|room| room.bytes) else {
        return Ok(wanted);
    };
    // What counts as soon as it is mapped is mapped for the threads that there are, and some.
    let counts_mapped = rooms.iter().any(|room| room.counts_mapped);
    if !counts_mapped && mapped_bytes(wanted) <= tightest.bytes {
        return Ok(wanted);
    }
    let most = wanted.slots() / 2;
    let spare = threads.saturating_mul(2).max(LEAST_THREADS).min(most);
    let mut least = mapped_bytes(wanted);
    for threads in [spare, threads.min(most)] {
        let mut ring_bytes = wanted.ring_bytes();
        while ring_bytes >= Geometry::MIN_RING_BYTES {
            if let Ok(geometry) = Geometry::new(ring_bytes, threads) {
                least = mapped_bytes(geometry);
                if least <= tightest.bytes {
                    return Ok(geometry);
                }
            }
            ring_bytes /= 2;
        }
    }
    Err(Short {
        bytes: least,
        limit: tightest.limit.clone(),
    })
}

/// Checks that every limit leaves room for what so many threads write of rings whose sizes are
/// fixed.
fn holds(geometry: Geometry, threads: u32, rooms: &[RingRoom]) -> std::result::Result<(), Short> {
    let needs = rooms.iter().map(|room| {
        let needed = match room.counts_mapped {
            true => mapped_bytes(geometry),
            false => bytes_of_threads(geometry, threads),
        };
        (needed, room)
    });
    match needs
        .into_iter()
        .find(|(needed, room)| *needed > room.bytes)
    {
        Some((bytes, room)) => Err(Short {
            bytes,
            limit: room.limit.clone(),
        }),
        None => Ok(()),
    }
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
            let found = fit(wanted, threads, rooms);
            let sizes = found.as_ref().ok().map(|g| (g.ring_bytes(), g.slots() / 2));
            assert_eq!(sizes, expected, "{threads} threads in {rooms:?}: {found:?}");
            if let Ok(geometry) = found {
                assert!(
                    rooms
                        .iter()
                        .all(|room| mapped_bytes(geometry) <= room.bytes)
                );
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
        let found = fit(wanted, 1, &[room(1 << 30, true)]);
        assert_eq!(found, Ok(wanted));
    }

    #[test]
    fn rings_of_fixed_sizes_hold_what_the_threads_write() {
        let fixed = Geometry::new(1 << 20, 1024).unwrap();
        assert_eq!(holds(fixed, 10, &[]), Ok(()));
        assert_eq!(holds(fixed, 10, &[room(20 << 20, false)]), Ok(()));
        assert!(holds(fixed, 20, &[room(20 << 20, false)]).is_err());
        assert!(holds(fixed, 10, &[room(1 << 30, true)]).is_err());
        let all = bytes_of_threads(fixed, u32::MAX);
        assert!(all <= mapped_bytes(fixed));
    }

    #[test]
    fn what_is_promised_counts_for_the_groups_around() {
        let promised = [("/g/a", 5), ("/g/a/b", 7), ("/g/ab", 11)];
        let promised = promised.map(|(group, bytes)| (PathBuf::from(group), bytes));
        let promised = HashMap::from(promised);
        let below = |group: &str| promised_below(&promised, Path::new(group));
        assert_eq!(
            [below("/g"), below("/g/a"), below("/g/a/b"), below("/g/x")],
            [23, 12, 7, 0]
        );
        let promises = Arc::new(Promises(Mutex::new(promised)));
        drop(Promise {
            promises: Arc::clone(&promises),
            group: PathBuf::from("/g/a"),
            bytes: 5,
        });
        assert_eq!(lock(&promises.0).len(), 2);
    }
}
