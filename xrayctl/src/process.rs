//! Processes as users name them: by a pid, by the name of a program, by a file with a pid, or by a
//! unit of systemd.
//!
//! The client finds the pid, in `/proc` as it sees it. The daemon gets the pid alone. A name that
//! several processes have is an error, and the error lists them.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use clap::ArgGroup;

use crate::failure::Failure;
use crate::output::text::{cut, printable};
use crate::suggest;

/// The most processes that are looked at. The kernel has no higher pid.
const MOST_PROCESSES: usize = 1 << 22;
/// The most bytes of a file that are read.
const MOST_BYTES: u64 = 4096;
/// The most processes that an error lists.
const MOST_LISTED: usize = 20;
/// The longest command line in an error, in characters.
const LONGEST_COMMAND: usize = 80;

/// What a user calls a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProcessName {
    Pid(u32),
    /// The name of its main thread, or the file name of its program.
    Program(String),
    /// A file whose first line is the pid.
    File(PathBuf),
    /// A unit of systemd, for its main process.
    Unit(String),
}

/// The process of a command that works on one.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct OneProcess {
    /// The process: its pid, the name of its program, @FILE with its pid, or unit:NAME for the main
    /// process of a systemd unit
    #[arg(value_name = "PROCESS", value_parser = parse, conflicts_with = "pid")]
    process: Option<ProcessName>,
    /// The process, as for PROCESS
    #[arg(short, long, value_name = "PROCESS", value_parser = parse)]
    pid: Option<ProcessName>,
}

/// The process of a command that works on every attached one otherwise.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct OnlyProcess {
    /// Only this process: its pid, the name of its program, @FILE with its pid, or unit:NAME for
    /// the main process of a systemd unit; without this, every attached process
    #[arg(value_name = "PROCESS", value_parser = parse, conflicts_with = "pid")]
    process: Option<ProcessName>,
    /// Only this process, as for PROCESS
    #[arg(short, long, value_name = "PROCESS", value_parser = parse)]
    pid: Option<ProcessName>,
}

/// The processes of a command that does the same to each of them.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct SeveralProcesses {
    /// The processes, one after the other: each a pid, the name of a program, @FILE with a pid, or
    /// unit:NAME for the main process of a systemd unit
    #[arg(value_name = "PROCESS", value_parser = parse, conflicts_with = "pid")]
    process: Vec<ProcessName>,
    /// A process, as for PROCESS; can be given several times
    #[arg(short, long, value_name = "PROCESS", value_parser = parse)]
    pid: Vec<ProcessName>,
}

/// The processes of a command that does the same to each of them, or to every attached one
/// otherwise.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct OnlyProcesses {
    /// Only these processes, one after the other: each a pid, the name of a program, @FILE with a
    /// pid, or unit:NAME for the main process of a systemd unit; without this, every attached
    /// process
    #[arg(value_name = "PROCESS", value_parser = parse, conflicts_with = "pid")]
    process: Vec<ProcessName>,
    /// Only this process, as for PROCESS; can be given several times
    #[arg(short, long, value_name = "PROCESS", value_parser = parse)]
    pid: Vec<ProcessName>,
}

/// A process that has a name.
#[derive(Debug)]
struct Named {
    pid: u32,
    command: String,
}

/// The processes that have a name, and the names of all others.
#[derive(Debug, Default)]
struct Found {
    named: Vec<Named>,
    others: Vec<String>,
}

/// The rule that one of these arguments is given, and no two of them.
pub(crate) fn one_of(arguments: &'static [&'static str]) -> ArgGroup {
    ArgGroup::new("one-of").args(arguments).required(true)
}

