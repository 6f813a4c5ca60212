//! The reason why nothing was done to a process.

use std::io;

use xrayd_proto::v1::Refusal;

use super::{Look, Tone, text};
use crate::failure::Failure;

/// Writes the line of such a process.
pub(crate) fn render(
    refusal: &Refusal,
    pid: u32,
    out: &mut dyn io::Write,
    look: Look,
) -> io::Result<()> {
    let (message, reason) = (
        text::printable(&refusal.message),
        text::printable(&refusal.reason),
    );
    let word = look.paint(Tone::Bad, "refused");
    writeln!(out, "{pid}: {word}: {message} [{reason}]")
}

/// The refusal as a failure of the whole command.
pub(crate) fn failure(refusal: &Refusal) -> Failure {
    Failure::Refused {
        reason: text::printable(&refusal.reason),
        message: text::printable(&refusal.message),
    }
}
