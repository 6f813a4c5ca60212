//! The stub: code for one sled that cannot call a trampoline itself, because too little is dead
//! around it or there is too little room in it. `conditional.rs` and `event.rs` generate the code.

use super::encode::Staging;

/// Room for one stub.
pub const STUB_BYTES: usize = 64;

/// The red zone of the x86-64 System V ABI, §3.2.2.
pub(super) const RED_ZONE: i32 = 128;

/// The code that takes the place of a call in a sled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stub {
    /// The stub's code, at most [`STUB_BYTES`].
    pub code: Vec<u8>,
    /// The write that stages the sled to reach it.
    pub staging: Staging,
}
