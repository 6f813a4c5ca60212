//! A selection that is compiled once for all processes, with its share of the user's quota.
//!
//! Each request has one while it runs. Rules keep it for libraries that come later. All processes
//! of a group share it, so a user pays once. `Selection::all` takes nothing of the quota, so
//! switching all functions off is always possible.

use std::sync::Arc;

use xray_trace::instr_map::{CompiledSelection, Rule, Selection};

use crate::{
    quotas::{Accounts, Resource, Ticket},
    refusal::Result,
    types::compile,
};

/// A compiled selection.
#[derive(Debug)]
pub struct Patterns {
    selection: Selection,
    compiled: CompiledSelection,
    lasting: Lasting,
    /// Dropped with the last rule and the last request that have the selection.
    _ticket: Ticket,
}

/// The part of a selection that holds for functions that come later: all rules but ids.
#[derive(Debug)]
enum Lasting {
    All,
    Part(Box<(Selection, CompiledSelection)>),
    Nothing,
}

/// A selection, compiled or not.
#[derive(Debug, Clone, Copy)]
pub enum Chosen<'a> {
    /// A selection whose patterns count for the user who attached.
    Selection(&'a Selection),
    /// Patterns that count for the user they were compiled for.
    Patterns(&'a Arc<Patterns>),
}

// === impl Patterns ===

impl Patterns {
    /// Compiles a selection for this user. `None` stands for root.
    ///
    /// # Errors
    /// The selection is invalid, or the user's compiled patterns exceed the quota.
    pub(crate) fn new(
        accounts: &Arc<Accounts>,
        payer: Option<u32>,
        selection: &Selection,
    ) -> Result<Arc<Self>> {
        let compiled = compile(selection)?;
        let mut size = compiled.size();
        let lasting = match without_ids(selection) {
            None => Lasting::All,
            Some(part) if part.include.is_empty() => Lasting::Nothing,
            Some(part) => {
                let compiled = compile(&part)?;
                size += compiled.size();
                Lasting::Part(Box::new((part, compiled)))
            }
        };
        let ticket = accounts.take(payer, &[(Resource::Patterns, size as u64)])?;
        Ok(Arc::new(Self {
            selection: selection.clone(),
            compiled,
            lasting,
            _ticket: ticket,
        }))
    }

    /// A copy for matching. The states of its automata grow while it matches, and are dropped with
    /// it.
    pub(crate) fn matcher(&self) -> CompiledSelection {
        self.compiled.clone()
    }

    /// The part that holds for functions that come later. `None` if it is empty.
    pub(crate) fn lasting(&self) -> Option<&Selection> {
        match &self.lasting {
            Lasting::All => Some(&self.selection),
            Lasting::Part(part) => Some(&part.0),
            Lasting::Nothing => None,
        }
    }

    /// A copy for matching functions that come later, as [`Self::matcher`].
    pub(crate) fn lasting_matcher(&self) -> Option<CompiledSelection> {
        match &self.lasting {
            Lasting::All => Some(self.compiled.clone()),
            Lasting::Part(part) => Some(part.1.clone()),
            Lasting::Nothing => None,
        }
    }
}

/// The selection without ids. `None` if no rule is an id.
fn without_ids(selection: &Selection) -> Option<Selection> {
    let is_id = |rule: &Rule| matches!(rule, Rule::Id(_));
    let Selection { include, exclude } = selection;
    if !include.iter().chain(exclude).any(is_id) {
        return None;
    }
    let lasting = |rules: &[Rule]| {
        let lasting = rules.iter().filter(|rule| !is_id(rule));
        lasting.cloned().collect()
    };
    Some(Selection {
        include: lasting(include),
        exclude: lasting(exclude),
    })
}

// === impl Chosen ===

impl Chosen<'_> {
    /// Compiles the selection for this user, unless it is compiled already.
    ///
    /// # Errors
    /// As [`Patterns::new`].
    pub(crate) fn compiled(
        self,
        accounts: &Arc<Accounts>,
        payer: Option<u32>,
    ) -> Result<Arc<Patterns>> {
        match self {
            Self::Selection(selection) => Patterns::new(accounts, payer, selection),
            Self::Patterns(patterns) => Ok(Arc::clone(patterns)),
        }
    }
}

impl<'a> From<&'a Selection> for Chosen<'a> {
    fn from(selection: &'a Selection) -> Self {
        Self::Selection(selection)
    }
}

