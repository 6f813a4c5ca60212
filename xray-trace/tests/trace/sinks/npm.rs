//! The Firefox Profiler's command line, which reads files with the code of profiler.firefox.com. Only npm has it; it is
//! installed under `target/`.
//!
//! Where it cannot be installed, because there is no network, the test says so on standard error and passes; where `CI` is
//! set, it fails.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::readers::say_not_tested;

const PACKAGE: &str = "@firefox-devtools/profiler-cli";
const VERSION: &str = "0.10.0";

/// A profile that is open in the profiler: a process that answers questions, and ends with this.
#[derive(Debug)]
pub(super) struct Profiler {
    program: PathBuf,
    sessions: PathBuf,
    process: Child,
}

// === impl Profiler ===

impl Profiler {
    /// Opens a profile; `None` if there is no profiler. `dir` is for what it keeps.
    pub(super) fn open(file: &Path, dir: &Path) -> Option<Self> {
        static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let program = match PROGRAM.get_or_init(install) {
            Ok(program) => program.clone(),
            Err(error) => {
                let why = format!("{PACKAGE} of npm cannot be installed: {error}");
                assert!(std::env::var_os("CI").is_none(), "{why}");
                say_not_tested(&why);
                return None;
            }
        };
        let sessions = dir.join("sessions");
        std::fs::create_dir(&sessions).unwrap();
        // Its own way of starting this process gives up after half a second.
        let process = Command::new("node")
            .arg(&program)
            .arg("--daemon")
            .arg(file)
            .args(["--session", "t"])
            .env("PROFILER_CLI_SESSION_DIR", &sessions)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut profiler = Self {
            program,
            sessions,
            process,
        };
        let deadline = Instant::now() + Duration::from_secs(120);
        while let Err(errors) = profiler.try_ask("thread list") {
            let ended = profiler.process.try_wait().unwrap();
            assert_eq!(ended, None, "the profiler does not open the file: {errors}");
            assert!(Instant::now() < deadline, "no answer: {errors}");
        }
        Some(profiler)
    }

    /// What it answers to a command.
    pub(super) fn ask(&self, command: &str) -> Value {
        match self.try_ask(command) {
            Ok(answer) => answer,
            Err(errors) => panic!("{command}: {errors}"),
        }
    }

    fn try_ask(&self, command: &str) -> Result<Value, String> {
        let output = Command::new("node")
            .arg(&self.program)
            .args(command.split(' '))
            .args(["--json", "--session", "t"])
            .env("PROFILER_CLI_SESSION_DIR", &self.sessions)
            .output()
            .unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        // It is gone already if it could not open the file.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Installs it, or finds it. A half-installed one is never found, since the mark comes last.
fn install() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("profiler-cli-{VERSION}"));
    let program = folder.join(format!("node_modules/{PACKAGE}/dist/profiler-cli.js"));
    let done = folder.join("done");
    if done.exists() {
        return Ok(program);
    }
    let output = Command::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--ignore-scripts"])
        .arg("--prefix")
        .arg(&folder)
        .arg(format!("{PACKAGE}@{VERSION}"))
        .output()
        .map_err(|error| format!("cannot run npm ({error}): install the Debian package npm"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    std::fs::write(&done, "").map_err(|error| error.to_string())?;
    Ok(program)
}
