//! What was switched on and off, as rules: they say what becomes of a library that is loaded later.
//!
//! The last rule that names a function decides. A rule by id names no function that comes later, so ids are left out.

use std::collections::{BTreeSet, VecDeque};

use sled_encoders::Capture;
use xray_trace::{
    instr_map::{Candidate, CompiledSelection, Rule, Selection},
    model::FunctionId,
};

use super::{
    Wanted,
    functions::{Functions, Loaded},
};

/// Rules kept. Who switches more than that by different selections, one by one, has the oldest forgotten.
const MOST: usize = 1024;

/// The rules of a session, the oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules(VecDeque<Kept>);

#[derive(Debug, Clone)]
struct Kept {
    selection: Selection,
    compiled: CompiledSelection,
    to: Wanted,
}

// === impl Rules ===

impl Rules {
    /// Adds what has been done. Switching off all but some, named by id, takes the rule back that was switched on by.
    pub(super) fn add(&mut self, selection: &Selection, to: Wanted) {
        let takes_back = to == Wanted::Off && selection.exclude.iter().any(is_id);
        let Some((selection, compiled)) = lasting(selection) else {
            return;
        };
        self.0.retain(|kept| kept.selection != selection);
        if !takes_back {
            if selection.include.contains(&Rule::All) && selection.exclude.is_empty() {
                self.0.clear();
            }
            self.0.push_back(Kept {
                selection,
                compiled,
                to,
            });
        }
        // What nobody has switched on is off.
        while self.0.front().is_some_and(|kept| kept.to == Wanted::Off) {
            self.0.pop_front();
        }
        if self.0.len() > MOST
            && let Some(oldest) = self.0.pop_front()
        {
            tracing::warn!(
                rule = ?oldest.selection,
                "libraries that are loaded later will not be switched by this rule: there are too many"
            );
        }
    }

    /// True if nothing is switched on that comes later.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a candidate's source must be known to decide.
    fn needs_source(&self) -> bool {
        self.0.iter().any(|kept| kept.compiled.needs_source())
    }

    /// The functions of a module that are to be switched on, by what is recorded of them.
    pub(super) fn wanted_in(
        &self,
        functions: &Functions,
        loaded: &Loaded,
    ) -> Vec<(Capture, Vec<FunctionId>)> {
        let captures = self.captures().into_iter().map(|capture| {
            let ids = functions.matching_in(loaded, self.needs_source(), |candidate| {
                self.want(candidate) == Some(capture)
            });
            (capture, ids)
        });
        captures.collect()
    }

    /// All that is recorded of calls by any of the rules.
    fn captures(&self) -> BTreeSet<Capture> {
        let captures = self.0.iter().filter_map(|kept| match kept.to {
            Wanted::On(capture) => Some(capture),
            Wanted::Off => None,
        });
        captures.collect()
    }

    /// What a function that has just come is to record; `None` if it is not to be switched on.
    fn want(&self, candidate: &Candidate<'_>) -> Option<Capture> {
        let last = self
            .0
            .iter()
            .rev()
            .find(|kept| kept.compiled.matches(candidate));
        match last?.to {
            Wanted::On(capture) => Some(capture),
            Wanted::Off => None,
        }
    }
}

/// What of a selection means functions that come later: all but ids. `None` if that is nothing.
pub(super) fn lasting(selection: &Selection) -> Option<(Selection, CompiledSelection)> {
    let without_ids = |rules: &[Rule]| -> Vec<Rule> {
        let lasting = rules.iter().filter(|rule| !is_id(rule));
        lasting.cloned().collect()
    };
    let selection = Selection {
        include: without_ids(&selection.include),
        exclude: without_ids(&selection.exclude),
    };
    if selection.include.is_empty() {
        return None;
    }
    let compiled = CompiledSelection::new(&selection).ok()?;
    Some((selection, compiled))
}

fn is_id(rule: &Rule) -> bool {
    matches!(rule, Rule::Id(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: Wanted = Wanted::On(Capture::NONE);

    fn wanted(rules: &Rules, name: &str) -> bool {
        rules
            .want(&Candidate {
                id: 7,
                module: "/lib/plugin.so",
                symbol: Some(name),
                name,
                source: None,
            })
            .is_some()
    }

    fn glob(include: &str, exclude: &[&str]) -> Selection {
        Selection {
            include: vec![Rule::Glob(include.to_owned())],
            exclude: exclude
                .iter()
                .map(|glob| Rule::Glob((*glob).to_owned()))
                .collect(),
        }
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
        rules.add(&Selection::all(), ON);
        assert!(wanted(&rules, "a_count") && wanted(&rules, "b"));
        rules.add(&Selection::all(), Wanted::Off);
        assert!(rules.is_empty());
    }

    #[test]
    fn the_last_rule_also_says_what_is_recorded() {
        let mut rules = Rules::default();
        let recorded = |rules: &Rules, name: &str| {
            let candidate = Candidate {
                id: 7,
                module: "/lib/plugin.so",
                symbol: Some(name),
                name,
                source: None,
            };
            rules.want(&candidate).map(Capture::arguments)
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
        assert_eq!(rules.captures().len(), 1);
    }

    #[test]
    fn what_is_switched_back_and_forth_takes_no_room() {
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
    fn an_id_says_nothing_of_what_comes_later() {
        let mut rules = Rules::default();
        let ids = Selection {
            include: vec![Rule::Id(7)],
            exclude: Vec::new(),
        };
        rules.add(&ids, ON);
        assert!(rules.is_empty());
        // Switching off all but what was on before takes a rule back, and leaves the others.
        rules.add(&glob("a", &[]), ON);
        rules.add(&Selection::all(), ON);
        rules.add(&glob("a*", &[]), ON);
        let mut undo = Selection::all();
        undo.exclude.push(Rule::Id(7));
        rules.add(&undo, Wanted::Off);
        assert!(wanted(&rules, "a") && !wanted(&rules, "b"));
    }
}
