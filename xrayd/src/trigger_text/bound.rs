//! `>` and `>=`.

/// How a condition compares a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// `>=`.
    AtLeast,
    /// `>`.
    MoreThan,
}

// === impl Bound ===

impl Bound {
    /// As it is written.
    #[must_use]
    pub fn sign(self) -> &'static str {
        match self {
            Self::AtLeast => ">=",
            Self::MoreThan => ">",
        }
    }

    /// The least number that is within the bound.
    #[must_use]
    pub fn least(self, number: u64) -> u64 {
        match self {
            Self::AtLeast => number,
            Self::MoreThan => number.saturating_add(1),
        }
    }
}
