//! The damaged parts of a text that is being imported.

use super::OpenError;
use crate::llvm::Mode;

/// The most damaged parts with a note each. Further ones are counted.
const MAX_NOTES: usize = 1000;

/// The damaged parts that were left out.
#[derive(Debug)]
pub(super) struct Damage {
    mode: Mode,
    notes: Vec<(String, u64)>,
    /// The number of damaged parts without a note.
    more: u64,
}

// === impl Damage ===

impl Damage {
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            notes: Vec::new(),
            more: 0,
        }
    }

    /// Leaves a damaged part out in [`Mode::Salvage`].
    ///
    /// # Errors
    ///
    /// `error` in [`Mode::Strict`].
    pub(super) fn skip(&mut self, error: OpenError) -> Result<(), OpenError> {
        match self.mode {
            Mode::Strict => return Err(error),
            Mode::Salvage if self.notes.len() < MAX_NOTES => {
                self.notes.push((format!("left out: {error}"), 1));
            }
            Mode::Salvage => self.more += 1,
        }
        Ok(())
    }

    /// The damaged parts that were left out, with their counts.
    pub(super) fn into_list(self) -> Vec<(String, u64)> {
        let Self {
            mode: _,
            mut notes,
            more,
        } = self;
        if more > 0 {
            notes.push(("more damaged parts that were left out".to_owned(), more));
        }
        notes
    }
}
