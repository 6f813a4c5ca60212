//! A live stream as several files, one after the other: when the next one begins, and what it has
//! to repeat.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use xray_trace::model::{EventType, Origin, Thread, ThreadId};

use crate::{
    refusal::{Reason, Refusal},
    store::{Source, StreamItem},
};

/// The least size of a file, and its shortest time.
const LEAST_BYTES: u64 = 1 << 20;
const SHORTEST: Duration = Duration::from_secs(1);
/// The most threads whose names are repeated. Further ones have no names in later files.
const MOST_THREADS: usize = 1 << 16;

/// The files of a stream.
#[derive(Debug)]
pub(super) struct Rotation {
    /// The size and the time after which the next one begins.
    bytes: Option<u64>,
    time: Option<Duration>,
    /// The bytes of the file so far, and its begin.
    written: u64,
    header: u64,
    begun: Instant,
    /// What the stream has described, by process.
    threads: BTreeMap<(Source, ThreadId), Thread>,
    types: BTreeMap<(Source, u16), EventType>,
    origins: BTreeMap<Source, Origin>,
}

// === impl Rotation ===

impl Rotation {
    /// Reads a request. `None`: there is one file.
    pub(super) fn of(file_bytes: u64, file_ns: u64) -> Result<Option<Self>, Refusal> {
        let bytes = (file_bytes > 0).then_some(file_bytes);
        let time = (file_ns > 0).then(|| Duration::from_nanos(file_ns));
        if bytes.is_some_and(|bytes| bytes < LEAST_BYTES) || time.is_some_and(|it| it < SHORTEST) {
            let message =
                format!("a file has {LEAST_BYTES} bytes or more, and {SHORTEST:?} or more");
            return Err(Refusal::new(Reason::Limit, message));
        }
        Ok((bytes.is_some() || time.is_some()).then(|| Self {
            bytes,
            time,
            written: 0,
            header: 0,
            begun: Instant::now(),
            threads: BTreeMap::new(),
            types: BTreeMap::new(),
            origins: BTreeMap::new(),
        }))
    }

    /// Notes what an item describes.
    pub(super) fn note(&mut self, source: Source, item: &StreamItem) {
        match item {
            StreamItem::Thread(thread) => {
                let key = (source, thread.id);
                if self.threads.len() < MOST_THREADS || self.threads.contains_key(&key) {
                    self.threads.insert(key, thread.clone());
                }
            }
            StreamItem::EventType(event_type) => {
                let key = (source, event_type.number);
                self.types.insert(key, event_type.clone());
            }
            StreamItem::Origin(origin) => {
                self.origins.insert(source, *origin);
            }
            StreamItem::Ended => {
                self.threads.retain(|(its, _), _| *its != source);
                self.types.retain(|(its, _), _| *its != source);
                self.origins.remove(&source);
            }
            _ => {}
        }
    }

    /// Notes that bytes of the file were written.
    pub(super) fn wrote(&mut self, bytes: u64) {
        self.written = self.written.saturating_add(bytes);
    }

    /// True if the next file is to begin, with `more` bytes that are not written yet.
    pub(super) fn is_due(&self, more: u64) -> bool {
        let written = self.written.saturating_add(more);
        let written = written.saturating_sub(self.header);
        self.bytes.is_some_and(|most| written >= most)
            || self.time.is_some_and(|time| self.begun.elapsed() >= time)
    }

    /// Begins the next file. The bytes that describe the processes, of which there are `header`, do
    /// not count.
    pub(super) fn begin(&mut self, header: u64) {
        self.written = 0;
        self.header = header;
        self.begun = Instant::now();
    }

    /// The origin of a process.
    pub(super) fn origin(&self, source: Source) -> Option<Origin> {
        self.origins.get(&source).copied()
    }

    /// The threads of a process.
    pub(super) fn threads(&self, source: Source) -> impl Iterator<Item = &Thread> {
        let range = (source, ThreadId(0))..=(source, ThreadId(u32::MAX));
        self.threads.range(range).map(|(_, thread)| thread)
    }

    /// The names of a process's types of events.
    pub(super) fn types(&self, source: Source) -> impl Iterator<Item = &EventType> {
        let range = (source, 0)..=(source, u16::MAX);
        self.types.range(range).map(|(_, event_type)| event_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_ends_by_its_size_or_its_time() {
        assert!(Rotation::of(0, 0).unwrap().is_none());
        for (bytes, ns) in [(1, 0), (0, 1), (LEAST_BYTES, 999_999_999)] {
            assert_eq!(Rotation::of(bytes, ns).unwrap_err().reason, Reason::Limit);
        }
        let mut rotation = Rotation::of(LEAST_BYTES, 0).unwrap().unwrap();
        assert!(!rotation.is_due(LEAST_BYTES - 1) && rotation.is_due(LEAST_BYTES));
        rotation.wrote(LEAST_BYTES - 1);
        assert!(!rotation.is_due(0) && rotation.is_due(1));
        rotation.begin(2 * LEAST_BYTES);
        assert!(!rotation.is_due(3 * LEAST_BYTES - 1) && rotation.is_due(3 * LEAST_BYTES));
    }
}
