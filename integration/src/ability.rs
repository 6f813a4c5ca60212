//! Tests that cannot run on a machine. They are named on standard error, and nothing here decides
//! what a machine can do.

use std::io::{self, Write as _};

use anyhow::{Result, ensure};

/// Reports that a test cannot run here. This is an error under CI, where every test must run.
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

/// The same for a test that not even the best machine could run: the kernel was built without the
/// feature.
///
/// # Errors
/// Standard error cannot be written.
pub fn cannot_run(what: &str, why: &str) -> Result<()> {
    // Not to the captured output: the user who runs the tests must see it.
    writeln!(io::stderr(), "NOT RUN: {what}: {why}")?;
    Ok(())
}