/// Parses the name of a process for clap.
pub(crate) fn parse(text: &str) -> Result<ProcessName, String> {
    if let Some(file) = text.strip_prefix('@') {
        return match file {
            "" => Err("expected a file with a pid behind @".to_owned()),
            file => Ok(ProcessName::File(file.into())),
        };
    }
    if let Some(unit) = text.strip_prefix("unit:") {
        return match unit {
            "" => Err("expected the name of a systemd unit behind unit:".to_owned()),
            unit => Ok(ProcessName::Unit(unit.to_owned())),
        };
    }
    if text.is_empty() {
        return Err("expected a process, not an empty text".to_owned());
    }
    // A misspelt number is no name of a program.
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(ProcessName::Program(text.to_owned()));
    }
    match text.parse() {
        Ok(pid) if pid > 0 => Ok(ProcessName::Pid(pid)),
        Ok(_) | Err(_) => {
            Err("expected the pid of a process; `xrayctl ps` lists processes".to_owned())
        }
    }
}

/// The pid in a text that is the number of a running process, and the name of no file.
pub(crate) fn running(text: &str) -> Option<u32> {
    let Ok(ProcessName::Pid(pid)) = parse(text) else {
        return None;
    };
    let runs = Path::new("/proc").join(pid.to_string()).is_dir();
    (runs && !Path::new(text).exists()).then_some(pid)
}

// === impl OneProcess ===

impl OneProcess {
    /// The name, if one is given.
    pub(crate) fn name(&self) -> Option<&ProcessName> {
        self.process.as_ref().or(self.pid.as_ref())
    }

    /// The pid of the process. clap has made sure that one is named.
    pub(crate) fn find(&self) -> anyhow::Result<u32> {
        match self.name() {
            Some(name) => name.find(),
            None => Err(Failure::Usage("no process is named".to_owned()).into()),
        }
    }
}

// === impl OnlyProcess ===

impl OnlyProcess {
    /// The pid of the process, if one is named.
    pub(crate) fn find(&self) -> anyhow::Result<Option<u32>> {
        let name = self.process.as_ref().or(self.pid.as_ref());
        name.map(ProcessName::find).transpose()
    }
}

// === impl SeveralProcesses ===

impl SeveralProcesses {
    /// The names, in the order of the command line.
    pub(crate) fn names(&self) -> Vec<&ProcessName> {
        self.process.iter().chain(&self.pid).collect()
    }
}

// === impl OnlyProcesses ===

impl OnlyProcesses {
    /// The names, in the order of the command line; empty for every attached process.
    pub(crate) fn names(&self) -> Vec<&ProcessName> {
        self.process.iter().chain(&self.pid).collect()
    }
}

// === impl ProcessName ===

impl ProcessName {
    /// The pid of the process.
    ///
    /// # Errors
    /// No process or several processes have the name, or the pid cannot be read.
    pub(crate) fn find(&self) -> anyhow::Result<u32> {
        match self {
            Self::Pid(pid) => Ok(*pid),
            Self::Program(name) => the_program(Path::new("/proc"), name),
            Self::File(path) => pid_in(path),
            Self::Unit(unit) => main_pid(unit),
        }
    }

    /// The program in place of a process: an executable file that no process has as its name. It
    /// has a slash in it, so that no shell searches for it.
    pub(crate) fn as_command(&self) -> Option<String> {
        let Self::Program(name) = self else {
            return None;
        };
        let is_program = fs::metadata(name)
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
        if !is_program {
            return None;
        }
        if name.contains('/') {
            return Some(name.clone());
        }
        let found = search(Path::new("/proc"), name).is_ok_and(|found| !found.named.is_empty());
        (!found).then(|| format!("./{name}"))
    }
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "{pid}"),
            Self::Program(name) => f.write_str(&printable(name)),
            Self::File(path) => write!(f, "@{}", printable(&path.display().to_string())),
            Self::Unit(unit) => write!(f, "unit:{}", printable(unit)),
        }
    }
}

