//! Limits on what one user can have at a time, so that no user takes the daemon away from others.
//!
//! The socket of the system daemon is open to all users. Connections, streams and blocking calls
//! are counted for each user. A user at a limit is refused, and other users are not affected.
//! Threads are shared out in `turns`.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use crate::lock::lock;

/// Places of one kind.
#[derive(Debug)]
pub(super) struct Admission {
    /// Places for each user.
    places: u32,
    /// Taken places by user. A user without any has no entry.
    taken: Mutex<HashMap<u32, u32>>,
}

/// A taken place. A dropped one is free again.
#[derive(Debug)]
#[must_use]
pub(super) struct Admitted {
    admission: Arc<Admission>,
    uid: u32,
}

// === impl Admission ===

impl Admission {
    pub(super) fn new(places: u32) -> Arc<Self> {
        Arc::new(Self {
            places,
            taken: Mutex::default(),
        })
    }

    /// Takes a place for this user, if one is left.
    pub(super) fn admit(self: &Arc<Self>, uid: u32) -> Option<Admitted> {
        let mut taken = lock(&self.taken);
        let count = taken.entry(uid).or_insert(0);
        if *count >= self.places {
            return None;
        }
        *count += 1;
        Some(Admitted {
            admission: Arc::clone(self),
            uid,
        })
    }
}

// === impl Admitted ===

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut taken = lock(&self.admission.taken);
        if let Some(count) = taken.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_with_all_places_does_not_touch_the_others() {
        let admission = Admission::new(2);
        let first = admission.admit(1000).unwrap();
        let _second = admission.admit(1000).unwrap();
        assert!(admission.admit(1000).is_none());
        assert!(admission.admit(0).is_some());
        drop(first);
        assert!(admission.admit(1000).is_some());
    }

    #[test]
    fn users_who_left_cost_nothing() {
        let admission = Admission::new(1);
        for uid in 0..1000 {
            drop(admission.admit(uid));
        }
        assert!(admission.taken.lock().unwrap().is_empty());
    }
}
