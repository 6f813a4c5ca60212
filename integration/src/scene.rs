//! The scene of one test: a directory, a daemon in it, and `xrayctl` with or without that daemon.
//! Target programs are in `target.rs`.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::{DEADLINE, ProcessState, SledKind, Target, sleds_of, text_differences, wait_until};

/// A user who owns nothing of root's.
pub const NOBODY: u32 = 65_534;

/// A directory that every user may enter, and the programs that run in it.
#[derive(Debug)]
pub struct Scene {
    dir: TempDir,
    /// True if it has copies of the programs that another user may run.
    public: bool,
}

/// A daemon; it is killed when the guard is dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

/// The way to call `xrayctl`.
#[derive(Debug, Clone)]
pub struct Cli {
    program: PathBuf,
    dir: PathBuf,
    socket: Option<PathBuf>,
    uid: Option<u32>,
    /// A program that becomes `xrayctl`, and its arguments.
    through: Vec<OsString>,
}

/// The result of a run.
#[derive(Debug)]
pub struct Ran {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// An `xrayctl` under way; it is killed when the guard is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
    shown: String,
    // The files lie in it.
    _dir: TempDir,
}

// === impl Scene ===

impl Scene {
    /// A directory that other users may enter.
    pub fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
        Ok(Self { dir, public: false })
    }

    /// The same with copies of the programs in the directory. Other users may not be able to enter
    /// the directory where they were built.
    pub fn public() -> Result<Self> {
        let mut scene = Self::new()?;
        scene.public = true;
        crate::copy_program(&crate::xrayctl()?, &scene.path("xrayctl"))?;
        Ok(scene)
    }

    /// The path of a file in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a daemon and waits until it listens.
    pub fn daemon(&self) -> Result<Daemon> {
        self.daemon_with(&[])
    }

    /// The same with more arguments.
    pub fn daemon_with(&self, arguments: &[&str]) -> Result<Daemon> {
        let mut command = Command::new(crate::xrayd()?);
        command.args(arguments);
        self.daemon_by(command)
    }

    /// Starts a daemon by a command that is the daemon's or becomes it, and adds the arguments that
    /// all tests have in common.
    pub fn daemon_by(&self, mut command: Command) -> Result<Daemon> {
        self.daemon_at(&mut command, "xrayd.sock")
    }

    /// The same with the socket at this path in the directory.
    pub fn daemon_at(&self, command: &mut Command, socket: &str) -> Result<Daemon> {
        let socket = self.path(socket);
        let log = self.path("xrayd.log");
        if !command.get_args().any(|argument| argument == "--log") {
            command.args(["--log", "text"]);
        }
        // No daemon of a test goes on with the sessions of another one, unless the test says so.
        let child = command
            .arg("--socket")
            .arg(&socket)
            .env_remove("XRAYD_METRICS")
            .env("XRAYD_STATE_DIR", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .context("cannot start the daemon")?;
        let mut daemon = Daemon { child, socket, log };
        wait_until(DEADLINE, "the daemon listens", || {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("the daemon has ended: {status}: {}", daemon.log());
            }
            Ok(UnixStream::connect(&daemon.socket).ok())
        })?;
        Ok(daemon)
    }

    /// `xrayctl` with the engine in its own process.
    pub fn alone(&self) -> Result<Cli> {
        let program = if self.public {
            self.path("xrayctl")
        } else {
            crate::xrayctl()?
        };
        Ok(Cli {
            program,
            dir: self.dir.path().to_owned(),
            socket: None,
            uid: None,
            through: Vec::new(),
        })
    }

    /// `xrayctl` that talks to this daemon.
    pub fn with(&self, daemon: &Daemon) -> Result<Cli> {
        let mut cli = self.alone()?;
        cli.socket = Some(daemon.socket.clone());
        Ok(cli)
    }
}

// === impl Daemon ===

impl Daemon {
    /// The socket on which it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        send(self.child.id(), signal)
    }

    /// Stops it until it gets a SIGCONT. Returns when it stands still.
    pub fn stand_still(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        stands_still(self.child.id())
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        wait_until(DEADLINE, "the daemon ends", || Ok(self.child.try_wait()?))
            .with_context(|| self.log())
    }

    /// Kills it, as `kill -9` does.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === impl Cli ===

