//! Memory that the rings of processes may take of their control groups. It is promised when a
//! process is attached, and more is promised as threads come that have no ring. The sizes of rings
//! are chosen in `ring_sizes`.
//!
//! Rings take memory only when they are written. So a promise counts as taken memory. Otherwise
//! each process in a group would be given a share of the same room.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use shm_ring::Geometry;

use super::ring_bytes::{Beside, bytes_of_threads, slots_within};
use crate::{
    lock::lock,
    pid::Pid,
    refusal::Result,
    target::{MemoryGroup, RingRoom, ring_rooms},
};

/// The reason why a process in another group gets no more rings.
const MOVED: &str = "the process has moved to another control group since the attach";

/// Memory that rings may still take of control groups, by group.
#[derive(Debug, Default)]
pub(crate) struct Promises(Mutex<HashMap<PathBuf, u64>>);

/// The memory that the rings of one process may take. Dropping it frees the room.
#[derive(Debug)]
pub(crate) struct Promise {
    promises: Arc<Promises>,
    group: PathBuf,
    bytes: u64,
}

/// Why memory for profiles is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// It will be written.
    Room,
    /// It is written already, and is to be counted.
    Counted,
}

/// The limit on memory because of which threads have no ring. `None` while no thread needs one.
#[derive(Debug, Default)]
pub(crate) struct RingRefusal(Mutex<Option<String>>);

/// The slots of one process that threads may take. Dropping it frees the memory that is promised to
/// their rings.
#[derive(Debug)]
pub(crate) struct RingBudget {
    pid: Pid,
    geometry: Geometry,
    /// Slots that are not closed.
    open_slots: u32,
    /// What their threads write beside the rings.
    beside: Beside,
    /// True if slots were refused that could have been opened without profiles.
    lacks_profiles: bool,
    promises: Arc<Promises>,
    /// The promise for the rings of those slots. `None` if the process's group cannot be seen.
    promise: Option<Promise>,
    refusal: Arc<RingRefusal>,
}

// === impl Promises ===

impl Promises {
    /// Calls `choose` with the limits on the memory of a process, and promises the process as many
    /// bytes as `choose` returns.
    pub(crate) fn promise<T>(
        self: &Arc<Self>,
        pid: Pid,
        choose: impl FnOnce(&[RingRoom]) -> Result<(T, u64)>,
    ) -> Result<(T, Option<Promise>)> {
        let group = MemoryGroup::of(pid);
        // Held until the promise is made, so that the next process sees it.
        let mut promised = lock(&self.0);
        let below = |directory: &Path| promised_below(&promised, directory);
        let rooms = ring_rooms(group.as_ref(), below, 0);
        let (chosen, bytes) = choose(&rooms)?;
        let promise = group.map(|group| {
            let mut promise = Promise {
                promises: Arc::clone(self),
                group: group.directory().to_owned(),
                bytes: 0,
            };
            promise.set(bytes, &mut promised);
            promise
        });
        Ok((chosen, promise))
    }
}

/// The bytes that are promised to a group and to groups within it.
fn promised_below(promised: &HashMap<PathBuf, u64>, group: &Path) -> u64 {
    let below = promised.iter().filter(|(one, _)| one.starts_with(group));
    below.map(|(_, bytes)| *bytes).fold(0, u64::saturating_add)
}

// === impl Promise ===

impl Promise {
    /// Changes the promise to this many bytes.
    fn set(&mut self, bytes: u64, promised: &mut HashMap<PathBuf, u64>) {
        let all = promised.entry(self.group.clone()).or_default();
        *all = all.saturating_sub(self.bytes).saturating_add(bytes);
        if *all == 0 {
            promised.remove(&self.group);
        }
        self.bytes = bytes;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let promises = Arc::clone(&self.promises);
        self.set(0, &mut lock(&promises.0));
    }
}

// === impl RingRefusal ===

impl RingRefusal {
    /// What was refused, and the reason.
    pub(crate) fn get(&self) -> Option<String> {
        lock(&self.0).clone()
    }

    fn set(&self, pid: Pid, why: Option<String>) {
        let mut reported = lock(&self.0);
        if let (None, Some(why)) = (&*reported, &why) {
            tracing::warn!(%pid, why, "threads without a ring lose their events");
        }
        *reported = why;
    }
}

// === impl RingBudget ===

impl RingBudget {
    pub(crate) fn new(
        pid: Pid,
        (geometry, open_slots): (Geometry, u32),
        promises: Arc<Promises>,
        promise: Option<Promise>,
    ) -> Self {
        Self {
            pid,
            geometry,
            open_slots,
            beside: Beside::Counts,
            lacks_profiles: false,
            promises,
            promise,
            refusal: Arc::default(),
        }
    }

