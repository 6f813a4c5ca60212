//! The kernel's notices of what processes map: one event with a ring for each processor.

use std::{
    fmt,
    fs::{self, File},
    io,
    os::fd::{AsFd, BorrowedFd},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::resource::{Resource, getrlimit},
};
use shm_ring::Mapping;

use super::record::{Notice, RING_BYTES, Ring};
use crate::sys::open_mapping_event;

/// The part of all descriptors that this process may have.
const SHARE_OF_DESCRIPTORS: u64 = 16;

/// The kernel writes down what processes map. Dropping it takes everything back.
#[derive(Debug)]
pub(crate) struct Notices(Vec<Owner>);

/// An event with a ring.
#[derive(Debug)]
struct Owner {
    event: File,
    ring: Ring<Mapping>,
}

/// Why the kernel gives no notice.
#[derive(Debug)]
pub(crate) enum Deaf {
    /// So many processors would take too many descriptors.
    TooMany(usize),
    /// The kernel refuses.
    Refused(io::Error),
}

// === impl Notices ===

impl Notices {
    /// Listens. What happened before this returns may go unnoticed.
    pub(crate) fn new() -> Result<Self, Deaf> {
        let cpus = online_cpus().map_err(Deaf::Refused)?;
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).map_err(refused)?;
        if cpus.len() as u64 > limit / SHARE_OF_DESCRIPTORS {
            return Err(Deaf::TooMany(cpus.len()));
        }
        let rings: Result<_, _> = cpus.into_iter().map(Owner::new).collect();
        rings.map(Self).map_err(Deaf::Refused)
    }

    /// Whether the kernel would give notice: one event is opened, and closed.
    pub(crate) fn probe() -> Result<(), Deaf> {
        let cpus = online_cpus().map_err(Deaf::Refused)?;
        let first = cpus.first().copied().unwrap_or(0);
        Owner::new(first).map(drop).map_err(Deaf::Refused)
    }

    /// What can be polled: readable when there is something to [`take`](Self::take).
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|owner| owner.event.as_fd())
    }

    /// Everything since the last time, processor by processor.
    pub(crate) fn take(&mut self, mut each: impl FnMut(Notice)) {
        let fds = self.0.iter();
        let mut fds: Vec<_> = fds
            .map(|owner| PollFd::new(owner.event.as_fd(), PollFlags::POLLIN))
            .collect();
        // First: asking makes the descriptors unreadable until something is written after it. The answer does not matter.
        let _ = poll(&mut fds, PollTimeout::ZERO);
        for owner in &mut self.0 {
            owner.ring.take(&mut each);
        }
    }
}

// === impl Owner ===

impl Owner {
    fn new(cpu: i32) -> io::Result<Self> {
        let event = open_mapping_event(cpu)?;
        let ring = Ring::new(Mapping::new(&event, 0, RING_BYTES)?);
        Ok(Self { event, ring })
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
