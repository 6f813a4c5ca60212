//! The log of the sums that outlive the daemon: what ended threads have counted or added up. It
//! lies in the rings' memory, see [`shm_ring::layout::sums`].
//!
//! The log only grows, until its half of the memory is full. Then everything in it is written anew
//! into the other half, with one row for all stacks of the same thread. If that leaves too little
//! room, all threads become one. If that leaves too little room, too, the log is not written anew
//! any more: once it is full, the sums of later threads are missing in it. The next daemon reports
//! that.

use std::io;

use shm_ring::layout::{rings, sums::End};
use xray_trace::{
    analysis::{ProfileBudget, StackSums},
    model::{Thread, Ticks},
};

use super::slots::Slots;
use crate::{
    store::{ProfileSums, SumsTrace},
    types::Mode,
};

/// The memory for the sums in the log, in bytes.
const ROOM_BYTES: usize = 128 << 20;
/// The first generation.
const FIRST: End = End {
    generation: 1,
    length: 0,
    is_incomplete: false,
};

/// The log of one session.
#[derive(Debug)]
pub(super) struct SumsLog {
    trace: Box<dyn SumsTrace>,
    /// The kind of the sums; `None` while there are none.
    kind: Option<u64>,
    /// Everything in the log.
    sums: ProfileSums,
    room: ProfileBudget,
    /// The end of the log; `None` if there is nothing in it.
    end: Option<End>,
    /// True if sums are missing in the log.
    is_incomplete: bool,
    /// True if the log is not written anew any more.
    is_last: bool,
    /// True if the log gets no more sums.
    is_full: bool,
    /// True if the trace has not what was written last.
    is_broken: bool,
}

/// The kind of the sums of a mode, if it makes any.
pub(crate) fn kind_of(mode: Mode) -> Option<u64> {
    match mode {
        Mode::Count => Some(rings::COUNTS),
        Mode::Profile => Some(rings::PROFILES),
        Mode::Flight | Mode::Stream => None,
    }
}

// === impl SumsLog ===

impl SumsLog {
    pub(super) fn new(trace: Box<dyn SumsTrace>) -> Self {
        Self {
            trace,
            kind: None,
            sums: ProfileSums::default(),
            room: ProfileBudget::new(ROOM_BYTES),
            end: None,
            is_incomplete: false,
            is_last: false,
            is_full: false,
            is_broken: false,
        }
    }

    /// True while the log is for sums of this kind.
    pub(super) fn is_for(&self, kind: u64) -> bool {
        self.kind == Some(kind)
    }

    /// Begins an empty log for the sums of this mode, of calls from `since` on, unless it has them
    /// already.
    pub(super) fn settle(&mut self, slots: &Slots, mode: Mode, since: Ticks) {
        let kind = kind_of(mode);
        if kind == self.kind {
            return;
        }
        self.clear(slots);
        self.kind = kind;
        if let Some(kind) = kind {
            slots.set_sums_kind(kind, since);
        }
    }

    /// Empties the log.
    pub(super) fn clear(&mut self, slots: &Slots) {
        slots.set_sums_end(None);
        slots.set_sums_kind(0, Ticks(0));
        // A later generation has no mark of this one.
        if let Some(end) = self.end.take() {
            slots.give_back_sums(end);
        }
        self.kind = None;
        self.sums = ProfileSums::default();
        self.is_incomplete = false;
        self.is_last = false;
        self.is_full = false;
        self.is_broken = false;
    }

    /// Goes on with the log of an earlier daemon, which ends at `end` and has the sums of
    /// `threads`. No thread has a mark of it any more.
    pub(super) fn go_on(
        &mut self,
        slots: &Slots,
        mode: Mode,
        (end, is_incomplete): (Option<End>, bool),
        threads: &[(Thread, StackSums)],
    ) {
        self.kind = kind_of(mode);
        self.end = end;
        self.is_incomplete = is_incomplete;
        for (thread, sums) in threads {
            self.add(thread, sums);
        }
        // The trace has other numbers of functions and threads.
        self.is_broken = true;
        if end.is_none() {
            return;
        }
        match self.write_anew(slots) {
            Ok(next) => self.publish(slots, next),
            Err(error) => self.give_up(slots, &error),
        }
    }

