//! Locks of which a panic elsewhere spoils nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks. What every lock of this crate guards is whole between statements, so that a panic of another thread leaves
/// nothing half done in it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
