//! The choices of a session: its settings, its rules, and the functions that are on for good. A
//! later daemon goes on with them, if this one ends without a detach.
//!
//! Ids of functions hold for one daemon only, because a later one numbers the modules anew. So the
//! choices name a function by its module and its index there. The leases of clients are no choices:
//! the daemon's end breaks the connections of their holders. The leases of policies are among the
//! rules.

use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc};

use sled_encoders::Capture;
use xray_trace::{instr_map::Selection, model::FunctionId};

use super::{
    patterns::Patterns,
    rules::{RuleEffect, Rules},
    shared::Shared,
};
use crate::{
    lock::lock,
    quotas::Accounts,
    refusal::Result,
    target::{Functions, Loaded},
    types::{Settings, ToggleTo},
};

/// The choices of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Choices {
    pub(crate) settings: Settings,
    /// Selections, the oldest first. The selections of policies hold for all modules, and
    /// the others for modules without an entry in `modules`.
    pub(crate) rules: Vec<(Selection, ToggleTo)>,
    pub(crate) modules: Vec<ChosenModule>,
}

/// The functions of one module that are on for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChosenModule {
    pub(crate) path: String,
    /// The place of the module, see [`crate::target::Module::bias`].
    pub(crate) bias: u64,
    /// Number of functions in the module.
    pub(crate) functions: u32,
    /// Ranges of indexes of functions in the module, and what is recorded of them.
    pub(crate) on: Vec<(Range<u32>, Capture)>,
}

/// Choices whose selections are compiled.
#[derive(Debug, Default)]
pub(crate) struct CompiledChoices {
    pub(crate) settings: Settings,
    pub(crate) rules: Rules,
    modules: Vec<ChosenModule>,
}

/// Keeps the choices of a session for a later daemon.
pub(crate) trait ChoiceKeeper: fmt::Debug + Send + Sync {
    /// Replaces the choices. A change counts as made once this returns.
    fn keep(&self, choices: Choices);

    /// The process has ended, or runs another program. The session has its retained events only.
    fn end(&self);

    /// The session is over, and no daemon goes on with it.
    fn forget(&self);
}

// === impl Choices ===

impl Choices {
    pub(super) fn of(
        settings: Settings,
        rules: &Rules,
        functions: &Functions,
        shared: &Shared,
    ) -> Self {
        let mut for_good = shared.states.all_recorded();
        lock(&shared.leases).set_for_good(&mut for_good);
        let modules = functions.loaded();
        let modules = modules
            .iter()
            .map(|loaded| ChosenModule::of(loaded, &for_good));
        Self {
            settings,
            rules: rules.lasting(),
            modules: modules.collect(),
        }
    }

    /// Compiles the selections. They count for the quota of the user `payer`; `None` stands for
    /// root.
    ///
    /// # Errors
    /// A selection is invalid, or the user's compiled patterns exceed the quota.
    pub(crate) fn compile(
        &self,
        accounts: &Arc<Accounts>,
        payer: Option<u32>,
    ) -> Result<CompiledChoices> {
        let mut rules = Rules::default();
        for (selection, to) in &self.rules {
            rules.add(&Patterns::new(accounts, payer, selection)?, *to);
        }
        Ok(CompiledChoices {
            settings: self.settings.clone(),
            rules,
            modules: self.modules.clone(),
        })
    }
}

// === impl ChosenModule ===

impl ChosenModule {
    /// `for_good` has by id what is recorded of each function when all leases are over.
    fn of(loaded: &Loaded, for_good: &[Option<Capture>]) -> Self {
        let mut on: Vec<(Range<u32>, Capture)> = Vec::new();
        for (index, id) in (0u32..).zip(loaded.functions()) {
            let Some(capture) = for_good.get(id.0 as usize).copied().flatten() else {
                continue;
            };
            match on.last_mut() {
                Some((range, its)) if range.end == index && *its == capture => range.end += 1,
                _ => on.push((index..index + 1, capture)),
            }
        }
        Self {
            path: loaded.module.path.clone(),
            bias: loaded.module.bias,
            functions: functions_of(loaded),
            on,
        }
    }

    /// The functions that are on for good. Indexes beyond those of the module name none.
    fn permanent(&self, loaded: &Loaded) -> BTreeMap<FunctionId, Capture> {
        let ids: Vec<FunctionId> = loaded.functions().collect();
        let on = self.on.iter().filter_map(|(range, capture)| {
            let ids = ids.get(range.start as usize..range.end as usize)?;
            Some(ids.iter().map(|&id| (id, *capture)))
        });
        on.flatten().collect()
    }

    fn is(&self, loaded: &Loaded) -> bool {
        self.path == loaded.module.path
            && self.bias == loaded.module.bias
            && self.functions == functions_of(loaded)
    }
}

fn functions_of(loaded: &Loaded) -> u32 {
    u32::try_from(loaded.functions().count()).unwrap_or(u32::MAX)
}

// === impl CompiledChoices ===

impl CompiledChoices {
    /// The functions that are to be on.
    pub(crate) fn effect(&self, functions: &Functions) -> RuleEffect {
        let mut effect = RuleEffect::default();
        for loaded in &functions.loaded() {
            match self.modules.iter().find(|module| module.is(loaded)) {
                Some(module) => {
                    let permanent = module.permanent(loaded);
                    self.rules
                        .add_leases(functions, loaded, &permanent, &mut effect);
                }
                None => {
                    let RuleEffect { on, leases } = self.rules.wishes_in(functions, loaded);
                    for (capture, ids) in on {
                        effect.on.entry(capture).or_default().extend(ids);
                    }
                    effect.leases.extend(leases);
                }
            }
        }
        effect
    }
}