    /// Adds the sums of a thread that has ended, or that has left the slot `index`. Then they are
    /// in the log, or in the slot's own memory, until that is cleared.
    pub(super) fn keep(&mut self, slots: &Slots, index: u32, thread: &Thread, sums: &StackSums) {
        if self.kind.is_none() || self.is_full || sums.is_empty() {
            return;
        }
        self.add(thread, sums);
        let appended = self.append(slots, thread, sums);
        match appended.or_else(|_| self.write_anew(slots)) {
            Ok(next) => {
                slots.mark_sums(index, next);
                self.publish(slots, next);
            }
            Err(error) => self.give_up(slots, &error),
        }
    }

    /// Adds sums to those that are written anew. The memory for them holds more stacks of one
    /// thread than of many.
    fn add(&mut self, thread: &Thread, sums: &StackSums) {
        if self.room.used() > ROOM_BYTES / 2 {
            self.sums.put_all_together(&self.room);
        }
        self.sums.add_ended(thread, sums, &self.room);
    }

    /// Gets no more sums, and reports that to the next daemon.
    fn give_up(&mut self, slots: &Slots, error: &io::Error) {
        tracing::warn!(
            %error,
            "the next daemon will not have the sums of all threads that have ended"
        );
        self.is_full = true;
        self.is_incomplete = true;
        let end = End {
            is_incomplete: true,
            ..self.end.unwrap_or(FIRST)
        };
        self.publish(slots, end);
    }

    /// Writes the sums of a thread behind the end. Returns the new end.
    fn append(&mut self, slots: &Slots, thread: &Thread, sums: &StackSums) -> io::Result<End> {
        let end = self.end.filter(|_| !self.is_broken);
        let end = end.ok_or(io::ErrorKind::NotFound)?;
        self.is_broken = true;
        let bytes = self.trace.add(thread, sums)?;
        let next = written(slots, end, &bytes)?;
        self.is_broken = false;
        Ok(next)
    }

    /// Writes all sums into the other half. Returns the new end.
    fn write_anew(&mut self, slots: &Slots) -> io::Result<End> {
        if self.is_last {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let begin = End {
            is_incomplete: self.is_incomplete,
            ..self.end.map_or(FIRST, End::next)
        };
        let enough = slots.layout.geometry.sums_half() / 4 * 3;
        let has_room = |end: &End| u64::from(end.length) <= enough;
        slots.give_back_sums(begin);
        let mut written = self.write_all(slots, begin);
        if !written.as_ref().is_ok_and(has_room) {
            self.sums.put_all_together(&self.room);
            slots.give_back_sums(begin);
            written = self.write_all(slots, begin);
        }
        self.is_last = !written.as_ref().is_ok_and(has_room);
        self.is_broken = written.is_err();
        if written.is_err() {
            slots.give_back_sums(begin);
        }
        written
    }

    fn write_all(&mut self, slots: &Slots, begin: End) -> io::Result<End> {
        let mut end = written(slots, begin, &self.trace.begin()?)?;
        for (thread, sums) in self.sums.threads() {
            end = written(slots, end, &self.trace.add(thread, sums)?)?;
        }
        Ok(end)
    }

    /// Publishes the new end. What it replaces is given back.
    fn publish(&mut self, slots: &Slots, end: End) {
        slots.set_sums_end(Some(end));
        let before = self.end.replace(end);
        if let Some(before) = before.filter(|before| before.generation != end.generation) {
            slots.give_back_sums(before);
        }
    }
}

/// Writes bytes behind the end. Returns the new end.
fn written(slots: &Slots, end: End, bytes: &[u8]) -> io::Result<End> {
    slots.write_sums(end, bytes)?;
    let length = u32::try_from(bytes.len()).ok();
    let length = length.and_then(|length| end.length.checked_add(length));
    Ok(End {
        length: length.ok_or(io::ErrorKind::StorageFull)?,
        ..end
    })
}

#[cfg(test)]
mod tests {
    use shm_ring::{Geometry, Mapping, SharedMemory as _, layout};
    use xray_trace::model::{ProcessId, ThreadId};

