//! A pseudo-terminal with a program on it. Input goes through the line discipline, as for a user.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command};

use anyhow::{Context as _, Result};
use integration::{DEADLINE, wait_until};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The bytes of Ctrl-C.
const INTERRUPT: &[u8] = &[3];

/// A program on a controlling terminal that the test reads and types on. Dropping this kills the
/// program. The terminal is read only while a test waits, so a program that writes a lot stands
/// still meanwhile.
#[derive(Debug)]
pub(crate) struct Terminal {
    master: File,
    child: Child,
    seen: Vec<u8>,
}

/// The end of the program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// All output on the terminal.
    pub(crate) seen: String,
}

// === impl Terminal ===

impl Terminal {
    /// Runs the command on a terminal of its own.
    pub(crate) fn start(command: &Command, columns: u16) -> Result<Self> {
        let size = Winsize {
            ws_row: 24,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(&size, None).context("no pseudo-terminal")?;
        // `env` executes the program in place, so that the program has this child's pid. Signals
        // interrupt it as a user's program, even if these tests run in the background with some
        // signals ignored.
        let mut started = Command::new("env");
        started.args(["--default-signal", "setsid", "--ctty"]);
        started.arg(command.get_program());
        started.args(command.get_args()).env("TERM", "xterm");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => started.env(name, value),
                None => started.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            started.current_dir(dir);
        }
        let child = started
            .stdin(pty.slave.try_clone()?)
            .stdout(pty.slave.try_clone()?)
            .stderr(pty.slave)
            .spawn()
            .context("cannot start env")?;
        Ok(Self {
            master: pty.master.into(),
            child,
            seen: Vec::new(),
        })
    }

    /// Types Ctrl-C.
    pub(crate) fn interrupt(&mut self) -> Result<()> {
        self.master.write_all(INTERRUPT).context("cannot type")
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) -> Result<()> {
        self.master
            .write_all(keys.as_bytes())
            .context("cannot type")
    }

    /// Reads until a condition on everything seen so far holds.
    pub(crate) fn until(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&str) -> Result<bool>,
    ) -> Result<()> {
        let waited = wait_until(DEADLINE, what, || {
            self.read()?;
            Ok(condition(&self.text())?.then_some(()))
        });
        waited.with_context(|| self.text())
    }

    /// Types Ctrl-C until a condition on everything seen so far holds. Of two that come at once, a
    /// program gets only one.
    pub(crate) fn interrupt_until(
        &mut self,
        what: &str,
        condition: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let waited = wait_until(DEADLINE, what, || {
            self.interrupt()?;
            self.read()?;
            Ok(condition(&self.text()).then_some(()))
        });
        waited.with_context(|| self.text())
    }

    /// Sends a signal to the program.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        Ok(kill(pid, signal)?)
    }

    /// Reads until the program has ended.
    pub(crate) fn wait(mut self) -> Result<Ended> {
        let status = wait_until(DEADLINE, "the program on the terminal ends", || {
            self.read()?;
            Ok(self.child.try_wait()?)
        });
        let status = status.with_context(|| self.text())?;
        self.read()?;
        Ok(Ended {
            code: status.code(),
            signal: status.signal(),
            seen: self.text(),
        })
    }

    /// Takes one piece of the available output.
    fn read(&mut self) -> Result<()> {
        let mut fds = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::ZERO)? == 0 {
            return Ok(());
        }
        let mut buffer = [0; 1 << 16];
        match self.master.read(&mut buffer) {
            Ok(length) => self.seen.extend_from_slice(&buffer[..length]),
            // No process has the other side open any more.
            Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("cannot read the terminal"),
        }
        Ok(())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
