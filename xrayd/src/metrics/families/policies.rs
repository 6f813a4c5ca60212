//! The families about tracing policies.

use std::collections::BTreeMap;

use super::{Exposition, Family, counter, gauge};
use crate::policies::{PolicySource, PolicyStatus};

const POLICIES: Family = gauge(
    "xrayd_policies",
    None,
    "Policies by state. A broken one is a file that has never been a policy.",
);
const MISTAKES: Family = gauge(
    "xrayd_policy_file_mistakes",
    None,
    "Mistakes of a file of policies. While there are any, the file changes nothing.",
);
const PROCESSES: Family = gauge(
    "xrayd_policy_processes",
    None,
    "Processes that a policy matches, by state.",
);
const REFUSED: Family = gauge(
    "xrayd_policy_refused",
    None,
    "Processes that a policy matches and cannot trace, by reason.",
);
const EVENTS: Family = counter(
    "xrayd_policy_events",
    None,
    "Recorded events of the processes of a policy since the daemon's start.",
);
const LOST: Family = counter(
    "xrayd_policy_events_lost",
    None,
    "Events lost in the processes of a policy since the daemon's start.",
);

const STATES: [&str; 3] = ["in-force", "expired", "broken"];

/// Writes the families.
pub(super) fn policies(page: &mut Exposition, policies: &[PolicyStatus]) {
    page.family(&POLICIES);
    for state in STATES {
        let are = policies.iter().filter(|policy| state_of(policy) == state);
        page.sample(&POLICIES, &[("state", state)], are.count());
    }
    page.family(&MISTAKES);
    for policy in policies {
        if let PolicySource::File(path) = &policy.source {
            let file = path.display().to_string();
            page.sample(&MISTAKES, &[("file", &file)], policy.mistakes.len());
        }
    }
    let mut named = policies.to_vec();
    named.retain(|policy| !policy.name.is_empty());
    page.family(&PROCESSES);
    for policy in &named {
        let states = [
            ("traced", policy.traced.len()),
            ("refused", policy.refused.len()),
            ("too-young", policy.too_young as usize),
            ("beyond-max", policy.beyond as usize),
        ];
        for (state, number) in states {
            let labels = [("policy", policy.name.as_str()), ("state", state)];
            page.sample(&PROCESSES, &labels, number);
        }
    }
    page.family(&REFUSED);
    for policy in &named {
        let mut reasons = BTreeMap::<&str, u64>::new();
        for (_, refusal) in &policy.refused {
            *reasons.entry(refusal.reason.id()).or_default() += 1;
        }
        for (reason, number) in reasons {
            let labels = [("policy", policy.name.as_str()), ("reason", reason)];
            page.sample(&REFUSED, &labels, number);
        }
    }
    type Number = fn(&PolicyStatus) -> u64;
    let numbers: [(Family, Number); 2] = [
        (EVENTS, |policy| policy.events),
        (LOST, |policy| policy.lost),
    ];
    for (family, number) in numbers {
        page.family(&family);
        for policy in &named {
            page.sample(&family, &[("policy", &policy.name)], number(policy));
        }
    }
}

fn state_of(policy: &PolicyStatus) -> &'static str {
    match (policy.name.is_empty(), policy.has_expired) {
        (true, _) => "broken",
        (false, true) => "expired",
        (false, false) => "in-force",
    }
}