    use super::*;
    use crate::inject::{Layout, RingsFile};

    /// A trace of which each part has a chosen length. Its first byte is the thread's number.
    #[derive(Debug)]
    struct Parts {
        bytes: usize,
    }

    impl SumsTrace for Parts {
        fn begin(&mut self) -> io::Result<Vec<u8>> {
            Ok(b"begin".to_vec())
        }

        fn add(&mut self, thread: &Thread, _: &StackSums) -> io::Result<Vec<u8>> {
            let number = u8::try_from(thread.id.0).unwrap_or(u8::MAX);
            Ok([vec![number], vec![0; self.bytes - 1]].concat())
        }
    }

    fn slots() -> Slots {
        let geometry = Geometry::new(1 << 16, 8).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(geometry.rings_bytes()).unwrap();
        let rings = Mapping::new(&file, 0, geometry.rings_bytes()).unwrap();
        let layout = Layout {
            table: 0,
            rings: 0,
            rings_map: (0, geometry.rings_bytes()),
            geometry,
            tid_offset: 0,
        };
        Slots::new(layout, rings, RingsFile::own(file))
    }

    fn thread(id: u32) -> Thread {
        Thread {
            id: ThreadId(id),
            process: ProcessId(0),
            tid: id,
            name: String::new(),
        }
    }

    fn log(bytes: usize) -> SumsLog {
        SumsLog::new(Box::new(Parts { bytes }))
    }

    fn keep(log: &mut SumsLog, slots: &Slots, index: u32) {
        let sums = StackSums::of_losses(ProfileBudget::new(1 << 20), 1);
        log.keep(slots, index, &thread(index), &sums);
    }

    fn end(slots: &Slots) -> Option<End> {
        End::of_word(slots.rings.load(rings::SUMS))
    }

    /// The begin of the trace, and the first byte of each part of this length.
    fn parts(slots: &Slots, bytes: u64) -> (Vec<u8>, Vec<u8>) {
        let end = end(slots).unwrap();
        let half = end.half_offset(slots.layout.geometry);
        let byte = |at: u64| {
            let word = slots.rings.load((half + at) & !7);
            word.to_le_bytes()[usize::try_from((half + at) & 7).unwrap()]
        };
        let begin = (0..5).map(byte).collect();
        let firsts = (5..u64::from(end.length)).step_by(usize::try_from(bytes).unwrap());
        (begin, firsts.map(byte).collect())
    }

    #[test]
    fn a_full_half_is_written_anew_into_the_other_one() {
        let slots = slots();
        let bytes = slots.layout.geometry.sums_half() / 4;
        let mut log = log(usize::try_from(bytes).unwrap());
        log.settle(&slots, Mode::Profile, Ticks(0));
        assert_eq!(end(&slots), None);
        for (index, generation, content) in [
            (1, 1, &[1][..]),
            (2, 1, &[1, 2]),
            // A thread may leave several slots.
            (2, 1, &[1, 2, 2]),
            // All threads in a row of their own would leave too little room.
            (3, 2, &[u8::MAX]),
            (4, 2, &[u8::MAX, 4]),
            (5, 2, &[u8::MAX, 4, 5]),
            (6, 3, &[u8::MAX]),
        ] {
            keep(&mut log, &slots, index);
            let end = end(&slots).unwrap();
            assert_eq!((end.generation, end.is_incomplete), (generation, false));
            assert_eq!(parts(&slots, bytes), (b"begin".to_vec(), content.to_vec()));
            let mark = slots.layout.geometry.mark_offset(index) + layout::mark::SUMS;
            assert_eq!(slots.rings.load(mark), end.to_word());
        }
        log.settle(&slots, Mode::Count, Ticks(0));
        assert_eq!(end(&slots), None);
        assert_eq!(slots.rings.load(rings::SUMS_KIND), rings::COUNTS);
        log.settle(&slots, Mode::Flight, Ticks(0));
        assert_eq!(slots.rings.load(rings::SUMS_KIND), 0);
        keep(&mut log, &slots, 1);
        assert_eq!(end(&slots), None);
    }

