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

use super::{profiling::Profiling, session::Session};
use crate::{
    export::TraceWriter,
    lock::lock,
    refusal::Result,
    store::{ProfileSums, Source},
};

/// Limit on the bytes of the sums of ended processes.
const MOST_WRITTEN: usize = 64 << 20;

/// Sums of calls that are being made of all members of a group, or of one process.
#[derive(Debug, Default)]
pub(crate) struct GroupProfiling(Mutex<Parts>);

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
    /// Begins sums of a process. It is no error if they have begun before.
    ///
    /// # Errors
    /// The process or its files do not answer.
    pub(super) fn join(&self, session: &Arc<Session>) -> Result<()> {
        let mut parts = lock(&self.0);
        let mut others = parts.under_way.iter();
        if !others.any(|one| Arc::ptr_eq(one.session(), session)) {
            let begun = Profiling::begin(session)?;
            parts.under_way.push(begun);
        }
        Ok(())
    }

    /// Drops the sums of a process that has not become a member.
    pub(super) fn leave(&self, session: &Arc<Session>) {
        let mut parts = lock(&self.0);
        parts
            .under_way
            .retain(|one| !Arc::ptr_eq(one.session(), session));
    }

    /// Writes the sums of ended processes. True if no further calls can be added: all processes
    /// have ended and the group cannot grow, or what was written is at its limit.
    pub(crate) fn look(&self, can_grow: bool) -> bool {
        let mut parts = lock(&self.0);
        if let Err(error) = parts.write_ended() {
            parts.failed.get_or_insert(error);
        }
        parts.is_full() || parts.failed.is_some() || !can_grow && parts.under_way.is_empty()
    }

    /// True if what was written is at its limit.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.0).is_full()
    }

    /// Ends the sums, and writes those of all processes as one `.xtrace` file.
    ///
    /// # Errors
    /// A process or its files do not answer, or the error of writing to `out`.
    pub(crate) fn finish(&self, out: &mut dyn io::Write) -> io::Result<()> {
        // A process that joins must not wait for a slow client.
        let mut parts = std::mem::take(&mut *lock(&self.0));
        if let Some(error) = parts.failed.take() {
            return Err(error);
        }
        let mut written = match parts.written.take() {
            Some(written) => written,
            None => Written::new()?,
        };
        for one in std::mem::take(&mut parts.under_way) {
            written.finish(one)?;
            written.drain(out)?;
        }
        written.end(out)
    }
}

// === impl Parts ===

impl Parts {
    fn is_full(&self) -> bool {
        let written = self.written.as_ref();
        written.is_some_and(|written| written.bytes > MOST_WRITTEN)
    }

    fn write_ended(&mut self) -> io::Result<()> {
        let has_ended = |one: &mut Profiling| !one.session().is_living();
        for one in self.under_way.extract_if(.., has_ended) {
            let written = match &mut self.written {
                Some(written) => written,
                none => none.insert(Written::new()?),
            };
            written.finish(one)?;
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

    /// Ends the sums of a process, and adds them.
    fn finish(&mut self, one: Profiling) -> io::Result<()> {
        let session = Arc::clone(one.session());
        let sums = one.finish().map_err(io::Error::other)?;
        self.add(&session, &sums)
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
