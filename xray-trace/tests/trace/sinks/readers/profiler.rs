//! The Firefox Profiler's command line, which reads files with the code of profiler.firefox.com.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Environment;

const PROGRAM: &str = "@firefox-devtools/profiler-cli/dist/profiler-cli.js";

/// A profile that is open in the profiler: a process that answers commands. Dropping it ends the
/// process.
#[derive(Debug)]
pub(in super::super) struct Profiler {
    environment: &'static Environment,
    sessions: PathBuf,
    process: Child,
}

// === impl Profiler ===

impl Profiler {
    /// Opens a profile; `None` without the profiler. The profiler keeps its files in `dir`.
    pub(in super::super) fn open(file: &Path, dir: &Path) -> Option<Self> {
        let environment = Environment::get()?;
        let sessions = dir.join("sessions");
        std::fs::create_dir(&sessions).unwrap();
        // The profiler's own way of starting this process gives up after half a second.
        let process = Command::new(&environment.node)
            .arg(environment.node_modules.join(PROGRAM))
            .arg("--daemon")
            .arg(file)
            .args(["--session", "t"])
            .env("PROFILER_CLI_SESSION_DIR", &sessions)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut profiler = Self {
            environment,
            sessions,
            process,
        };
        // A client that connects before the process listens takes it for dead, and removes its
        // files.
        let socket = profiler.sessions.join("t.sock");
        profiler.wait(|_| UnixStream::connect(&socket).map_err(|error| error.to_string()));
        profiler.wait(|profiler| profiler.try_ask("thread list"));
        Some(profiler)
    }

    /// Repeats the attempt until it succeeds, as long as the process lives.
    fn wait<T>(&mut self, attempt: impl Fn(&Self) -> Result<T, String>) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while let Err(errors) = attempt(self) {
            let ended = self.process.try_wait().unwrap();
            assert_eq!(ended, None, "the profiler does not open the file: {errors}");
            assert!(Instant::now() < deadline, "no answer: {errors}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The answer to a command.
    pub(in super::super) fn ask(&self, command: &str) -> Value {
        match self.try_ask(command) {
            Ok(answer) => answer,
            Err(errors) => panic!("{command}: {errors}"),
        }
    }

    fn try_ask(&self, command: &str) -> Result<Value, String> {
        let output = Command::new(&self.environment.node)
            .arg(self.environment.node_modules.join(PROGRAM))
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
        // The process has ended already if it could not open the file.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
