//! Traces in YAML, as `llvm-xray convert -f yaml` prints them. All versions are supported, also
//! those that `llvm-xray` does not read back.
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
//!   - { type: 0, func-id: 1, function: f, args: [ 67 ], cpu: 4, thread: 2, process: 1,
//!       kind: function-enter-arg, tsc: 9, data: '' }
//! ...
//! ```
//!
//! A record has one line, which is broken here. [`Reader`] accepts any equivalent YAML, one record
//! at a time, through the `saphyr-parser` crate, which emits YAML's events as they come. [`Writer`]
//! formats the bytes itself, because no YAML writer has LLVM's spacing.

mod read;
mod source;
mod write;

pub use read::{MAX_ITEM_LEN, Reader};
pub use write::Writer;
pub(crate) use write::{Callee, RecordPrefix};

use std::borrow::Cow;

/// The header of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceHeader {
    /// The version of the original log.
    pub version: u16,
    /// The type of the original log: 0 basic, 1 FDR.
    pub log: u16,
    /// True if the counter ticks at a constant rate.
    pub constant_tsc: bool,
    /// True if the counter never stops.
    pub nonstop_tsc: bool,
    /// Ticks per second, 0 if unknown.
    pub cycle_frequency: u64,
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// The type of a typed event. LLVM repeats it in the records behind it.
    pub record_type: u16,
    /// The function's id. In user events, LLVM repeats the id of the previous record.
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
    /// The kind of the record.
    pub kind: Kind,
    /// The counter.
    pub tsc: u64,
    /// The data of a user event.
    pub data: Cow<'a, [u8]>,
}

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A function began.
    Enter,
    /// A function ended.
    Exit,
    /// A function ended by a jump to another.
    TailExit,
    /// A function began, and its arguments are recorded.
    EnterArg,
    /// A custom event.
    Custom,
    /// A typed event.
    Typed,
}

// === impl Kind ===

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Enter,
        Self::Exit,
        Self::TailExit,
        Self::EnterArg,
        Self::Custom,
        Self::Typed,
    ];

    /// LLVM's word for the kind.
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
