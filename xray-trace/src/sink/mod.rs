//! From the trace model to files of other tools. One file per format.

mod chrome;
mod fdr;
mod xtrace;

use std::io::{self, Write};
use std::path::Path;

use crate::model::Trace;

pub use chrome::Chrome;
pub use fdr::Fdr;
pub use xtrace::Xtrace;

/// A format that traces can be written in.
pub trait Sink: std::fmt::Debug + Sync {
    /// The name by which it is asked for.
    fn name(&self) -> &'static str;

    /// The extensions of file names that mean it, without the dot.
    fn extensions(&self) -> &'static [&'static str];

    /// Writes the trace, in many small writes: a file wants a `BufWriter` around it, and a flush after.
    ///
    /// # Errors
    ///
    /// What `output` reports. What the format cannot hold is no error; the report tells of it.
    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report>;
}

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// How many calls.
    pub calls: u64,
    /// What the format cannot hold, or not as it was: in words, and how many. Never with a count of 0.
    pub left_out: Vec<(String, u64)>,
}

/// Every format.
pub const SINKS: [&dyn Sink; 3] = [&Xtrace, &Fdr, &Chrome];

/// The format with that name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static dyn Sink> {
    SINKS.into_iter().find(|sink| sink.name() == name)
}

/// The format that a file's extension means.
#[must_use]
pub fn by_extension(path: &Path) -> Option<&'static dyn Sink> {
    let extension = path.extension()?.to_str()?;
    SINKS
        .into_iter()
        .find(|sink| sink.extensions().contains(&extension))
}

// === impl Report ===

impl Report {
    /// Adds a line about what was left out, if there is anything to tell.
    fn leave_out(&mut self, what: impl Into<String>, count: u64) {
        if count > 0 {
            self.left_out.push((what.into(), count));
        }
    }
}