impl Cli {
    /// The same as another user, without any capability.
    pub fn as_user(&self, uid: u32) -> Self {
        Self {
            uid: Some(uid),
            ..self.clone()
        }
    }

    /// The same, started by a program that becomes `xrayctl`. The path of `xrayctl` follows the
    /// last of these words.
    pub fn through(&self, words: impl IntoIterator<Item = OsString>) -> Self {
        Self {
            through: words.into_iter().collect(),
            ..self.clone()
        }
    }

    /// The command, for a test that changes it further. It finds no daemon of this machine by
    /// default, and paths are relative to the scene's directory.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut words = self.through.iter().cloned();
        let mut command = match words.next() {
            Some(first) => {
                let mut command = Command::new(first);
                command.args(words).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command
            .args(args)
            .current_dir(&self.dir)
            .env("XDG_RUNTIME_DIR", self.dir.join("no-such-directory"))
            .env_remove("NO_COLOR")
            .stdin(Stdio::null());
        match &self.socket {
            Some(socket) => command.env("XRAYD_SOCKET", socket),
            None => command.env_remove("XRAYD_SOCKET"),
        };
        if let Some(uid) = self.uid {
            // Groups go as well: `uid` drops the supplementary ones if root calls it.
            command.uid(uid).gid(uid);
        }
        command
    }

    /// Starts it, and does not wait for it.
    pub fn start<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Running> {
        Running::start(self.command(args))
    }

    /// Runs it to its end.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Ran> {
        self.start(args)?.wait()
    }

    /// Runs it. It must succeed. Returns its standard output.
    pub fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        let running = self.start(args)?;
        let shown = running.shown.clone();
        let ran = running.wait()?;
        ensure!(ran.code == Some(0), "{shown}: {ran:?}");
        Ok(ran.out)
    }

    /// Runs it with `--json`; it must succeed and print one object.
    pub fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Value> {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
        let out = self.ok(args.chain([OsStr::new("--json").to_owned()]))?;
        serde_json::from_str(&out).with_context(|| format!("not JSON: {out}"))
    }
}

// === impl Running ===

impl Running {
    /// Starts a command whose output goes to files.
    pub fn start(mut command: Command) -> Result<Self> {
        let shown = format!("{command:?}");
        let dir = tempfile::tempdir()?;
        let (out, err) = (dir.path().join("out"), dir.path().join("err"));
        let child = command
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?)
            .spawn()
            .with_context(|| format!("cannot start {shown}"))?;
        Ok(Self {
            child,
            out,
            err,
            shown,
            _dir: dir,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// The file of its standard output.
    pub fn printing(&self) -> PathBuf {
        self.out.clone()
    }

    /// Its standard error so far.
    pub fn answer(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.err)?)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        send(self.child.id(), signal)
    }

    /// Stops it until it gets a SIGCONT. Returns when it stands still.
    pub fn stand_still(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        stands_still(self.child.id())
    }

    /// Waits for a condition while it runs. It is an error if it ends first.
    pub fn until<T>(
        &mut self,
        what: &str,
        mut condition: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        wait_until(DEADLINE, what, || {
            if let Some(value) = condition()? {
                return Ok(Some(value));
            }
            if let Some(status) = self.child.try_wait()? {
                let err = fs::read_to_string(&self.err)?;
                bail!("{} ended before {what}: {status}: {err}", self.shown);
            }
            Ok(None)
        })
    }