    /// A budget without a limit, with all but `open_slots` slots closed.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn unlimited(geometry: Geometry, open_slots: u32) -> Self {
        // No process has this id, so it has no group.
        let pid = Pid::try_from(i32::MAX.unsigned_abs()).expect("a number of a process");
        Self::new(pid, (geometry, open_slots), Arc::default(), None)
    }

    /// The place where refusals are reported.
    pub(crate) fn refusal(&self) -> Arc<RingRefusal> {
        Arc::clone(&self.refusal)
    }

    /// Slots that threads may take or have taken.
    pub(crate) fn open_slots(&self) -> u32 {
        self.open_slots
    }

    /// True if a slot is closed.
    pub(crate) fn has_closed(&self) -> bool {
        self.open_slots < self.geometry.slots()
    }

    /// Requests memory for `needed` more slots, and for `spare` ones beside them. Returns the
    /// number of slots that may be opened, which count as open then. `written` is the memory that
    /// the rings of this process take already, in bytes.
    pub(crate) fn grow(&mut self, needed: usize, spare: usize, written: u64) -> usize {
        let slots = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let closed = self.geometry.slots().saturating_sub(self.open_slots);
        // A target can write to its table, and so make more slots look closed.
        let needed = slots(needed).min(closed);
        let wanted = slots(spare).saturating_add(needed).min(closed);
        if wanted == 0 {
            self.refusal.set(self.pid, None);
            return 0;
        }
        let group = MemoryGroup::of(self.pid);
        if self.promise.is_some() && group.is_none() {
            // The process is ending.
            return 0;
        }
        let promises = Arc::clone(&self.promises);
        let mut promised = lock(&promises.0);
        let own = self.promise.as_ref().map_or(0, |promise| promise.bytes);
        let others = |group: &Path| promised_below(&promised, group).saturating_sub(own);
        let rooms = ring_rooms(group.as_ref(), others, written);
        let tightest = rooms.iter().min_by_key(|room| room.bytes);
        let has_moved = self.has_moved(group.as_ref());
        let most = match tightest {
            // The memory of its rings is counted in the group in which it wrote them.
            _ if has_moved => 0,
            Some(room) => slots_within(self.geometry, room.bytes, self.beside),
            None => self.geometry.slots(),
        };
        let granted = most.saturating_sub(self.open_slots).min(wanted);
        self.lacks_profiles = granted < needed
            && !has_moved
            && tightest.is_some_and(|room| {
                let slots = slots_within(self.geometry, room.bytes, Beside::Counts);
                slots > self.open_slots.saturating_add(granted)
            });
        if granted > 0 {
            self.open_slots += granted;
            self.promise_open(&mut promised);
        }
        drop(promised);
        let refused = (granted < needed).then(|| match has_moved {
            true => MOVED.to_owned(),
            false => self.refused(needed - granted, tightest),
        });
        self.refusal.set(self.pid, refused);
        granted as usize
    }

    /// Notes that a slot has been closed.
    pub(crate) fn close_one(&mut self) {
        let promises = Arc::clone(&self.promises);
        let mut promised = lock(&promises.0);
        self.open_slots = self.open_slots.saturating_sub(1);
        let bytes = bytes_of_threads(self.geometry, self.open_slots, self.beside);
        if self.promise.as_ref().is_some_and(|it| it.bytes > bytes) {
            self.promise_open(&mut promised);
        }
    }

    /// Requests memory for the profiles of the threads with open slots. Returns false if there is a
    /// need for room and a limit leaves too little. `written` as for [`Self::grow`].
    pub(crate) fn add_profiles(&mut self, written: u64, need: Need) -> bool {
        if !self.geometry.has_profiles() {
            return false;
        }
        let group = MemoryGroup::of(self.pid);
        let promises = Arc::clone(&self.promises);
        let mut promised = lock(&promises.0);
        let own = self.promise.as_ref().map_or(0, |promise| promise.bytes);
        let others = |group: &Path| promised_below(&promised, group).saturating_sub(own);
        let rooms = ring_rooms(group.as_ref(), others, written);
        let fits = |room: &RingRoom| {
            // A mapping that counts in full has been counted.
            let slots = slots_within(self.geometry, room.bytes, Beside::Profiles);
            room.counts_mapped || slots >= self.open_slots
        };
        let has_room = !self.has_moved(group.as_ref()) && rooms.iter().all(fits);
        if need == Need::Room && !has_room {
            return false;
        }
        self.lacks_profiles = false;
        self.beside = Beside::Profiles;
        self.promise_open(&mut promised);
        true
    }

    /// True if slots were refused that could have been opened without profiles.
    pub(crate) fn lacks_profiles(&self) -> bool {
        self.lacks_profiles
    }

    /// Gives the memory for profiles back.
    pub(crate) fn drop_profiles(&mut self) {
        let promises = Arc::clone(&self.promises);
        let mut promised = lock(&promises.0);
        self.beside = Beside::Counts;
        self.promise_open(&mut promised);
    }

    /// Changes the promise to what the open slots can take.
    fn promise_open(&mut self, promised: &mut HashMap<PathBuf, u64>) {
        if let Some(promise) = &mut self.promise {
            let bytes = bytes_of_threads(self.geometry, self.open_slots, self.beside);
            promise.set(bytes, promised);
        }
    }

    /// True if the process is in another group than when its rings were promised memory.
    fn has_moved(&self, group: Option<&MemoryGroup>) -> bool {
        let groups = self.promise.as_ref().zip(group);
        groups.is_some_and(|(promise, group)| promise.group.as_path() != group.directory())
    }

    fn refused(&self, needed: u32, tightest: Option<&RingRoom>) -> String {
        let slots = self.open_slots.saturating_add(needed);
        let bytes = bytes_of_threads(self.geometry, slots, self.beside).div_ceil(1024);
        let limit = tightest.map_or("no limit", |room| &room.limit);
        format!(
            "{slots} rings would take {bytes} KiB; apart from the rings, {limit}, and rings may take half of that"
        )
    }
}

