//! The lease of a session: for how long trampolines go on recording while no daemon renews it.
//!
//! A daemon that dies leaves sleds on and rings that fill. A full ring sends each call through the
//! slow path, for ever if no daemon comes. So the rings' header has a deadline, which the
//! controller moves on. A slow path that is later closes recording (`layout::rings::LEASE`). From
//! then on, a call costs about a third of a traced one.
//!
//! A session that finds recording closed opens it again. How many events are missing is unknown, so
//! the trace tells the time as a gap.

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

/// How long a daemon may be away. It renews the lease every five seconds. So a killed one has nine
/// seconds at least until another one has to be there.
const AWAY: Duration = Duration::from_secs(14);
/// How long a daemon that leaves its processes to the next one may be away.
const LEFT: Duration = Duration::from_secs(60);

/// A session's right to use a table, and its lease.
#[derive(Debug)]
pub(crate) struct Tenure {
    claim: TableClaim,
    lease: RecordingLease,
    layout: Layout,
}

/// The lease of one session.
#[derive(Debug)]
pub(super) struct RecordingLease {
    /// The rings' header page.
    header: Mapping,
    away: u64,
    left: u64,
}

// === impl Tenure ===

impl Tenure {
    /// Renews the lease for the first time.
    pub(super) fn new(claim: TableClaim, lease: RecordingLease, layout: Layout) -> Self {
        lease.last(lease.away);
        Self {
            claim,
            lease,
            layout,
        }
    }

    /// Renews the claim and the lease where they are due. Returns whether the table is still this
    /// session's.
    pub(crate) fn tend(&mut self) -> ClaimState {
        let state = self.claim.tend();
        if state == ClaimState::Held {
            self.lease.last(self.lease.away);
        }
        state
    }

    /// Begins to record again after trampolines have closed recording.
    pub(crate) fn open_again(&self) -> io::Result<()> {
        self.lease.last(self.lease.away);
        open_again(&self.claim.memory, &self.layout)
    }

    /// Ends the tenure, and leaves some time to the next daemon.
    pub(crate) fn leave(self) {
        self.lease.last(self.lease.left);
    }
}

// === impl RecordingLease ===

impl RecordingLease {
    pub(super) fn new(file: &RingsFile, layout: &Layout) -> io::Result<Self> {
        let skip = layout.rings - layout.rings_map.0;
        let header = file.map(skip, HEADER_BYTES)?;
        Ok(Self {
            header: header.ok_or_else(|| io::Error::other("the rings' file is too short"))?,
            away: ticks_in(AWAY)?,
            left: ticks_in(LEFT)?,
        })
    }

    /// Recording goes on for so long from now on, unless the lease is renewed.
    fn last(&self, ticks: u64) {
        let end = ticks_now().0.saturating_add(ticks);
        self.header.store(rings::LEASE, end);
    }
}

/// When trampolines closed recording. `None` if they did not.
pub(super) fn closed_at(memory: &Memory, table: TargetAddr) -> Option<Ticks> {
    let at = TargetAddr(table.0 + table::CLOSED_AT);
    memory.read_u64(at).ok().filter(|at| *at != 0).map(Ticks)
}

/// Begins to record again, with a lease that was just renewed.
pub(super) fn open_again(memory: &Memory, layout: &Layout) -> io::Result<()> {
    // The order matters. A thread that pauses after this takes another slot. A thread that closes
    // recording meanwhile shows at the next look.
    layout.resume_slots(memory)?;
    memory.write(TargetAddr(layout.table + table::CLOSED_AT), &[0; 8])?;
    begin(memory, layout)
}

/// Begins to record, with a lease that was just renewed.
pub(super) fn begin(memory: &Memory, layout: &Layout) -> io::Result<()> {
    let live = TargetAddr(layout.table + table::LIVE);
    memory.write(live, &1_u64.to_le_bytes())
}
