//! Puts trampolines, table and rings into a target, or takes over those of an earlier attach. It
//! switches no sled.

use std::{io, ops::Range, sync::Arc, time::Duration};

use shm_ring::{Mapping, layout};
use xray_trace::model::Ticks;

use super::{
    Neighbourhood,
    borrow::{BorrowError, Lender, Victim},
    install_plan::{Plan, Rings, owner_mark, plan},
    mappings::{MapFailure, Mapped, map_missing, place_for},
    recording_deadline::{RecordingDeadline, TableSession, begin, closed_at},
    region::{FoundRegion, Layout, OtherVersion, Region},
    ring_plan::{RingPlan, RingsNeeded},
    rings_file::{RingsFile, Unproven},
    tracer_record::TableClaim,
};
use crate::{
    pid::{Pid, TargetAddr, Tid},
    refusal::{Reason, Refusal, Result},
    sys::{Memory, PidFd, ticks_now},
    target::Target,
};

/// Tries for a place that is taken meanwhile, and for a descriptor that is exchanged.
const PLACE_TRIES: usize = 8;
/// Longer than a thread usually stays in a trampoline. A thread without a processor stays longer:
/// its late events are told from the events of the next session by their time
/// (`collect::events_since`).
pub(crate) const SETTLE: Duration = Duration::from_millis(5);

/// The memory of xrayd in a target.
#[derive(Debug)]
pub(crate) struct Installed {
    /// Code mappings.
    pub(crate) regions: Vec<Region>,
    /// Addresses of the table and the rings.
    pub(crate) layout: Layout,
    /// The rings, mapped into this process.
    pub(crate) rings: Mapping,
    /// The memory of the rings as a file, to give memory back.
    pub(crate) rings_file: RingsFile,
    /// True if all of it was in the target already.
    pub(crate) adopted: bool,
    /// Code mappings of other versions of xrayd. Sleds may call into them.
    pub(crate) others: Vec<OtherVersion>,
    /// True if an earlier tracer was recording, and did not detach.
    pub(crate) was_live: bool,
    /// The time in which an earlier tracer's trampolines had closed recording.
    pub(crate) closed: Option<Range<Ticks>>,
    /// True if rings of an earlier tracer that was recording cannot be read.
    pub(crate) has_unread: bool,
    /// The thread that stood still, and for how long.
    pub(crate) stopped: Option<(Tid, Duration)>,
}

