//! Numbers functions in the order of their first use, for formats whose events refer to a table of
//! functions.

use std::collections::BTreeMap;

use crate::model::FunctionId;

/// The functions so far, each with a number from 0.
#[derive(Debug, Default)]
pub(super) struct Frames {
    numbers: BTreeMap<FunctionId, usize>,
    functions: Vec<FunctionId>,
}

// === impl Frames ===

impl Frames {
    /// The number of a function.
    pub(super) fn get(&mut self, function: FunctionId) -> u64 {
        let number = *self.numbers.entry(function).or_insert_with(|| {
            self.functions.push(function);
            self.functions.len() - 1
        });
        number as u64
    }

    /// The functions, by number.
    pub(super) fn functions(&self) -> &[FunctionId] {
        &self.functions
    }
}
