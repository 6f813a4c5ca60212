//! Running other programs in the workspace, with a line that says so.

use std::io::Write as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use integration::workspace_dir;

/// Cargo as it runs this program, in the workspace's root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace_dir());
    command
}

/// Writes one line to standard output.
///
/// # Errors
/// When nobody reads it any more.
pub(crate) fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// The command as somebody would type it.
pub(crate) fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|argument| argument.to_string_lossy().into_owned()),
    );
    if let Some(name) = words[0].rsplit('/').next() {
        words[0] = name.to_owned();
    }
    words.join(" ")
}

/// Says what is run, runs it to its end, and fails when it does.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub(crate) fn execute(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    say(&format!("$ {shown}"))?;
    let status = command
        .status()
        .with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}
