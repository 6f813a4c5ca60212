//! The kernel's notices of what processes do: one event with a ring for each processor.

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

use super::record::{Notice, RING_BYTES, Ring};
use crate::{
    lock::lock,
    sys::{open_mapping_event, open_task_event},
};

/// The part of all descriptors that this process may have.
const SHARE_OF_DESCRIPTORS: u64 = 16;
/// Where the kernel lists the processors that there are now. They can come and go.
pub(super) const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Of what the kernel gives notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// What processes map executable.
    Mappings,
    /// Who is forked, and who becomes another program.
    Processes,
}

/// The kernel writes down what processes do. Dropping it takes everything back.
#[derive(Debug)]
pub(crate) struct Notices {
    subject: Subject,
    /// The file that lists the processors.
    online: PathBuf,
    heard: Mutex<Heard>,
}

/// Where it does.
#[derive(Debug)]
struct Heard {
    /// What the list was when it was last read.
    cpus: Vec<i32>,
    /// One for each of them, but for those that could not be heard.
    sources: Vec<Source>,
}

/// What happens on one processor.
#[derive(Debug)]
struct Source {
    cpu: i32,
    event: Arc<File>,
    ring: Ring<Mapping>,
}

/// Whether processors came or went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Processors {
    Same,
    Others,
}

/// Why the kernel gives no notice.
#[derive(Debug)]
pub(crate) enum PerfUnavailable {
    /// So many processors would take too many descriptors.
    TooMany(usize),
    /// The kernel refuses.
    Refused(io::Error),
}

// === impl Subject ===

impl Subject {
    fn open(self, cpu: i32) -> io::Result<Source> {
        let event = match self {
            Self::Mappings => open_mapping_event(cpu)?,
            Self::Processes => open_task_event(cpu)?,
        };
        let ring = Ring::new(Mapping::new(&event, 0, RING_BYTES)?);
        Ok(Source {
            cpu,
            event: Arc::new(event),
            ring,
        })
    }
}

// === impl Notices ===

impl Notices {
    /// Listens to the processors that the file `online` lists, which is [`ONLINE`] but for tests. What happened before this returns
    /// may go unnoticed.
    pub(super) fn new(subject: Subject, online: PathBuf) -> Result<Self, PerfUnavailable> {
        let cpus = online_cpus(&online).map_err(PerfUnavailable::Refused)?;
        check_number(&cpus)?;
        let opened: io::Result<Vec<_>> = cpus.iter().map(|&cpu| subject.open(cpu)).collect();
        let sources = opened.map_err(PerfUnavailable::Refused)?;
        Ok(Self {
            subject,
            online,
            heard: Mutex::new(Heard { cpus, sources }),
        })
    }

    /// Whether the kernel would give notice: one event is opened, and closed.
    pub(crate) fn probe() -> Result<(), PerfUnavailable> {
        let cpus = online_cpus(Path::new(ONLINE)).map_err(PerfUnavailable::Refused)?;
        let first = cpus.first().copied().unwrap_or(0);
        let opened = Subject::Mappings.open(first);
        opened.map(drop).map_err(PerfUnavailable::Refused)
    }

    /// What can be polled: readable when there is something to [`take`](Self::take).
    pub(crate) fn descriptors(&self) -> Vec<Arc<File>> {
        let heard = lock(&self.heard);
        let events = heard.sources.iter();
        events.map(|source| Arc::clone(&source.event)).collect()
    }

    /// Everything since the last time, processor by processor. Whoever else asks meanwhile waits until all of it has been handed on.
    pub(crate) fn take(&self, mut each: impl FnMut(Notice)) {
        let mut heard = lock(&self.heard);
        let events = heard.sources.iter().map(|source| source.event.as_fd());
        let mut fds: Vec<_> = events
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        // First: asking makes the descriptors unreadable until something is written after it. The answer does not matter.
        let _ = poll(&mut fds, PollTimeout::ZERO);
        for source in &mut heard.sources {
            source.ring.take(&mut each);
        }
    }

    /// Listens to the processors that have come since, too, and to those no more that went: of one that comes back, its old event hears
    /// nothing. If there are others, what was done on them before this returns may have gone unnoticed. One that cannot be heard is told
    /// of in the log.
    pub(super) fn follow_processors(&self) -> Processors {
        // Of a list that cannot be read nothing is known.
        let Ok(cpus) = online_cpus(&self.online) else {
            return Processors::Same;
        };
        let mut heard = lock(&self.heard);
        if cpus == heard.cpus {
            return Processors::Same;
        }
        heard.sources.retain(|source| cpus.contains(&source.cpu));
        let is_new = |cpu: &&i32| !heard.cpus.contains(cpu);
        let new: Vec<i32> = cpus.iter().filter(is_new).copied().collect();
        let allowed = check_number(&cpus);
        for cpu in new {
            let opened = match &allowed {
                Ok(()) => self.subject.open(cpu).map_err(PerfUnavailable::Refused),
                Err(_) => Err(PerfUnavailable::TooMany(cpus.len())),
            };
            match opened {
                Ok(source) => heard.sources.push(source),
                Err(why) => {
                    tracing::warn!(cpu, %why, "what is done on a processor that came is not heard");
                }
            }
        }
        heard.cpus = cpus;
        Processors::Others
    }
}

// === impl PerfUnavailable ===

impl fmt::Display for PerfUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(cpus) => {
                write!(f, "{cpus} processors would take too many descriptors")
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

/// Whether so many descriptors may be taken.
fn check_number(cpus: &[i32]) -> Result<(), PerfUnavailable> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).map_err(refused)?;
    if cpus.len() as u64 > limit / SHARE_OF_DESCRIPTORS {
        return Err(PerfUnavailable::TooMany(cpus.len()));
    }
    Ok(())
}

fn online_cpus(online: &Path) -> io::Result<Vec<i32>> {
    let list = fs::read_to_string(online)?;
    parse_cpus(&list).ok_or_else(|| io::Error::other("the list of processors is none"))
}

/// As `0-3,8`.
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
