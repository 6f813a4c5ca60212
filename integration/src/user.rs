//! The rights of the user who runs the tests. Nothing here changes them.

use std::fs::{self, File};

use anyhow::Result;

use crate::not_run;

/// True for root, who can act as several users. For other users a test of several users cannot run.
/// That is reported, and is an error under CI.
///
/// # Errors
/// The user is not root, under CI.
pub fn is_root_for(test: &str) -> Result<bool> {
    if nix::unistd::geteuid().is_root() {
        return Ok(true);
    }
    not_run(test, "it needs root")?;
    Ok(false)
}

/// True if the user who runs the tests can open files that a process has mapped. Only then can the
/// daemon use rings again that are there already. For other users new rings take their place.
///
/// # Errors
/// This process's own `map_files` cannot be listed.
pub fn opens_map_files() -> Result<bool> {
    for entry in fs::read_dir("/proc/self/map_files")? {
        if File::open(entry?.path()).is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}
