//! Failures, in the lines of LLVM's messages.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// The exit code of a program that the signal SIGPIPE has ended, as a shell reports it.
const BROKEN_PIPE: u8 = 141;

/// A failure of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    kind: Kind,
    /// The messages, from the general one to the cause.
    messages: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The command has failed.
    Command,
    /// Arguments are wrong; each message is about another one.
    Usage,
    /// The output cannot be written.
    Output,
    /// The reader of the output has gone away.
    BrokenPipe,
}

// === impl Failure ===

impl Failure {
    /// A failure with one message.
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            kind: Kind::Command,
            messages: vec![message.into()],
        }
    }

    /// Wrong arguments.
    pub(super) fn of_usage(messages: Vec<String>) -> Self {
        Self {
            kind: Kind::Usage,
            messages,
        }
    }

    /// A file that cannot be opened or read.
    pub(super) fn of_input(error: &io::Error) -> Self {
        Self::new(reason(error))
    }

    /// An output that cannot be written.
    pub(super) fn of_output(error: &io::Error) -> Self {
        Self {
            kind: match error.kind() {
                io::ErrorKind::BrokenPipe => Kind::BrokenPipe,
                _ => Kind::Output,
            },
            messages: vec![format!(
                "LLVM ERROR: IO failure on output stream: {}",
                reason(error)
            )],
        }
    }

    /// The failure of which this one is the cause.
    #[must_use]
    pub(super) fn in_context(mut self, message: impl Into<String>) -> Self {
        self.messages.insert(0, message.into());
        self
    }

    /// Writes the messages. `program` is the name by which the tool was called.
    ///
    /// # Errors
    ///
    /// The errors of `out`.
    pub(super) fn write(&self, program: &str, out: &mut dyn Write) -> io::Result<()> {
        match self.kind {
            Kind::Command => writeln!(out, "llvm-xray: {self}"),
            Kind::Usage => {
                let mut messages = self.messages.iter();
                messages.try_for_each(|message| writeln!(out, "{program}: {message}"))
            }
            Kind::Output => writeln!(out, "{self}"),
            Kind::BrokenPipe => Ok(()),
        }
    }

    /// The exit code of the tool.
    pub(super) fn exit_code(&self) -> ExitCode {
        match self.kind {
            Kind::BrokenPipe => ExitCode::from(BROKEN_PIPE),
            Kind::Command | Kind::Usage | Kind::Output => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.messages.join("\n"))
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
