//! What a test needs and a machine may not have.

use std::io::{self, Write as _};

use anyhow::{Result, ensure};

/// A test cannot run here: that is said aloud, and is an error under CI, where everything is to be tested.
///
/// # Errors
/// Under CI.
pub fn not_run(what: &str, why: &str) -> Result<()> {
    ensure!(
        std::env::var_os("CI").is_none(),
        "{what} cannot be tested here: {why}"
    );
    cannot_run(what, why)
}

/// The same, where not even the best of machines could: the kernel was built without it.
///
/// # Errors
/// Nothing can be said.
pub fn cannot_run(what: &str, why: &str) -> Result<()> {
    // Not through the captured output: whoever runs the tests shall see it.
    writeln!(io::stderr(), "NOT RUN: {what}: {why}")?;
    Ok(())
}
