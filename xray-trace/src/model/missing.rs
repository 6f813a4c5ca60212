//! The events and calls that the sums of a profile do not include, as counts.

/// The data that is missing in the sums of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Missing {
    /// Exits of calls that are not open. These calls began before, or were left before.
    pub exits_without_entry: u64,
    /// Lost events.
    pub lost: u64,
    /// Calls that were not counted, because they are too deep.
    pub too_deep: u64,
}

// === impl Missing ===

impl Missing {
    /// The data that is missing after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: Self) -> Self {
        Self {
            exits_without_entry: self
                .exits_without_entry
                .saturating_sub(earlier.exits_without_entry),
            lost: self.lost.saturating_sub(earlier.lost),
            too_deep: self.too_deep.saturating_sub(earlier.too_deep),
        }
    }

    /// Adds the missing data of other sums.
    pub fn add(&mut self, other: Self) {
        let Self {
            exits_without_entry,
            lost,
            too_deep,
        } = other;
        self.exits_without_entry = self.exits_without_entry.saturating_add(exits_without_entry);
        self.lost = self.lost.saturating_add(lost);
        self.too_deep = self.too_deep.saturating_add(too_deep);
    }
}
