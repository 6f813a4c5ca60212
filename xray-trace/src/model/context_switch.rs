//! Changes of the state of a thread, as the kernel's scheduler has it.

/// The state of a thread, as the kernel's scheduler has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunState {
    /// It has a processor.
    Running,
    /// It has lost its processor to another thread, though it could go on.
    Ready,
    /// It has given up its processor: it waits for something, or has ended.
    Waiting,
}

/// A change of the state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextSwitch {
    /// The time on `CLOCK_MONOTONIC`, in nanoseconds.
    pub at_ns: u64,
    /// The state that begins.
    pub to: RunState,
    /// The processor that the thread has got or given up.
    pub processor: u16,
}
