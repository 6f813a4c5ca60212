//! The slots of a target: which threads own rings, what threads count beside them, and taking a
//! ring back from a thread that is gone. Reading rings is in `ring`. Threads without a slot are in
//! `buckets`.

use std::{io, ops::Range};

use shm_ring::{
    Half, Mapping, SharedMemory,
    layout::{self, sums::End},
    profile::{self, CallNumbers, LongCalls, Profile},
};
use xray_trace::model::Ticks;

use super::buckets::Buckets;
use crate::{
    inject::{Layout, RingsFile},
    sys::Memory,
};

/// The rings' memory and what belongs to it.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) layout: Layout,
    pub(crate) rings: Mapping,
    file: RingsFile,
    /// True once calls have been filtered: filter pages may contain something. Reading untouched
    /// pages would take memory.
    pub(crate) filtered: bool,
    /// True once calls have been counted, for the same reason.
    pub(crate) counted: bool,
    /// True once calls have been added up, for the same reason.
    pub(crate) profiled: bool,
}

// === impl Slots ===

impl Slots {
    pub(crate) fn new(layout: Layout, rings: Mapping, file: RingsFile) -> Self {
        Self {
            layout,
            rings,
            file,
            filtered: false,
            counted: false,
            profiled: false,
        }
    }

    /// Another mapping of the header page.
    pub(super) fn map_header(&self) -> io::Result<Mapping> {
        let header = self.file.map(self.skip(), layout::HEADER_BYTES)?;
        header.ok_or_else(|| io::Error::other("the file of the rings is too short"))
    }

    /// The calls and events that the thread with slot `index` has left out since it has the slot.
    pub(crate) fn left_out(&self, index: u32) -> u64 {
        let page = self.layout.geometry.filter_offset(index);
        self.rings.load(page + layout::filter::LEFT_OUT)
    }

    /// Mutes or unmutes the thread with slot `index`, for calls and events that begin from now on.
    pub(crate) fn set_muted(&self, index: u32, muted: bool) {
        let page = self.layout.geometry.filter_offset(index);
        let place = page + layout::filter::MUTED;
        if self.rings.load(place) & 0xffff_ffff != u64::from(muted) {
            // A call tree that the thread counts in the other half meanwhile may be lost.
            self.rings.store_half(place, Half::Low, u32::from(muted));
        }
    }

    /// Clears the open calls of a filter page, while no trampoline uses it. Returns the number of
    /// calls that waited there for their duration.
    pub(crate) fn renew_filter(&self, index: u32) -> u64 {
        use layout::filter;
        let page = self.layout.geometry.filter_offset(index);
        let open = self.rings.load(page + filter::OPEN);
        let records = (open & 0xffff_ffff).min(filter::MOST);
        let states = (0..records).map(|record| {
            let at = page + filter::RECORDS + record * filter::RECORD_BYTES + filter::STATE;
            // The high half of the word that begins with the name.
            self.rings.load(at & !7) >> (32 + filter::STATE_SHIFT)
        });
        let waited = states.filter(|state| *state == u64::from(filter::WAITS));
        let waited = waited.count() as u64;
        // A trampoline that still uses the page sees the change, and begins again.
        self.rings
            .store(page + filter::OPEN, (open | 0xffff_ffff).wrapping_add(1));
        self.rings.store(page + filter::WRITING, 0);
        waited
    }

    /// The owner of slot `index`, by its id in the target; 0 for none.
    pub(crate) fn owner(&self, index: u32) -> u32 {
        let line = self.layout.geometry.control_offset(index);
        u32::try_from(self.rings.load(line + layout::control::OWNER)).unwrap_or(0)
    }

    /// The slots that have an owner, with its id in the target.
    pub(crate) fn owned(&self) -> Vec<(u32, u32)> {
        let geometry = self.layout.geometry;
        let slots = geometry.control_offset(0)..geometry.control_offset(geometry.slots());
        let indexes = self.written_in(slots, layout::LINE_BYTES);
        let indexes = indexes.filter_map(|index| u32::try_from(index).ok());
        let owned = indexes.map(|index| (index, self.owner(index)));
        owned.filter(|(_, owner)| *owner != 0).collect()
    }

    /// The indexes of the elements of a table that may hold something else than zeros. `table` is
    /// its range, and `size` the size of an element.
    fn written_in(&self, table: Range<u64>, size: u64) -> impl Iterator<Item = u64> {
        let skip = self.skip();
        let parts = self.file.written(skip + table.start..skip + table.end);
        parts.into_iter().flat_map(move |part| {
            let from_start = |at: u64| at.saturating_sub(skip + table.start);
            from_start(part.start) / size..from_start(part.end).div_ceil(size)
        })
    }

