//! AArch64: one word switches a sled.
//!
//! ```text
//!       as compiled   staged, off; bl reaches     on     staged, off; it does not     on
//!  +0   b #32         b #32                       nop    b #32                        nop
//!  +4   nop           str x30, [sp, #-16]!               stp x16, x30, [sp, #-16]!
//!  +8   nop           nop                                ldr x16, +20
//!  +12  nop           bl trampoline                      blr x16
//!  +16  nop           ldr x30, [sp], #16                 b +28
//!  +20  nop           nop                                trampoline, low half
//!  +24  nop           nop                                trampoline, high half
//!  +28  nop           nop                                ldp x16, x30, [sp], #16
//! ```
//!
//! While a sled is off, no thread executes its words from +4 on. So they may be rewritten at
//! leisure. That is staging, which happens once in a process's life. Switching is a store of one
//! aligned word. Both of its values are instructions that may be modified while other threads
//! execute them. `docs/design/aarch64.md` says what has to lie between staging and the
//! first switching on, and which write is one store.
//!
//! All sleds of functions are the same, and the sleds of custom and typed events are not made here.
//! A sled keeps every register, also those that an indirect tail call goes through.

mod decode;
mod encode;
#[expect(
    clippy::useless_conversion,
    reason = "in what the assembler's macro expands to"
)]
mod trampoline;
mod words;

#[cfg(test)]
mod tests;

pub use crate::state::State;
pub use decode::{After, after, classify};
pub use encode::{SLED_BYTES, Staging, Switch, call_site, stage, switch};
pub use trampoline::{TrampolineSpec, Trampolines};