/// The only process with this name. `proc` is `/proc`.
fn the_program(proc: &Path, name: &str) -> anyhow::Result<u32> {
    let found = search(proc, name).with_context(|| format!("cannot read {}", proc.display()))?;
    match found.named.as_slice() {
        [only] => Ok(only.pid),
        [] => {
            let others = found.others.iter().map(String::as_str);
            let hint = suggest::hint(&[name.to_owned()], others);
            let name = printable(name);
            let what = format!(
                "no process has the name {name}{hint}; `xrayctl ps` lists the processes with sleds"
            );
            Err(Failure::NothingMatched(what).into())
        }
        several => Err(Failure::Usage(ambiguous(name, several)).into()),
    }
}

/// The error for a name that several processes have.
fn ambiguous(name: &str, several: &[Named]) -> String {
    let mut what = format!(
        "{} processes have the name {}; give the pid of one:",
        several.len(),
        printable(name)
    );
    for Named { pid, command } in several.iter().take(MOST_LISTED) {
        let command = cut(&printable(command), LONGEST_COMMAND);
        what.push_str(&format!("\n{pid:>9}  {command}"));
    }
    if let Some(more @ 1..) = several.len().checked_sub(MOST_LISTED) {
        what.push_str(&format!("\n          and {more} more"));
    }
    what
}

/// Looks for a name among all processes but this one, ordered by pid.
fn search(proc: &Path, name: &str) -> io::Result<Found> {
    let mut found = Found::default();
    for entry in fs::read_dir(proc)?.take(MOST_PROCESSES) {
        let entry = entry?;
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid.filter(|pid| *pid != std::process::id()) else {
            continue;
        };
        let folder = entry.path();
        // A process may end at any time. Then its files cannot be read.
        let Ok(comm) = beginning(&folder.join("comm")) else {
            continue;
        };
        let comm = comm.trim_end_matches('\n').to_owned();
        let command = beginning(&folder.join("cmdline")).unwrap_or_default();
        let program = fs::read_link(folder.join("exe")).ok();
        // Threads of the kernel and processes that have ended have neither.
        if command.is_empty() && program.is_none() {
            continue;
        }
        if comm == name || program.as_deref().and_then(file_name) == Some(name) {
            let command = command.trim_end_matches('\0').replace('\0', " ");
            let command = if command.is_empty() { comm } else { command };
            found.named.push(Named { pid, command });
        } else {
            found.others.push(comm);
        }
    }
    found.named.sort_by_key(|named| named.pid);
    Ok(found)
}

/// The file name of a program. The kernel marks a program whose file is deleted.
fn file_name(program: &Path) -> Option<&str> {
    let name = program.file_name().and_then(OsStr::to_str)?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name))
}

/// The first bytes of a file.
fn beginning(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The pid in the first line of a file.
fn pid_in(path: &Path) -> anyhow::Result<u32> {
    let shown = || printable(&path.display().to_string());
    let text = beginning(path).with_context(|| format!("cannot read {}", shown()))?;
    let line = text.lines().next().unwrap_or_default().trim();
    match line.parse() {
        Ok(pid) if pid > 0 => Ok(pid),
        Ok(_) | Err(_) => bail!("the first line of {} is not a pid", shown()),
    }
}

/// The main process of a unit of systemd.
fn main_pid(unit: &str) -> anyhow::Result<u32> {
    let shown = printable(unit);
    let mut systemctl = Command::new("systemctl");
    systemctl.args(["show", "-p", "MainPID", "--value", "--", unit]);
    let done = systemctl.stdin(Stdio::null()).output();
    let done = match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("unit:{shown} needs systemctl, which is not installed")
        }
        done => done.context("cannot run systemctl")?,
    };
    let first_line = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        printable(text.lines().next().unwrap_or_default())
    };
    if !done.status.success() {
        let why = first_line(&done.stderr);
        bail!("systemctl cannot show the unit {shown}: {why}");
    }
    main_pid_in(&first_line(&done.stdout)).ok_or_else(|| {
        let what = format!("the unit {shown} has no main process");
        Failure::NothingMatched(what).into()
    })
}

