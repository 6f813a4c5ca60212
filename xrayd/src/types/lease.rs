//! The identity of a lease: a temporary override of which functions are on.

use std::num::NonZeroU64;

/// Names a loan. Whoever asks for it chooses the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseId(pub NonZeroU64);
