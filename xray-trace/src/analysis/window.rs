//! The window of time of an analysis. It has ticks, and no blocks or calls.

use super::Filter;
use crate::model::Ticks;

/// The ticks from one up to another one. The default is all time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// The first tick of the window.
    pub(super) since: Ticks,
    /// The first tick after the window; the greatest number if the window has no end.
    pub(super) until: Ticks,
}

// === impl Window ===

impl Window {
    /// The window of a filter.
    pub(super) fn of(filter: &Filter) -> Self {
        let all = Self::default();
        Self {
            since: filter.since.unwrap_or(all.since),
            until: filter.until.unwrap_or(all.until),
        }
    }

    /// Whether the tick is in the window.
    #[inline]
    pub(super) fn has(self, ticks: Ticks) -> bool {
        self.since <= ticks && !self.is_over_at(ticks)
    }

    /// Whether the window ends at this tick or before.
    pub(super) fn is_over_at(self, ticks: Ticks) -> bool {
        self.until <= ticks && self.until != Self::default().until
    }
}

impl Default for Window {
    fn default() -> Self {
        Self {
            since: Ticks(0),
            until: Ticks(u64::MAX),
        }
    }
}
