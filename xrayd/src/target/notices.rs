//! The kernel's notices of what processes do: one event with a ring for each processor.

use std::{
    fmt,
    fs::{self, File},
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Mutex,
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
    events: Vec<File>,
    /// One for each event.
    rings: Mutex<Vec<Ring<Mapping>>>,
}

/// Why the kernel gives no notice.
#[derive(Debug)]
pub(crate) enum Deaf {
    /// So many processors would take too many descriptors.
    TooMany(usize),
    /// The kernel refuses.
    Refused(io::Error),
}

// === impl Subject ===

impl Subject {
    fn open(self, cpu: i32) -> io::Result<(File, Ring<Mapping>)> {
        let event = match self {
            Self::Mappings => open_mapping_event(cpu)?,
            Self::Processes => open_task_event(cpu)?,
        };
        let ring = Ring::new(Mapping::new(&event, 0, RING_BYTES)?);
        Ok((event, ring))
    }
}

// === impl Notices ===

impl Notices {
    /// Listens. What happened before this returns may go unnoticed.
    pub(crate) fn new(subject: Subject) -> Result<Self, Deaf> {
        let cpus = online_cpus().map_err(Deaf::Refused)?;
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).map_err(refused)?;
        if cpus.len() as u64 > limit / SHARE_OF_DESCRIPTORS {
            return Err(Deaf::TooMany(cpus.len()));
        }
        let opened: io::Result<Vec<_>> = cpus.into_iter().map(|cpu| subject.open(cpu)).collect();
        let (events, rings) = opened.map_err(Deaf::Refused)?.into_iter().unzip();
        let rings = Mutex::new(rings);
        Ok(Self { events, rings })
    }

    /// Whether the kernel would give notice: one event is opened, and closed.
    pub(crate) fn probe() -> Result<(), Deaf> {
        let cpus = online_cpus().map_err(Deaf::Refused)?;
        let first = cpus.first().copied().unwrap_or(0);
        let opened = Subject::Mappings.open(first);
        opened.map(drop).map_err(Deaf::Refused)
    }

    /// What can be polled: readable when there is something to [`take`](Self::take).
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.events.iter().map(AsFd::as_fd)
    }

    /// Everything since the last time, processor by processor. Whoever else asks meanwhile waits until all of it has been handed on.
    pub(crate) fn take(&self, mut each: impl FnMut(Notice)) {
        let mut rings = lock(&self.rings);
        let fds = self.descriptors();
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // First: asking makes the descriptors unreadable until something is written after it. The answer does not matter.
        let _ = poll(&mut fds, PollTimeout::ZERO);
        for ring in &mut *rings {
            ring.take(&mut each);
        }
    }
}

// === impl Deaf ===

impl fmt::Display for Deaf {
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

fn refused(error: Errno) -> Deaf {
    Deaf::Refused(error.into())
}

fn online_cpus() -> io::Result<Vec<i32>> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online")?;
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
