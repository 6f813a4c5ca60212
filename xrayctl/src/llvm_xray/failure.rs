//! What went wrong, in the lines of LLVM's messages.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

/// A failure of a command, or arguments that make no sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// The reasons, from the general one to the cause.
    reasons: Vec<String>,
    is_usage: bool,
}

// === impl Failure ===

impl Failure {
    /// A failure with one reason.
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self {
            reasons: vec![reason.into()],
            is_usage: false,
        }
    }

    /// Arguments that make no sense.
    pub(super) fn of_usage(reason: impl Into<String>) -> Self {
        Self {
            is_usage: true,
            ..Self::new(reason)
        }
    }

    /// The failure of which this one is the cause.
    #[must_use]
    pub(super) fn in_context(mut self, reason: impl Into<String>) -> Self {
        self.reasons.insert(0, reason.into());
        self
    }

    /// A file that cannot be opened or read.
    pub(super) fn of_input(error: &io::Error) -> Self {
        Self::new(reason(error))
    }

    /// A file that cannot be written.
    pub(super) fn of_output(file: impl AsRef<Path>) -> Self {
        let file = file.as_ref().display();
        Self::new(format!("Cannot open file '{file}' for writing."))
    }

    /// Writes the reasons, each on a line of its own. The name of the program is before the first: the
    /// given one if its arguments make no sense, else that of LLVM's tool.
    ///
    /// # Errors
    ///
    /// The errors of the output.
    pub(super) fn write(&self, program: &str, out: &mut dyn Write) -> io::Result<()> {
        let program = if self.is_usage { program } else { "llvm-xray" };
        writeln!(out, "{program}: {self}")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reasons.join("\n"))
    }
}

/// The operating system's words for an error, without its number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((text, _)) => text.to_owned(),
        None => text,
    }
}
