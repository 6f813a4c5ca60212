//! The identity of a lease: a temporary override of which functions are on.

use std::num::NonZeroU64;

/// The identity of a lease. The client that acquires the lease chooses the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseId(pub NonZeroU64);
