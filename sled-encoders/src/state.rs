//! What the bytes at a sled say, whatever the processor.

/// What stands at a sled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// What the compiler wrote.
    Compiled,
    /// Staged by xrayd and off; `target` is where its call leads.
    Staged {
        /// The trampoline (or stub) that it would call.
        target: u64,
    },
    /// Staged by xrayd and on.
    On {
        /// The trampoline that it calls.
        target: u64,
    },
    /// LLVM's own runtime patches it, now or before.
    Runtime,
    /// A breakpoint.
    Breakpoint,
    /// None of these.
    Foreign,
}
