//! The types of typed events of one process, and their names.
//!
//! ```text
//!  collector: an event of a type without a name ──► request
//!  controller: reads the program's tables ──► names ──► live streams
//! ```
//!
//! A program can register types at any time. The first event of a type requests a look at once. A
//! type that still has no name is looked up once a second. The tables are read in `target`.
//!
//! Each library may have a table of its own. So a number is settled only once all tables name it. A
//! library that comes unsettles all numbers.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    lock::lock,
    target::{BETWEEN_NAMES, MOST_TYPE_NAMES, has_type_name},
};

/// The longest name, in bytes. A number that several libraries name differently has all names.
const LONGEST: usize = 2048;

/// The most urgent request of the collector since names were read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum NameRequest {
    /// Every event that was met has a named type, or none was met.
    None = 0,
    /// A type that had no name at the last look was met again.
    Retry = 1,
    /// A type was met for the first time.
    Now = 2,
}

/// The types of one process.
#[derive(Debug)]
pub(crate) struct EventTypes {
    /// Numbers that events had. Set by the drain, cleared by the controller.
    met: Numbers,
    /// Numbers that every table names. Written by the controller.
    settled: Numbers,
    /// A table came, and none was read since.
    has_new_table: AtomicBool,
    /// A [`NameRequest`]. Raised by the collector, cleared by the controller.
    request: AtomicU8,
    /// At most [`MOST_TYPE_NAMES`]. Written by the controller.
    names: Mutex<BTreeMap<u16, String>>,
}

/// A bit for each number.
#[derive(Debug)]
struct Numbers(Box<[AtomicU64; WORDS]>);

/// Words of [`Numbers`].
const WORDS: usize = 1 << (16 - 6);

// === impl EventTypes ===

impl EventTypes {
    pub(crate) fn new() -> Self {
        Self {
            met: Numbers::none(),
            settled: Numbers::none(),
            has_new_table: AtomicBool::new(false),
            request: AtomicU8::new(NameRequest::None as u8),
            names: Mutex::default(),
        }
    }

    /// Notes an event with this number. Called by the drain. True if names are to be read at once.
    pub(crate) fn meet(&self, number: u16) -> bool {
        if self.settled.has(number) {
            return false;
        }
        let request = match self.met.add(number) {
            true => NameRequest::Now,
            false => NameRequest::Retry,
        };
        if self.request() < request {
            self.request.fetch_max(request as u8, Relaxed);
            return request == NameRequest::Now;
        }
        false
    }

    /// True if an event of a type without a name was met since names were read last.
    pub(crate) fn is_wanting(&self) -> bool {
        self.request() != NameRequest::None
    }

    /// The most urgent request since the last [`Self::clear_request`].
    pub(crate) fn request(&self) -> NameRequest {
        match self.request.load(Relaxed) {
            0 => NameRequest::None,
            1 => NameRequest::Retry,
            _ => NameRequest::Now,
        }
    }

    /// Begins a look for names. The next event without a name requests another look.
    pub(crate) fn clear_request(&self) {
        self.request.store(NameRequest::None as u8, Relaxed);
    }

    /// Adds a name. Returns the full name of the number if it has changed.
    pub(crate) fn name(&self, number: u16, name: &str) -> Option<String> {
        let mut names = lock(&self.names);
        let now = match names.get(&number) {
            None if names.len() >= MOST_TYPE_NAMES => return None,
            None => name.to_owned(),
            Some(former) if has_type_name(former, name) => return None,
            Some(former) if former.len() + BETWEEN_NAMES.len() + name.len() > LONGEST => {
                return None;
            }
            Some(former) => [former, name].join(BETWEEN_NAMES),
        };
        names.insert(number, now.clone());
        Some(now)
    }

    /// Notes that a module with a table was loaded: the next event of each number requests a look
    /// at once.
    pub(crate) fn expect_table(&self) {
        self.has_new_table.store(true, Relaxed);
        self.settled.set([0; WORDS]);
        self.met.set([0; WORDS]);
    }

