//! The kernel's records of process activity: one perf event with a ring for each processor.

use std::{
    fmt,
    fs::{self, File},
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::resource::{Resource, getrlimit},
};
use shm_ring::Mapping;

use super::record::{DATA_BYTES, PerfRecord, Ring, mapped_bytes};
use crate::{
    lock::lock,
    sys::{open_mapping_event, open_task_event},
};

/// The perf events take at most one part in this many of the descriptors that this process may
/// have.
const SHARE_OF_DESCRIPTORS: u64 = 16;
/// The kernel's list of processors that are online. Processors can come and go.
pub(super) const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The activity that the kernel records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Executable mappings.
    Mappings,
    /// Forks, ends and `exec` calls.
    Processes,
}

/// Open perf events on the processors. Dropping it closes them.
#[derive(Debug)]
pub(crate) struct PerfEvents {
    subject: Subject,
    /// The file that lists the processors.
    online: PathBuf,
    open: Mutex<OpenEvents>,
}

/// The perf events that are open.
#[derive(Debug)]
struct OpenEvents {
    /// The processors in the list when it was last read.
    cpus: Vec<i32>,
    /// One for each of these processors, except for those on which it could not be opened.
    sources: Vec<Source>,
}

/// The perf event of one processor.
#[derive(Debug)]
struct Source {
    cpu: i32,
    event: Arc<File>,
    ring: Ring<Mapping>,
}

/// Whether the list of processors has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Processors {
    Same,
    Others,
}

/// The reason why there are no perf events.
#[derive(Debug)]
pub(crate) enum PerfUnavailable {
    /// This many processors would take too many descriptors.
    TooMany(usize),
    /// The kernel refuses to open one.
    Refused(io::Error),
}

// === impl Subject ===

impl Subject {
    fn open(self, cpu: i32) -> io::Result<Source> {
        let event = match self {
            Self::Mappings => open_mapping_event(cpu)?,
            Self::Processes => open_task_event(cpu)?,
        };
        let ring = Ring::new(
            Mapping::new(&event, 0, mapped_bytes(DATA_BYTES))?,
            DATA_BYTES,
        );
        Ok(Source {
            cpu,
            event: Arc::new(event),
            ring,
        })
    }
}

// === impl PerfEvents ===

impl PerfEvents {
    /// Opens a perf event on each processor in the file `online`, which is [`ONLINE`] except in
    /// tests. Activity before this returns may go unrecorded.
    pub(super) fn new(subject: Subject, online: PathBuf) -> Result<Self, PerfUnavailable> {
        let cpus = online_cpus(&online).map_err(PerfUnavailable::Refused)?;
        check_number(&cpus)?;
        let opened: io::Result<Vec<_>> = cpus.iter().map(|&cpu| subject.open(cpu)).collect();
        let sources = opened.map_err(PerfUnavailable::Refused)?;
        Ok(Self {
            subject,
            online,
            open: Mutex::new(OpenEvents { cpus, sources }),
        })
    }

    /// Checks that the kernel allows perf events: opens one and closes it.
    pub(crate) fn probe() -> Result<(), PerfUnavailable> {
        let cpus = online_cpus(Path::new(ONLINE)).map_err(PerfUnavailable::Refused)?;
        let first = cpus.first().copied().unwrap_or(0);
        let opened = Subject::Mappings.open(first);
        opened.map(drop).map_err(PerfUnavailable::Refused)
    }

    /// Descriptors to poll: readable when there is something to [`take`](Self::take).
    pub(crate) fn descriptors(&self) -> Vec<Arc<File>> {
        let open = lock(&self.open);
        let events = open.sources.iter();
        events.map(|source| Arc::clone(&source.event)).collect()
    }

    /// Passes all records since the last call to `each`, processor by processor. A second caller
    /// waits until all of them have been passed on.
    pub(crate) fn take(&self, mut each: impl FnMut(PerfRecord)) {
        let mut open = lock(&self.open);
        let events = open.sources.iter().map(|source| source.event.as_fd());
        let mut fds: Vec<_> = events
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        // The poll is first: it makes the descriptors unreadable until the kernel writes a record
        // after it. Its result does not matter.
        let _ = poll(&mut fds, PollTimeout::ZERO);
        for source in &mut open.sources {
            source.ring.take(&mut each);
        }
    }

    /// Opens perf events on processors that have come since, and closes those of processors that
    /// have gone: the old event of a processor that comes back records nothing. After a change,
    /// activity on new processors before this returns may be unrecorded. The log names processors
    /// on which no event can be opened.
    pub(super) fn follow_processors(&self) -> Processors {
        // An unreadable list shows no change.
        let Ok(cpus) = online_cpus(&self.online) else {
            return Processors::Same;
        };
        let mut open = lock(&self.open);
        if cpus == open.cpus {
            return Processors::Same;
        }
        open.sources.retain(|source| cpus.contains(&source.cpu));
        let is_new = |cpu: &&i32| !open.cpus.contains(cpu);
        let new: Vec<i32> = cpus.iter().filter(is_new).copied().collect();
        let allowed = check_number(&cpus);
        for cpu in new {
            let opened = match &allowed {
                Ok(()) => self.subject.open(cpu).map_err(PerfUnavailable::Refused),
                Err(_) => Err(PerfUnavailable::TooMany(cpus.len())),
            };
            match opened {
                Ok(source) => open.sources.push(source),
                Err(why) => {
                    tracing::warn!(
                        cpu,
                        %why,
                        "cannot open a perf event on a new processor; xrayd misses events on it"
                    );
                }
            }
        }
        open.cpus = cpus;
        Processors::Others
    }
}

// === impl PerfUnavailable ===

impl fmt::Display for PerfUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(cpus) => {
                write!(
                    f,
                    "perf events on {cpus} processors would take too many descriptors"
                )
            }
            Self::Refused(error) => {
                write!(f, "no perf events: {error}")?;
                let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
                match paranoid {
                    Ok(level) => write!(f, "; kernel.perf_event_paranoid is {}", level.trim()),
                    Err(_) => Ok(()),
                }
            }
        }
    }
}

fn refused(error: Errno) -> PerfUnavailable {
    PerfUnavailable::Refused(error.into())
}

/// Checks that this many descriptors may be taken.
fn check_number(cpus: &[i32]) -> Result<(), PerfUnavailable> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).map_err(refused)?;
    if cpus.len() as u64 > limit / SHARE_OF_DESCRIPTORS {
        return Err(PerfUnavailable::TooMany(cpus.len()));
    }
    Ok(())
}

fn online_cpus(online: &Path) -> io::Result<Vec<i32>> {
    let list = fs::read_to_string(online)?;
    parse_cpus(&list).ok_or_else(|| io::Error::other("the list of processors is malformed"))
}

/// Parses a list such as `0-3,8`.
fn parse_cpus(list: &str) -> Option<Vec<i32>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?);
    }
    Some(cpus.into_iter().map(i32::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_listed_by_ranges() {
        assert_eq!(parse_cpus("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_cpus("0\n"), Some(vec![0]));
        for wrong in ["", "a", "1-", "70000"] {
            assert_eq!(parse_cpus(wrong), None, "{wrong}");
        }
    }
}
