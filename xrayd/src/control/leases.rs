//! Functions that are on for a while only, as a recording has them: beneath each lies what it was before.
//!
//! ```text
//!                      lend                        take back
//!   as it is for good ──────► on loan to one or more ──────► what the last of those who are left wants; of nobody: as it was
//!                                  │
//!                                  └─ somebody switches it for good ─► as it is for good: the loans of it are over
//! ```

use std::{collections::BTreeMap, time::Instant};

use sled_encoders::Capture;
use xray_trace::model::FunctionId;

use super::controller::Controller;
use crate::{
    lock::lock,
    refusal::Result,
    types::{LeaseId, Run, ToggleReport, Wanted},
};

/// Of a function at the same time: more than one user has streams. Who cannot be told to have gone never gives back; the oldest is forgotten.
const MOST_HOLDERS: usize = 64;

/// What is on loan, by function.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leases(BTreeMap<FunctionId, Lease>);

/// A function on loan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    before: Wanted,
    /// Who has it, in the order of their coming, and what they want recorded. Empty in a loan that is being made.
    holders: Vec<(LeaseId, Capture)>,
}

// === impl Leases ===

impl Leases {
    /// Lends a function, which is `now`. If that is all that is asked for, it stays as it is when the loan is over. What it was on
    /// loan before.
    pub(crate) fn lend(
        &mut self,
        id: FunctionId,
        now: Wanted,
        to: LeaseId,
        capture: Capture,
    ) -> Option<Lease> {
        let before = self.0.remove(&id);
        let mut loan = before.clone().unwrap_or_else(|| Lease::new(now));
        loan.add(to, capture);
        self.insert(id, loan);
        before
    }

    /// A function is on loan as it was `before`.
    fn restore(&mut self, id: FunctionId, before: Option<Lease>) {
        match before {
            Some(loan) => self.0.insert(id, loan),
            None => self.0.remove(&id),
        };
    }

    /// What a function is on, if it is on loan.
    pub(crate) fn get(&self, id: FunctionId) -> Option<&Lease> {
        self.0.get(&id)
    }

    /// Takes a loan in, if it is anybody's.
    pub(crate) fn insert(&mut self, id: FunctionId, loan: Lease) {
        if !loan.holders.is_empty() {
            self.0.insert(id, loan);
        }
    }

    /// Takes in what else is on loan.
    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// These functions are what they are for good.
    pub(crate) fn end(&mut self, ids: impl IntoIterator<Item = FunctionId>) {
        if self.0.is_empty() {
            return;
        }
        for id in ids {
            self.0.remove(&id);
        }
    }

    /// A loan is over: what becomes of its functions.
    pub(crate) fn take_back(&mut self, from: LeaseId) -> Vec<(FunctionId, Wanted)> {
        let mut back = Vec::new();
        self.0.retain(|&id, loan| {
            let holders = loan.holders.len();
            loan.holders.retain(|(holder, _)| *holder != from);
            if loan.holders.len() < holders {
                back.push((id, loan.now()));
            }
            !loan.holders.is_empty()
        });
        back
    }
}

// === impl Lease ===

impl Lease {
    /// Of nobody yet.
    pub(crate) fn new(before: Wanted) -> Self {
        Self {
            before,
            holders: Vec::new(),
        }
    }

    /// Lends it to one more.
    pub(crate) fn add(&mut self, to: LeaseId, capture: Capture) {
        if self.holders.is_empty() && leaves(self.before, capture) {
            return;
        }
        self.holders.retain(|(holder, _)| *holder != to);
        if self.holders.len() == MOST_HOLDERS {
            self.holders.remove(0);
        }
        self.holders.push((to, capture));
    }

    /// What the function is.
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

/// A function that was lent, and what it was before that.
#[derive(Debug)]
pub(crate) struct Lent {
    id: FunctionId,
    was: Wanted,
    loan: Option<Lease>,
}

/// Whether a loan leaves a function as it `is`: who asks for no values leaves those that others record.
fn leaves(is: Wanted, capture: Capture) -> bool {
    match is {
        Wanted::On(now) => now == capture || capture.is_none(),
        Wanted::Off => false,
    }
}

impl Controller {
    /// Notes a loan; those of `ids` that it changes, and what [`Self::unlend`] needs.
    pub(crate) fn lend(
        &self,
        ids: &[FunctionId],
        to: LeaseId,
        capture: Capture,
        run: Run,
    ) -> (Vec<FunctionId>, Vec<Lent>) {
        let states = &self.shared.states;
        let mut loans = lock(&self.shared.loans);
        let mut changing = states.changing(ids.to_vec(), Wanted::On(capture));
        // Who asks for no values leaves those that others record.
        changing.retain(|&id| {
            !capture.is_none() || states.recorded(id).is_none_or(|now| now.is_none())
        });
        let mut lent = Vec::new();
        if run == Run::Real {
            lent.extend(ids.iter().map(|&id| {
                let was = states.recorded(id).map_or(Wanted::Off, Wanted::On);
                let loan = loans.lend(id, was, to, capture);
                Lent { id, was, loan }
            }));
        }
        (changing, lent)
    }

