//! The paths of this build's own programs and directories. Nothing here builds them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail, ensure};

/// The root of the source tree.
#[must_use]
pub fn workspace_dir() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}

/// The directory of the running build's programs, for example `target/debug`.
///
/// # Errors
/// The running program's own path cannot be read.
pub fn profile_dir() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the running test program")?;
    let mut dir = own
        .parent()
        .map(Path::to_owned)
        .context("the running program has no directory")?;
    // Test programs lie one level below the others.
    if dir.file_name().is_some_and(|name| name == "deps") {
        dir.pop();
    }
    Ok(dir)
}

/// Cargo's target directory.
///
/// # Errors
/// As [`profile_dir`].
pub fn target_dir() -> Result<PathBuf> {
    let mut dir = profile_dir()?;
    dir.pop();
    Ok(dir)
}

/// The daemon of this build.
///
/// # Errors
/// The daemon has not been built.
pub fn xrayd() -> Result<PathBuf> {
    built("xrayd")
}

/// The daemon of this build as another version: its memory in a target is laid out differently.
///
/// # Errors
/// It cannot be built.
pub fn shifted_xrayd() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    let built_once = BUILT.get_or_init(|| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .current_dir(workspace_dir())
            .args(["build", "--quiet", "--locked", "-p", "xrayd"])
            .args(["--features", "shifted-layout", "--bin", "xrayd-shifted"]);
        if profile_dir().is_ok_and(|profile| profile.ends_with("release")) {
            cargo.arg("--release");
        }
        let status = cargo.status().map_err(|error| error.to_string())?;
        let is_built = status.success();
        is_built.then_some(()).ok_or_else(|| status.to_string())
    });
    if let Err(error) = built_once {
        bail!("cargo cannot build xrayd-shifted: {error}");
    }
    built("xrayd-shifted")
}

/// The command line of this build.
///
/// # Errors
/// The command line has not been built.
pub fn xrayctl() -> Result<PathBuf> {
    built("xrayctl")
}

/// The relay of this build.
///
/// # Errors
/// The relay has not been built.
pub fn relay() -> Result<PathBuf> {
    built("xray-relay")
}

/// Copies a program that is started afterwards.
///
/// A process of its own writes the copy. If this process did, another process that it starts
/// meanwhile would hold the copy open for writing, and the copy could not be started (ETXTBSY).
///
/// # Errors
/// The copy cannot be written.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg(from).arg(to).status()?;
    ensure!(
        status.success(),
        "cp cannot write {}: {status}",
        to.display()
    );
    Ok(())
}

fn built(name: &str) -> Result<PathBuf> {
    let path = profile_dir()?.join(name);
    if !path.is_file() {
        bail!(
            "{} does not exist: run `cargo build --workspace` first",
            path.display()
        );
    }
    Ok(path)
}
