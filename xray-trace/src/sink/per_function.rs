//! A value prepared for each function of a trace, so that it is not computed again for each event.

use crate::model::{Function, FunctionId, Trace};

/// A value for each function that the trace describes.
#[derive(Debug)]
pub(super) struct PerFunction<T> {
    /// In order of id, usually without gaps.
    values: Vec<(FunctionId, T)>,
}

// === impl PerFunction ===

impl<T> PerFunction<T> {
    pub(super) fn new(trace: &Trace, mut make: impl FnMut(&Function) -> T) -> Self {
        let functions = trace.functions().iter();
        Self {
            values: functions
                .map(|function| (function.id, make(function)))
                .collect(),
        }
    }

    /// `None` for a function that the trace does not describe.
    #[inline]
    pub(super) fn get(&self, id: FunctionId) -> Option<&T> {
        let direct = usize::try_from(id.0)
            .ok()
            .and_then(|at| self.values.get(at));
        if let Some((found, value)) = direct
            && *found == id
        {
            return Some(value);
        }
        let at = self.values.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.values.get(at).map(|(_, value)| value)
    }
}
