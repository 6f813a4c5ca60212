//! What was switched on and off, as rules: they say what becomes of a library that is loaded later.
//!
//! The last rule that names a function decides. A rule by id names no function that comes later, so ids are left out.

use std::collections::VecDeque;

use xray_trace::instr_map::{Candidate, CompiledSelection, Rule, Selection};

use super::Switch;

/// Rules kept. Who switches more than that by different selections, one by one, has the oldest forgotten.
const MOST: usize = 1024;

/// The rules of a session, the oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules(VecDeque<Kept>);

#[derive(Debug, Clone)]
struct Kept {
    selection: Selection,
    compiled: CompiledSelection,
    to: Switch,
}

// === impl Rules ===

impl Rules {
    /// Adds what has been done. Switching off all but some, named by id, takes the rule back that was switched on by.
    pub(super) fn add(&mut self, selection: &Selection, to: Switch) {
        let takes_back = to == Switch::Off && selection.exclude.iter().any(is_id);
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
        while self.0.front().is_some_and(|kept| kept.to == Switch::Off) {
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
    pub(super) fn needs_source(&self) -> bool {
        self.0.iter().any(|kept| kept.compiled.needs_source())
    }

    /// Whether a function that has just come is to be switched on.
    pub(super) fn want(&self, candidate: &Candidate<'_>) -> bool {
        let last = self
            .0
            .iter()
            .rev()
            .find(|kept| kept.compiled.matches(candidate));
        last.is_some_and(|kept| kept.to == Switch::On)
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

    fn wanted(rules: &Rules, name: &str) -> bool {
        rules.want(&Candidate {
            id: 7,
            module: "/lib/plugin.so",
            symbol: Some(name),
            name,
            source: None,
        })
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
        rules.add(&glob("a_*", &["*_get"]), Switch::On);
        assert!(wanted(&rules, "a_call") && !wanted(&rules, "a_get") && !wanted(&rules, "b"));
        rules.add(&glob("a_c*", &[]), Switch::Off);
        assert!(!wanted(&rules, "a_call") && wanted(&rules, "a_put"));
        rules.add(&glob("a_call", &[]), Switch::On);
        assert!(wanted(&rules, "a_call") && !wanted(&rules, "a_count"));
        rules.add(&Selection::all(), Switch::On);
        assert!(wanted(&rules, "a_count") && wanted(&rules, "b"));
        rules.add(&Selection::all(), Switch::Off);
        assert!(rules.is_empty());
    }

    #[test]
    fn what_is_switched_back_and_forth_takes_no_room() {
        let mut rules = Rules::default();
        for round in 0..10 {
            for to in [Switch::On, Switch::Off] {
                rules.add(&glob("a", &[]), to);
                rules.add(&glob("b", &[]), to);
            }
            assert!(rules.is_empty(), "{round}");
        }
        for number in 0..2 * MOST {
            rules.add(&glob(&number.to_string(), &[]), Switch::On);
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
        rules.add(&ids, Switch::On);
        assert!(rules.is_empty());
        // Switching off all but what was on before takes a rule back, and leaves the others.
        rules.add(&glob("a", &[]), Switch::On);
        rules.add(&Selection::all(), Switch::On);
        rules.add(&glob("a*", &[]), Switch::On);
        let mut undo = Selection::all();
        undo.exclude.push(Rule::Id(7));
        rules.add(&undo, Switch::Off);
        assert!(wanted(&rules, "a") && !wanted(&rules, "b"));
    }
}
