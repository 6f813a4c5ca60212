//! The deadline of recording: how long trampolines go on recording without a daemon.
//!
//! A daemon that dies leaves sleds on and rings that fill. A full ring sends each call through the
//! slow path, for ever if no daemon comes. So the rings' header has a deadline, which the
//! controller moves on. A slow path that is later closes recording (`layout::rings::DEADLINE`).
//! From then on, a call costs about a third of a traced one.
//!
//! A session that finds recording closed opens it again. The number of missing events is unknown,
//! so the trace reports the time as a gap.

use std::{io, time::Duration};

use shm_ring::{
    Mapping, SharedMemory as _,
    layout::{HEADER_BYTES, rings, table},
};
use xray_trace::model::Ticks;

use super::{
    Layout, RingsFile,
    tracer_record::{ClaimState, TableClaim},
};
use crate::{
    pid::TargetAddr,
    sys::{Memory, ticks_in, ticks_now},
};

/// The longest absence of a daemon. A daemon moves the deadline every five seconds, so that at
/// least nine seconds are left after its death.
const AWAY: Duration = Duration::from_secs(14);
/// The longest absence after a daemon that leaves its processes to the next one.
const LEFT: Duration = Duration::from_secs(60);

/// A session's right to use a table, and the deadline of recording in its rings.
#[derive(Debug)]
pub(crate) struct TableSession {
    claim: TableClaim,
    deadline: RecordingDeadline,
}

/// The deadline in the rings of one session.
#[derive(Debug)]
pub(super) struct RecordingDeadline {
    /// The rings' header page.
    header: Mapping,
    /// [`AWAY`] and [`LEFT`] in ticks.
    away: u64,
    left: u64,
}

// === impl TableSession ===

impl TableSession {
    /// Moves the deadline for the first time.
    pub(super) fn new(claim: TableClaim, deadline: RecordingDeadline) -> Self {
        deadline.move_by(deadline.away);
        Self { claim, deadline }
    }

    /// Renews the claim where that is due, and moves the deadline. Returns whether the table is
    /// still this session's.
    pub(crate) fn tend(&mut self) -> ClaimState {
        let state = self.claim.tend();
        if state == ClaimState::Held {
            self.deadline.move_by(self.deadline.away);
        }
        state
    }

    /// Records again after trampolines have closed recording.
    pub(crate) fn open_again(&self) -> io::Result<()> {
        self.deadline.move_by(self.deadline.away);
        begin(&self.claim.memory, self.claim.table)
    }

    /// Ends the session of the table, and leaves some time to the next daemon.
    pub(crate) fn leave(self) {
        self.deadline.move_by(self.deadline.left);
    }
}

// === impl RecordingDeadline ===

impl RecordingDeadline {
    pub(super) fn new(file: &RingsFile, layout: &Layout) -> io::Result<Self> {
        let skip = layout.rings - layout.rings_map.0;
        let header = file.map(skip, HEADER_BYTES)?;
        Ok(Self {
            header: header.ok_or_else(|| io::Error::other("the rings' file is too short"))?,
            away: ticks_in(AWAY)?,
            left: ticks_in(LEFT)?,
        })
    }

    /// Recording ends so many ticks from now on, unless the deadline is moved before.
    fn move_by(&self, ticks: u64) {
        let end = ticks_now().0.saturating_add(ticks);
        self.header.store(rings::DEADLINE, end);
    }
}

/// When trampolines closed recording. `None` if they did not.
pub(super) fn closed_at(memory: &Memory, table: TargetAddr) -> Option<Ticks> {
    let at = TargetAddr(table.0 + table::CLOSED_AT);
    memory.read_u64(at).ok().filter(|at| *at != 0).map(Ticks)
}

/// Begins to record, with a deadline that was just moved.
pub(super) fn begin(memory: &Memory, table: TargetAddr) -> io::Result<()> {
    for (word, value) in [(table::CLOSED_AT, 0), (table::LIVE, 1_u64)] {
        memory.write(TargetAddr(table.0 + word), &value.to_le_bytes())?;
    }
    Ok(())
}
