//! A trace or a profile that was read from a file, and what could not be kept of the file.

use crate::llvm::Format;
use crate::model::{Profile, Trace};

/// A trace, and what a user should know about how it was read.
#[derive(Debug)]
pub struct Opened {
    /// The trace.
    pub trace: Trace,
    /// The kind of the file.
    pub format: Format,
    /// What could not be kept as it was: in words, and its number. No number is 0.
    pub notes: Vec<(String, u64)>,
}

/// A profile, and what a user should know about how it was read.
#[derive(Debug)]
pub struct OpenedProfile {
    /// The profile.
    pub profile: Profile,
    /// The kind of the file.
    pub format: Format,
    /// The time at which the file was written, in nanoseconds since the Unix epoch; `None` if the
    /// file does not say.
    pub written_wall_ns: Option<u64>,
    /// What could not be kept as it was: in words, and its number. No number is 0.
    pub notes: Vec<(String, u64)>,
}
