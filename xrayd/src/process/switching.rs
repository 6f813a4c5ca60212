//! Switching the functions of one session: as a selection says, as in another process, and as a
//! lease ends.

use std::sync::Arc;

use xray_trace::{instr_map::Candidate, model::FunctionId};

use crate::{
    control::{Patterns, RuleEffect, Rules, ToggleRequest},
    export::TraceSource,
    refusal::{Reason, Refusal, Result},
    target::{Indexes, let_threads_run},
    types::{LeaseId, Run, ToggleReport, ToggleTo},
};

/// Switches the functions that a selection matches.
pub(super) fn toggle(
    source: &TraceSource,
    patterns: Arc<Patterns>,
    to: ToggleTo,
    run: Run,
) -> Result<ToggleReport> {
    let compiled = patterns.matcher();
    let modules = source.tables.functions.loaded();
    let ids = source.tables.functions.matching(&modules, &compiled);
    if compiled.needs_source() && source.tables.functions.lacks_lines() {
        let message = format!(
            "process {}: functions cannot be selected by source file, because a file with \
             source lines does not answer",
            source.control.pid
        );
        return Err(Refusal::new(Reason::Busy, message));
    }
    begin_lease(source, to.lease, run);
    source.control.toggle(ToggleRequest {
        ids,
        of: Indexes::of(&modules),
        patterns,
        later: Some(compiled),
        to,
        run,
    })
}

/// Sends the begin of the lease to its subscriptions. EarlierSession events are not part of it.
fn begin_lease(source: &TraceSource, lease: Option<LeaseId>, run: Run) {
    if let (Some(lease), Run::Real) = (lease, run) {
        source.output.readers.begin_lease(lease);
    }
}

/// Sends the end of the lease to its subscriptions. Later events are not part of it.
pub(super) fn stop_lease(source: &TraceSource, lease: LeaseId) {
    source.output.readers.stop_lease(lease);
}

/// Ends a lease, and the subscriptions of the lease. The subscriptions have all events up to now.
pub(super) fn release(source: &TraceSource, from: LeaseId) -> Result<ToggleReport> {
    stop_lease(source, from);
    let report = source.control.release(from);
    if source.output.readers.has_lease(from) {
        // A thread may still be in a trampoline with an event of the lease. If it waits there for
        // room, this gives it some.
        if source.output.wait() > 0 {
            let _ = source.control.flush();
        }
        let_threads_run(source.control.pid);
        let flushed = source.control.flush();
        source.output.readers.end_lease(from);
        return report.and_then(|report| flushed.map(|()| report));
    }
    report
}

/// Switches the functions that a selection matches in another process. Ids in it are those of
/// `other`, and mean functions that are loaded in both.
pub(super) fn toggle_as(
    source: &TraceSource,
    other: &TraceSource,
    patterns: &Arc<Patterns>,
    to: ToggleTo,
    run: Run,
) -> Result<ToggleReport> {
    let compiled = patterns.matcher();
    let modules = source.tables.functions.loaded();
    begin_lease(source, to.lease, run);
    let matching = modules.iter().flat_map(|loaded| {
        let first = other.tables.functions.first_of_same(loaded);
        let needs_source = compiled.needs_source();
        source
            .tables
            .functions
            .matching_in(loaded, needs_source, |candidate| {
                let id = first.map(|first| first + (candidate.id - loaded.first()));
                // No function has this id.
                let id = id.unwrap_or(u32::MAX - 1);
                compiled.matches(&Candidate { id, ..*candidate })
            })
    });
    source.control.toggle(ToggleRequest {
        ids: matching.collect(),
        of: Indexes::of(&modules),
        patterns: Arc::clone(patterns),
        later: patterns.lasting_matcher(),
        to,
        run,
    })
}

/// Takes over `rules`, and switches on what they select. In modules that are loaded in
/// `parent`, too, the functions are switched on that are on there.
pub(super) fn begin_as(
    source: &TraceSource,
    rules: Rules,
    parent: Option<&TraceSource>,
) -> Result<()> {
    let modules = source.tables.functions.loaded();
    let mut effect = RuleEffect::default();
    for loaded in &modules {
        let like = parent
            .and_then(|parent| Some((parent, parent.tables.functions.first_of_same(loaded)?)));
        match like {
            Some((parent, first)) => {
                for (like, id) in (first..).zip(loaded.functions()) {
                    let like = FunctionId(like);
                    if let Some(capture) = parent.control.shared.states.recorded(like) {
                        effect.on.entry(capture).or_default().push(id);
                    }
                    if let Some(lease) = parent.control.shared.lease(like) {
                        effect.leases.insert(id, lease);
                    }
                }
            }
            None => {
                let RuleEffect { on, leases } = rules.wishes_in(&source.tables.functions, loaded);
                for (capture, its) in on {
                    effect.on.entry(capture).or_default().extend(its);
                }
                effect.leases.extend(leases);
            }
        }
    }
    source.control.begin(rules, effect, Indexes::of(&modules))
}
