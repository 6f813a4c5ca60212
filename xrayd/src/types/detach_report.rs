//! The result of a detach, with the proof that the process is as it was.

/// What a detach found, its proof included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DetachReport {
    /// Sleds read back and found off.
    pub sleds_off: u64,
    /// Sleds that could not be switched off, because somebody else's bytes stand there.
    pub sleds_on: u64,
    /// Bytes of text outside sleds that were compared with the file.
    pub text_bytes_compared: u64,
    /// Those that differ.
    pub text_bytes_different: u64,
    /// The process had ended already.
    pub exited: bool,
    /// Events recorded in the session.
    pub events: u64,
    /// Events lost in the session.
    pub lost: u64,
}
