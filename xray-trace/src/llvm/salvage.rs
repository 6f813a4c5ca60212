//! What a reader does about damage, and what it left out.

use std::fmt;

use super::Error;

/// How many places are kept one by one. Of a file that is all damage the rest is only counted.
const MAX_KEPT: usize = 1000;

/// What a reader does about damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// It stops there, with an error.
    #[default]
    Strict,
    /// It goes on behind it, and lists what it left out.
    Salvage,
}

/// A piece of a file that a reader left out.
#[derive(Debug)]
pub struct Skipped {
    /// The first byte that is left out.
    pub from: u64,
    /// Where reading went on. The same as `from` if a record is missing rather than wrong.
    pub to: u64,
    /// Why.
    pub why: Error,
}

/// All that a reader left out.
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
        write!(f, "{} bytes left out from offset {from}: {why}", to - from)
    }
}

// === impl SkippedList ===

impl SkippedList {
    /// The first places, in order.
    #[must_use]
    pub fn kept(&self) -> &[Skipped] {
        &self.kept
    }

    /// How many places there are, also those that were not kept.
    #[must_use]
    pub fn places(&self) -> u64 {
        self.places
    }

    /// How many bytes were left out.
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