    /// Its exit status, if it has ended.
    pub fn has_ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until it has ended.
    pub fn wait(mut self) -> Result<Ran> {
        let child = &mut self.child;
        let status = wait_until(DEADLINE, &self.shown, || Ok(child.try_wait()?))?;
        Ok(Ran {
            code: status.code(),
            out: String::from_utf8(fs::read(&self.out)?).context("not UTF-8")?,
            err: String::from_utf8(fs::read(&self.err)?).context("not UTF-8")?,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === impl Ran ===

impl Ran {
    /// Checks that it failed with this code and one line that has all of these parts.
    pub fn failed(&self, code: i32, parts: &[&str]) -> Result<()> {
        ensure!(self.code == Some(code), "not {code}: {self:?}");
        ensure!(
            self.err.lines().count() == 1 && self.err.ends_with('\n'),
            "not one line: {self:?}"
        );
        for part in ["xrayctl: "].iter().chain(parts) {
            ensure!(self.err.contains(part), "no {part:?}: {self:?}");
        }
        Ok(())
    }

    /// Checks that the engine refused for this reason.
    pub fn refused(&self, reason: &str) -> Result<()> {
        self.failed(
            4,
            &[&format!(
                "[{reason}]; `xrayctl explain {reason}` explains it"
            )],
        )
    }
}

/// Sends a signal to a process.
pub fn send(pid: u32, signal: Signal) -> Result<()> {
    kill(Pid::from_raw(pid.cast_signed()), signal)
        .with_context(|| format!("cannot send {signal} to {pid}"))
}

/// Waits until a process that was sent a SIGSTOP has stopped.
fn stands_still(pid: u32) -> Result<()> {
    let stat = format!("/proc/{pid}/stat");
    wait_until(DEADLINE, "a process stands still", || {
        Ok(fs::read_to_string(&stat)?.contains(") T ").then_some(()))
    })
}

/// The number of sleds of its main program that are on, seen from outside.
pub fn sleds_on(target: &Target) -> Result<usize> {
    sleds_on_in(target.pid(), target.program())
}

/// The same for any process.
pub fn sleds_on_in(pid: i32, program: &Path) -> Result<usize> {
    // The bytes that switch.
    let switches: HashSet<u64> = sleds_of(program)?
        .into_iter()
        .map(|sled| match sled.kind {
            SledKind::Entry | SledKind::EntryArgument | SledKind::Exit => sled.address,
            SledKind::TailExit | SledKind::CustomEvent | SledKind::TypedEvent => sled.address + 1,
        })
        .collect();
    let mut on = 0;
    for difference in text_differences(pid, program, program)? {
        on += (difference.file_address..)
            .take(difference.found.len())
            .filter(|at| switches.contains(at))
            .count();
    }
    Ok(on)
}

/// Returns `Some` if all sleds are on.
pub fn all_on(target: &Target) -> Result<Option<()>> {
    Ok((sleds_on(target)? == sleds_of(target.program())?.len()).then_some(()))
}

/// Checks that every byte that a thread can execute is as in the file again.
pub fn ensure_as_compiled(target: &Target) -> Result<()> {
    let program = target.program();
    let sleds = sleds_of(program)?;
    for difference in text_differences(target.pid(), program, program)? {
        for at in (difference.file_address..).take(difference.found.len()) {
            // Behind the jump or the return, no thread comes by.
            let dead = sleds.iter().any(|sled| {
                let dead = sled.kind.dead();
                at.checked_sub(sled.address)
                    .is_some_and(|at| dead.contains(&at))
            });
            ensure!(dead, "byte {at:#x} was changed: {difference:x?}");
        }
    }
    Ok(())
}

/// Checks that a tracer has left nothing in the process: no descriptor, no thread, no signal mask.
pub fn ensure_nothing_left(before: &ProcessState, pid: i32) -> Result<()> {
    let after = ProcessState::of(pid)?;
    ensure!(after.descriptors == before.descriptors, "{after:?}");
    ensure!(after.directory == before.directory && after.core_filter == before.core_filter);
    for (tid, thread) in &after.threads {
        ensure!(thread.tracer == 0, "thread {tid} is traced: {thread:?}");
        ensure!(
            thread.name == before.threads[&pid].name,
            "thread {tid} is somebody else's: {thread:?}"
        );
        ensure!(
            thread.blocked == before.threads[&pid].blocked,
            "thread {tid}: {thread:?}"
        );
    }
    Ok(())
}

/// A list in an object.
pub fn rows<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value[key]
        .as_array()
        .with_context(|| format!("no list {key} in {value}"))
}

/// The row of a process in the object's `processes`.
pub fn row_of(value: &Value, pid: i32) -> Result<Option<&Value>> {
    Ok(rows(value, "processes")?
        .iter()
        .find(|row| row["pid"] == pid))
}