    /// A loan was refused. What could not be switched back stays on loan, so that it is switched back when that is over.
    pub(super) fn unlend(&self, lent: Vec<Lent>) {
        let states = &self.shared.states;
        let mut loans = lock(&self.shared.loans);
        // A function can be named twice.
        for Lent { id, was, loan } in lent.into_iter().rev() {
            if states.recorded(id).map_or(Wanted::Off, Wanted::On) == was {
                loans.restore(id, loan);
            }
        }
    }

    /// Puts back what was lent. What cannot be is no reason to leave the rest.
    pub(crate) fn take_back(&mut self, from: LeaseId) -> Result<ToggleReport> {
        self.loading.take_back(from);
        let back = lock(&self.shared.loans).take_back(from);
        let ids: Vec<FunctionId> = back.iter().map(|(id, _)| *id).collect();
        let mut report = self.report_on(&ids);
        let mut ways = BTreeMap::<Option<Capture>, Vec<FunctionId>>::new();
        for (id, to) in back {
            let capture = match to {
                Wanted::On(capture) => Some(capture),
                Wanted::Off => None,
            };
            ways.entry(capture).or_default().push(id);
        }
        let started = Instant::now();
        let mut failed = None;
        for (capture, ids) in ways {
            let to = capture.map_or(Wanted::Off, Wanted::On);
            let changing = self.shared.states.changing(ids, to);
            match self.switch(&changing, to) {
                Ok((patched, copied)) => {
                    report.changed += u32::try_from(changing.len()).unwrap_or(u32::MAX);
                    report.add(&patched, copied);
                }
                Err(refusal) => failed = failed.or(Some(refusal)),
            }
        }
        report.elapsed = started.elapsed();
        failed.map_or(Ok(report), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    const F: FunctionId = FunctionId(3);
    const ON: Wanted = Wanted::On(Capture::NONE);

    fn loan(number: u64) -> LeaseId {
        LeaseId(NonZeroU64::new(number).unwrap())
    }

    #[test]
    fn a_function_is_on_until_the_last_holder_gives_it_back() {
        let two = Capture::NONE.with_arguments(2).unwrap();
        let mut loans = Leases::default();
        loans.lend(F, Wanted::Off, loan(1), Capture::NONE);
        loans.lend(F, ON, loan(2), two);
        loans.lend(F, Wanted::On(two), loan(3), two);
        assert_eq!(loans.take_back(loan(3)), [(F, Wanted::On(two))]);
        assert_eq!(loans.take_back(loan(3)), []);
        assert_eq!(loans.take_back(loan(2)), [(F, ON)]);
        assert_eq!(loans.take_back(loan(1)), [(F, Wanted::Off)]);
        assert!(loans.get(F).is_none() && loans.take_back(loan(1)).is_empty());
    }

    #[test]
    fn what_is_on_already_is_not_lent_and_its_values_stay() {
        let two = Capture::NONE.with_arguments(2).unwrap();
        let mut loans = Leases::default();
        loans.lend(F, ON, loan(1), Capture::NONE);
        loans.lend(F, Wanted::On(two), loan(1), Capture::NONE);
        assert!(loans.get(F).is_none());
        // Where the values are another loan's, what is left is what was asked for.
        loans.lend(F, Wanted::Off, loan(1), two);
        loans.lend(F, Wanted::On(two), loan(2), Capture::NONE);
        assert_eq!(loans.get(F).map(Lease::now), Some(Wanted::On(two)));
        assert_eq!(loans.take_back(loan(1)), [(F, ON)]);
        assert_eq!(loans.take_back(loan(2)), [(F, Wanted::Off)]);
        // And what lies beneath shows through.
        let result = Capture::NONE.with_result();
        loans.lend(F, Wanted::On(two), loan(1), result);
        loans.lend(F, Wanted::On(result), loan(2), Capture::NONE);
        assert_eq!(loans.take_back(loan(1)), [(F, Wanted::On(two))]);
    }

    #[test]
    fn who_never_gives_back_takes_no_room() {
        let mut loans = Leases::default();
        for number in 1..100 {
            loans.lend(F, Wanted::Off, loan(number), Capture::NONE);
            loans.lend(F, ON, loan(number), Capture::NONE);
        }
        assert_eq!(loans.get(F).unwrap().holders.len(), MOST_HOLDERS);
        for number in 1..100 {
            loans.take_back(loan(number));
        }
        assert!(loans.get(F).is_none());
    }

    #[test]
    fn a_loan_that_is_refused_leaves_those_of_others() {
        let mut loans = Leases::default();
        let none = loans.lend(F, Wanted::Off, loan(1), Capture::NONE);
        let before = loans.get(F).cloned();
        assert!(none.is_none() && before.is_some());
        let first = loans.lend(F, ON, loan(2), Capture::NONE.with_result());
        assert_eq!(first, before);
        loans.restore(F, first);
        assert_eq!(loans.get(F), before.as_ref());
        loans.restore(F, none);
        assert!(loans.get(F).is_none());
    }

    #[test]
    fn what_is_switched_for_good_is_not_taken_back() {
        let mut loans = Leases::default();
        loans.lend(F, Wanted::Off, loan(1), Capture::NONE);
        loans.lend(FunctionId(4), Wanted::Off, loan(1), Capture::NONE);
        loans.end([F]);
        assert_eq!(loans.take_back(loan(1)), [(FunctionId(4), Wanted::Off)]);
    }
}
