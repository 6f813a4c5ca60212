//! Types of typed events: which were met, and what the program calls them.
//!
//! ```text
//!  drain: an event of a type without a name ──► wish ──► control: reads the program's tables ──► names ──► feeds
//! ```
//!
//! Types can be registered at any time. A number that is met for the first time is looked up at once, one that still has no name then once a second.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::controller::Controller;
use crate::{
    lock::lock,
    target::{Load, MOST_TYPE_NAMES, new_type_names},
};

/// Between looks for names that were not there.
const PATIENCE: Duration = Duration::from_secs(1);
/// Where tables of several libraries name a number differently it gets all names, up to so many bytes.
const LONGEST: usize = 2048;
const BETWEEN: &str = " | ";
/// Numbers remembered of all modules together.
const MOST_READ: usize = 16 * MOST_TYPE_NAMES;

/// What the drain wishes to be looked up, the most urgent last.
const NOTHING: u8 = 0;
const LATER: u8 = 1;
const NOW: u8 = 2;

/// What is known of the types of one process.
#[derive(Debug)]
pub(crate) struct EventTypes {
    /// Numbers that events had. Written by the drain.
    met: Numbers,
    /// Numbers that have names. Written by the control thread.
    named: Numbers,
    /// Raised by the drain, taken by the control thread.
    wish: AtomicU8,
    /// At most [`MOST_TYPE_NAMES`]. Written by the control thread.
    names: Mutex<BTreeMap<u16, String>>,
}

/// A bit for each number.
#[derive(Debug)]
struct Numbers(Box<[AtomicU64]>);

/// What the control thread has read.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// When it looked last.
    last: Option<Instant>,
    /// By module, as long as it is loaded: the numbers that it names.
    read: HashMap<Load, HashSet<u16>>,
}

/// Whether what a number is called has this name in it.
pub(super) fn is_one_of(name: &str, called: &str) -> bool {
    called.split(BETWEEN).any(|part| part == name)
}

// === impl EventTypes ===

impl EventTypes {
    pub(super) fn new() -> Self {
        Self {
            met: Numbers::none(),
            named: Numbers::none(),
            wish: AtomicU8::new(NOTHING),
            names: Mutex::default(),
        }
    }

    /// An event had this number. Called by the drain.
    pub(crate) fn meet(&self, number: u16) {
        if self.named.has(number) {
            return;
        }
        let wish = if self.met.add(number) { NOW } else { LATER };
        if self.wish.load(Relaxed) < wish {
            self.wish.fetch_max(wish, Relaxed);
        }
    }

    /// Whether an event of a type without a name was met since names were read last.
    pub(super) fn is_wanting(&self) -> bool {
        self.wish.load(Relaxed) != NOTHING
    }

    /// Takes a name in, and gives back what the number is called now, if that has changed.
    pub(super) fn name(&self, number: u16, name: &str) -> Option<String> {
        let mut names = lock(&self.names);
        let now = match names.get(&number) {
            None if names.len() >= MOST_TYPE_NAMES => return None,
            None => name.to_owned(),
            Some(former) if former.split(BETWEEN).any(|part| part == name) => return None,
            Some(former) if former.len() + name.len() > LONGEST => return None,
            Some(former) => [former, name].join(BETWEEN),
        };
        names.insert(number, now.clone());
        self.named.add(number);
        Some(now)
    }

    /// All names, by number.
    pub(super) fn all(&self) -> Vec<(u16, String)> {
        let names = lock(&self.names);
        names
            .iter()
            .map(|(&number, name)| (number, name.clone()))
            .collect()
    }
}

impl Controller {
    /// Reads names if events wish for them and it is time.
    pub(super) fn tend_event_types(&mut self) {
        let due = match self.output.event_types.wish.load(Relaxed) {
            NOTHING => false,
            LATER => self
                .reading
                .last
                .is_none_or(|last| last.elapsed() >= PATIENCE),
            _ => true,
        };
        if due {
            self.read_event_types();
        }
    }

    /// Reads the names that were registered since the last time. Of a process that has ended there are none.
    pub(super) fn read_event_types(&mut self) {
        self.output.event_types.wish.store(NOTHING, Relaxed);
        self.reading.last = Some(Instant::now());
        let read = &mut self.reading.read;
        read.retain(|load, _| self.loading.is_traced(load));
        for module in self.loading.modules() {
            if read.values().map(HashSet::len).sum::<usize>() >= MOST_READ {
                break;
            }
            let known = read.entry(module.load).or_default();
            for (number, name) in new_type_names(&self.memory, module, known) {
                known.insert(number);
                self.output.name_event_type(number, &name);
            }
        }
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

    /// True if it was not there yet.
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
    fn a_number_without_a_name_is_wished_for_at_once_and_then_with_patience() {
        let types = EventTypes::new();
        let wish = || types.wish.swap(NOTHING, Relaxed);
        for number in [0, 63, 64, u16::MAX] {
            types.meet(number);
            types.meet(number);
            assert_eq!(wish(), NOW);
            types.meet(number);
            assert_eq!(wish(), LATER);
            types.name(number, "name");
            types.meet(number);
            assert_eq!(wish(), NOTHING);
        }
    }

    #[test]
    fn a_number_that_is_named_twice_has_both_names() {
        let types = EventTypes::new();
        assert_eq!(types.name(7, "a").as_deref(), Some("a"));
        assert_eq!(types.name(7, "b").as_deref(), Some("a | b"));
        assert_eq!(types.name(7, "a"), None);
        assert_eq!(types.name(7, "b"), None);
        let long = "x".repeat(LONGEST);
        assert_eq!(types.name(7, &long), None);
        assert_eq!(types.all(), [(7, "a | b".to_owned())]);
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
