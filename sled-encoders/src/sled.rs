//! The kinds of sled, as in the instrumentation map.

/// What a sled marks. The numbers are those of the instrumentation map
/// (`compiler-rt/include/xray/xray_records.h`, LLVM 19), but for the last one, which the map tells by its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum SledKind {
    /// A function's first instruction.
    Entry = 0,
    /// A return.
    Exit = 1,
    /// Before a tail call.
    TailExit = 2,
    /// A function's first instruction, with its first argument to be recorded.
    EntryArgument = 3,
    /// `__xray_customevent`, in the middle of a function.
    CustomEvent = 4,
    /// `__xray_typedevent`, likewise.
    TypedEvent = 5,
    /// A custom event as LLVM 5 wrote it: version 0 in the map.
    CustomEventV0 = 6,
}

// === impl SledKind ===

impl SledKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Entry,
        Self::Exit,
        Self::TailExit,
        Self::EntryArgument,
        Self::CustomEvent,
        Self::TypedEvent,
        Self::CustomEventV0,
    ];

    /// Those that stand where a function begins or ends.
    pub const OF_FUNCTIONS: [Self; 4] =
        [Self::Entry, Self::Exit, Self::TailExit, Self::EntryArgument];

    /// True where a function begins.
    pub const fn is_entry(self) -> bool {
        matches!(self, Self::Entry | Self::EntryArgument)
    }

    /// True for the events of the program's own.
    pub const fn is_event(self) -> bool {
        matches!(
            self,
            Self::CustomEvent | Self::TypedEvent | Self::CustomEventV0
        )
    }
}
