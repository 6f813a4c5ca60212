//! A sled of a loaded module that can be switched.

use sled_encoders::{
    SledKind,
    x86_64::{TailJump, sled_bytes},
};

/// A sled that can be switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PatchSite {
    /// Its first byte.
    pub(crate) address: u64,
    /// What it marks.
    pub(crate) kind: SledKind,
    /// What follows it, for tail exits.
    pub(crate) jump: TailJump,
    /// Index of its module.
    pub(crate) module: u32,
}

// === impl PatchSite ===

impl PatchSite {
    /// Address behind its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.address.saturating_add(self.length() as u64)
    }

    /// True if it cannot call a trampoline itself.
    pub(crate) fn needs_stub(&self) -> bool {
        self.jump != TailJump::Plain || self.kind.is_event()
    }

    pub(crate) fn length(&self) -> usize {
        sled_bytes(self.kind)
    }
}
