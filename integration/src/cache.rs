//! A cache of directories that are made once and kept: `target/fixtures/<name>-<key>/`. Any number
//! of tests may ask for one at the same time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::fcntl::{Flock, FlockArg};

use crate::binaries::target_dir;

/// The directory of this name and key. If it is not there yet, `make` fills it. The directory
/// appears in one step, so an interrupted `make` leaves nothing that looks whole.
pub(crate) fn once(
    name: &str,
    key: u64,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let cache = target_dir()?.join("fixtures");
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let finished = cache.join(format!("{name}-{key:016x}"));
    if finished.is_dir() {
        return Ok(finished);
    }
    let lock_path = cache.join(format!("{name}.lock"));
    let lock_file = File::create(&lock_path)
        .with_context(|| format!("cannot create {}", lock_path.display()))?;
    let _lock = Flock::lock(lock_file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .with_context(|| format!("cannot lock {}", lock_path.display()))?;
    if finished.is_dir() {
        return Ok(finished);
    }
    let work = tempfile::Builder::new()
        .prefix(&format!(".{name}-"))
        .tempdir_in(&cache)
        .context("cannot create a directory to work in")?;
    make(work.path()).with_context(|| format!("cannot make {name}"))?;
    let work = work.keep();
    fs::rename(&work, &finished)
        .with_context(|| format!("cannot rename {} to {}", work.display(), finished.display()))?;
    Ok(finished)
}
