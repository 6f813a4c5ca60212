//! The tree of processes: parents, children, and the programs that they run.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    time::Duration,
};

use nix::libc;
use procfs::{
    FromRead as _,
    process::{Process, Stat},
};

use super::{Maps, Objects, Threads, modules::modules_of};
use crate::{pid::Pid, sys::PidFd};

/// The children of processes, at one moment.
#[derive(Debug)]
pub(crate) struct Children {
    /// Children by parent, if the kernel does not list children itself (before 3.5, or without
    /// CONFIG_PROC_CHILDREN).
    by_parent: Option<HashMap<Pid, Vec<Pid>>>,
}

/// Identity and program of a process, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Glance {
    /// Field 22 of `/proc/<pid>/stat`.
    pub(crate) start_time: u64,
    /// Its parent; `None` if the parent cannot be seen from here.
    pub(crate) parent: Option<Pid>,
    /// The program that it runs.
    pub(crate) program: Program,
}

/// The properties of a program that `exec` changes and `fork` does not: the executable, and the
/// addresses of stack and arguments that the kernel chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Program {
    device: u64,
    inode: u64,
    stack: u64,
    arguments: u64,
}

/// One run of a program: the random bytes that the kernel gives to a program at its start. `exec`
/// changes them also where a program executes itself and lies at the same addresses, without
/// address space randomisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Incarnation([u8; 16]);

// === impl Children ===

impl Children {
    /// The children at this moment. [`Self::of`] is called once for each process.
    pub(crate) fn now() -> Self {
        let listed = fs::exists("/proc/thread-self/children").unwrap_or(false);
        Self {
            by_parent: (!listed).then(everybody),
        }
    }

    /// The children of one process. A child that is forked meanwhile may be missing, and is there
    /// the next time.
    pub(crate) fn of(&self, parent: Pid) -> Vec<Pid> {
        if let Some(by_parent) = &self.by_parent {
            return by_parent.get(&parent).cloned().unwrap_or_default();
        }
        let tasks = Threads::of(parent).into_iter();
        let lists = tasks.filter_map(|task| {
            fs::read_to_string(format!("/proc/{parent}/task/{task}/children")).ok()
        });
        lists.flat_map(|list| pids_in(&list)).collect()
    }
}

fn pids_in(list: &str) -> Vec<Pid> {
    let numbers = list.split_ascii_whitespace();
    let pids = numbers.filter_map(|pid| Pid::try_from(pid.parse::<u32>().ok()?).ok());
    pids.collect()
}

/// All processes by their parents.
fn everybody() -> HashMap<Pid, Vec<Pid>> {
    let mut by_parent: HashMap<Pid, Vec<Pid>> = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten();
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        if let Some(&pid) = pids_in(name.to_str().unwrap_or_default()).first()
            && let Ok(stat) = Process::new(pid.as_raw()).and_then(|process| process.stat())
            && let Some(parent) = u32::try_from(stat.ppid)
                .ok()
                .and_then(|id| Pid::try_from(id).ok())
        {
            by_parent.entry(parent).or_default().push(pid);
        }
    }
    by_parent
}

// === impl Glance ===

impl Glance {
    /// The state of a process now; `None` if it has ended.
    ///
    /// # Errors
    /// The process cannot be read.
    pub(crate) fn at(pid: Pid) -> io::Result<Option<Self>> {
        let Some(process) = stat_of(&format!("/proc/{pid}"))? else {
            return Ok(None);
        };
        if let Some(tid) = Threads::live(pid) {
            let thread = format!("/proc/{pid}/task/{tid}");
            let (stat, exe) = (
                stat_of(&thread)?,
                unless_gone(fs::metadata(format!("{thread}/exe")))?,
            );
            if let (Some(stat), Some(exe)) = (stat, exe) {
                return Ok(Some(Self {
                    start_time: process.starttime,
                    parent: u32::try_from(process.ppid)
                        .ok()
                        .and_then(|id| Pid::try_from(id).ok()),
                    program: Program {
                        device: exe.dev(),
                        inode: exe.ino(),
                        stack: stat.startstack,
                        arguments: stat.arg_start.unwrap_or(0),
                    },
                }));
            }
        }
        // A thread that has called `exec` has the leader's number, and no number of its own any
        // more.
        if has_ended(pid)? {
            return Ok(None);
        }
        let message =
            format!("process {pid} has no live thread: it is about to end, or calls exec");
        Err(io::Error::other(message))
    }
}

/// True if a process has ended, even if it waits for its parent.
///
/// While a thread replaces the leader by an `exec`, `/proc` may show only a leader that has ended.
/// A pidfd does not.
///
/// # Errors
/// The process cannot be opened.
pub(crate) fn has_ended(pid: Pid) -> io::Result<bool> {
    let held = unless_gone(PidFd::open(pid))?;
    Ok(held.is_none_or(|held| held.has_exited()))
}

/// True if the process with this start time exists, also as a zombie.
pub(crate) fn is_there(pid: Pid, start_time: u64) -> bool {
    let stat = stat_of(&format!("/proc/{pid}"));
    stat.is_ok_and(|stat| stat.is_some_and(|stat| stat.starttime == start_time))
}

