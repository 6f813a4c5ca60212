//! The state of a sled, as its bytes show it. It is the same for all processors. Each architecture
//! reads it in its own way.

/// The state of a sled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// As the compiler wrote it.
    Compiled,
    /// Staged by xrayd, and off.
    Staged {
        /// The trampoline (or stub) that its call leads to.
        target: u64,
    },
    /// Staged by xrayd and on.
    On {
        /// The trampoline that it calls.
        target: u64,
    },
    /// Patched by LLVM's own runtime, now or before.
    Runtime,
    /// A breakpoint.
    Breakpoint,
    /// None of these.
    Foreign,
}
