//! The parts of a session's status that are made up of several tables: its budget and its modules.

use std::{collections::BTreeSet, sync::Arc};

use xray_trace::model::Clock;

use crate::{
    export::TraceSource,
    target::RefusedModule,
    types::{BudgetStatus, ModuleStatus, TimedGap},
};

/// The most bytes of descriptions of events in an answer.
const MOST_FORMAT_BYTES: usize = 1 << 20;

/// The budget in force, and what it suppresses.
pub(super) fn budget(source: &TraceSource) -> BudgetStatus {
    let history = &source.control.shared.history;
    history.status(|id| source.tables.functions.name(id).map(|(_, name)| name))
}

/// The modules with sleds: those that are traced, and those that cannot be.
pub(super) fn modules(source: &TraceSource) -> Vec<ModuleStatus> {
    let modules = source.tables.functions.loaded();
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

/// The descriptions that the modules of these processes have of the data of their events, each
/// once.
pub(crate) fn event_formats<S: AsRef<TraceSource>>(
    sessions: impl Iterator<Item = Arc<S>>,
) -> Vec<String> {
    let (mut texts, mut left) = (BTreeSet::new(), MOST_FORMAT_BYTES);
    for session in sessions {
        let source: &TraceSource = (*session).as_ref();
        for loaded in source.tables.functions.loaded() {
            for text in loaded.module.object.event_formats() {
                if texts.contains(text) {
                    continue;
                }
                match left.checked_sub(text.len()) {
                    Some(rest) => left = rest,
                    None => return texts.into_iter().collect(),
                }
                texts.insert(text.clone());
            }
        }
    }
    texts.into_iter().collect()
}

/// The times in which an unknown number of events was lost.
pub(super) fn gaps(source: &TraceSource) -> Vec<TimedGap> {
    let gaps = source.control.shared.gaps();
    if gaps.is_empty() {
        return Vec::new();
    }
    let anchors = source
        .output
        .with_retained(|retained| retained.anchors().to_vec());
    let clock = Clock::new(anchors);
    let gaps = gaps.into_iter().map(|gap| TimedGap {
        from_ns: gap.from.map(|from| clock.monotonic_ns(from)),
        to_ns: clock.monotonic_ns(gap.until),
        cause: gap.cause,
    });
    gaps.collect()
}
