//! The kinds of sled, as in the instrumentation map.

/// What a sled marks. The numbers are those of the instrumentation map
/// (`compiler-rt/include/xray/xray_records.h`, LLVM 19).
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
}

// === impl SledKind ===

impl SledKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Entry, Self::Exit, Self::TailExit, Self::EntryArgument];
}
