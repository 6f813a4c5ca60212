//! Traces in YAML, as `llvm-xray convert -f yaml` prints them: of every version, also those that it does not read back.
//!
//! ```yaml
//! ---
//! header:
//!   version:         3
//!   type:            1
//!   constant-tsc:    true
//!   nonstop-tsc:     true
//!   cycle-frequency: 3900000000
//! records:
//!   - { type: 0, func-id: 1, function: f, args: [ 67 ], cpu: 4, thread: 2, process: 1, kind: function-enter-arg, tsc: 9, data: '' }
//! ...
//! ```
//!
//! [`Reader`] takes any YAML that says the same, a record at a time, through the `saphyr-parser` crate, which hands out
//! YAML's events as they come. [`Writer`] prints LLVM's bytes by hand: no YAML writer has its spacing.

mod read;
mod source;
mod write;

pub use read::{MAX_ITEM_LEN, Reader};
pub use write::Writer;
pub(crate) use write::{Callee, Place};

use std::borrow::Cow;

/// The header of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceHeader {
    /// The version of the log that it was.
    pub version: u16,
    /// What log it was: 0 basic, 1 FDR.
    pub log: u16,
    /// The counter ticks at a constant rate.
    pub constant_tsc: bool,
    /// The counter never stops.
    pub nonstop_tsc: bool,
    /// Ticks per second, 0 if unknown.
    pub cycle_frequency: u64,
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// The type of a typed event. LLVM repeats it in the records behind it.
    pub record_type: u16,
    /// The function's id. With events, LLVM repeats that of the record in front.
    pub function_id: i32,
    /// The function's name, or its id again.
    pub function: Cow<'a, str>,
    /// Arguments of the call.
    pub args: Cow<'a, [u64]>,
    /// The processor.
    pub cpu: u16,
    /// The thread; 0 if unknown.
    pub thread: u32,
    /// The process; 0 if unknown.
    pub process: u32,
    /// What happened.
    pub kind: Kind,
    /// The counter.
    pub tsc: u64,
    /// What an event of the program's own says.
    pub data: Cow<'a, [u8]>,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A function began.
    Enter,
    /// A function ended.
    Exit,
    /// A function ended by a jump to another.
    TailExit,
    /// A function began; its arguments are known.
    EnterArg,
    /// An event of the program's own.
    Custom,
    /// An event of the program's own with a type.
    Typed,
}

// === impl Kind ===

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Enter,
        Self::Exit,
        Self::TailExit,
        Self::EnterArg,
        Self::Custom,
        Self::Typed,
    ];

    /// LLVM's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enter => "function-enter",
            Self::Exit => "function-exit",
            Self::TailExit => "function-tail-exit",
            Self::EnterArg => "function-enter-arg",
            Self::Custom => "custom-event",
            Self::Typed => "typed-event",
        }
    }
}
