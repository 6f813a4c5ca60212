//! A map from functions to values, without hashing for the ids of real traces.

use std::collections::BTreeMap;

use crate::model::FunctionId;

/// Ids below this are looked up directly. Ids are dense, so greater ones occur only in traces of
/// very large programs, or in hostile ones.
const DIRECT: usize = 1 << 20;

/// A value for each function. It is the default value until it is changed.
#[derive(Debug, Default)]
pub(crate) struct FunctionMap<T> {
    direct: Vec<T>,
    others: BTreeMap<FunctionId, T>,
}

// === impl FunctionMap ===

impl<T: Default> FunctionMap<T> {
    #[inline]
    pub(crate) fn entry(&mut self, id: FunctionId) -> &mut T {
        let at = usize::try_from(id.0).unwrap_or(usize::MAX);
        if at < self.direct.len() {
            return &mut self.direct[at];
        }
        self.new_entry(at, id)
    }

    /// The value of a function.
    #[cfg(feature = "import")]
    #[inline]
    pub(crate) fn get(&self, id: FunctionId) -> T
    where
        T: Copy,
    {
        let at = usize::try_from(id.0).unwrap_or(usize::MAX);
        match self.direct.get(at) {
            Some(value) => *value,
            None => self.others.get(&id).copied().unwrap_or_default(),
        }
    }

    #[cold]
    fn new_entry(&mut self, at: usize, id: FunctionId) -> &mut T {
        if at >= DIRECT {
            return self.others.entry(id).or_default();
        }
        let len = (at + 1).next_power_of_two();
        self.direct.resize_with(len, T::default);
        &mut self.direct[at]
    }
}
