//! Turns for files whose tables take much memory.
//!
//! Small images need no turn. A large one keeps its turn from the moment that it becomes large
//! until it is dropped. A user has one turn, and all users but root have [`TURNS`] together, so
//! memory is bounded. Each wait is bounded as well: a file system that does not answer keeps the
//! turn of the user whose process mapped the file.

use std::{
    io,
    sync::{Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::lock::lock;

/// Large images of users other than root at a time.
const TURNS: usize = 2;
/// Longest wait for a turn.
const PATIENCE: Duration = Duration::from_secs(10);
/// After this time, a turn keeps only its own user from taking one. Its file does not answer.
const STALE_AFTER: Duration = Duration::from_secs(60);
/// Turns of users other than root at a time, stale ones included.
const MOST_TURNS: usize = 8;

static TAKEN: Turns = Turns {
    by: Mutex::new(Vec::new()),
    given_back: Condvar::new(),
};

#[derive(Debug)]
struct Turns {
    /// The users who have a turn, and since when. `take` adds its user, and a dropped turn removes
    /// its user.
    by: Mutex<Vec<(u32, Instant)>>,
    /// Signalled when a turn is given back.
    given_back: Condvar,
}

/// A turn. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Turn {
    of: &'static Turns,
    user: u32,
}

// === impl Turn ===

impl Turn {
    /// Takes the turn of a user.
    ///
    /// # Errors
    /// No turn becomes free in 10 s.
    pub(super) fn take(user: u32) -> io::Result<Self> {
        TAKEN.take(user, PATIENCE)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut by = lock(&self.of.by);
        if let Some(at) = by.iter().position(|&(user, _)| user == self.user) {
            by.swap_remove(at);
        }
        self.of.given_back.notify_all();
    }
}

// === impl Turns ===

impl Turns {
    fn take(&'static self, user: u32, patience: Duration) -> io::Result<Turn> {
        self.take_unless_stale(user, patience, STALE_AFTER)
    }

    fn take_unless_stale(
        &'static self,
        user: u32,
        patience: Duration,
        stale: Duration,
    ) -> io::Result<Turn> {
        let is_taken = |by: &mut Vec<(u32, Instant)>| {
            let others = by.iter().filter(|(other, _)| *other != 0);
            let fresh = others.clone().filter(|(_, since)| since.elapsed() < stale);
            let is_full = fresh.count() >= TURNS || others.count() >= MOST_TURNS;
            by.iter().any(|(other, _)| *other == user) || (user != 0 && is_full)
        };
        let waited = self
            .given_back
            .wait_timeout_while(lock(&self.by), patience, is_taken);
        let (mut by, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(io::Error::other(
                "xrayd reads other large files already, and these reads have not ended in time; \
                 try again",
            ));
        }
        by.push((user, Instant::now()));
        Ok(Turn { of: self, user })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_one_turn_and_root_s_is_always_there() {
        static OWN: Turns = Turns {
            by: Mutex::new(Vec::new()),
            given_back: Condvar::new(),
        };
        let take = |user| OWN.take(user, Duration::from_millis(1));
        let first = take(1000).unwrap();
        assert!(take(1000).is_err());
        let second = take(1001).unwrap();
        assert!(take(1002).is_err());
        let roots = take(0).unwrap();
        assert!(take(0).is_err());
        drop(first);
        let third = take(1002).unwrap();
        // A waiting user gets a turn as soon as one is given back.
        let waiting = std::thread::spawn(|| OWN.take(1003, Duration::from_secs(60)).is_ok());
        drop(second);
        assert!(waiting.join().unwrap());
        drop((third, roots));
        assert!(OWN.by.lock().unwrap().is_empty());
    }

    #[test]
    fn turns_of_files_that_do_not_answer_keep_no_other_user_waiting() {
        static OWN: Turns = Turns {
            by: Mutex::new(Vec::new()),
            given_back: Condvar::new(),
        };
        let wait = Duration::from_millis(1);
        let take = |user| OWN.take_unless_stale(user, wait, Duration::ZERO);
        let turns: Vec<Turn> = (1..=8).map(|user| take(user).unwrap()).collect();
        assert!(take(9).is_err(), "memory is bounded");
        assert!(take(1).is_err());
        drop(take(0).unwrap());
        drop(turns);
        let _own = take(9).unwrap();
    }
}
