//! Sums of calls of a process, and of the processes that join its group meanwhile.
//!
//! ```text
//!  members when it begins ─┐
//!  later members, before ──┼─► sums under way ─► written, once their process has ended ─► bytes
//!  their functions are on ─┘                └──────────────── at the end ───────────────► out
//! ```
//!
//! An ended process gives its sums away, so that its session need not be kept. What was written so
//! far has a bound. At the bound the profile is over for all, with the calls up to then.

use std::{
    io,
    sync::{Arc, Mutex},
};

use super::{
    parallel::{MOST_IN_A_GROUP, in_parallel},
    profiling::Profiling,
    session::Session,
};
use crate::{
    export::TraceWriter,
    lock::lock,
    refusal::Result,
    store::{ProfileSums, Source},
};

/// Limit on the bytes of the sums of ended processes.
const MOST_WRITTEN: usize = 16 << 20;

/// Sums of calls that are being made of all members of a group, or of one process. `None` once they
/// are finished.
#[derive(Debug)]
pub(crate) struct GroupProfiling(Mutex<Option<Parts>>);

/// How sums go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// Further calls can be added.
    Open,
    /// All processes have ended, and none can join.
    Over,
    /// What was written is at its limit, and further calls would be added.
    Full,
}

#[derive(Debug, Default)]
struct Parts {
    under_way: Vec<Profiling>,
    /// `None` before the first process has ended.
    written: Option<Written>,
    /// The first error.
    failed: Option<io::Error>,
}

/// Sums of processes as a trace, process by process.
#[derive(Debug)]
struct Written {
    writer: TraceWriter<Vec<u8>>,
    /// The number of the next process.
    next: u32,
    /// The size of what was added so far and not moved out.
    bytes: usize,
}

/// Writes sums of calls of several processes as one `.xtrace` file.
///
/// # Errors
/// The error of writing to `out`.
pub fn write_profile(
    profiles: &[(Arc<Session>, ProfileSums)],
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let mut written = Written::new()?;
    for (session, sums) in profiles {
        written.add(session, sums)?;
        written.drain(out)?;
    }
    written.end(out)
}

// === impl GroupProfiling ===

impl GroupProfiling {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Some(Parts::default())))
    }

    /// Begins sums of a process. It is no error if they have begun before, or if all are finished.
    ///
    /// # Errors
    /// The process or its files do not answer.
    pub(super) fn join(&self, session: &Arc<Session>) -> Result<()> {
        let is_wanted = |parts: &Parts| {
            let mut others = parts.under_way.iter();
            !others.any(|one| Arc::ptr_eq(one.session(), session))
        };
        if !lock(&self.0).as_ref().is_some_and(is_wanted) {
            return Ok(());
        }
        // Not under the lock: the process may take long to answer.
        let begun = Profiling::begin(session)?;
        let mut parts = lock(&self.0);
        if let Some(parts) = parts.as_mut().filter(|parts| is_wanted(parts)) {
            parts.under_way.push(begun);
        }
        Ok(())
    }

    /// Drops the sums of a process that has not become a member.
    pub(super) fn leave(&self, session: &Arc<Session>) {
        if let Some(parts) = lock(&self.0).as_mut() {
            let under_way = &mut parts.under_way;
            under_way.retain(|one| !Arc::ptr_eq(one.session(), session));
        }
    }

    /// Writes the sums of ended processes. `can_grow`: processes can still join.
    pub(crate) fn look(&self, can_grow: bool) -> Outlook {
        let mut parts = lock(&self.0);
        let Some(parts) = parts.as_mut() else {
            return Outlook::Over;
        };
        if let Err(error) = parts.write_ended() {
            parts.failed.get_or_insert(error);
        }
        let goes_on = can_grow || parts.under_way.iter().any(|one| one.session().is_living());
        match (parts.failed.is_some(), goes_on) {
            (true, _) | (false, false) => Outlook::Over,
            (false, true) if parts.is_full() => Outlook::Full,
            (false, true) => Outlook::Open,
        }
    }

    /// Ends the sums of all processes at the same time, and then writes them as one `.xtrace` file.
    ///
    /// # Errors
    /// A process or its files do not answer; the sums of the others are written before. Or the
    /// error of writing to `out`.
    pub(crate) fn finish(&self, out: &mut dyn io::Write) -> io::Result<()> {
        // A process that joins must not wait for a slow client.
        let Parts {
            under_way,
            written,
            mut failed,
        } = lock(&self.0).take().unwrap_or_default();
        let ended = in_parallel(&under_way, MOST_IN_A_GROUP, |one| {
            (Arc::clone(one.session()), one.end())
        });
        let mut written = match written {
            Some(written) => written,
            None => Written::new()?,
        };
        for (session, sums) in ended {
            match sums {
                Ok(sums) => {
                    written.add(&session, &sums)?;
                    written.drain(out)?;
                }
                Err(refusal) => {
                    failed.get_or_insert_with(|| io::Error::other(refusal));
                }
            }
        }
        written.end(out)?;
        failed.map_or(Ok(()), Err)
    }
}

// === impl Parts ===

impl Parts {
    fn is_full(&self) -> bool {
        let written = self.written.as_ref();
        written.is_some_and(|written| written.bytes > MOST_WRITTEN)
    }

    /// Writes the sums of ended processes, up to the limit. The end writes the others.
    fn write_ended(&mut self) -> io::Result<()> {
        while !self.is_full() {
            let mut under_way = self.under_way.iter();
            let Some(place) = under_way.position(|one| !one.session().is_living()) else {
                break;
            };
            let one = self.under_way.remove(place);
            let session = Arc::clone(one.session());
            let sums = one.finish().map_err(io::Error::other)?;
            let written = match &mut self.written {
                Some(written) => written,
                none => none.insert(Written::new()?),
            };
            written.add(&session, &sums)?;
        }
        Ok(())
    }
}

// === impl Written ===

impl Written {
    fn new() -> io::Result<Self> {
        Ok(Self {
            writer: TraceWriter::new(Vec::new())?,
            next: 0,
            bytes: 0,
        })
    }

    /// Adds the sums of a process.
    fn add(&mut self, session: &Session, sums: &ProfileSums) -> io::Result<()> {
        let source = Source(self.next);
        self.next = self.next.saturating_add(1);
        session.source.write_sums(source, sums, &mut self.writer)?;
        if let Some(since) = sums.since() {
            self.writer.begins(source, since);
        }
        self.writer.ended(source, &*session.source.tables)?;
        self.bytes = self.writer.get_mut().len();
        Ok(())
    }

    /// Moves the bytes so far to `out`.
    fn drain(&mut self, out: &mut dyn io::Write) -> io::Result<()> {
        let bytes = self.writer.get_mut();
        out.write_all(bytes)?;
        bytes.clear();
        Ok(())
    }

    /// Ends the trace.
    fn end(&mut self, out: &mut dyn io::Write) -> io::Result<()> {
        self.writer.no_sums()?;
        self.writer.end()?;
        self.drain(out)
    }
}