    /// The claims in the table, from slot `first` on, of `count` slots at most: slot and thread.
    pub(crate) fn claims(
        &self,
        memory: &Memory,
        first: u32,
        count: u32,
    ) -> io::Result<Vec<(u32, u32)>> {
        let slots = first..first.saturating_add(count);
        let owners = self.layout.slot_owners(memory, slots)?;
        Ok((first..)
            .zip(owners)
            .filter(|&(_, owner)| !matches!(owner, 0 | layout::slot::CLOSED))
            .collect())
    }

    /// The owners of all slots.
    pub(crate) fn owners(&self, memory: &Memory) -> io::Result<Vec<u32>> {
        let slots = self.layout.geometry.slots();
        self.layout.slot_owners(memory, 0..slots)
    }

    /// Opens a closed slot. Its ring was promised memory.
    pub(crate) fn open(&self, memory: &Memory, index: u32) -> io::Result<()> {
        self.layout.free_slot(memory, index)
    }

    /// The bytes that rings, filter pages and counts take, without the parts that all threads
    /// share.
    pub(crate) fn written(&self) -> u64 {
        let geometry = self.layout.geometry;
        let switched = layout::profile::SWITCHED_SITES * layout::profile::SWITCHED_BYTES;
        let shared = geometry.filter_offset(0) + 8 * geometry.count_region().names() + switched;
        // The daemon has written the sums that outlive it, and pays for them.
        let sums = self.skip() + geometry.sums_offset()..self.skip() + geometry.rings_bytes();
        let sums = self.file.written(sums).into_iter();
        let sums = sums.map(|part| part.end - part.start).sum::<u64>();
        self.file.resident().saturating_sub(shared + sums)
    }

