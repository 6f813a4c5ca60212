//! The types of typed events of one process, and their names.
//!
//! ```text
//!  collector: an event of a type without a name ──► request
//!  controller: reads the program's tables ──► names ──► live streams
//! ```
//!
//! A program can register types at any time. The first event of a type requests a look at once. A
//! type that still has no name is looked up once a second. The tables are read in `target`.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
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
    /// Numbers that events had. Written by the drain.
    met: Numbers,
    /// Numbers that have names. Written by the controller.
    named: Numbers,
    /// A [`NameRequest`]. Raised by the collector, cleared by the controller.
    request: AtomicU8,
    /// At most [`MOST_TYPE_NAMES`]. Written by the controller.
    names: Mutex<BTreeMap<u16, String>>,
}

/// A bit for each number.
#[derive(Debug)]
struct Numbers(Box<[AtomicU64]>);

// === impl EventTypes ===

impl EventTypes {
    pub(crate) fn new() -> Self {
        Self {
            met: Numbers::none(),
            named: Numbers::none(),
            request: AtomicU8::new(NameRequest::None as u8),
            names: Mutex::default(),
        }
    }

    /// Notes an event with this number. Called by the drain. True if names are to be read at once.
    pub(crate) fn meet(&self, number: u16) -> bool {
        if self.named.has(number) {
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
        self.named.add(number);
        Some(now)
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
        Self((0..=u16::MAX >> 6).map(|_| AtomicU64::new(0)).collect())
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
            types.meet(number);
            assert_eq!(taken(), NameRequest::None);
        }
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
