//! A running target program, until the end of it. The programs are in `fixture.rs`.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::build::build;
use crate::fixture::Fixture;
use crate::wait::{DEADLINE, wait_until};

/// The most lines that are kept; the oldest go first. No fixture writes more than this between two
/// questions.
const KEPT_LINES: usize = 65_536;

/// A target program that has written "ready". It is killed when the guard is dropped.
#[derive(Debug)]
pub struct Target {
    child: Child,
    program: PathBuf,
    /// Closed by [`Target::close_stdin`], which ends every fixture.
    stdin: Option<ChildStdin>,
    output: Arc<Output>,
}

/// Standard output of the program that the test has not read yet. A thread of its own fills it, so
/// that a talkative program never waits for its test.
#[derive(Debug, Default)]
struct Output {
    state: Mutex<OutputState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct OutputState {
    lines: VecDeque<String>,
    ended: bool,
}

// === impl Target ===

impl Target {
    /// Builds and starts `fixture` and waits for its "ready".
    ///
    /// # Errors
    /// The fixture cannot be built or started, or is not ready within the deadline.
    pub fn spawn<I, A>(fixture: Fixture, arguments: I) -> Result<Target>
    where
        I: IntoIterator<Item = A>,
        A: AsRef<OsStr>,
    {
        let mut command = Command::new(build(fixture)?);
        command.args(arguments);
        Target::spawn_command(command)
    }

    /// Starts any program that writes "ready" as a fixture does, for example a stripped copy of
    /// one.
    ///
    /// # Errors
    /// The same as for [`Target::spawn`].
    pub fn spawn_command(command: Command) -> Result<Target> {
        let mut target = Target::spawn_unready(command)?;
        target.line_with("ready", DEADLINE)?;
        Ok(target)
    }

    /// Starts a program without waiting for anything, for example one that runs under another one.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn_unready(mut command: Command) -> Result<Target> {
        let program = PathBuf::from(command.get_program());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A copy that was written just now may be busy. Another test may have forked a child
        // meanwhile, which has not closed the descriptor it was written by.
        let started = wait_until(DEADLINE, "the program's file is closed", || {
            match command.spawn() {
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => Ok(None),
                result => Ok(Some(result)),
            }
        })?;
        let mut child = started.with_context(|| format!("cannot start {}", program.display()))?;
        let stdin = child.stdin.take();
        let stdout = child
            .stdout
            .take()
            .context("standard output was asked for")?;
        let output = Arc::new(Output::default());
        let filled = Arc::clone(&output);
        // Ends with the program: its side of the pipe is closed then.
        std::thread::Builder::new()
            .name("target-output".into())
            .spawn(move || filled.fill(stdout))
            .context("cannot start a thread")?;
        Ok(Target {
            child,
            program,
            stdin,
            output,
        })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("process ids fit in pid_t")
    }

    /// The program's file.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Sends one line.
    ///
    /// # Errors
    /// The program is gone.
    pub fn send(&mut self, line: &str) -> Result<()> {
        let stdin = self
            .stdin
            .as_mut()
            .context("standard input has been closed")?;
        stdin
            .write_all(format!("{line}\n").as_bytes())
            .and_then(|()| stdin.flush())
            .with_context(|| format!("cannot send {line:?} to {}", self.program.display()))
    }

    /// The next line.
    ///
    /// # Errors
    /// The program ends first, or the deadline passes.
    pub fn line(&mut self, deadline: Duration) -> Result<String> {
        self.output
            .next(deadline)
            .with_context(|| format!("{} said nothing", self.program.display()))
    }

    /// The next line that begins with `prefix`; lines before it are dropped.
    ///
    /// # Errors
    /// The program ends first, or the deadline passes.
    pub fn line_with(&mut self, prefix: &str, deadline: Duration) -> Result<String> {
        let end = Instant::now() + deadline;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self
                .output
                .next(left)
                .with_context(|| format!("{} did not say {prefix:?}", self.program.display()))?;
            if line.starts_with(prefix) {
                return Ok(line);
            }
        }
    }

    /// Drops all lines received so far, so that the next one is a new one.
    pub fn skip_lines(&mut self) {
        self.output
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .lines
            .clear();
    }

    /// Sends a line and returns the next line that begins with `prefix`.
    ///
    /// # Errors
    /// The same as for [`Target::send`] and [`Target::line_with`].
    pub fn ask(&mut self, line: &str, prefix: &str) -> Result<String> {
        self.send(line)?;
        self.line_with(prefix, DEADLINE)
    }

    /// Fails if the program has ended, with its exit status.
    ///
    /// # Errors
    /// The program has ended.
    pub fn still_running(&mut self) -> Result<()> {
        match self
            .child
            .try_wait()
            .context("cannot wait for the target")?
        {
            None => Ok(()),
            Some(status) => bail!("{} has ended: {status}", self.program.display()),
        }
    }

    /// Closes standard input, which ends every fixture.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits until the program has ended by itself.
    ///
    /// # Errors
    /// The program has not ended within the deadline.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let program = self.program.display().to_string();
        wait_until(deadline, &format!("the end of {program}"), || {
            Ok(self.child.try_wait()?)
        })
    }

    /// Ends the program as `kill -9` does and waits for it.
    ///
    /// # Errors
    /// The program had ended in another way before.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("cannot kill the target")?;
        let status = self.child.wait().context("cannot wait for the target")?;
        if status.signal() != Some(9) {
            bail!("{} had ended before: {status}", self.program.display());
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // A program that has ended already is no failure here. The test checks that where it
        // matters.
        let _gone_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}

// === impl Output ===

impl Output {
    fn fill(&self, stdout: ChildStdout) {
        let mut reader = BufReader::new(stdout);
        let mut line = Vec::new();
        // An error reads as the end: nothing more will come either way.
        while reader
            .read_until(b'\n', &mut line)
            .is_ok_and(|length| length > 0)
        {
            let text = String::from_utf8_lossy(&line)
                .trim_end_matches('\n')
                .to_owned();
            line.clear();
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.lines.len() == KEPT_LINES {
                state.lines.pop_front();
            }
            state.lines.push_back(text);
            self.changed.notify_all();
        }
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .ended = true;
        self.changed.notify_all();
    }

    fn next(&self, deadline: Duration) -> Result<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, deadline, |state| {
                state.lines.is_empty() && !state.ended
            })
            .unwrap_or_else(PoisonError::into_inner);
        match state.lines.pop_front() {
            Some(line) => Ok(line),
            None if state.ended => bail!("its output has ended"),
            None => bail!("no line within {deadline:?}"),
        }
    }
}
