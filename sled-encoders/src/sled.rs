//! The kinds of sled, as in the instrumentation map. Their bytes are in the modules of the
//! architectures.

/// The kind of a sled. The numbers are those of the instrumentation map
/// (`compiler-rt/include/xray/xray_records.h`, LLVM 19), but for the last one, which the map marks
/// by its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum SledKind {
    /// The first instruction of a function.
    Entry = 0,
    /// A return.
    Exit = 1,
    /// The place before a tail call.
    TailExit = 2,
    /// The first instruction of a function whose first argument is to be recorded.
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

    /// The kinds at the start or an end of a function.
    pub const OF_FUNCTIONS: [Self; 4] =
        [Self::Entry, Self::Exit, Self::TailExit, Self::EntryArgument];

    /// True at the start of a function.
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
