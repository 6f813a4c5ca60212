//! The result of a detach, with the proof that the process is as it was.

/// The result of a detach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DetachReport {
    /// Sleds that were read back and are off.
    pub sleds_off: u64,
    /// Sleds that could not be switched off, because another program has changed their bytes.
    pub sleds_on: u64,
    /// Bytes of text outside of sleds that were compared with the file.
    pub text_bytes_compared: u64,
    /// Bytes among them that differ.
    pub text_bytes_different: u64,
    /// True if the process had ended before the detach.
    pub exited: bool,
    /// Events recorded in the session.
    pub events: u64,
    /// Events lost in the session.
    pub lost: u64,
}