/// Prepares `target`, so that sleds can be switched on in `neighbourhoods`. It switches none.
/// `choose` gives the sizes of the rings and the closed slots, before rings are mapped there or
/// here. It does not change sizes that are given.
///
/// # Errors
/// After an error nothing is changed, except for mappings that could not be unmapped again
/// (logged).
pub(crate) fn install(
    target: &Target,
    memory: &Arc<Memory>,
    neighbourhoods: &[Neighbourhood],
    mut victim: Victim<'_>,
    mut choose: impl FnMut(RingsNeeded) -> Result<RingPlan>,
) -> Result<(Installed, TableSession)> {
    let pid = target.pid();
    let mut tries = 0;
    let mut claim = None;
    let mut was_live = false;
    let mut has_unread = false;
    let mut others: Vec<(TargetAddr, TableClaim)> = Vec::new();
    loop {
        let maps = target.maps()?;
        let plan = plan(target, memory, &maps, neighbourhoods)?;
        // Their tracers must be gone, too. These claims end when the memory is installed.
        for other in &plan.others {
            if others.iter().all(|(table, _)| *table != other.table) {
                let claim = TableClaim::take(memory, other.table, pid)?;
                let is_left = is_left_recording(memory, other.table);
                was_live |= is_left;
                has_unread |= is_left;
                others.push((other.table, claim));
            }
        }
        if let (Some(layout), None) = (plan.layout, &claim) {
            let table = TargetAddr(layout.table);
            claim = Some(TableClaim::take(memory, table, pid)?);
            was_live |= is_left_recording(memory, table);
            // The earlier tracer may have added memory since the maps were read.
            continue;
        }
        if plan.missing.is_empty()
            && plan.rings == Rings::Open
            && let (Some(layout), Some(claim)) = (plan.layout, claim.take())
        {
            let needed = rings_present(pid, memory, &layout)?;
            choose(needed)?;
            let (rings, rings_file) = share(target, &layout, None)?;
            let installed = Installed {
                regions: plan.regions,
                layout,
                rings,
                rings_file,
                adopted: true,
                others: plan.others,
                was_live,
                closed: None,
                has_unread,
                stopped: None,
            };
            return installed.begin(target, memory, claim);
        }
        if let (Rings::Closed, Some(layout)) = (plan.rings, plan.layout) {
            layout
                .silence(memory)
                .map_err(|error| Refusal::from_io(pid, "write to the table", &error))?;
        }
        // Memory that is there already keeps its sizes.
        let rings = choose(match (plan.layout, plan.rings) {
            (None, _) if !plan.others.is_empty() => RingsNeeded::Beside,
            (None, _) => RingsNeeded::New,
            (Some(layout), Rings::Open) => rings_present(pid, memory, &layout)?,
            (Some(layout), _) => RingsNeeded::NewOfSize(layout.geometry),
        })?;
        tries += 1;
        match map_missing(target, memory, &maps, &plan, rings.geometry, &mut victim) {
            Ok(mapped) => {
                let all = mapped.all.clone();
                let has_new_rings = mapped.memfd.is_some();
                return finish(target, memory, plan, mapped, &rings.closed, claim)
                    .map(|(installed, table_session)| {
                        let installed = Installed {
                            was_live,
                            has_unread: has_unread || was_live && has_new_rings,
                            ..installed
                        };
                        (installed, table_session)
                    })
                    .inspect_err(|_| release(target, memory, &all, &mut victim));
            }
            // The place was taken since the maps were read.
            Err(MapFailure::PlaceTaken) if tries < PLACE_TRIES => {}
            Err(MapFailure::PlaceTaken) => return Err(place_taken(pid)),
            Err(MapFailure::Exchanged(_)) if tries < PLACE_TRIES => {
                // Such a kernel shows only the descriptors of the main thread, and other threads
                // may have tables of their own.
                if matches!(victim, Victim::Any) && !PidFd::can_hold_threads() {
                    victim = Victim::Thread(pid.leader());
                }
            }
            Err(MapFailure::Exchanged(refusal) | MapFailure::Refused(refusal)) => {
                return Err(refusal);
            }
        }
    }
}

/// The neighbourhoods that have neither a region nor room for one in their reach, each with its
/// refusal.
///
/// # Errors
/// The memory of xrayd in the target cannot be taken over, or the maps cannot be read.
pub(crate) fn crowded(
    target: &Target,
    memory: &Memory,
    neighbourhoods: &[Neighbourhood],
) -> Result<Vec<(Neighbourhood, Refusal)>> {
    let maps = target.maps()?;
    let missing = plan(target, memory, &maps, neighbourhoods)?.missing;
    let mut places = Vec::new();
    let mut crowded = Vec::new();
    for neighbourhood in missing {
        match place_for(target.pid(), &maps, &places, &neighbourhood) {
            Ok(place) => places.push(place),
            Err(refusal) => crowded.push((neighbourhood, refusal)),
        }
    }
    Ok(crowded)
}