impl<'a> From<&'a Arc<Patterns>> for Chosen<'a> {
    fn from(patterns: &'a Arc<Patterns>) -> Self {
        Self::Patterns(patterns)
    }
}

#[cfg(test)]
mod tests {
    use sled_encoders::Capture;

    use super::*;
    use crate::{
        control::rules::Rules,
        quotas::Quotas,
        refusal::{Reason, Refusal},
        types::Wanted,
    };

    fn selection(regexes: impl Iterator<Item = String>) -> Selection {
        Selection {
            include: regexes.map(Rule::Regex).collect(),
            exclude: Vec::new(),
        }
    }

    /// Keeps the selections that one user requests, until one is refused.
    fn keep_until_refused(request: impl Fn(usize) -> Selection) -> (usize, Refusal) {
        let quota = "patterns=8MiB/32MiB".parse().unwrap();
        let accounts = Accounts::new(Quotas::DAEMON.with(quota));
        // Two processes of a group.
        let mut rules = [Rules::default(), Rules::default()];
        for number in 0..1000 {
            match Patterns::new(&accounts, Some(1000), &request(number)) {
                Ok(patterns) => {
                    for rules in &mut rules {
                        rules.add(&patterns, Wanted::On(Capture::NONE));
                    }
                }
                Err(refusal) => {
                    // Other users, root, and switching everything off still get through.
                    for payer in [Some(1001), None] {
                        assert!(Patterns::new(&accounts, payer, &request(number)).is_ok());
                    }
                    let all = Patterns::new(&accounts, Some(1000), &Selection::all()).unwrap();
                    for rules in &mut rules {
                        rules.add(&all, Wanted::Off);
                        assert!(rules.is_empty());
                    }
                    // Switching everything off gives everything back.
                    assert!(Patterns::new(&accounts, Some(1000), &request(number)).is_ok());
                    return (number, refusal);
                }
            }
        }
        panic!("nothing was refused");
    }

    #[test]
    fn large_many_small_and_repeated_rules_are_refused_by_the_quota() {
        let large = |number| selection((0..10).map(move |at| format!("a{number}_{at}\\w{{4}}")));
        let small = |number| selection((0..100).map(move |at| format!("a{number}_{at}.*b")));
        // Rules without a text take memory as well.
        let repeated = |number| Selection {
            include: vec![Rule::All; 10_000],
            exclude: vec![Rule::Function(format!("a{number}"))],
        };
        let forms: [&dyn Fn(usize) -> Selection; 3] = [&large, &small, &repeated];
        for request in forms {
            let size = compile(&request(0)).unwrap().size();
            let (kept, refusal) = keep_until_refused(request);
            assert_eq!(refusal.reason, Reason::Quota);
            for part in [
                "user 1000 has",
                "of at most 8MiB",
                "xrayd --quota patterns=8MiB/32MiB",
            ] {
                assert!(refusal.message.contains(part), "{}", refusal.message);
            }
            // The processes of the group share the compiled selection.
            let most = (8 << 20) / size;
            assert!(
                kept.abs_diff(most) <= 1 + most / 10,
                "{kept} of {most}, {size} bytes each"
            );
        }
    }

    #[test]
    fn a_selection_that_is_too_big_by_itself_is_refused_before_it_is_compiled_whole() {
        let accounts = Accounts::new(Quotas::NONE);
        let huge = selection((0..1000).map(|at| format!("{at}\\w{{8}}")));
        let refusal = Patterns::new(&accounts, None, &huge).unwrap_err();
        assert_eq!(refusal.reason, Reason::Selection);
        assert!(refusal.message.contains("16 MiB"), "{}", refusal.message);
    }

    #[test]
    fn ids_mean_nothing_that_comes_later() {
        let accounts = Accounts::new(Quotas::NONE);
        let mut both = selection(["a".to_owned()].into_iter());
        let patterns = Patterns::new(&accounts, None, &both).unwrap();
        assert_eq!(patterns.lasting(), Some(&both));
        let without = both.clone();
        both.include.push(Rule::Id(7));
        let patterns = Patterns::new(&accounts, None, &both).unwrap();
        assert_eq!(patterns.lasting(), Some(&without));
        assert!(patterns.lasting_matcher().is_some());
        both.include.remove(0);
        let patterns = Patterns::new(&accounts, None, &both).unwrap();
        assert!(patterns.lasting().is_none() && patterns.lasting_matcher().is_none());
    }
}
