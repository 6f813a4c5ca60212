//! The processes that the engine has looked at. Each is looked at when it appears or executes a
//! program, twice soon after that, because a service may change its user then, and at each sweep.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    time::{Duration, Instant},
};

use crate::{
    pid::Pid,
    target::{Glance, ProcessFacts, Program, has_ended, is_there, memory_owner, walk},
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

/// A process as a look found it.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) pid: Pid,
    pub(super) start_time: u64,
    program: Program,
    /// The user to whom the kernel gives its memory.
    pub(super) owner: u32,
    pub(super) facts: ProcessFacts,
}

/// A process as it is now.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) start_time: u64,
    pub(super) owner: u32,
    pub(super) facts: ProcessFacts,
    /// True if it was not there at the last look, or ran another program.
    pub(super) is_new: bool,
}

/// Looks at processes, of which some may be gone or not answer. Those are left out, and so are
/// kernel threads. A process that does not answer takes a few seconds, once.
///
/// `with_build_ids`: also reads the build ids of their programs.
///
/// # Errors
/// No thread can be started.
pub(super) fn look_at(pids: Vec<Pid>, with_build_ids: bool) -> io::Result<Vec<Look>> {
    if pids.is_empty() {
        return Ok(Vec::new());
    }
    walk(pids, move |pid| {
        let Glance {
            start_time,
            program,
            ..
        } = Glance::at(pid).ok()??;
        let facts = ProcessFacts::of(pid, with_build_ids)?;
        Some(Look {
            pid,
            start_time,
            program,
            owner: memory_owner(pid)?,
            facts,
        })
    })
}

// === impl Processes ===

impl Processes {
    /// Takes note of a look.
    pub(super) fn note(&mut self, look: Look) -> Seen {
        let Look {
            pid,
            start_time,
            program,
            owner,
            facts,
        } = look;
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
        Seen {
            start_time,
            owner,
            facts,
            is_new,
        }
    }

    /// True if a look has found the process.
    pub(super) fn knows(&self, pid: Pid) -> bool {
        self.0.contains_key(&pid)
    }

    /// Takes note that a look has not found a process. Returns true if the process has ended. It
    /// may also not answer, and then everything stays as it was.
    pub(super) fn note_missing(&mut self, pid: Pid) -> bool {
        let Some(known) = self.0.get_mut(&pid) else {
            return true;
        };
        let is_gone = !is_there(pid, known.start_time) || has_ended(pid).unwrap_or(false);
        if is_gone {
            self.0.remove(&pid);
        } else {
            // The next sweep looks again.
            known.next = None;
        }
        is_gone
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
///
/// # Errors
/// `/proc` cannot be read.
pub(super) fn all() -> io::Result<HashSet<Pid>> {
    let mut all = HashSet::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<u32>().ok());
        all.extend(number.and_then(|number| Pid::try_from(number).ok()));
    }
    all.remove(&Pid::this());
    Ok(all)
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
        assert!(all().unwrap().contains(&pid));
        let look = |processes: &mut Processes| {
            let look = look_at(vec![pid], false).unwrap().pop();
            look.map(|look| processes.note(look))
        };
        // Until the shell runs.
        while !look(&mut processes).is_some_and(|seen| seen.facts.command.starts_with("sh")) {
            std::thread::yield_now();
        }
        assert!(!look(&mut processes).unwrap().is_new);
        assert!(processes.next().is_some());
        assert!(!processes.note_missing(pid));
        child.stdin.take();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !look(&mut processes).is_some_and(|seen| seen.is_new) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        // It waits for its parent, and has ended.
        while !has_ended(pid).unwrap() {
            std::thread::yield_now();
        }
        assert!(look_at(vec![pid], false).unwrap().is_empty());
        assert!(processes.note_missing(pid) && processes.next().is_none());
        child.wait().unwrap();
        // A kernel thread has no program.
        assert!(
            look_at(vec![Pid::try_from(2).unwrap()], true)
                .unwrap()
                .is_empty()
        );
    }
}
