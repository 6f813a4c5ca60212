//! Locking a mutex in spite of poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. The data behind every lock of this crate is consistent between statements, so a
/// panic of another thread leaves no half-done change in it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
