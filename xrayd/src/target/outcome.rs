//! The result of a check of the preflight.

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// As required.
    Ok,
    /// The attach works, with a restriction.
    Warning,
    /// The attach is refused.
    Failed,
}
