//! The rules of a session: selections that were switched on or off. They decide the state of
//! functions in libraries that are loaded later. Nothing is switched here.
//!
//! The last rule that names a function decides. A rule by id names no function that comes later, so
//! ids are left out.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use sled_encoders::Capture;
use xray_trace::{
    instr_map::{Candidate, CompiledSelection, Rule, Selection},
    model::FunctionId,
};

use super::{
    leases::{Lease, Leases},
    patterns::Patterns,
};
use crate::{
    target::{Functions, Loaded},
    types::{LeaseId, ToggleTo, Wanted},
};

/// Limit on rules. If a client switches more different selections, the oldest rule is dropped.
const MOST: usize = 1024;

/// The rules of a session, in ascending order of age.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules(VecDeque<SessionRule>);

#[derive(Debug, Clone)]
struct SessionRule {
    /// Shared with all processes of the group.
    patterns: Arc<Patterns>,
    to: Wanted,
    /// The lease, if the rule is temporary.
    lease: Option<LeaseId>,
}

/// Copies of the rules for matching, the newest first. The states of their automata are dropped
/// with them.
#[derive(Debug)]
struct Matchers<'a>(Vec<(CompiledSelection, &'a SessionRule)>);

/// The effect of the rules on a module that was loaded.
#[derive(Debug, Default)]
pub(crate) struct RuleEffect {
    /// The functions to switch on, by the values to record.
    pub(crate) on: BTreeMap<Capture, Vec<FunctionId>>,
    /// The leases of these functions.
    pub(crate) leases: Leases,
}

// === impl Rules ===

impl Rules {
    /// Adds a rule. Under the rule of a lease the others stay, and decide again when the lease is
    /// over.
    pub(crate) fn add(&mut self, patterns: &Arc<Patterns>, to: impl Into<ToggleTo>) {
        let ToggleTo { wanted, lease } = to.into();
        let Some(selection) = patterns.lasting() else {
            return;
        };
        let is_for_all = selection.include.contains(&Rule::All) && selection.exclude.is_empty();
        if is_for_all && lease.is_none() {
            self.0.clear();
        }
        self.0
            .retain(|kept| kept.lease != lease || kept.patterns.lasting() != Some(selection));
        self.push(SessionRule {
            patterns: Arc::clone(patterns),
            to: wanted,
            lease,
        });
    }

    /// Drops the rules of a lease.
    pub(crate) fn release(&mut self, from: LeaseId) {
        self.0.retain(|kept| kept.lease != Some(from));
        self.drop_needless();
    }

    /// Drops leading rules that switch off: without a rule, functions are off.
    fn drop_needless(&mut self) {
        while self.0.front().is_some_and(|kept| kept.to == Wanted::Off) {
            self.0.pop_front();
        }
    }

    fn push(&mut self, kept: SessionRule) {
        self.0.push_back(kept);
        self.drop_needless();
        // A client that was killed never ends its lease, so rules of leases are dropped before
        // permanent ones.
        let of_client = |lease: LeaseId| !lease.outlives_daemon();
        let lease = self
            .0
            .iter()
            .position(|kept| kept.lease.is_some_and(of_client));
        if self.0.len() > MOST
            && let Some(oldest) = self.0.remove(lease.unwrap_or(0))
        {
            tracing::warn!(
                rule = ?oldest.patterns.lasting(),
                "dropped a rule, because there are too many: it does not apply to libraries that \
                 are loaded from now on"
            );
        }
    }

    /// True if no later function is switched on.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The leases of policies.
    pub(crate) fn policy_leases(&self) -> Vec<LeaseId> {
        let leases = self.0.iter().filter_map(|kept| kept.lease);
        leases.filter(|lease| lease.outlives_daemon()).collect()
    }

    /// The rules that a later daemon goes on with, in ascending order of age: the permanent ones,
    /// and the rules of policies.
    pub(super) fn lasting(&self) -> Vec<(Selection, ToggleTo)> {
        let lasts = |kept: &&SessionRule| kept.lease.is_none_or(LeaseId::outlives_daemon);
        let rule = |kept: &SessionRule| {
            let to = ToggleTo {
                wanted: kept.to,
                lease: kept.lease,
            };
            Some((kept.patterns.lasting()?.clone(), to))
        };
        self.0.iter().filter(lasts).filter_map(rule).collect()
    }

    /// The effect of the rules on the functions of a module.
    pub(crate) fn wishes_in(&self, functions: &Functions, loaded: &Arc<Loaded>) -> RuleEffect {
        let mut effect = RuleEffect::default();
        if self.is_empty() {
            return effect;
        }
        let matchers = self.matchers();
        functions.each_in(loaded, matchers.need_source(), |id, candidate| {
            let lease = matchers.lease(candidate);
            if let Wanted::On(capture) = lease.now() {
                effect.on.entry(capture).or_default().push(id);
            }
            effect.leases.insert(id, lease);
        });
        effect
    }

