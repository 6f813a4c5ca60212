//! The processes that the engine has looked at. Each is looked at when it appears or executes a
//! program, twice soon after that, because a service may change its user then, and at each sweep.

use std::{
    collections::{HashMap, HashSet},
    fs,
    time::{Duration, Instant},
};

use super::matching::ProcessFacts;
use crate::{
    pid::Pid,
    target::{Glance, Program},
};

/// The further looks at a new process, each so long after the one before.
const FURTHER_LOOKS: [Duration; 2] = [Duration::from_millis(300), Duration::from_secs(2)];

/// The processes, by id.
#[derive(Debug, Default)]
pub(super) struct Processes(HashMap<Pid, Known>);

#[derive(Debug)]
struct Known {
    start_time: u64,
    program: Program,
    /// The number of further looks so far, and when the next one is due.
    looks: usize,
    next: Option<Instant>,
}

/// A process as it is now.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) start_time: u64,
    pub(super) facts: ProcessFacts,
    /// True if it was not there at the last look, or ran another program.
    pub(super) is_new: bool,
}

// === impl Processes ===

impl Processes {
    /// Looks at a process. `None` if it has ended, is a kernel thread, or cannot be read.
    pub(super) fn look(&mut self, pid: Pid) -> Option<Seen> {
        let seen = Glance::at(pid)
            .ok()
            .flatten()
            .and_then(|glance| Some((glance, ProcessFacts::of(pid)?)));
        let Some((glance, facts)) = seen else {
            self.0.remove(&pid);
            return None;
        };
        let Glance {
            start_time,
            program,
            ..
        } = glance;
        let now = Instant::now();
        let known = self.0.get_mut(&pid);
        let is_same =
            |known: &&mut Known| known.start_time == start_time && known.program == program;
        let is_new = match known.filter(is_same) {
            Some(known) => {
                if known.next.is_some_and(|next| next <= now) {
                    known.looks += 1;
                    known.next = FURTHER_LOOKS.get(known.looks).map(|pause| now + *pause);
                }
                false
            }
            None => {
                let known = Known {
                    start_time,
                    program,
                    looks: 0,
                    next: FURTHER_LOOKS.first().map(|pause| now + *pause),
                };
                self.0.insert(pid, known);
                true
            }
        };
        Some(Seen {
            start_time,
            facts,
            is_new,
        })
    }

    /// The processes whose next look is due.
    pub(super) fn due(&self, now: Instant) -> Vec<Pid> {
        let is_due = |(_, known): &(&Pid, &Known)| known.next.is_some_and(|next| next <= now);
        self.0.iter().filter(is_due).map(|(pid, _)| *pid).collect()
    }

    /// When the next look is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|known| known.next).min()
    }

    /// Forgets the processes that a sweep has not found.
    pub(super) fn retain(&mut self, found: &HashSet<Pid>) {
        self.0.retain(|pid, _| found.contains(pid));
    }
}

/// All processes but this one.
pub(super) fn all() -> HashSet<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| Pid::try_from(pid).ok())
        .filter(|pid| *pid != Pid::this())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_new_once_for_each_program() {
        let mut processes = Processes::default();
        let mut child = Command::new("sh")
            .args(["-c", "read line; exec sleep 1000"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        assert!(all().contains(&pid));
        // Until the shell runs.
        while !processes
            .look(pid)
            .is_some_and(|seen| seen.facts.command.starts_with("sh"))
        {
            std::thread::yield_now();
        }
        assert!(!processes.look(pid).unwrap().is_new);
        assert!(processes.next().is_some());
        child.stdin.take();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !processes.look(pid).unwrap().is_new {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(processes.look(pid).is_none());
        assert!(processes.next().is_none());
        // A kernel thread has no program.
        assert!(processes.look(Pid::try_from(2).unwrap()).is_none());
    }
}