    /// The buckets of threads that found no slot.
    pub(super) fn buckets(&self) -> Buckets<'_> {
        Buckets::new(&self.rings, self.layout.geometry)
    }

    /// The events lost in slot `index` since it was claimed.
    pub(crate) fn lost(&self, index: u32) -> u64 {
        self.rings
            .load(self.layout.geometry.control_offset(index) + layout::control::LOST)
    }

    /// Those of them that were not reported so far.
    pub(crate) fn unreported(&self, index: u32) -> u64 {
        let line = self.layout.geometry.control_offset(index);
        let reported = self.rings.load(line + layout::control::REPORTED);
        self.lost(index).saturating_sub(reported)
    }

    /// True while the slow path of slot `index` is marked as under way.
    pub(crate) fn busy(&self, index: u32) -> bool {
        self.rings
            .load(self.layout.geometry.control_offset(index) + layout::control::BUSY)
            != 0
    }

    /// Clears the mark of a slow path that was left by a jump.
    pub(crate) fn clear_busy(&self, index: u32) {
        self.rings.store(
            self.layout.geometry.control_offset(index) + layout::control::BUSY,
            0,
        );
    }

    /// The count of numbers for counting that sites have, including 0, which stands for sites
    /// without a number; 0 if no site has one.
    pub(crate) fn numbered(&self) -> u64 {
        let numbered = self.rings.load(layout::rings::COUNT_IDS);
        match numbered {
            0 => 0,
            some => some
                .saturating_add(1)
                .min(self.layout.geometry.count_region().ids()),
        }
    }

    /// The names of sites that have a number, and their numbers.
    pub(crate) fn names(&self) -> impl Iterator<Item = (u32, u64)> {
        let region = self.layout.geometry.count_region();
        let table = region.names_offset()..region.names_offset() + 8 * region.names();
        let entries = self.written_in(table, 8).map(move |entry| {
            let entry = self.rings.load(region.names_offset() + 8 * entry);
            #[expect(clippy::cast_possible_truncation, reason = "the low half is the name")]
            (entry as u32, entry >> 32)
        });
        entries.filter(move |(name, number)| *name != 0 && *number < region.ids())
    }

    /// The calls that the thread with slot `index` has counted under a number since it has the
    /// slot.
    pub(crate) fn count_of(&self, index: u32, number: u64) -> u64 {
        let counts = self.layout.geometry.count_region().counts_offset(index);
        self.rings.load(counts + 8 * number)
    }

    /// True if threads may have added calls up.
    pub(crate) fn has_profiles(&self) -> bool {
        let geometry = self.layout.geometry;
        let region = geometry.profile_region();
        let all = region.profile_offset(0)..region.profile_offset(geometry.slots());
        geometry.has_profiles()
            && self
                .written_in(all, region.profile_bytes())
                .next()
                .is_some()
    }

    /// Empties all counts, while nothing is counted.
    pub(crate) fn clear_counts(&self) {
        let geometry = self.layout.geometry;
        let region = geometry.count_region();
        let all = region.counts_offset(0)..region.counts_offset(geometry.slots());
        self.give_back_part(all.start, all.end - all.start);
    }

    /// Empties all profiles, while nothing is added up, and the list of switched sites.
    pub(crate) fn clear_profiles(&self) {
        let geometry = self.layout.geometry;
        let region = geometry.profile_region();
        let all = region.profile_offset(0)..region.profile_offset(geometry.slots());
        let indexes: Vec<u64> = self.written_in(all, region.profile_bytes()).collect();
        for index in indexes {
            let Ok(index) = u32::try_from(index) else {
                continue;
            };
            self.clear_profile(index);
        }
        let sites = region.profile_offset(0) - region.switched_offset();
        // Zeroing would take memory.
        self.give_back_part(region.switched_offset(), sites);
    }

    /// Empties a profile. A thread that is in a trampoline with it notices that.
    fn clear_profile(&self, index: u32) {
        let give_back = |offset, bytes| self.give_back_part(offset, bytes);
        profile::clear(&self.rings, self.layout.geometry, index, give_back);
    }

    /// The profile of the thread with slot `index`.
    pub(crate) fn profile(&self, index: u32) -> Profile {
        Profile::read(&self.rings, self.layout.geometry, index)
    }

    /// Takes the pages of all profiles out of this process's memory. They are read rarely. Once for
    /// all of them, since the processors that run this process are interrupted for it.
    pub(crate) fn let_go_profiles(&self) {
        let geometry = self.layout.geometry;
        let region = geometry.profile_region();
        let (begin, end) = (
            region.profile_offset(0),
            region.profile_offset(geometry.slots()),
        );
        self.rings.let_go(begin, end - begin);
    }

    /// The numbers of calls in that profile.
    pub(crate) fn call_numbers(&self, index: u32) -> CallNumbers {
        CallNumbers::read(&self.rings, self.layout.geometry, index)
    }

    /// The words of that profile that change with each event.
    pub(crate) fn profile_state(&self, index: u32) -> [u64; 3] {
        Profile::state(&self.rings, self.layout.geometry, index)
    }

    /// The long calls that the thread with slot `index` has noted since number `seen`.
    pub(crate) fn long_calls(&self, index: u32, seen: &mut u64) -> LongCalls {
        LongCalls::read(&self.rings, self.layout.geometry, index, seen)
    }

    /// Writes a part of the sums that outlive the daemon, behind their end.
    pub(crate) fn write_sums(&self, end: End, bytes: &[u8]) -> io::Result<()> {
        let geometry = self.layout.geometry;
        let length = u64::from(end.length).saturating_add(bytes.len() as u64);
        if !geometry.has_profiles() || length > geometry.sums_half() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let half = end.half_offset(geometry);
        self.file
            .write_at(self.skip() + half + u64::from(end.length), bytes)
    }

    /// Notes that the sums of the ended thread with slot `index` are kept, once these sums end here
    /// or later.
    pub(crate) fn mark_sums(&self, index: u32, end: End) {
        let mark = self.layout.geometry.mark_offset(index) + layout::mark::SUMS;
        self.rings.store(mark, end.to_word());
    }

    /// Publishes the end of the sums that outlive the daemon.
    pub(crate) fn set_sums_end(&self, end: Option<End>) {
        let word = end.map_or(0, End::to_word);
        self.rings.store(layout::rings::SUMS, word);
    }

    /// Publishes of which kind these sums are, and from when on calls are in them. There are none
    /// so far.
    pub(crate) fn set_sums_kind(&self, kind: u64, since: Ticks) {
        self.rings.store(layout::rings::SUMS_KIND, kind);
        self.rings.store(layout::rings::SUMS_SINCE, since.0);
        self.set_sums_taken(0);
    }

    /// Publishes how many daemons, this one included, have a part of these sums in their own
    /// memory.
    pub(crate) fn set_sums_taken(&self, daemons: u64) {
        self.rings.store(layout::rings::SUMS_TAKEN, daemons);
    }

    /// Drops the sums that an earlier daemon has left, before any marks of them are cleared.
    pub(crate) fn drop_sums(&self) {
        let has_any = self.rings.load(layout::rings::SUMS) != 0;
        self.set_sums_end(None);
        self.set_sums_kind(0, Ticks(0));
        let geometry = self.layout.geometry;
        if has_any && geometry.has_profiles() {
            self.give_back_part(geometry.sums_offset(), 2 * geometry.sums_half());
        }
    }

    /// Gives the memory of the half with this end back to the system.
    pub(crate) fn give_back_sums(&self, end: End) {
        let geometry = self.layout.geometry;
        if geometry.has_profiles() {
            self.give_back_part(end.half_offset(geometry), geometry.sums_half());
        }
    }

    /// Clears the counts and profiles of threads that have ended and whose sums are kept, if these
    /// sums end at `end`. Then no thread has such a mark.
    pub(crate) fn settle_marks(&self, end: Option<End>) {
        let geometry = self.layout.geometry;
        let marks = geometry.mark_offset(0)..geometry.mark_offset(geometry.slots());
        for index in self.written_in(marks, layout::MARK_BYTES) {
            let Ok(index) = u32::try_from(index) else {
                continue;
            };
            let place = geometry.mark_offset(index) + layout::mark::SUMS;
            let mark = End::of_word(self.rings.load(place));
            match (mark, end) {
                (Some(mark), Some(end)) if end.has(mark) => self.clear_sums_of(index),
                (Some(_), _) => self.rings.store(place, 0),
                (None, _) => {}
            }
        }
    }

    /// Clears the counts and the profile of slot `index`, and then its mark. Nothing counts there,
    /// and nothing is added up.
    pub(crate) fn clear_sums_of(&self, index: u32) {
        let geometry = self.layout.geometry;
        let counts = geometry.count_region();
        self.give_back_part(counts.counts_offset(index), counts.counts_bytes());
        if geometry.has_profiles() {
            let region = geometry.profile_region();
            let profile = region.profile_offset(index)..region.profile_offset(index + 1);
            if self
                .written_in(profile, region.profile_bytes())
                .next()
                .is_some()
            {
                self.clear_profile(index);
            }
        }
        let mark = geometry.mark_offset(index) + layout::mark::SUMS;
        self.rings.store(mark, 0);
    }

    /// Makes slot `index` neither free nor its thread's own. A thread that later gets the id of the
    /// slot's thread does not continue in its ring.
    pub(crate) fn withdraw(&self, memory: &Memory, index: u32) -> io::Result<()> {
        self.layout.withdraw_slot(memory, index)
    }

    /// Frees slot `index`, whose thread is gone and whose ring is drained, for another thread.
    pub(crate) fn retire(&self, memory: &Memory, index: u32) -> io::Result<()> {
        self.clear(index);
        self.layout.free_slot(memory, index)
    }

    /// The same, but closes the slot, so that no thread can take it.
    pub(crate) fn close(&self, memory: &Memory, index: u32) -> io::Result<()> {
        self.clear(index);
        self.layout.close_slot(memory, index)
    }

    fn clear(&self, index: u32) {
        let geometry = self.layout.geometry;
        // First: the mark is about the words of this thread.
        self.rings
            .store(geometry.mark_offset(index) + layout::mark::BLOCK, 0);
        self.give_back(index);
        // Behind the sums: until then the mark shows whether they are kept.
        self.rings
            .store(geometry.mark_offset(index) + layout::mark::SUMS, 0);
        self.rings
            .zero(geometry.control_offset(index), layout::LINE_BYTES);
        if self.filtered {
            self.rings
                .zero(geometry.filter_offset(index), layout::filter::RECORDS);
        }
    }

    /// Gives the memory of ring `index` and of its thread's counts and profile back to the system.
    /// It reads as zero then.
    pub(crate) fn give_back(&self, index: u32) {
        let geometry = self.layout.geometry;
        self.give_back_part(geometry.ring_offset(index), geometry.ring_bytes());
        if self.counted {
            let region = geometry.count_region();
            self.give_back_part(region.counts_offset(index), region.counts_bytes());
        }
        if self.profiled {
            let region = geometry.profile_region();
            self.give_back_part(region.profile_offset(index), region.profile_bytes());
        }
    }

    /// The offset in the file of the rings' memory.
    fn skip(&self) -> u64 {
        self.layout.rings - self.layout.rings_map.0
    }

    /// The bytes of memory that ring `index` takes.
    #[cfg(test)]
    pub(crate) fn ring_memory(&self, index: u32) -> u64 {
        let ring = self.skip() + self.layout.geometry.ring_offset(index);
        let parts = self
            .file
            .written(ring..ring + self.layout.geometry.ring_bytes());
        parts.into_iter().map(|part| part.end - part.start).sum()
    }

    /// Gives the memory of a part of a ring back to the system, if the system takes it. The words
    /// there are empty, before and afterwards.
    pub(crate) fn free_emptied(&self, offset: u64, bytes: u64) {
        // Memory that stays does no harm.
        let _ = self.file.give_back(self.skip() + offset, bytes);
    }

    fn give_back_part(&self, offset: u64, bytes: u64) {
        if self.file.give_back(self.skip() + offset, bytes).is_err() {
            self.rings.zero(offset, bytes);
        }
    }
}
