//! The parts of a session's status that are made up of several tables: its budget and its modules.

use crate::{
    export::TraceSource,
    target::RefusedModule,
    types::{BudgetStatus, ModuleStatus},
};

/// The budget in force, and what it suppresses.
pub(super) fn budget(source: &TraceSource) -> BudgetStatus {
    let history = &source.control.shared.history;
    history.status(|id| source.functions.name(id).map(|(_, name)| name))
}

/// The modules with sleds: those that are traced, and those that cannot be.
pub(super) fn modules(source: &TraceSource) -> Vec<ModuleStatus> {
    let modules = source.functions.loaded();
    let traced = modules.iter().map(|loaded| {
        let on = loaded
            .functions()
            .filter(|&id| source.control.shared.states.recorded(id).is_some());
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        ModuleStatus {
            path: loaded.module.path.clone(),
            build_id: loaded.module.object.build_id().cloned(),
            functions: count(loaded.functions().count()),
            functions_on: count(on.count()),
            copied_bytes: loaded.copied(),
            armed: loaded.armed(),
            refusal: None,
        }
    });
    let refused = source.control.shared.refused().into_iter();
    let refused = refused.map(|RefusedModule { path, refusal, .. }| ModuleStatus {
        path,
        build_id: None,
        functions: 0,
        functions_on: 0,
        copied_bytes: 0,
        armed: None,
        refusal: Some(refusal),
    });
    traced.chain(refused).collect()
}