/// The pid that systemctl has printed. 0 stands for no process.
fn main_pid_in(line: &str) -> Option<u32> {
    line.trim().parse().ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder like `/proc`, with these processes: pid, comm, command line, program.
    fn proc(processes: &[(u32, &str, &str, &str)]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        fs::write(proc.path().join("uptime"), "1 1").unwrap();
        for (pid, comm, command, program) in processes {
            let folder = proc.path().join(pid.to_string());
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
            fs::write(folder.join("cmdline"), command).unwrap();
            if !program.is_empty() {
                symlink(program, folder.join("exe")).unwrap();
            }
        }
        proc
    }

    #[test]
    fn a_process_has_a_pid_a_name_a_file_or_a_unit() {
        for (text, expected) in [
            ("12", Some(ProcessName::Pid(12))),
            ("server", Some(ProcessName::Program("server".to_owned()))),
            ("12a", Some(ProcessName::Program("12a".to_owned()))),
            ("@/run/a.pid", Some(ProcessName::File("/run/a.pid".into()))),
            ("unit:redis", Some(ProcessName::Unit("redis".to_owned()))),
            ("", None),
            ("0", None),
            ("-1", None),
            ("-", None),
            ("99999999999", None),
            ("@", None),
            ("unit:", None),
        ] {
            assert_eq!(parse(text).ok(), expected, "{text}");
            if let Some(name) = expected {
                assert_eq!(name.to_string(), text);
            }
        }
    }

    #[test]
    fn a_name_is_that_of_the_main_thread_or_of_the_program() {
        let proc = proc(&[
            (7, "server", "/opt/server\0--port\080\0", "/opt/server-2"),
            (8, "worker", "worker\0", "/opt/other"),
            (9, "old", "old\0", "/opt/replaced (deleted)"),
            (10, "worker", "", ""),
        ]);
        for (name, expected) in [
            ("server", 7),
            ("server-2", 7),
            ("worker", 8),
            ("replaced", 9),
        ] {
            assert_eq!(the_program(proc.path(), name).unwrap(), expected, "{name}");
        }
        let error = the_program(proc.path(), "sevrer").unwrap_err();
        let error = format!("{error:#}");
        let expected = "nothing matched: no process has the name sevrer (did you mean server?)";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn a_name_of_several_processes_is_an_error_that_lists_them() {
        let proc = proc(&[
            (70, "a", "a\0--one\0", "/bin/x"),
            (7, "b\u{1b}", "", "/bin/x"),
        ]);
        let error = the_program(proc.path(), "x").unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "2 processes have the name x; give the pid of one:\n        7  b\\u{1b}\n       70  a --one"
        );
        let many: Vec<_> = (1..=22)
            .map(|pid| Named {
                pid,
                command: String::new(),
            })
            .collect();
        assert!(ambiguous("x", &many).ends_with("and 2 more"));
    }

    #[test]
    fn the_first_line_of_a_file_is_the_pid() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pid");
        for (text, expected) in [
            ("12\n", Some(12)),
            (" 12 \nmore", Some(12)),
            ("", None),
            ("0\n", None),
            ("\n12", None),
            ("pid 12", None),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(pid_in(&path).ok(), expected, "{text:?}");
        }
        assert!(pid_in(&dir.path().join("none")).is_err());
    }

    #[test]
    fn a_unit_without_a_main_process_has_pid_0() {
        for (line, expected) in [("812", Some(812)), ("0", None), ("", None), ("x", None)] {
            assert_eq!(main_pid_in(line), expected, "{line}");
        }
    }

    #[test]
    fn an_executable_file_is_a_command() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("svc");
        fs::write(&path, "").unwrap();
        let name = ProcessName::Program(path.display().to_string());
        assert_eq!(name.as_command(), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(name.as_command(), Some(path.display().to_string()));
        assert_eq!(ProcessName::Pid(7).as_command(), None);
    }

    #[test]
    fn a_number_is_a_process_only_while_it_runs() {
        assert_eq!(
            running(&std::process::id().to_string()),
            Some(std::process::id())
        );
        for text in ["4194305", "parse", "0", "@12", ""] {
            assert_eq!(running(text), None, "{text}");
        }
    }
}
