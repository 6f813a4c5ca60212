//! Limits on what one user can have at a time, so that no user takes the daemon away from others.
//!
//! The socket of the system daemon is open to all users. Connections, streams and blocking calls
//! are counted for each user. A user at a limit is refused, and other users are not affected.
//! Threads are shared out in `turns`.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex},
};

use crate::lock::lock;

/// Places of one kind, for each user, or for each key of another kind.
#[derive(Debug)]
pub(super) struct Admission<K: Eq + Hash = u32> {
    /// Places for each key.
    places: u32,
    /// Taken places by key. A key without any has no entry.
    taken: Mutex<HashMap<K, u32>>,
}

/// A taken place. A dropped one is free again.
#[derive(Debug)]
#[must_use]
pub(super) struct Admitted<K: Eq + Hash = u32> {
    admission: Arc<Admission<K>>,
    key: K,
}

/// A user, a policy, and the number of a trigger of the policy.
pub(super) type PolicyTriggerKey = (u32, String, u32);

// === impl Admission ===

impl<K: Eq + Hash + Clone> Admission<K> {
    pub(super) fn new(places: u32) -> Arc<Self> {
        Arc::new(Self {
            places,
            taken: Mutex::default(),
        })
    }

    /// Takes a place for this key, if one is left.
    pub(super) fn admit(self: &Arc<Self>, key: K) -> Option<Admitted<K>> {
        let mut taken = lock(&self.taken);
        let count = taken.entry(key.clone()).or_insert(0);
        if *count >= self.places {
            return None;
        }
        *count += 1;
        Some(Admitted {
            admission: Arc::clone(self),
            key,
        })
    }
}

// === impl Admitted ===

impl<K: Eq + Hash> Drop for Admitted<K> {
    fn drop(&mut self) {
        let mut taken = lock(&self.admission.taken);
        if let Some(count) = taken.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.key);
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