impl Drop for RingBudget {
    /// No thread waits for a ring any more.
    fn drop(&mut self) {
        self.refusal.set(self.pid, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promised_memory_counts_for_the_groups_around() {
        let promised = [("/g/a", 5), ("/g/a/b", 7), ("/g/ab", 11)];
        let promised = promised.map(|(group, bytes)| (PathBuf::from(group), bytes));
        let promised = HashMap::from(promised);
        let below = |group: &str| promised_below(&promised, Path::new(group));
        assert_eq!(
            [below("/g"), below("/g/a"), below("/g/a/b"), below("/g/x")],
            [23, 12, 7, 0]
        );
        let promises = Arc::new(Promises(Mutex::new(promised)));
        let mut promise = Promise {
            promises: Arc::clone(&promises),
            group: PathBuf::from("/g/a"),
            bytes: 5,
        };
        promise.set(9, &mut lock(&promises.0));
        assert_eq!(promised_below(&lock(&promises.0), Path::new("/g")), 27);
        drop(promise);
        assert_eq!(promised_below(&lock(&promises.0), Path::new("/g")), 18);
        assert_eq!(lock(&promises.0).len(), 2);
    }

    #[test]
    fn no_more_slots_are_opened_than_are_closed() {
        let geometry = Geometry::new(1 << 16, 64).unwrap();
        let mut budget = RingBudget::unlimited(geometry, 100);
        assert!(budget.has_closed());
        assert_eq!(budget.grow(0, 0, 0), 0);
        assert_eq!(budget.grow(5, 7, 0), 12);
        assert_eq!(budget.open_slots(), 112);
        assert_eq!(budget.grow(10, usize::MAX, 0), 16);
        assert!(!budget.has_closed());
        // More slots than there are cannot be needed.
        assert_eq!(budget.grow(10, 0, 0), 0);
        assert_eq!(budget.refusal().get(), None);
        // A slot that was closed can be opened again.
        budget.close_one();
        budget.close_one();
        assert_eq!(budget.grow(1, 3, 0), 2);
    }

    #[test]
    fn slots_that_are_closed_are_promised_nothing() {
        let geometry = Geometry::new(1 << 16, 64).unwrap();
        let mut budget = RingBudget::unlimited(geometry, 100);
        let of = |slots| bytes_of_threads(geometry, slots, Beside::Counts);
        let promises = Arc::clone(&budget.promises);
        let promised = || promised_below(&lock(&promises.0), Path::new("/g"));
        let mut promise = Promise {
            promises: Arc::clone(&promises),
            group: PathBuf::from("/g"),
            bytes: 0,
        };
        promise.set(of(99) - 1, &mut lock(&promises.0));
        budget.promise = Some(promise);
        // A process whose table shows more open slots than it may have is not promised more.
        budget.close_one();
        assert_eq!(promised(), of(99) - 1);
        budget.close_one();
        assert_eq!(promised(), of(98));
        drop(budget);
        assert_eq!(promised(), 0);
    }

    #[test]
    fn a_process_that_has_moved_gets_no_more() {
        let geometry = Geometry::new(1 << 16, 64).unwrap();
        let mut budget = RingBudget::unlimited(geometry, 100);
        budget.pid = Pid::this();
        budget.promise = Some(Promise {
            promises: Arc::clone(&budget.promises),
            group: PathBuf::from("/g/a"),
            bytes: 5,
        });
        assert_eq!(budget.grow(5, 7, 0), 0);
        // Where this process's group cannot be seen, the process counts as ending.
        if MemoryGroup::of(budget.pid).is_some() {
            assert!(budget.refusal().get().is_some());
        }
        // No thread waits any more.
        assert_eq!(budget.grow(0, 0, 0), 0);
        assert_eq!(budget.refusal().get(), None);
        assert_eq!(budget.open_slots(), 100);
        budget.grow(5, 7, 0);
        let refusal = budget.refusal();
        drop(budget);
        assert_eq!(refusal.get(), None);
    }
}