fn stat_of(directory: &str) -> io::Result<Option<Stat>> {
    let bytes = unless_gone(fs::read(format!("{directory}/stat")))?;
    let stat = bytes.map(|bytes| Stat::from_read(bytes.as_slice()));
    stat.transpose().map_err(io::Error::other)
}

fn unless_gone<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Time since `start_time`, the start of a process, rounded up to the clock's step.
pub(crate) fn age_of(start_time: u64) -> Duration {
    let up = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let up: f64 = up
        .split_ascii_whitespace()
        .next()
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(0.0);
    let steps = procfs::ticks_per_second().max(1);
    let begun = Duration::from_secs(start_time / steps)
        + Duration::from_nanos(start_time % steps * 1_000_000_000 / steps);
    let up = Duration::try_from_secs_f64(up).unwrap_or_default() + 2 * clock_step();
    up.saturating_sub(begun)
}

/// The resolution of start times.
fn clock_step() -> Duration {
    Duration::from_nanos(1_000_000_000 / procfs::ticks_per_second().max(1))
}

/// True if a process with this start time is certainly older than this.
pub(crate) fn is_older(start_time: u64, than: Duration) -> bool {
    // The age is rounded up by two steps, and each of two clocks rounds by one more.
    age_of(start_time) > than + 4 * clock_step()
}

// === impl Incarnation ===

impl Incarnation {
    /// The random bytes of a process; `None` if they cannot be read.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        const AT_RANDOM: u64 = 25;
        let dir = Threads::proc_dir(pid);
        let vector = fs::read(format!("{dir}/auxv")).ok()?;
        let (words, _) = vector.as_chunks::<8>();
        let (entries, _) = words.as_chunks::<2>();
        let entries = entries.iter();
        let entry = |[kind, value]: &[[u8; 8]; 2]| {
            (u64::from_ne_bytes(*kind) == AT_RANDOM).then(|| u64::from_ne_bytes(*value))
        };
        let address = entries.filter_map(entry).next()?;
        let mut bytes = [0; 16];
        let memory = fs::File::open(format!("{dir}/mem")).ok()?;
        memory.read_exact_at(&mut bytes, address).ok()?;
        Some(Self(bytes))
    }
}

/// True if the program or a library of the process has sleds.
pub(crate) fn has_sleds(pid: Pid, objects: &Objects) -> bool {
    let maps = Threads::live(pid).and_then(|tid| Maps::read(pid, tid).ok());
    maps.is_some_and(|maps| !modules_of(pid, &maps, objects).modules.is_empty())
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::CommandExt as _,
        process::{Child, Command, Stdio},
    };

    use super::*;
    use crate::target::Target;

    /// Number of times that the test below still executes itself. Unset in the process that looks
    /// on.
    const TURNS: &str = "XRAYD_TEST_TURNS";

    /// The thread that runs a test is not the leader, and calls `exec` repeatedly.
    #[test]
    fn a_process_whose_thread_calls_exec_has_not_ended() {
        const TEST: &str = "target::tree::tests::a_process_whose_thread_calls_exec_has_not_ended";
        let itself = |turns: u32| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([TEST, "--exact", "--nocapture"]);
            command.env(TURNS, turns.to_string());
            command
        };
        let turns = std::env::var(TURNS)
            .ok()
            .map(|turns| turns.parse().unwrap());
        match turns {
            Some(0) => {
                // Until the parent closes the pipe.
                std::io::stdin().read_line(&mut String::new()).unwrap();
                return;
            }
            Some(turns) => panic!("{}", itself(turns - 1).exec()),
            None => {}
        }
        let mut child = itself(500).stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        let environment = || fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let last = format!("{TURNS}=0\0").into_bytes();
        while !environment().windows(last.len()).any(|at| at == last) {
            for _ in 0..64 {
                assert!(Target::open(pid).unwrap().live_thread().is_ok());
                assert!(!matches!(Glance::at(pid), Ok(None)));
            }
        }
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    fn sleeper() -> (Child, Pid) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        (child, pid)
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn children_are_found_either_way() {
        let (child, pid) = sleeper();
        let listed = Children::now();
        assert!(listed.of(Pid::this()).contains(&pid));
        let searched = Children {
            by_parent: Some(everybody()),
        };
        assert!(searched.of(Pid::this()).contains(&pid));
        assert!(searched.of(pid).is_empty());
        end(child);
        assert!(!Children::now().of(Pid::this()).contains(&pid));
    }

    #[test]
    fn programs_are_distinguished_and_have_an_age() {
        let at = |pid| Glance::at(pid).unwrap();
        let own = at(Pid::this()).unwrap();
        assert_eq!(at(Pid::this()), Some(own));
        let (child, pid) = sleeper();
        let its = at(pid).unwrap();
        assert_ne!(its.program, own.program);
        assert_eq!(its.parent, Some(Pid::this()));
        assert!(age_of(its.start_time) <= age_of(own.start_time));
        assert!(!is_older(own.start_time, age_of(own.start_time)));
        assert!(is_there(pid, its.start_time) && !is_there(pid, its.start_time + 1));
        // The process exists before the kernel has written these bytes.
        let its_own = std::iter::repeat_with(|| Incarnation::of(pid)).find(Option::is_some);
        assert_ne!(its_own.unwrap(), Incarnation::of(Pid::this()));
        end(child);
        assert_eq!(at(pid), None);
        assert!(!is_there(pid, its.start_time));
    }
}
