//! The last section of a finished trace: its totals. A file without this section was cut.

/// The totals of a finished trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct End {
    /// The call events in all blocks.
    pub calls: u64,
    /// The lost events, within blocks and outside.
    pub lost: u64,
    /// The blocks.
    pub blocks: u64,
}
