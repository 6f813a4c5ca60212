//! Puts trampolines, table and rings into a target, or takes over those of an earlier attach. It
//! switches no sled.

use std::{
    fs, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::libc;
use shm_ring::{Geometry, Mapping, layout};

use super::{
    Neighbourhood,
    borrow::{BorrowError, Lender, Victim, refused, trace_refusal},
    region::{Layout, Region},
    remote::{MappingPlace, Remote, RemoteError},
    ring_plan::{RingPlan, RingsNeeded},
    rings_file::{self, RingsFile, Unproven},
    thread_id,
    tracer_record::TableClaim,
};
use crate::{
    pid::{Pid, TargetAddr, Tid},
    refusal::{Reason, Refusal, Result},
    sys::{Memory, PidFd},
    target::{
        Maps, Target, Threads, has_locked_memory, memory_lock_limit, memory_owner, open_map_file,
        overcommit_is_strict, stack_limit,
    },
};

/// Tries for a place that is taken meanwhile, and for a descriptor that is exchanged.
const PLACE_TRIES: usize = 8;
/// Longer than a thread usually stays in a trampoline. A thread without a processor stays longer:
/// its late events are told from the events of the next session by their time
/// (`collect::events_since`).
pub(crate) const SETTLE: Duration = Duration::from_millis(5);
/// Offset in the table of the words that the target's system calls need while the mappings are
/// made. They lie in its first page.
const SCRATCH_AT: u64 = 1024;
const NAME_BYTES: usize = 16;
const SCRATCH_BYTES: usize = NAMES.len() * NAME_BYTES + rings_file::NAME_BYTES;
/// Names of the trampolines, the table and the rings.
const NAMES: [[u8; NAME_BYTES]; 3] = [
    *b"xrayd-code\0\0\0\0\0\0",
    *b"xrayd-table\0\0\0\0\0",
    *b"xrayd-rings\0\0\0\0\0",
];

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
    /// The thread that stood still, and for how long.
    pub(crate) stopped: Option<(Tid, Duration)>,
}

/// The parts that are in the target already, and the missing ones.
#[derive(Debug)]
struct Plan {
    regions: Vec<Region>,
    layout: Option<Layout>,
    rings: Rings,
    missing: Vec<Neighbourhood>,
}

/// The state of the rings of an earlier attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rings {
    /// There are no rings.
    Missing,
    /// The rings can be mapped here.
    Open,
    /// The rings are there and must not be used. Either they are the parent's, in a forked child.
    /// Or they are closed to us, because `map_files` needs CAP_CHECKPOINT_RESTORE and the
    /// descriptor of their maker is gone. New rings take their place.
    Closed,
}