    /// Adds the leases of a module whose functions have these permanent states, and what is on by
    /// them.
    pub(super) fn add_leases(
        &self,
        functions: &Functions,
        loaded: &Arc<Loaded>,
        permanent: &BTreeMap<FunctionId, Capture>,
        effect: &mut RuleEffect,
    ) {
        let matchers = self.matchers();
        let has_lease = |(_, kept): &(_, &SessionRule)| kept.lease.is_some();
        if !matchers.0.iter().any(has_lease) {
            for (&id, &capture) in permanent {
                effect.on.entry(capture).or_default().push(id);
            }
            return;
        }
        functions.each_in(loaded, matchers.need_source(), |id, candidate| {
            let is = permanent.get(&id).copied();
            let lease = matchers.lease_over(candidate, Some(is.map_or(Wanted::Off, Wanted::On)));
            if let Wanted::On(capture) = lease.now() {
                effect.on.entry(capture).or_default().push(id);
            }
            effect.leases.insert(id, lease);
        });
    }

    fn matchers(&self) -> Matchers<'_> {
        let kept = self.0.iter().rev();
        let matchers = kept.filter_map(|kept| Some((kept.patterns.lasting_matcher()?, kept)));
        Matchers(matchers.collect())
    }
}

// === impl Matchers ===

