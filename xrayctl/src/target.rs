//! The target of a recording: a running process, or a program that is started for the recording.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xray_trace::instr_map::Selection;
use xrayd::{
    process::{AttachOptions, LaunchOptions, Launched, Registry},
    types::Capture,
};

use crate::{failure, output::text::printable};

/// The number of looks for the exit status of a program that has ended, and the pause between two.
const COLLECTING: u32 = 100;
const COLLECT_POLL: Duration = Duration::from_millis(10);

/// The longest name of a command that becomes part of a file name.
const LONGEST_NAME: usize = 64;

/// A process to record.
#[derive(Debug)]
pub(crate) enum Target {
    /// A process that runs already.
    Running(u32),
    /// A program that was started for the recording. It is attached, and its functions are on.
    /// Until it is resumed it stands before its first instruction.
    Launched(Box<Launched>),
}

/// The standard output of a program that is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramOutput {
    /// The standard output of this process.
    Own,
    /// The standard error of this process, because the trace goes to standard output.
    StandardError,
}

// === impl Target ===

impl Target {
    /// Starts a program, attaches to it, and switches functions on.
    pub(crate) fn launch(
        registry: &Registry,
        (command, output): (&[OsString], ProgramOutput),
        attach: AttachOptions,
        selection: Selection,
        capture: Capture,
    ) -> anyhow::Result<Self> {
        let (program, arguments) = command.split_first().context("no program is named")?;
        let mut command = Command::new(program);
        command.args(arguments);
        if output == ProgramOutput::StandardError {
            command.stdout(io::stderr());
        }
        let launched = registry.launch(LaunchOptions {
            command,
            attach,
            selection,
            capture,
        });
        let launched = launched
            .map_err(failure::from_refusal)
            .with_context(|| format!("cannot record {}", printable(&program.to_string_lossy())))?;
        Ok(Self::Launched(Box::new(launched)))
    }

    /// Its pid.
    pub(crate) fn pid(&self) -> u32 {
        match self {
            Self::Running(pid) => *pid,
            Self::Launched(launched) => launched.pid().as_u32(),
        }
    }

    /// Lets a program run that was started for the recording.
    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        match self {
            Self::Running(_) => Ok(()),
            Self::Launched(launched) => launched.resume().map_err(failure::from_refusal),
        }
    }

    /// Kills a program that was started for the recording and cannot be recorded. The user wanted
    /// it to run for nothing else.
    pub(crate) fn abandon(&self) {
        if let Self::Launched(launched) = self {
            // The program is a child of this process, so its pid is not reused before it is waited
            // for. It may have ended by itself.
            let pid = Pid::from_raw(launched.pid().as_raw());
            let _ = kill(pid, Signal::SIGKILL);
        }
    }

    /// True for a started program without sleds. Then the processes that come from it are traced.
    pub(crate) fn has_no_sleds(&self) -> bool {
        match self {
            Self::Running(_) => false,
            Self::Launched(launched) => launched.session().is_none(),
        }
    }

    /// The exit status of a started program; `None` while it runs, and for any other process.
    pub(crate) fn ended(&self) -> Option<String> {
        match self {
            Self::Running(_) => None,
            Self::Launched(launched) => launched.exit_status().map(|status| status.to_string()),
        }
    }

    /// The exit status of a program that has ended. Waits up to 1 s until the program is collected.
    pub(crate) async fn end(&self) -> Option<String> {
        for _ in 0..COLLECTING {
            let ended = self.ended();
            if ended.is_some() || matches!(self, Self::Running(_)) {
                return ended;
            }
            tokio::time::sleep(COLLECT_POLL).await;
        }
        None
    }

    /// The default file of a recording: `xray-COMMAND-PID.xtrace`.
    pub(crate) fn default_file(&self) -> PathBuf {
        let pid = self.pid();
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        file_name(command.trim_end_matches('\n'), pid)
    }
}

fn file_name(command: &str, pid: u32) -> PathBuf {
    let plain = |c: char| {
        if c.is_alphanumeric() || "._+-".contains(c) {
            c
        } else {
            '_'
        }
    };
    let command: String = command.chars().map(plain).take(LONGEST_NAME).collect();
    let command = if command.is_empty() {
        "process"
    } else {
        &command
    };
    format!("xray-{command}-{pid}.xtrace").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_made_of_harmless_characters() {
        for (command, expected) in [
            ("redis-server", "xray-redis-server-7.xtrace"),
            ("a/b c\u{1b}", "xray-a_b_c_-7.xtrace"),
            ("..", "xray-..-7.xtrace"),
            ("", "xray-process-7.xtrace"),
        ] {
            assert_eq!(file_name(command, 7), PathBuf::from(expected));
        }
    }
}
