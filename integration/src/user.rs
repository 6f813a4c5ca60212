//! Who runs the tests.

use std::io::Write as _;

use anyhow::{Result, bail};

/// True for root, who can be several users. For anybody else a test of several users cannot run: that is said aloud, and
/// is an error under CI.
///
/// # Errors
/// Not root, under CI.
pub fn is_root_for(test: &str) -> Result<bool> {
    if nix::unistd::geteuid().is_root() {
        return Ok(true);
    }
    if std::env::var_os("CI").is_some() {
        bail!("{test} needs root");
    }
    // Not through the captured output: whoever runs the tests shall see it.
    writeln!(std::io::stderr(), "NOT RUN, needs root: {test}")?;
    Ok(false)
}