impl Matchers<'_> {
    /// True if a decision needs the source files of candidates.
    fn need_source(&self) -> bool {
        self.0.iter().any(|(matcher, _)| matcher.needs_source())
    }

    /// The permanent state of a function that was just loaded, and its leases.
    fn lease(&self, candidate: &Candidate<'_>) -> Lease {
        self.lease_over(candidate, None)
    }

    /// The same, for a function with a permanent state that is known.
    fn lease_over(&self, candidate: &Candidate<'_>, permanent: Option<Wanted>) -> Lease {
        let (mut for_good, mut holders) = (Wanted::Off, Vec::new());
        let naming = self.0.iter();
        for (_, kept) in naming.filter(|(matcher, _)| matcher.matches(candidate)) {
            match (kept.lease, kept.to) {
                (Some(holder), Wanted::On(capture)) => holders.push((holder, capture)),
                (_, to) => {
                    for_good = to;
                    break;
                }
            }
        }
        let mut lease = Lease::new(permanent.unwrap_or(for_good));
        for (holder, capture) in holders.into_iter().rev() {
            lease.add(holder, capture);
        }
        lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quotas::{Accounts, Quotas};

    const ON: Wanted = Wanted::On(Capture::NONE);

    fn lease(rules: &Rules, name: &str) -> Lease {
        rules.matchers().lease(&Candidate {
            id: 7,
            module: "/lib/plugin.so",
            symbol: Some(name),
            name,
            ..Candidate::default()
        })
    }

    fn wanted(rules: &Rules, name: &str) -> bool {
        lease(rules, name).now() != Wanted::Off
    }

    fn holder(number: u64) -> LeaseId {
        LeaseId::Client(number.try_into().unwrap())
    }

    fn compiled(selection: &Selection) -> Arc<Patterns> {
        Patterns::new(&Accounts::new(Quotas::NONE), None, selection).unwrap()
    }

    fn all() -> Arc<Patterns> {
        compiled(&Selection::all())
    }

    fn glob(include: &str, exclude: &[&str]) -> Arc<Patterns> {
        compiled(&Selection {
            include: vec![Rule::Glob(include.to_owned())],
            exclude: exclude
                .iter()
                .map(|glob| Rule::Glob((*glob).to_owned()))
                .collect(),
        })
    }

    #[test]
    fn the_last_rule_that_names_a_function_decides() {
        let mut rules = Rules::default();
        assert!(rules.is_empty() && !wanted(&rules, "a_call"));
        rules.add(&glob("a_*", &["*_get"]), ON);
        assert!(wanted(&rules, "a_call") && !wanted(&rules, "a_get") && !wanted(&rules, "b"));
        rules.add(&glob("a_c*", &[]), Wanted::Off);
        assert!(!wanted(&rules, "a_call") && wanted(&rules, "a_put"));
        rules.add(&glob("a_call", &[]), ON);
        assert!(wanted(&rules, "a_call") && !wanted(&rules, "a_count"));
        rules.add(&all(), ON);
        assert!(wanted(&rules, "a_count") && wanted(&rules, "b"));
        rules.add(&all(), Wanted::Off);
        assert!(rules.is_empty());
    }

    #[test]
    fn the_last_rule_also_says_what_is_recorded() {
        let mut rules = Rules::default();
        let recorded = |rules: &Rules, name: &str| match lease(rules, name).now() {
            Wanted::On(capture) => Some(capture.arguments()),
            Wanted::Off => None,
        };
        let with = |count| Wanted::On(Capture::NONE.with_arguments(count).unwrap());
        rules.add(&glob("a_*", &[]), with(2));
        rules.add(&glob("a_c*", &[]), with(6));
        assert_eq!(
            (recorded(&rules, "a_b"), recorded(&rules, "a_c")),
            (Some(2), Some(6))
        );
        rules.add(&glob("a_*", &[]), ON);
        assert_eq!(
            (recorded(&rules, "a_b"), recorded(&rules, "a_c")),
            (Some(0), Some(0))
        );
        rules.add(&glob("a_c*", &[]), Wanted::Off);
        assert_eq!(
            (recorded(&rules, "a_b"), recorded(&rules, "a_c")),
            (Some(0), None)
        );
    }

    #[test]
    fn switching_back_and_forth_takes_no_memory() {
        let mut rules = Rules::default();
        for round in 0..10 {
            for to in [ON, Wanted::Off] {
                rules.add(&glob("a", &[]), to);
                rules.add(&glob("b", &[]), to);
            }
            assert!(rules.is_empty(), "{round}");
        }
        for number in 0..2 * MOST {
            rules.add(&glob(&number.to_string(), &[]), ON);
        }
        assert_eq!(rules.0.len(), MOST);
    }

    #[test]
    fn leases_do_not_crowd_out_what_was_done_for_good() {
        let mut rules = Rules::default();
        rules.add(&glob("a", &[]), ON);
        for number in 1..2 * MOST as u64 {
            rules.add(&glob("b", &[]), ToggleTo::leased(holder(1), Capture::NONE));
            assert_eq!(rules.0.len(), 2, "{number}");
        }
        for number in 1..2 * MOST as u64 {
            rules.add(
                &glob("b", &[]),
                ToggleTo::leased(holder(number), Capture::NONE),
            );
        }
        assert_eq!(rules.0.len(), MOST);
        assert!(wanted(&rules, "a"));
        let newest = holder(2 * MOST as u64 - 1);
        assert!(
            rules
                .0
                .back()
                .is_some_and(|kept| kept.lease == Some(newest))
        );
    }

    #[test]
    fn an_id_says_nothing_of_what_comes_later() {
        let mut rules = Rules::default();
        let ids = compiled(&Selection {
            include: vec![Rule::Id(7)],
            exclude: Vec::new(),
        });
        rules.add(&ids, ON);
        rules.add(&ids, ToggleTo::leased(holder(1), Capture::NONE));
        assert!(rules.is_empty());
        // All but one function that is loaded now. Of later functions these are all, so no rule is
        // left.
        rules.add(&glob("a", &[]), ON);
        let mut but_one = Selection::all();
        but_one.exclude.push(Rule::Id(7));
        rules.add(&compiled(&but_one), Wanted::Off);
        assert!(rules.is_empty());
    }

    #[test]
    fn a_lease_leaves_the_rules_of_others() {
        let with_values = Wanted::On(Capture::NONE.with_arguments(2).unwrap());
        for leased in [all(), glob("a*", &[]), glob("a", &[])] {
            let mut rules = Rules::default();
            rules.add(&glob("a*", &[]), with_values);
            rules.add(&glob("a_off", &[]), Wanted::Off);
            rules.add(&leased, ToggleTo::leased(holder(1), Capture::NONE));
            rules.add(&leased, ToggleTo::leased(holder(2), Capture::NONE));
            // Leases with values do the same.
            assert_eq!(lease(&rules, "a").now(), with_values);
            assert_eq!(
                wanted(&rules, "b"),
                leased.lasting() == Some(&Selection::all())
            );
            rules.release(holder(1));
            assert_eq!(
                wanted(&rules, "b"),
                leased.lasting() == Some(&Selection::all())
            );
            rules.release(holder(2));
            assert_eq!(lease(&rules, "a").now(), with_values);
            assert!(!wanted(&rules, "a_off") && !wanted(&rules, "b"));
            rules.add(&glob("a*", &[]), Wanted::Off);
            assert!(rules.is_empty());
        }
    }

    #[test]
    fn a_permanent_switch_ends_a_lease() {
        let mut rules = Rules::default();
        rules.add(&glob("a*", &[]), ToggleTo::leased(holder(1), Capture::NONE));
        rules.add(&glob("a_b", &[]), Wanted::Off);
        assert!(wanted(&rules, "a") && !wanted(&rules, "a_b"));
        rules.add(&all(), Wanted::Off);
        assert!(rules.is_empty());
    }
}
