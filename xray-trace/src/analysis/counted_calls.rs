//! The calls that an analysis counts: all calls that a filter selects, or only the recursive ones.

use super::Filter;
use super::step::Open;

/// The calls to count, among those that a filter selects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Counted {
    /// All calls.
    #[default]
    All,
    /// A call within a call of the same function, and a call that contains one.
    Recursive,
}

/// A filter, and the kind of its calls that count.
#[derive(Debug, Clone, Copy)]
pub(super) struct CountedCalls<'a> {
    filter: &'a Filter,
    counted: Counted,
    /// True if the filter selects every call. Reading this is faster than evaluating the filter.
    every_call: bool,
}

// === impl CountedCalls ===

impl<'a> CountedCalls<'a> {
    pub(super) fn new(filter: &'a Filter, counted: Counted) -> Self {
        let Filter {
            threads: _,
            functions,
            since,
            until,
            user_events: _,
        } = filter;
        Self {
            filter,
            counted,
            every_call: functions.is_none() && since.is_none() && until.is_none(),
        }
    }

    /// Whether the filter selects this call by itself.
    #[inline(always)]
    pub(super) fn wants(&self, call: &Open) -> bool {
        self.every_call || self.filter.wants_call(call)
    }

    /// Whether a call counts only if it is part of a recursion.
    #[inline(always)]
    pub(super) fn recursive(&self) -> bool {
        self.counted == Counted::Recursive
    }
}