/// Puts trampolines into another neighbourhood of a target that has `layout` already. One thread
/// stands still for it.
///
/// # Errors
/// After an error nothing is changed, except for a mapping that could not be unmapped again
/// (logged).
pub(crate) fn extend(
    target: &Target,
    memory: &Memory,
    neighbourhood: Neighbourhood,
    layout: Layout,
) -> Result<Region> {
    let pid = target.pid();
    let mut plan = Plan {
        regions: Vec::new(),
        others: Vec::new(),
        layout: Some(layout),
        rings: Rings::Open,
        missing: vec![neighbourhood],
    };
    for _ in 0..PLACE_TRIES {
        let maps = target.maps()?;
        let mapped = map_missing(
            target,
            memory,
            &maps,
            &plan,
            layout.geometry,
            &mut Victim::Any,
        );
        let mapped = match mapped {
            Ok(mapped) => mapped,
            Err(MapFailure::PlaceTaken) => continue,
            Err(MapFailure::Exchanged(refusal) | MapFailure::Refused(refusal)) => {
                return Err(refusal);
            }
        };
        return write_regions(pid, memory, &mut plan.regions, &mapped)
            .and_then(|()| plan.regions.pop().ok_or_else(|| place_taken(pid)))
            .inspect_err(|_| release(target, memory, &mapped.all, &mut Victim::Any));
    }
    Err(place_taken(pid))
}

fn place_taken(pid: Pid) -> Refusal {
    let message = format!(
        "process {pid}: the process takes each free place near its modules before xrayd can use it"
    );
    Refusal::new(Reason::NoMemory, message)
}

/// Writes trampolines into the new code mappings.
fn write_regions(
    pid: Pid,
    memory: &Memory,
    regions: &mut Vec<Region>,
    mapped: &Mapped,
) -> Result<()> {
    for &(address, bytes) in &mapped.code {
        let region = Region::plan(address, bytes, &mapped.layout)
            .map_err(|error| Refusal::new(Reason::Io, format!("process {pid}: {error}")))?;
        region.write(memory, &mapped.layout).map_err(|error| {
            let message =
                format!("process {pid}: cannot write to the trampolines' mapping: {error}");
            Refusal::new(Reason::MemoryWrite, message)
        })?;
        regions.push(region);
    }
    Ok(())
}

fn finish(
    target: &Target,
    memory: &Arc<Memory>,
    plan: Plan,
    mapped: Mapped,
    closed: &[u32],
    claim: Option<TableClaim>,
) -> Result<(Installed, TableSession)> {
    let pid = target.pid();
    // The record is made first, so that a tracer that finds the regions finds the record.
    let claim = match claim {
        Some(claim) => claim,
        None => TableClaim::of_new(memory, TargetAddr(mapped.layout.table), pid)?,
    };
    mapped
        .layout
        .close_slots(memory, closed)
        .map_err(|error| Refusal::from_io(pid, "write to the table", &error))?;
    let mut regions = plan.regions;
    write_regions(pid, memory, &mut regions, &mapped)?;
    check_alone(target, memory, &mapped.layout)?;
    let (rings, rings_file) = share(target, &mapped.layout, mapped.memfd)?;
    let installed = Installed {
        regions,
        layout: mapped.layout,
        rings,
        rings_file,
        adopted: false,
        others: plan.others,
        was_live: false,
        closed: None,
        has_unread: false,
        stopped: mapped.stopped,
    };
    installed.begin(target, memory, claim)
}

fn rings_present(pid: Pid, memory: &Memory, layout: &Layout) -> Result<RingsNeeded> {
    let open_slots = layout
        .open_slots(memory)
        .map_err(|error| Refusal::from_io(pid, "read the table", &error))?;
    Ok(RingsNeeded::Present {
        geometry: layout.geometry,
        open_slots,
    })
}

/// Looks for memory of another tracer that attached while neither had mapped anything. Each of the
/// two writes the words that name its memory before it looks. So at least one of them sees the
/// other and gives up.
fn check_alone(target: &Target, memory: &Memory, layout: &Layout) -> Result<()> {
    let maps = target.maps()?;
    let mut regions = maps.iter().filter_map(|entry| Region::find(memory, entry));
    let is_alone = regions.all(|region| match region {
        Ok(FoundRegion::Usable(found)) => found.1 == *layout,
        Ok(FoundRegion::OtherVersion(_)) => true,
        Err(_) => false,
    });
    if is_alone {
        return Ok(());
    }
    let message = format!(
        "another xrayd attached to process {} at the same time",
        target.pid()
    );
    Err(Refusal::new(Reason::Busy, message))
}

