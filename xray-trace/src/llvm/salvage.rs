//! The modes of a reader for damaged files, and the list of the parts that it skipped. Each reader
//! itself finds the place where it can continue.

use std::fmt;

use super::Error;

/// The most skipped parts in the list. Further ones are only counted.
const MAX_KEPT: usize = 1000;

/// The behaviour of a reader at damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The reader stops with an error.
    #[default]
    Strict,
    /// The reader continues behind the damage, and lists the skipped parts.
    Salvage,
}

/// A part of a file that a reader skipped.
#[derive(Debug)]
pub struct Skipped {
    /// The first skipped byte.
    pub from: u64,
    /// The offset at which reading continued. It is `from` if a record is missing rather than
    /// wrong.
    pub to: u64,
    /// The reason.
    pub why: Error,
}

/// All parts that a reader skipped.
#[derive(Debug, Default)]
pub struct SkippedList {
    kept: Vec<Skipped>,
    places: u64,
    bytes: u64,
}

// === impl Skipped ===

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, why } = self;
        write!(f, "skipped {} bytes from offset {from}: {why}", to - from)
    }
}

// === impl SkippedList ===

impl SkippedList {
    /// The first skipped parts, in order.
    #[must_use]
    pub fn kept(&self) -> &[Skipped] {
        &self.kept
    }

    /// The number of skipped parts, including those that are not in the list.
    #[must_use]
    pub fn places(&self) -> u64 {
        self.places
    }

    /// The number of skipped bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn push(&mut self, from: u64, to: u64, why: Error) {
        self.places += 1;
        self.bytes = self.bytes.saturating_add(to.saturating_sub(from));
        if self.kept.len() < MAX_KEPT {
            let to = to.max(from);
            self.kept.push(Skipped { from, to, why });
        }
    }
}
