//! Leases: temporary overrides of which functions are on, as a recording has them. Beneath its
//! leases each function keeps its permanent state.
//!
//! ```text
//!                    acquire                          take back
//!  permanent state ──────► leased to one or more ───────────► what the latest holder left wants
//!                               │                             no holder left: permanent state
//!                               └─ switched permanently ─► permanent state, no leases
//! ```

use std::collections::BTreeMap;

use sled_encoders::Capture;
use xray_trace::model::FunctionId;

use super::states::States;
use crate::types::{LeaseId, Run, Wanted};

/// Limit on leases of one function at a time. More than one user has streams. A client whose end
/// cannot be noticed never ends its lease, so the oldest lease is dropped.
const MOST_HOLDERS: usize = 64;

/// The leases, by function.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leases(BTreeMap<FunctionId, Lease>);

/// The leases of one function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    before: Wanted,
    /// The leases in the order of their begin, with the values that each records. Empty in a lease
    /// that is being made.
    holders: Vec<(LeaseId, Capture)>,
}

// === impl Leases ===

impl Leases {
    /// Leases a function whose state is `now`, and returns its previous leases. A function that
    /// already does what the lease asks for gets none.
    pub(crate) fn acquire(
        &mut self,
        id: FunctionId,
        now: Wanted,
        to: LeaseId,
        capture: Capture,
    ) -> Option<Lease> {
        let before = self.0.remove(&id);
        let mut lease = before.clone().unwrap_or_else(|| Lease::new(now));
        lease.add(to, capture);
        self.insert(id, lease);
        before
    }

    /// Sets the leases of a function to `before`.
    fn restore(&mut self, id: FunctionId, before: Option<Lease>) {
        match before {
            Some(lease) => self.0.insert(id, lease),
            None => self.0.remove(&id),
        };
    }

    /// Records a lease. Returns the functions of `ids` that it changes, and the data for
    /// [`Self::restore_all`].
    pub(super) fn acquire_all(
        &mut self,
        states: &States,
        ids: &[FunctionId],
        to: LeaseId,
        capture: Capture,
        run: Run,
    ) -> (Vec<FunctionId>, Vec<Leased>) {
        let mut changing = states.changing(ids.to_vec(), Wanted::On(capture));
        // A lease without values leaves values alone that others record.
        changing.retain(|&id| {
            !capture.is_none() || states.recorded(id).is_none_or(|now| now.is_none())
        });
        let mut leased = Vec::new();
        if run == Run::Real {
            leased.extend(ids.iter().map(|&id| {
                let was = states.recorded(id).map_or(Wanted::Off, Wanted::On);
                let lease = self.acquire(id, was, to, capture);
                Leased { id, was, lease }
            }));
        }
        (changing, leased)
    }

    /// Undoes a lease that failed. Functions that could not be switched back stay leased, so that
    /// they are switched back at the end of the lease.
    pub(super) fn restore_all(&mut self, states: &States, leased: Vec<Leased>) {
        // A function can be named twice.
        for Leased { id, was, lease } in leased.into_iter().rev() {
            if states.recorded(id).map_or(Wanted::Off, Wanted::On) == was {
                self.restore(id, lease);
            }
        }
    }

    /// The leases of a function, if it has any.
    pub(crate) fn get(&self, id: FunctionId) -> Option<&Lease> {
        self.0.get(&id)
    }

    /// Replaces what is recorded of leased functions, by id, by what is recorded when all leases
    /// are over.
    pub(super) fn set_for_good(&self, recorded: &mut [Option<Capture>]) {
        for (id, lease) in &self.0 {
            if let Some(recorded) = recorded.get_mut(id.0 as usize) {
                *recorded = match lease.before {
                    Wanted::On(capture) => Some(capture),
                    Wanted::Off => None,
                };
            }
        }
    }

    /// Adds the leases of a function, if there are any.
    pub(crate) fn insert(&mut self, id: FunctionId, lease: Lease) {
        if !lease.holders.is_empty() {
            self.0.insert(id, lease);
        }
    }

    /// Adds the leases of other functions.
    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Ends all leases of these functions.
    pub(crate) fn end(&mut self, ids: impl IntoIterator<Item = FunctionId>) {
        if self.0.is_empty() {
            return;
        }
        for id in ids {
            self.0.remove(&id);
        }
    }

    /// The leases of policies.
    pub(crate) fn of_policies(&self) -> Vec<LeaseId> {
        let mut found = Vec::new();
        for (holder, _) in self.0.values().flat_map(|lease| &lease.holders) {
            if holder.outlives_daemon() && !found.contains(holder) {
                found.push(*holder);
            }
        }
        found
    }

    /// True if a function has this lease.
    pub(crate) fn has(&self, lease: LeaseId) -> bool {
        let mut holders = self.0.values().flat_map(|lease| &lease.holders);
        holders.any(|(holder, _)| *holder == lease)
    }

    /// Ends a lease. Returns the state that each of its functions has to get.
    pub(crate) fn release(&mut self, from: LeaseId) -> Vec<(FunctionId, Wanted)> {
        let mut back = Vec::new();
        self.0.retain(|&id, lease| {
            let holders = lease.holders.len();
            lease.holders.retain(|(holder, _)| *holder != from);
            if lease.holders.len() < holders {
                back.push((id, lease.now()));
            }
            !lease.holders.is_empty()
        });
        back
    }
}