    #[test]
    fn sums_that_do_not_fit_are_reported_as_missing() {
        let slots = slots();
        let half = slots.layout.geometry.sums_half();
        let mut log = log(usize::try_from(half).unwrap() - 4);
        log.settle(&slots, Mode::Profile, Ticks(0));
        for index in [1, 2] {
            keep(&mut log, &slots, index);
            let end = end(&slots).unwrap();
            assert!(end.is_incomplete && end.length == 0);
            let mark = slots.layout.geometry.mark_offset(index) + layout::mark::SUMS;
            assert_eq!(slots.rings.load(mark), 0);
        }
    }

    /// Otherwise it would be written anew for each thread.
    #[test]
    fn a_log_that_stays_long_is_not_written_anew() {
        let slots = slots();
        let half = slots.layout.geometry.sums_half();
        let mut first = log(usize::try_from(half / 8 * 7).unwrap());
        first.settle(&slots, Mode::Profile, Ticks(0));
        keep(&mut first, &slots, 1);
        let before = end(&slots).unwrap();
        assert!(!before.is_incomplete);
        for index in [2, 3] {
            keep(&mut first, &slots, index);
            let full = End {
                is_incomplete: true,
                ..before
            };
            assert_eq!(end(&slots), Some(full));
        }
        // The next daemon has room again. What is missing stays missing.
        let mut next = log(100);
        let sums = StackSums::of_losses(ProfileBudget::new(1 << 20), 1);
        let threads = [(thread(1), sums)];
        next.go_on(&slots, Mode::Profile, (end(&slots), true), &threads);
        keep(&mut next, &slots, 2);
        let found = end(&slots).unwrap();
        assert_eq!((found.generation, found.is_incomplete), (2, true));
        assert_eq!(parts(&slots, 100).1, [1, 2]);
    }

    /// The daemon is killed before it publishes the end, or before it clears the thread's memory.
    #[test]
    fn a_threads_sums_are_in_the_log_or_in_its_own_memory() {
        for is_published in [false, true] {
            let slots = slots();
            let counts = slots.layout.geometry.count_region().counts_offset(2);
            let mut first = log(100);
            first.settle(&slots, Mode::Count, Ticks(0));
            keep(&mut first, &slots, 1);
            let before = end(&slots);
            slots.rings.store(counts, 5);
            keep(&mut first, &slots, 2);
            if !is_published {
                slots.set_sums_end(before);
            }
            let found = end(&slots);
            slots.settle_marks(found);
            let mut next = log(100);
            let threads = match is_published {
                true => vec![1, 2],
                false => vec![1],
            };
            let sums = StackSums::of_losses(ProfileBudget::new(1 << 20), 1);
            let kept: Vec<_> = threads
                .iter()
                .map(|id| (thread(*id), sums.clone()))
                .collect();
            next.go_on(&slots, Mode::Count, (found, false), &kept);
            let in_memory = slots.rings.load(counts);
            assert_eq!(in_memory, if is_published { 0 } else { 5 });
            let mark = slots.layout.geometry.mark_offset(2) + layout::mark::SUMS;
            assert_eq!(slots.rings.load(mark), 0);
            assert_eq!(end(&slots).unwrap().generation, 2);
            let firsts = if is_published { vec![1, 2] } else { vec![1] };
            assert_eq!(parts(&slots, 100).1, firsts);
        }
    }
}