/// The mappings that the borrowed thread made: address and bytes each.
#[derive(Debug)]
struct Mapped {
    layout: Layout,
    /// Mappings for trampolines.
    code: Vec<(u64, u64)>,
    /// All mappings.
    all: Vec<(u64, u64)>,
    memfd: Option<RingsFile>,
    stopped: Option<(Tid, Duration)>,
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
) -> Result<(Installed, TableClaim)> {
    let pid = target.pid();
    let mut tries = 0;
    let mut claim = None;
    loop {
        let maps = read_maps(target)?;
        let plan = plan(target, memory, &maps, neighbourhoods)?;
        if let (Some(layout), None) = (plan.layout, &claim) {
            claim = Some(TableClaim::take(memory, TargetAddr(layout.table), pid)?);
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
            (None, _) => RingsNeeded::New,
            (Some(layout), Rings::Open) => rings_present(pid, memory, &layout)?,
            (Some(layout), _) => RingsNeeded::NewOfSize(layout.geometry),
        })?;
        tries += 1;
        match map_missing(target, memory, &maps, &plan, rings.geometry, &mut victim) {
            Ok(mapped) => {
                let all = mapped.all.clone();
                return finish(target, memory, plan, mapped, &rings.closed, claim)
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
    let maps = read_maps(target)?;
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
        layout: Some(layout),
        rings: Rings::Open,
        missing: vec![neighbourhood],
    };
    for _ in 0..PLACE_TRIES {
        let maps = read_maps(target)?;
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

fn read_maps(target: &Target) -> Result<Maps> {
    let tid = target.live_thread()?;
    Maps::read(target.pid(), tid)
        .map_err(|error| Refusal::from_io(target.pid(), "read its maps", &error))
}

fn plan(
    target: &Target,
    memory: &Memory,
    maps: &Maps,
    neighbourhoods: &[Neighbourhood],
) -> Result<Plan> {
    let pid = target.pid();
    let mut regions = Vec::new();
    let mut layout: Option<Layout> = None;
    for entry in maps.iter() {
        match Region::find(memory, entry) {
            None => {}
            Some(Ok((region, its))) if layout.is_none_or(|layout| layout == its) => {
                layout = Some(its);
                regions.push(region);
            }
            Some(Ok(_)) => {
                let message = format!("process {pid} has two different sets of xrayd's memory");
                return Err(Refusal::new(Reason::OtherVersion, message));
            }
            Some(Err(why)) => {
                let message = format!(
                    "process {pid}: xrayd's memory at {:#x} cannot be taken over: {why}",
                    entry.range.start
                );
                return Err(Refusal::new(Reason::OtherVersion, message));
            }
        }
    }
    let mine = layout.map(|layout| TargetAddr(layout.table + layout::table::MINE));
    let mine = mine.map(|at| (at, memory.read_u64(at).unwrap_or(0)));
    if let Some(owner) = mine.and_then(|(at, mine)| other_owner(target, at, mine)) {
        let message = format!(
            "process {pid} runs in the memory of process {owner}, as a vforked child does, and \
             xrayd uses that memory already"
        );
        return Err(Refusal::new(Reason::Busy, message));
    }
    let rings = layout.map_or(Rings::Missing, |layout| {
        let (start, bytes) = layout.rings_map;
        let range = start..start.saturating_add(bytes);
        let present = maps
            .at(start)
            .is_some_and(|entry| entry.range == range && entry.permissions == *b"rw-s");
        let inherited = mine.is_some_and(|(_, mine)| mine == 0);
        let closed = || {
            open_map_file(pid, &range)
                .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        };
        match present {
            false => Rings::Missing,
            true if inherited => Rings::Closed,
            true if closed() => Rings::Closed,
            true => Rings::Open,
        }
    });
    let missing = neighbourhoods
        .iter()
        .filter(|neighbourhood| {
            !regions
                .iter()
                .any(|region: &Region| region.serves(&neighbourhood.range))
        })
        .cloned()
        .collect();
    Ok(Plan {
        regions,
        layout,
        rings,
        missing,
    })
}

/// The mark in the table of the process that the table belongs to. It holds the pid in the upper
/// half, and in the lower half enough of the start time to tell the process from another one with
/// that pid.
fn owner_mark(pid: Pid, start_time: u64) -> u64 {
    u64::from(pid.as_raw().unsigned_abs()) << 32 | start_time & 0xffff_ffff
}

/// Finds another living process whose memory this is: it reads the same mark at the same address.
///
/// The mark is a word of the target and may name any process. A process of another user is not
/// opened for it. A vforked child belongs to the user of its parent until it executes a program,
/// and then the memory is no longer shared. For a process of the same user, the target can learn
/// whether eight bytes equal the bytes that it has written itself.
fn other_owner(target: &Target, at: TargetAddr, mine: u64) -> Option<Pid> {
    if mine == 0 || mine == owner_mark(target.pid(), target.start_time()) {
        return None;
    }
    let owner = Pid::try_from(u32::try_from(mine >> 32).ok()?).ok()?;
    let user = memory_owner(target.pid())?;
    let is_of_user = || memory_owner(owner) == Some(user);
    if !is_of_user() {
        return None;
    }
    let owned = Memory::open_to_read(owner, owner.leader())
        .ok()?
        .read_u64(at);
    // The process may have changed to another user between the check and the open.
    (owned.ok()? == mine && is_of_user()).then_some(owner)
}

#[derive(Debug)]
enum MapFailure {
    PlaceTaken,
    /// A descriptor referred to something else right after it was made.
    Exchanged(Refusal),
    Refused(Refusal),
}

impl From<Refusal> for MapFailure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

fn map_missing(
    target: &Target,
    memory: &Memory,
    maps: &Maps,
    plan: &Plan,
    geometry: Geometry,
    victim: &mut Victim<'_>,
) -> std::result::Result<Mapped, MapFailure> {
    let pid = target.pid();
    let lender = Lender::find(target, memory, maps)?;
    let mut places = Vec::new();
    for neighbourhood in &plan.missing {
        places.push(place_for(pid, maps, &places, neighbourhood)?);
    }
    let install = InstallPlan {
        places,
        geometry,
        by_file: plan.rings == Rings::Closed
            || !can_open_map_files(pid, maps)
            || Threads::can_open_map_files(pid),
        huge: shared_memory_is_huge(),
        exchanged: AtomicBool::new(false),
    };
    if install.by_file && plan.rings != Rings::Open && overcommit_is_strict() {
        // The kernel reserves the pages of a memfd when they are written. If none is left to
        // reserve, it sends SIGBUS, which would end the target inside a trampoline.
        let message = format!(
            "process {pid}: vm.overcommit_memory is 2, and this tracer can share memory with the \
             process only through a memfd, whose pages the kernel may refuse when they are \
             written; this tracer needs CAP_CHECKPOINT_RESTORE, and the process must not have it"
        );
        return Err(Refusal::new(Reason::NoMemory, message).into());
    }
    let made = lender.acquire(victim, |remote| {
        make_mappings(remote, target, memory, plan, &install)
    });
    match made {
        Ok((made, stopped)) => Ok(Mapped { stopped, ..made }),
        Err(BorrowError::Refusal(refusal)) if install.exchanged.load(Ordering::Relaxed) => {
            Err(MapFailure::Exchanged(refusal))
        }
        Err(BorrowError::Refusal(refusal)) => Err(refusal.into()),
        Err(BorrowError::Remote(RemoteError::Refused { source, .. }))
            if source.raw_os_error() == Some(libc::EEXIST) =>
        {
            Err(MapFailure::PlaceTaken)
        }
        Err(BorrowError::Remote(error)) => {
            Err(remote_refusal(target, &error, install.geometry).into())
        }
    }
}

/// The work of the borrowed thread.
#[derive(Debug)]
struct InstallPlan {
    /// Address and size of each code mapping.
    places: Vec<(u64, u64)>,
    geometry: Geometry,
    /// True if the rings are in a memfd instead of anonymous memory: `map_files` is closed to us,
    /// or is open to the target.
    by_file: bool,
    /// True if the kernel would give huge pages for shared memory.
    huge: bool,
    /// Set by the borrowing thread if the failure is an exchanged descriptor.
    exchanged: AtomicBool,
}

/// Offset of the thread id from the thread pointer.
fn tid_offset(target: &Target, memory: &Memory, plan: &Plan, remote: &Remote<'_>) -> Result<i32> {
    let (pid, thread) = (target.pid(), remote.thread());
    let known = plan.layout.map(|layout| layout.tid_offset);
    known
        .or_else(|| thread_id::find(memory, pid, thread.tid(), thread.registers().fs_base))
        .ok_or_else(|| {
            let message = format!(
                "process {pid}: the control block of thread {} does not contain the thread's id",
                thread.tid()
            );
            Refusal::new(Reason::ThreadId, message)
        })
}

fn make_mappings(
    remote: &mut Remote<'_>,
    target: &Target,
    memory: &Memory,
    plan: &Plan,
    install: &InstallPlan,
) -> std::result::Result<Mapped, BorrowError> {
    let tid_offset = tid_offset(target, memory, plan, remote)?;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let data = libc::PROT_READ | libc::PROT_WRITE;
    // First of all: where the kernel chooses the place of a mapping, it may choose one of these.
    for &(address, bytes) in &install.places {
        let code = libc::PROT_READ | libc::PROT_EXEC;
        let place = MappingPlace::Free(address);
        remote.map("mmap of the trampolines", place, bytes, code, private, -1)?;
    }
    // An existing table keeps its sizes: they are part of the trampolines.
    let geometry = plan
        .layout
        .map_or(install.geometry, |layout| layout.geometry);
    let table = match plan.layout {
        Some(layout) => layout.table,
        None => {
            let bytes = geometry.table_bytes();
            let table = remote.map(
                "mmap of the table",
                MappingPlace::Any,
                bytes,
                data,
                private,
                -1,
            )?;
            // A forked child must find the table zeroed (P58).
            remote.advise(table, bytes, libc::MADV_WIPEONFORK)?;
            table
        }
    };
    let scratch = table + SCRATCH_AT;
    if remote.has_no_counter(memory, scratch)? {
        let message = format!(
            "process {}: thread {} may not read the time stamp counter (PR_SET_TSC), which every \
             traced call reads",
            target.pid(),
            remote.thread().tid()
        );
        return Err(Refusal::new(Reason::Tsc, message).into());
    }
    memory
        .write(TargetAddr(scratch), NAMES.as_flattened())
        .map_err(refused("write to the table"))?;
    let [code_name, table_name, rings_name] =
        std::array::from_fn(|index| scratch + (index * NAME_BYTES) as u64);
    remote.name(table, geometry.table_bytes(), table_name);
    let mut memfd = None;
    let layout = match (plan.layout, plan.rings) {
        (Some(layout), Rings::Open) => layout,
        // The existing trampolines contain the address.
        (old, rings) => {
            let slack = geometry.chunk_bytes();
            let (wanted, bytes) = match (old.map(|layout| layout.rings_map), rings) {
                (Some((start, bytes)), Rings::Closed) => (MappingPlace::Over(start), bytes),
                (Some((start, bytes)), _) => (MappingPlace::Free(start), bytes),
                (None, _) => (MappingPlace::Any, geometry.rings_bytes() + slack),
            };
            // After `mlockall(MCL_FUTURE)` the kernel populates every new mapping while the thread
            // stands still, except for mappings without access. The mappings above are locked by
            // now.
            let is_locked = has_locked_memory(target.pid(), remote.thread().tid());
            let protection = if is_locked { libc::PROT_NONE } else { data };
            let start = if install.by_file {
                let place = scratch + NAMES.as_flattened().len() as u64;
                let wanted = (wanted, bytes, protection);
                let made = map_memfd(remote, target, memory, place, wanted, install)?;
                memfd = Some(made.0);
                made.1
            } else {
                let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                remote.map("mmap of the rings", wanted, bytes, protection, shared, -1)?
            };
            if is_locked {
                remote.unlock(start, bytes)?;
                remote.protect(start, bytes, data)?;
            }
            // A core dump would populate all of it, only to write zeroes. The table is small and
            // stays in the dump.
            remote.advise(start, bytes, libc::MADV_DONTDUMP)?;
            if install.huge {
                // Otherwise one event would take 2 MiB.
                remote.advise(start, bytes, libc::MADV_NOHUGEPAGE)?;
            }
            remote.name(start, bytes, rings_name);
            let rings = start.next_multiple_of(slack);
            Layout {
                table,
                rings,
                rings_map: (start, bytes),
                geometry,
                tid_offset,
            }
        }
    };
    for &(address, bytes) in &install.places {
        remote.name(address, bytes, code_name);
    }
    memory
        .write(TargetAddr(scratch), &[0; SCRATCH_BYTES])
        .map_err(refused("write to the table"))?;
    Ok(Mapped {
        layout,
        code: install.places.clone(),
        all: remote.commit(),
        memfd,
        stopped: None,
    })
}

/// Makes the borrowed thread create a memfd and map it. Returns a copy of the descriptor, and the
/// address. `scratch` is room for its name in the target. No descriptor stays in the target.
fn map_memfd(
    remote: &mut Remote<'_>,
    target: &Target,
    memory: &Memory,
    scratch: u64,
    (place, bytes, protection): (MappingPlace, u64, i32),
    install: &InstallPlan,
) -> std::result::Result<(RingsFile, u64), BorrowError> {
    let (pid, tid) = (target.pid(), remote.thread().tid());
    let name = RingsFile::new_name().map_err(refused("reading random numbers"))?;
    let mut text = [0u8; rings_file::NAME_BYTES];
    for (byte, letter) in text.iter_mut().zip(name.bytes()) {
        *byte = letter;
    }
    memory
        .write(TargetAddr(scratch), &text)
        .map_err(refused("write to the table"))?;
    let fd = remote.memfd(scratch)?;
    // The descriptor table of this thread: the main thread may have another one, and its table is
    // gone after its end (P3).
    let thread = PidFd::open_thread(tid).ok();
    let copy = i32::try_from(fd)
        .map_err(io::Error::other)
        .and_then(|number| thread.as_ref().unwrap_or(target.pidfd()).get_fd(number));
    let file = copy
        .map_err(Unproven::from)
        .and_then(|copy| RingsFile::fresh(copy, &name, bytes));
    match file {
        Ok(file) => {
            let shared = libc::MAP_SHARED | libc::MAP_NORESERVE;
            match remote.map("mmap of the rings", place, bytes, protection, shared, fd) {
                Err(RemoteError::Refused { source, .. })
                    if source.raw_os_error() == Some(libc::EBADF) =>
                {
                    install.exchanged.store(true, Ordering::Relaxed);
                    Err(exchanged(pid, tid, fd, &source).into())
                }
                start => {
                    remote.close(fd);
                    Ok((file, start?))
                }
            }
        }
        Err(why) => {
            let is_exchanged = match &why {
                Unproven::Other(_) => true,
                Unproven::Io(error) => error.raw_os_error() == Some(libc::EBADF),
            };
            // A number that refers to something else by now, in the thread's own table, is not ours
            // to close.
            if thread.is_none() || !is_exchanged {
                remote.close(fd);
            }
            install.exchanged.store(is_exchanged, Ordering::Relaxed);
            Err(exchanged(pid, tid, fd, &why).into())
        }
    }
}

fn exchanged(pid: Pid, tid: Tid, fd: i64, why: &dyn std::error::Error) -> Refusal {
    let message = format!(
        "process {pid}: descriptor {fd} of thread {tid} is not the memory that xrayd made for the \
         rings: {why}; another thread may have exchanged or closed the descriptor; nothing was \
         changed; try again"
    );
    Refusal::new(Reason::Io, message)
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
) -> Result<(Installed, TableClaim)> {
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
    let maps = read_maps(target)?;
    let mut regions = maps.iter().filter_map(|entry| Region::find(memory, entry));
    if regions.all(|region| region.is_ok_and(|(_, its)| its == *layout)) {
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
        let maps = read_maps(target)?;
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
        self,
        target: &Target,
        memory: &Memory,
        claim: TableClaim,
    ) -> Result<(Self, TableClaim)> {
        let pid = target.pid();
        let mark = owner_mark(pid, target.start_time());
        memory
            .write(
                TargetAddr(self.layout.table + layout::table::MINE),
                &mark.to_le_bytes(),
            )
            .map_err(|error| Refusal::from_io(pid, "write to the table", &error))?;
        set_live(memory, TargetAddr(self.layout.table), 1)
            .map_err(|error| Refusal::from_io(pid, "write to the table", &error))?;
        Ok((self, claim))
    }
}

/// Makes the slow path of trampolines return at once, so that no recording begins any more.
pub(crate) fn clear_live(memory: &Memory, table: TargetAddr) -> io::Result<()> {
    set_live(memory, table, 0)
}

fn set_live(memory: &Memory, table: TargetAddr, live: u64) -> io::Result<()> {
    memory.write(
        TargetAddr(table.0 + layout::table::LIVE),
        &live.to_le_bytes(),
    )
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

/// True if the kernel gives shared memory in huge pages of some size by default.
fn shared_memory_is_huge() -> bool {
    let settings = Path::new("/sys/kernel/mm/transparent_hugepage");
    let sizes = fs::read_dir(settings).into_iter().flatten();
    let sizes = sizes.filter_map(|entry| Some(entry.ok()?.path()));
    let is_on = |directory: &Path| {
        let setting = fs::read_to_string(directory.join("shmem_enabled")).unwrap_or_default();
        setting.contains("[always]") || setting.contains("[within_size]")
    };
    is_on(settings) || sizes.into_iter().any(|directory| is_on(&directory))
}

fn can_open_map_files(pid: Pid, maps: &Maps) -> bool {
    maps.iter()
        .find(|entry| entry.is_file())
        .is_some_and(|entry| open_map_file(pid, &entry.range).is_ok())
}

fn place_for(
    pid: Pid,
    maps: &Maps,
    taken: &[(u64, u64)],
    neighbourhood: &Neighbourhood,
) -> Result<(u64, u64)> {
    let bytes = neighbourhood.region_bytes();
    let place = maps.gap_near(
        &neighbourhood.range,
        Neighbourhood::reach(),
        bytes,
        stack_limit(pid),
    );
    let free = |&place: &u64| {
        taken
            .iter()
            .all(|&(start, length)| place + bytes <= start || start + length <= place)
    };
    place
        .filter(free)
        .map(|place| (place, bytes))
        .ok_or_else(|| {
            let start = neighbourhood.range.start;
            let message = format!(
                "process {pid}: no {bytes} free bytes within 2 GiB of the module at {start:#x}"
            );
            Refusal::new(Reason::NoMemory, message)
        })
}

fn remote_refusal(target: &Target, error: &RemoteError, geometry: Geometry) -> Refusal {
    let pid = target.pid();
    match error {
        RemoteError::Trace(error) => trace_refusal(target, error),
        RemoteError::Refused { call, source } => {
            let (reason, hint) = match source.raw_os_error() {
                Some(libc::ENOMEM) => (
                    Reason::NoMemory,
                    format!(
                        " (the rings take {} MiB of address space)",
                        geometry.rings_bytes() >> 20
                    ),
                ),
                Some(libc::EAGAIN) => (
                    Reason::NoMemory,
                    format!(
                        " (the process locks its memory by mlockall, {}, and the rings take {} MiB \
                         of address space for a moment: use smaller rings, a greater limit, or \
                         CAP_IPC_LOCK for the process)",
                        memory_lock_limit(pid),
                        geometry.rings_bytes() >> 20
                    ),
                ),
                Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
                    (Reason::SeccompFilter, String::new())
                }
                _ => (Reason::Io, String::new()),
            };
            Refusal::new(reason, format!("process {pid}: {call}: {source}{hint}"))
        }
    }
}