/// Unmaps the mappings of a failed attach.
fn release(target: &Target, memory: &Memory, all: &[(u64, u64)], victim: &mut Victim<'_>) {
    let mut undo = || -> std::result::Result<(), BorrowError> {
        let maps = target.maps()?;
        let lender = Lender::find(target, memory, &maps)?;
        lender.acquire(victim, |remote| {
            for &(address, bytes) in all {
                remote.unmap(address, bytes)?;
            }
            Ok(())
        })?;
        Ok(())
    };
    if let Err(error) = undo() {
        tracing::warn!(
            pid = target.pid().as_raw(),
            ?error,
            "cannot remove mappings from the target"
        );
    }
}

// === impl Installed ===

impl Installed {
    /// Enables recording: from here on trampolines may record.
    fn begin(
        mut self,
        target: &Target,
        memory: &Memory,
        claim: TableClaim,
    ) -> Result<(Self, TableSession)> {
        let pid = target.pid();
        let mark = owner_mark(pid, target.start_time());
        let deadline = RecordingDeadline::new(&self.rings_file, &self.layout);
        let deadline =
            deadline.map_err(|error| Refusal::from_io(pid, "map the rings' header", &error))?;
        let table_session = TableSession::new(claim, deadline);
        // A thread that has compared with the former deadline may still close recording. The next
        // look at the table finds that.
        let table = TargetAddr(self.layout.table);
        let closed = closed_at(memory, table);
        self.closed = closed.map(|at| at..ticks_now());
        memory
            .write(
                TargetAddr(self.layout.table + layout::table::MINE),
                &mark.to_le_bytes(),
            )
            .and_then(|()| begin(memory, table))
            .map_err(|error| Refusal::from_io(pid, "write to the table", &error))?;
        for other in &self.others {
            // No drain reads their rings any more.
            clear_live(memory, other.table)
                .map_err(|error| Refusal::from_io(pid, "write to an earlier table", &error))?;
        }
        Ok((self, table_session))
    }
}

/// True if a tracer was recording and did not detach. Trampolines may have closed recording since.
fn is_left_recording(memory: &Memory, table: TargetAddr) -> bool {
    let live = memory.read_u64(TargetAddr(table.0 + layout::table::LIVE));
    live.is_ok_and(|live| live != 0) || closed_at(memory, table).is_some()
}

/// Makes the slow path of trampolines return at once, so that no recording begins any more.
pub(crate) fn clear_live(memory: &Memory, table: TargetAddr) -> io::Result<()> {
    for word in [layout::table::LIVE, layout::table::CLOSED_AT] {
        memory.write(TargetAddr(table.0 + word), &0_u64.to_le_bytes())?;
    }
    Ok(())
}

/// Maps the target's rings here, from a memfd that was just made or from the mapping in the target.
fn share(
    target: &Target,
    layout: &Layout,
    memfd: Option<RingsFile>,
) -> Result<(Mapping, RingsFile)> {
    let pid = target.pid();
    let (start, bytes) = layout.rings_map;
    let range = start..start.saturating_add(bytes);
    let proven = match memfd {
        Some(file) => file.is_mapped_at(pid, &range).map(|()| file),
        None => RingsFile::mapped(pid, &range),
    };
    let others = |what: &str| {
        let message =
            format!("process {pid}: the mapping at {start:#x} is not xrayd's rings: it is {what}");
        Refusal::new(Reason::OtherVersion, message)
    };
    let file = proven.map_err(|why| match why {
        Unproven::Other(what) => others(what),
        Unproven::Io(error) => Refusal::from_io(pid, "open the rings through map_files", &error),
    })?;
    let mapping = file
        .map(layout.rings - start, layout.geometry.rings_bytes())
        .map_err(|error| Refusal::from_io(pid, "map the rings", &error))?;
    let mapping = mapping.ok_or_else(|| others("too short"))?;
    Ok((mapping, file))
}
