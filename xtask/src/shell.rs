//! Runs other programs in the workspace, and prints a line for each. It does not capture their
//! output.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::{Command, ExitStatus};

use anyhow::{Context as _, Result, bail};
use integration::workspace_dir;

/// A subcommand of the cargo that runs this program, in the workspace's root, with the versions of
/// `Cargo.lock`.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let mut command = Command::new(cargo_program());
    command
        .current_dir(workspace_dir())
        .args([subcommand, "--locked"]);
    command
}

/// The cargo that runs this program.
pub(crate) fn cargo_program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Writes one line to standard output.
///
/// # Errors
/// The reader of standard output has ended.
pub(crate) fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// The command as a user would type it into a shell.
pub(crate) fn shown(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let name = program.rsplit('/').next().unwrap_or_default().to_owned();
    std::iter::once(name)
        .chain(
            command
                .get_args()
                .map(|argument| quoted(&argument.to_string_lossy())),
        )
        .collect::<Vec<_>>()
        .join(" ")
}

/// One word of a shell's command line.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=+/.,:@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Prints the command, and runs it to its end. Returns its exit status.
///
/// # Errors
/// The command cannot be started.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    let shown = shown(command);
    say(&format!("$ {shown}"))?;
    command
        .status()
        .with_context(|| format!("cannot start {shown}"))
}

/// Prints the command, and runs it to its end. It must succeed.
///
/// # Errors
/// The command cannot be started or does not succeed.
pub(crate) fn execute(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("{}: {status}", shown(command));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_a_shell_takes_them() {
        let mut command = Command::new("/opt/bin/xrayctl");
        command.args(["record", "12", "--regex", "^<?demo::", "-o", "a.xtrace"]);
        assert_eq!(
            shown(&command),
            "xrayctl record 12 --regex '^<?demo::' -o a.xtrace"
        );
        for word in ["", "it's", "a b", "$HOME", "über", "--glob=ns::*"] {
            let output = Command::new("sh")
                .args(["-c", &format!("printf %s {}", quoted(word))])
                .output()
                .expect("sh runs");
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }
}
