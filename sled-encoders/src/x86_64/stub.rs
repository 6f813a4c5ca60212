//! Code of its own for a sled that cannot call a trampoline itself: too little is dead around it, or too little room in it.

use super::encode::Staging;

/// Room for one stub.
pub const STUB_BYTES: usize = 64;

/// The red zone of the x86-64 System V ABI, §3.2.2.
pub(super) const RED_ZONE: i32 = 128;

/// Code that stands in for what a sled cannot do where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stub {
    /// The stub's code, at most [`STUB_BYTES`].
    pub code: Vec<u8>,
    /// How the sled is staged to reach it.
    pub staging: Staging,
}
