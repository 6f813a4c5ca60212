//! Finds the first exits without an entry in a trace.

use super::Filter;
use super::stack::Steps;
use super::step::Siblings;
use super::threads::by_thread;
use super::unmatched_exit::{UnmatchedExit, keep_first};
use crate::model::Trace;

/// The first `limit` exits without an entry in the threads that the filter selects, in order of
/// time. [`Notes`](super::Notes) has their number.
#[must_use]
pub fn unmatched_exits(trace: &Trace, filter: &Filter, limit: usize) -> Vec<UnmatchedExit> {
    let look = |kept: &mut Vec<UnmatchedExit>, steps: Steps<'_>| {
        let mut steps = steps.keeping_unmatched(limit);
        steps.by_ref().for_each(drop);
        kept.extend(steps.into_unmatched());
        keep_first(kept, limit);
    };
    let parts = by_thread(trace, filter, Siblings::Closed, look);
    let mut all = parts.concat();
    keep_first(&mut all, limit);
    all
}
