//! x86-64: one byte switches a sled.
//!
//! ```text
//!            as compiled          staged, off                    on
//!  entry     eb 09 66 0f 1f 84 …  eb 09 e8 <rel32> 0f 1f 40 00   a8 09 e8 <rel32> 0f 1f 40 00
//!            jmp +9               jmp +9                         test $9,%al; call trampoline; nop
//!  exit      c3 2e 66 0f 1f 84 …  c3 <rel32> c3 1f 84 …          e8 <rel32> c3 …
//!            ret                  ret                            call trampoline; ret
//!  tail exit eb 09 66 0f 1f 84 …  eb 09 e8 <rel32> 0f 1f 40 00   eb 00 e8 <rel32> 0f 1f 40 00
//!            jmp +9               jmp +9                         jmp +0; call trampoline; nop
//!  event     eb 0f 57 56 48 89 …  eb 0f e9 <rel32> 89 …          eb 00 e9 <rel32> 89 …
//!            jmp +15              jmp +15                        jmp +0; jmp stub
//! ```
//!
//! While a sled is off, no thread executes its bytes from +2 (exit: +1) on. So they may be
//! rewritten at leisure. That is staging, which happens once in a process's life. Switching is a
//! store of one byte, which cannot tear. A thread may stand at any instruction of a sled while it
//! is switched: every instruction that the thread can execute next is there in both states.

mod conditional;
mod decode;
mod encode;
mod event;
mod stub;
mod trampoline;

#[cfg(test)]
mod tests;

pub use crate::state::State;
pub use decode::{TailJump, classify, tail_jump};
pub use encode::{
    MAX_SLED_BYTES, SLED_BYTES, Staging, Switch, call_site, sled_bytes, stage, switch,
};
pub use event::EventArguments;
pub use stub::{STUB_BYTES, Stub};
pub use trampoline::{DispatchMode, Enable, Gate, Template, TrampolineSpec, Trampolines};
