//! Counts the calls of a trace into a table: an [`Account`]. It does not sort or print the table.

use super::Filter;
use super::account_table::{Account, GroupBy};
use super::counted_calls::{Counted, CountedCalls};
use super::part::{NOBODY, Part};
use super::stack::Steps;
use super::step::Siblings;
use super::threads::by_thread;
use crate::model::Trace;

/// The options of a count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct AccountOptions {
    /// The subjects of the rows.
    pub by: GroupBy,
    /// The calls that are counted.
    pub counted: Counted,
    /// The treatment of calls without an exit.
    pub siblings: Siblings,
}

/// Counts the calls that `filter` selects, and returns the table.
#[must_use]
pub fn account(trace: &Trace, filter: &Filter, options: AccountOptions) -> Account {
    let calls = CountedCalls::new(filter, options.counted);
    let look = |part: &mut Part, steps: Steps<'_>| match options.by {
        GroupBy::Function => part.add(steps, calls, |call| {
            (call.open.function.0, call.open.nesting as usize)
        }),
        // Every open call of a thread encloses the call.
        GroupBy::Thread => {
            let thread = steps.thread().0;
            part.add(steps, calls, |call| (thread, call.open.depth));
        }
        GroupBy::Process => {
            let thread = trace.thread(steps.thread());
            let process = thread.map_or(NOBODY, |thread| thread.process.0);
            part.add(steps, calls, |call| (process, call.open.depth));
        }
        GroupBy::Module => part.add_modules(steps, trace, calls),
    };
    let parts = by_thread(trace, filter, options.siblings, look);
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap_or_default();
    parts.for_each(|part| all.merge(part));
    all.into_account(options.by)
}