// === impl Lease ===

impl Lease {
    /// No leases yet.
    pub(crate) fn new(before: Wanted) -> Self {
        Self {
            before,
            holders: Vec::new(),
        }
    }

    /// Adds a lease.
    pub(crate) fn add(&mut self, to: LeaseId, capture: Capture) {
        if self.holders.is_empty() && leaves(self.before, capture) {
            return;
        }
        self.holders.retain(|(holder, _)| *holder != to);
        if self.holders.len() == MOST_HOLDERS {
            // A policy would notice that its lease has ended.
            let clients = |(holder, _): &(LeaseId, Capture)| !holder.outlives_daemon();
            self.holders
                .remove(self.holders.iter().position(clients).unwrap_or(0));
        }
        self.holders.push((to, capture));
    }

    /// The state of the function.
    pub(crate) fn now(&self) -> Wanted {
        let mut now = self.before;
        for &(_, capture) in &self.holders {
            if !leaves(now, capture) {
                now = Wanted::On(capture);
            }
        }
        now
    }
}

/// A function that was leased, and its state before that.
#[derive(Debug)]
pub(crate) struct Leased {
    id: FunctionId,
    was: Wanted,
    lease: Option<Lease>,
}

/// True if a lease leaves a function as it `is`. A lease without values leaves values alone that
/// others record.
fn leaves(is: Wanted, capture: Capture) -> bool {
    match is {
        Wanted::On(now) => now == capture || capture.is_none(),
        Wanted::Off => false,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    const F: FunctionId = FunctionId(3);
    const ON: Wanted = Wanted::On(Capture::NONE);

    fn lease(number: u64) -> LeaseId {
        LeaseId::Client(NonZeroU64::new(number).unwrap())
    }

    #[test]
    fn a_function_is_on_until_the_last_holder_gives_it_back() {
        let two = Capture::NONE.with_arguments(2).unwrap();
        let mut leases = Leases::default();
        leases.acquire(F, Wanted::Off, lease(1), Capture::NONE);
        leases.acquire(F, ON, lease(2), two);
        leases.acquire(F, Wanted::On(two), lease(3), two);
        assert_eq!(leases.release(lease(3)), [(F, Wanted::On(two))]);
        assert_eq!(leases.release(lease(3)), []);
        assert_eq!(leases.release(lease(2)), [(F, ON)]);
        assert_eq!(leases.release(lease(1)), [(F, Wanted::Off)]);
        assert!(leases.get(F).is_none() && leases.release(lease(1)).is_empty());
    }

    #[test]
    fn an_enabled_function_is_not_leased_and_its_values_stay() {
        let two = Capture::NONE.with_arguments(2).unwrap();
        let mut leases = Leases::default();
        leases.acquire(F, ON, lease(1), Capture::NONE);
        leases.acquire(F, Wanted::On(two), lease(1), Capture::NONE);
        assert!(leases.get(F).is_none());
        // If the values are those of another lease, this lease keeps what it asked for.
        leases.acquire(F, Wanted::Off, lease(1), two);
        leases.acquire(F, Wanted::On(two), lease(2), Capture::NONE);
        assert_eq!(leases.get(F).map(Lease::now), Some(Wanted::On(two)));
        assert_eq!(leases.release(lease(1)), [(F, ON)]);
        assert_eq!(leases.release(lease(2)), [(F, Wanted::Off)]);
        // The permanent state shows through.
        let result = Capture::NONE.with_result();
        leases.acquire(F, Wanted::On(two), lease(1), result);
        leases.acquire(F, Wanted::On(result), lease(2), Capture::NONE);
        assert_eq!(leases.release(lease(1)), [(F, Wanted::On(two))]);
    }

    #[test]
    fn leases_that_are_never_released_take_bounded_memory() {
        let mut leases = Leases::default();
        for number in 1..100 {
            leases.acquire(F, Wanted::Off, lease(number), Capture::NONE);
            leases.acquire(F, ON, lease(number), Capture::NONE);
        }
        assert_eq!(leases.get(F).unwrap().holders.len(), MOST_HOLDERS);
        for number in 1..100 {
            leases.release(lease(number));
        }
        assert!(leases.get(F).is_none());
    }

    #[test]
    fn a_lease_that_is_refused_leaves_those_of_others() {
        let mut leases = Leases::default();
        let none = leases.acquire(F, Wanted::Off, lease(1), Capture::NONE);
        let before = leases.get(F).cloned();
        assert!(none.is_none() && before.is_some());
        let first = leases.acquire(F, ON, lease(2), Capture::NONE.with_result());
        assert_eq!(first, before);
        leases.restore(F, first);
        assert_eq!(leases.get(F), before.as_ref());
        leases.restore(F, none);
        assert!(leases.get(F).is_none());
    }

    #[test]
    fn a_permanent_switch_outlives_the_lease() {
        let mut leases = Leases::default();
        leases.acquire(F, Wanted::Off, lease(1), Capture::NONE);
        leases.acquire(FunctionId(4), Wanted::Off, lease(1), Capture::NONE);
        leases.end([F]);
        assert_eq!(leases.release(lease(1)), [(FunctionId(4), Wanted::Off)]);
    }
}
