//! Who is whose child, and what each of them runs.

use std::{collections::HashMap, fs, os::unix::fs::MetadataExt as _, time::Duration};

use procfs::process::Process;

use super::{Maps, Objects, Threads, modules::modules_of};
use crate::pid::Pid;

/// The children of processes, at one moment.
#[derive(Debug)]
pub(crate) struct Children {
    /// By parent, where the kernel does not list them by itself (before 3.5, or without CONFIG_PROC_CHILDREN).
    by_parent: Option<HashMap<Pid, Vec<Pid>>>,
}

/// What a process is and runs, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Glance {
    /// Field 22 of `/proc/<pid>/stat`.
    pub(crate) start_time: u64,
    /// What it runs.
    pub(crate) program: Program,
}

/// What `exec` changes and `fork` does not: the executable, and where the kernel put the stack and the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Program {
    device: u64,
    inode: u64,
    stack: u64,
    arguments: u64,
}

// === impl Children ===

impl Children {
    /// To be asked once for each process.
    pub(crate) fn now() -> Self {
        let listed = fs::exists("/proc/thread-self/children").unwrap_or(false);
        Self {
            by_parent: (!listed).then(everybody),
        }
    }

    /// Those of one process. One that is forked meanwhile may be missing, and is there the next time.
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

/// Every process by its parent.
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
    /// `None` if it has ended, or cannot be looked at.
    pub(crate) fn at(pid: Pid) -> Option<Self> {
        let stat = Process::new(pid.as_raw()).ok()?.stat().ok()?;
        // What is on its way out has no memory, and shows no program.
        let exe = fs::metadata(format!("{}/exe", Threads::proc_dir(pid))).ok()?;
        Some(Self {
            start_time: stat.starttime,
            program: Program {
                device: exe.dev(),
                inode: exe.ino(),
                stack: stat.startstack,
                arguments: stat.arg_start.unwrap_or(0),
            },
        })
    }

    /// How long ago the process began, rounded up to the clock's step.
    pub(crate) fn age(&self) -> Duration {
        let up = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let up: f64 = up
            .split_ascii_whitespace()
            .next()
            .and_then(|seconds| seconds.parse().ok())
            .unwrap_or(0.0);
        let steps = procfs::ticks_per_second().max(1);
        let begun = Duration::from_secs(self.start_time / steps)
            + Duration::from_nanos(self.start_time % steps * 1_000_000_000 / steps);
        let step = Duration::from_nanos(1_000_000_000 / steps);
        let up = Duration::try_from_secs_f64(up).unwrap_or_default() + 2 * step;
        up.saturating_sub(begun)
    }
}

/// True if anything that the process has loaded has sleds.
pub(crate) fn has_sleds(pid: Pid, objects: &Objects) -> bool {
    let maps = Threads::live(pid).and_then(|tid| Maps::read(pid, tid).ok());
    maps.is_some_and(|maps| !modules_of(pid, &maps, objects).modules.is_empty())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

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
    fn programs_are_told_apart_and_have_an_age() {
        let own = Glance::at(Pid::this()).unwrap();
        assert_eq!(Glance::at(Pid::this()), Some(own));
        let (child, pid) = sleeper();
        let its = Glance::at(pid).unwrap();
        assert_ne!(its.program, own.program);
        assert!(its.age() <= own.age());
        end(child);
        assert_eq!(Glance::at(pid), None);
    }
}
