//! A sled of a loaded module that can be switched.

use sled_encoders::{
    SledKind,
    x86_64::{TailJump, sled_bytes},
};

/// A sled that can be switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PatchSite {
    /// The address of its first byte.
    pub(crate) address: u64,
    /// The kind of the sled.
    pub(crate) kind: SledKind,
    /// The jump behind a tail exit.
    pub(crate) jump: TailJump,
    /// The index of its module.
    pub(crate) module: u32,
}

// === impl PatchSite ===

impl PatchSite {
    /// Address behind its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.address.saturating_add(self.length() as u64)
    }

    /// True if the sled calls its trampoline through a stub.
    pub(crate) fn needs_stub(&self) -> bool {
        self.jump != TailJump::Plain || self.kind.is_event()
    }

    /// Bytes of the sled.
    pub(crate) fn length(&self) -> usize {
        sled_bytes(self.kind)
    }
}
