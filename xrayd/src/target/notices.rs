//! The kernel's notices of what a process maps and forks.
//!
//! One event for each thread on each processor, which the threads that it starts inherit, and one ring for each processor. No other form does: the kernel maps
//! no ring of an event that is inherited on all processors.

use std::{
    fmt,
    fs::{self, File},
    io,
    os::fd::{AsFd, BorrowedFd},
};

use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::resource::{Resource, getrlimit},
};
use shm_ring::Mapping;

use super::{
    Threads,
    record::{Notice, RING_BYTES, Ring},
};
use crate::{
    pid::Pid,
    sys::{open_mapping_event, redirect},
};

/// Each thread that the process starts gets an event for every processor, which costs it about a microsecond each.
const MOST_CPUS: usize = 64;
/// Descriptors of one process at most, and the part of all that this process may have.
const MOST_EVENTS: u64 = 1024;
const SHARE_OF_DESCRIPTORS: u64 = 4;

/// The kernel writes down what a process does. Dropping it takes everything back.
#[derive(Debug)]
pub(crate) struct Notices {
    /// One for each processor.
    rings: Vec<Owner>,
    /// Events of other threads, whose records go into those rings.
    _others: Vec<File>,
}

/// An event with a ring.
#[derive(Debug)]
struct Owner {
    event: File,
    ring: Ring<Mapping>,
}

/// Why the kernel gives no notice.
#[derive(Debug)]
pub(crate) enum Deaf {
    /// There would be too many events.
    TooMany {
        /// Threads of the process.
        threads: usize,
        /// Processors.
        cpus: usize,
    },
    /// The kernel refuses.
    Refused(io::Error),
    /// The process is gone.
    Gone,
}

// === impl Notices ===

impl Notices {
    /// Listens to all threads of `pid`. What happened before this returns may go unnoticed.
    pub(crate) fn of(pid: Pid) -> Result<Self, Deaf> {
        let cpus = online_cpus().map_err(Deaf::Refused)?;
        let threads = Threads::of(pid);
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).map_err(refused)?;
        let events = (threads.len() * cpus.len()) as u64;
        if cpus.len() > MOST_CPUS || events > MOST_EVENTS.min(limit / SHARE_OF_DESCRIPTORS) {
            return Err(Deaf::TooMany {
                threads: threads.len(),
                cpus: cpus.len(),
            });
        }
        let (mut rings, mut others) = (Vec::with_capacity(cpus.len()), Vec::new());
        for cpu in cpus {
            let mut owner: Option<Owner> = None;
            for &tid in &threads {
                let event = match open_mapping_event(tid, cpu) {
                    Ok(event) => event,
                    // It has ended.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                    Err(error) => return Err(Deaf::Refused(error)),
                };
                match &owner {
                    Some(owner) => {
                        redirect(&event, &owner.event).map_err(Deaf::Refused)?;
                        others.push(event);
                    }
                    None => owner = Some(Owner::new(event).map_err(Deaf::Refused)?),
                }
            }
            rings.push(owner.ok_or(Deaf::Gone)?);
        }
        Ok(Self {
            rings,
            _others: others,
        })
    }

    /// Whether the kernel would give notice of what `pid` does: one event is opened for it, and closed.
    pub(crate) fn probe(pid: Pid) -> Result<(), Deaf> {
        let cpus = online_cpus().map_err(Deaf::Refused)?;
        let tid = Threads::live(pid).ok_or(Deaf::Gone)?;
        let cpu = cpus.first().ok_or(Deaf::Gone)?;
        let event = open_mapping_event(tid, *cpu).map_err(Deaf::Refused)?;
        Owner::new(event).map(drop).map_err(Deaf::Refused)
    }

    /// What can be polled: readable when there is something to [`take`](Self::take).
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(|owner| owner.event.as_fd())
    }

    /// Everything since the last time, processor by processor. `None` once the threads that own the rings are gone, whose descriptors are
    /// always readable then.
    pub(crate) fn take(&mut self, mut each: impl FnMut(Notice)) -> Option<()> {
        let fds = self.rings.iter();
        let mut fds: Vec<_> = fds
            .map(|owner| PollFd::new(owner.event.as_fd(), PollFlags::empty()))
            .collect();
        // First: asking makes the descriptors unreadable until something is written after it.
        let hung_up = !matches!(poll(&mut fds, PollTimeout::ZERO), Ok(0) | Err(Errno::EINTR));
        for owner in &mut self.rings {
            owner.ring.take(&mut each);
        }
        (!hung_up).then_some(())
    }
}

// === impl Owner ===

impl Owner {
    fn new(event: File) -> io::Result<Self> {
        let ring = Ring::new(Mapping::new(&event, 0, RING_BYTES)?);
        Ok(Self { event, ring })
    }
}

// === impl Deaf ===

impl fmt::Display for Deaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { threads, cpus } => write!(
                f,
                "{threads} threads on {cpus} processors would take too many perf events"
            ),
            Self::Refused(error) => {
                write!(f, "no perf events: {error}")?;
                let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
                match paranoid {
                    Ok(level) => write!(f, "; kernel.perf_event_paranoid is {}", level.trim()),
                    Err(_) => Ok(()),
                }
            }
            Self::Gone => write!(f, "the process has ended"),
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
