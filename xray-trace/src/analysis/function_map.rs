//! A value per function, found without hashing for the ids that real traces have.

use std::collections::BTreeMap;

use crate::model::FunctionId;

/// Ids below this are looked up directly. Ids are dense, so greater ones are only met in traces of very large
/// programs, or in hostile ones.
const DIRECT: usize = 1 << 20;

/// A value per function, the default one until it is changed.
#[derive(Debug, Default)]
pub(super) struct FunctionMap<T> {
    direct: Vec<T>,
    others: BTreeMap<FunctionId, T>,
}

// === impl FunctionMap ===

impl<T: Default> FunctionMap<T> {
    #[inline]
    pub(super) fn entry(&mut self, id: FunctionId) -> &mut T {
        match usize::try_from(id.0) {
            Ok(at) if at < DIRECT => {
                if at >= self.direct.len() {
                    self.direct
                        .resize_with((at + 1).next_power_of_two(), T::default);
                }
                &mut self.direct[at]
            }
            _ => self.others.entry(id).or_default(),
        }
    }
}