    /// True once after [`Self::expect_table`].
    pub(crate) fn take_new_table(&self) -> bool {
        self.has_new_table.swap(false, Relaxed)
    }

    /// Sets the numbers that every table names, by the numbers in each table.
    pub(crate) fn settle<'a>(&self, tables: impl Iterator<Item = &'a HashSet<u16>>) {
        let mut settled = [u64::MAX; WORDS];
        for table in tables {
            let mut named = [0; WORDS];
            for number in table {
                named[usize::from(number >> 6)] |= 1 << (number & 63);
            }
            for (settled, named) in settled.iter_mut().zip(named) {
                *settled &= named;
            }
        }
        self.settled.set(settled);
    }

    /// All names, by number.
    pub(crate) fn all(&self) -> Vec<(u16, String)> {
        let names = lock(&self.names);
        names
            .iter()
            .map(|(&number, name)| (number, name.clone()))
            .collect()
    }
}

// === impl Numbers ===

impl Numbers {
    fn none() -> Self {
        Self([0; WORDS].map(AtomicU64::new).into())
    }

    fn set(&self, words: [u64; WORDS]) {
        for (own, word) in self.0.iter().zip(words) {
            own.store(word, Relaxed);
        }
    }

    fn word(&self, number: u16) -> Option<(&AtomicU64, u64)> {
        let word = self.0.get(usize::from(number >> 6))?;
        Some((word, 1 << (number & 63)))
    }

    fn has(&self, number: u16) -> bool {
        let word = self.word(number);
        word.is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
    }

    /// True if the number was not there yet.
    fn add(&self, number: u16) -> bool {
        let word = self.word(number);
        word.is_some_and(|(word, bit)| {
            word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Relaxed) & bit == 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_without_a_name_is_requested_at_once_and_then_for_a_retry() {
        let types = EventTypes::new();
        let taken = || {
            let request = types.request();
            types.clear_request();
            request
        };
        for number in [0, 63, 64, u16::MAX] {
            types.meet(number);
            types.meet(number);
            assert_eq!(taken(), NameRequest::Now);
            types.meet(number);
            assert_eq!(taken(), NameRequest::Retry);
            types.name(number, "name");
            types.settle([HashSet::from([number])].iter());
            types.meet(number);
            assert_eq!(taken(), NameRequest::None);
            types.expect_table();
            types.meet(number);
            assert_eq!((taken(), types.take_new_table()), (NameRequest::Now, true));
            assert!(!types.take_new_table());
        }
    }

    #[test]
    fn a_number_is_settled_once_every_table_names_it() {
        let types = EventTypes::new();
        let tables = [HashSet::from([3, 64, 65535]), HashSet::from([64, 65535])];
        for (tables, settled, unsettled) in [(&tables[..1], 3, 4), (&tables[..], 64, 3)] {
            types.settle(tables.iter());
            types.clear_request();
            types.meet(settled);
            assert_eq!(types.request(), NameRequest::None);
            types.meet(unsettled);
            assert_eq!(types.request(), NameRequest::Now);
        }
        // Without a table, no look finds a name.
        types.settle([].iter());
        types.clear_request();
        types.meet(7);
        assert_eq!(types.request(), NameRequest::None);
    }

    #[test]
    fn a_number_that_is_named_twice_has_both_names() {
        let types = EventTypes::new();
        assert_eq!(types.name(7, "a").as_deref(), Some("a"));
        assert_eq!(types.name(7, "b").as_deref(), Some("a | b"));
        assert_eq!(types.name(7, "a"), None);
        assert_eq!(types.name(7, "b"), None);
        // "a | b | " and as many as fit.
        let long = "x".repeat(LONGEST - 7);
        assert_eq!(types.name(7, &long), None);
        assert_eq!(types.all(), [(7, "a | b".to_owned())]);
        let both = types.name(7, &long[1..]).unwrap();
        assert_eq!(both.len(), LONGEST);
    }

    #[test]
    fn names_are_bounded() {
        let types = EventTypes::new();
        for number in 0..=u16::MAX {
            types.name(number, "name");
        }
        assert_eq!(types.all().len(), MOST_TYPE_NAMES);
    }
}
