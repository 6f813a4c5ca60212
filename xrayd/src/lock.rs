//! Locking a mutex in spite of poisoning.

use std::{
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    thread,
    time::Duration,
};

/// Pause between two tries of [`lock_in_turn`].
const PAUSE: Duration = Duration::from_millis(20);

/// Locks a mutex. The data behind every lock of this crate is consistent between statements, so a
/// panic of another thread leaves no half-done change in it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex that another thread holds while it reads a file, which can take long. Tries again
/// and again: a thread that slept all the time would look as if it hung (`liveness`).
pub(crate) fn lock_in_turn<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
        }
    }
}
