//! Who runs the tests.

use std::fs::{self, File};

use anyhow::Result;

use crate::not_run;

/// True for root, who can be several users. For anybody else a test of several users cannot run: that is said aloud, and
/// is an error under CI.
///
/// # Errors
/// Not root, under CI.
pub fn is_root_for(test: &str) -> Result<bool> {
    if nix::unistd::geteuid().is_root() {
        return Ok(true);
    }
    not_run(test, "it needs root")?;
    Ok(false)
}

/// True if whoever runs the tests can open what a process has mapped. Only then can rings that are there already be used
/// again; for anybody else new ones take their place.
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
