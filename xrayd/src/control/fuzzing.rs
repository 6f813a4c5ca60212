//! Entry points for a fuzz target: how a session handles a selection and a filter of a client. They
//! exist only with `--cfg fuzzing`.

use std::num::NonZeroU64;

use sled_encoders::Capture;
use xray_trace::{
    instr_map::{Candidate, Rule, Selection},
    model::{ClockAnchor, Ticks},
};

use super::{Patterns, Rules, filter::Filtering};
use crate::{
    pid::Pid,
    quotas::{Accounts, Quotas, Resource},
    types::{Filter, LeaseId, ToggleTo, Wanted},
};

/// A user with quotas.
const USER: Option<u32> = Some(1000);

/// Functions to match selections with.
const CANDIDATES: [(&str, &str, Option<&str>, u64); 3] = [
    ("/usr/bin/demo", "main", Some("src/main.c"), 100),
    ("/lib/plugin.so", "ns::Class::method(int) const", None, 7),
    ("/lib/plugin.so", "", Some("../ü/x.cc"), 0),
];

/// Compiles a selection, keeps it as rules, and matches functions with it.
///
/// # Panics
/// Dropped patterns stay in the user's account, or the same rule is kept twice.
pub(crate) fn keep_selection(selection: &Selection, to: Wanted) {
    let accounts = Accounts::new(Quotas::DAEMON);
    let compile = || Patterns::new(&accounts, USER, selection);
    let Ok(patterns) = compile() else {
        return;
    };
    let mut rules = [Rules::default(), Rules::default()];
    for rules in &mut rules {
        rules.add(&patterns, to);
        rules.add(
            &patterns,
            ToggleTo::leased(LeaseId::Client(NonZeroU64::MIN), Capture::NONE),
        );
        rules.release(LeaseId::Client(NonZeroU64::MIN));
        rules.add(&patterns, to);
        assert!(!rules.is_empty() || to == Wanted::Off || patterns.lasting().is_none());
    }
    let ids = selection.include.iter().chain(&selection.exclude);
    let ids = ids.filter_map(|rule| match rule {
        Rule::Id(id) => Some(*id),
        _ => None,
    });
    let ids: Vec<u32> = ids.collect();
    let unnamed = (0..).find(|id| !ids.contains(id)).unwrap_or(0);
    let matcher = patterns.matcher();
    let lasting = patterns.lasting_matcher();
    for (module, name, source, size) in CANDIDATES {
        let candidate = Candidate {
            id: unnamed,
            module,
            symbol: Some(name),
            name,
            source,
            size,
            always_instrumented: size == 7,
        };
        // Rules by id select no function that comes later.
        let later = lasting.as_ref().is_some_and(|it| it.matches(&candidate));
        assert_eq!(matcher.matches(&candidate), later, "{selection:?}");
    }
    drop((rules, patterns));
    let again: Vec<_> = (0..2).map(|_| compile()).collect();
    assert!(again.iter().any(Result::is_ok), "nobody keeps it");
}

/// Puts a filter into force.
///
/// # Panics
/// A checked filter is refused, or an unchecked one is accepted.
pub(crate) fn keep_filter(filter: &Filter) {
    let attached = ClockAnchor {
        ticks: Ticks(1),
        wall_ns: 1,
        monotonic_ns: 1,
    };
    let checked = filter.check().is_ok();
    let filtering = Filtering::new(Pid::this(), filter, attached);
    assert_eq!(filtering.is_ok(), checked, "{filter:?}");
    let Ok(mut filtering) = filtering else {
        return;
    };
    let accounts = Accounts::new(Quotas::DAEMON);
    let _ = filtering.pay(|size| accounts.take(USER, &[(Resource::Patterns, size as u64)]));
    let note = filter.note();
    assert!(note.len() < 5000, "{} bytes", note.len());
}
