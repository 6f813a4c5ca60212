//! A trace or a profile that was read from a file, with counts of data that could not be kept.

use crate::llvm::Format;
use crate::model::{Profile, Trace};

/// A trace, with notes for the user about the way it was read.
#[derive(Debug)]
pub struct Opened {
    /// The trace.
    pub trace: Trace,
    /// The kind of the file.
    pub format: Format,
    /// Data that could not be kept exactly: a description and a count. No count is 0.
    pub notes: Vec<(String, u64)>,
}

/// A profile, with notes for the user about the way it was read.
#[derive(Debug)]
pub struct OpenedProfile {
    /// The profile.
    pub profile: Profile,
    /// The kind of the file.
    pub format: Format,
    /// The time at which the file was written, in nanoseconds since the Unix epoch; `None` if the
    /// file does not have it.
    pub written_wall_ns: Option<u64>,
    /// Data that could not be kept exactly: a description and a count. No count is 0.
    pub notes: Vec<(String, u64)>,
}
