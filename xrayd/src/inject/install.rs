//! Puts trampolines, table and rings into a target, or takes over what an earlier attach left there.

use std::{fs::File, io, ops::Range, os::unix::fs::MetadataExt as _, time::Duration};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    libc,
    sys::memfd::{MFdFlags, memfd_create},
};
use shm_ring::{Geometry, Mapping, layout};

use super::{
    Neighbourhood,
    borrow::{BorrowError, Lender, Victim, refused, trace_refusal},
    region::{Layout, Region},
    remote::{Place, Remote, RemoteError},
    thread_id,
};
use crate::{
    pid::{Pid, TargetAddr, Tid},
    refusal::{Reason, Refusal, Result},
    sys::Memory,
    target::{Maps, Target, Threads, stack_limit},
};

/// How often a place that was taken meanwhile is looked for anew.
const PLACE_TRIES: usize = 8;
/// Longer than any thread stays in a trampoline.
pub(crate) const SETTLE: Duration = Duration::from_millis(5);
/// While the mappings are made, the first page of the table holds words that the target's system calls need.
const SCRATCH_AT: u64 = 1024;
const NAME_BYTES: usize = 16;
/// Of the trampolines, the table and the rings.
const NAMES: [[u8; NAME_BYTES]; 3] = [
    *b"xrayd-code\0\0\0\0\0\0",
    *b"xrayd-table\0\0\0\0\0",
    *b"xrayd-rings\0\0\0\0\0",
];

/// What is in the target now.
#[derive(Debug)]
pub(crate) struct Installed {
    /// Code mappings.
    pub(crate) regions: Vec<Region>,
    /// Where the rest is.
    pub(crate) layout: Layout,
    /// The rings, mapped here.
    pub(crate) rings: Mapping,
    /// The same memory as a file, to give memory back.
    pub(crate) rings_file: File,
    /// Everything was there already.
    pub(crate) adopted: bool,
    /// Who stood still, and for how long.
    pub(crate) stopped: Option<(Tid, Duration)>,
}

/// What is there and what is missing.
#[derive(Debug)]
struct Plan {
    regions: Vec<Region>,
    layout: Option<Layout>,
    rings: Rings,
    missing: Vec<Neighbourhood>,
}

/// What has become of the rings of an earlier attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rings {
    /// There are none: nobody attached before.
    Missing,
    /// They can be mapped here.
    Open,
    /// They are there and not to be used: their parent's, in a forked child; or closed to us, because `map_files` wants
    /// CAP_CHECKPOINT_RESTORE and the descriptor by which their maker had them is gone. New ones take their place.
    Closed,
}

/// What the borrowed thread mapped.
#[derive(Debug)]
struct Mapped {
    layout: Layout,
    /// For trampolines.
    code: Vec<(u64, u64)>,
    /// Everything.
    all: Vec<(u64, u64)>,
    memfd: Option<File>,
    stopped: Option<(Tid, Duration)>,
}

/// Makes `target` ready to have sleds switched on in `neighbourhoods`. Nothing is switched. Before
/// rings are mapped, there or here, `may_map` is asked whether they may be as large as they will be.
///
/// # Errors
/// Then nothing was changed, but for mappings that could not be unmapped again (logged).
pub(crate) fn install(
    target: &Target,
    memory: &Memory,
    neighbourhoods: &[Neighbourhood],
    geometry: Geometry,
    mut victim: Victim<'_>,
    mut may_map: impl FnMut(Geometry) -> Result<()>,
) -> Result<Installed> {
    let pid = target.pid();
    let mut tries = 0;
    loop {
        let maps = read_maps(target)?;
        let plan = plan(target, memory, &maps, neighbourhoods)?;
        if let (true, Rings::Open, Some(layout)) =
            (plan.missing.is_empty(), plan.rings, plan.layout)
        {
            may_map(layout.geometry)?;
            let (rings, rings_file) = share(target, &layout, None)?;
            let installed = Installed {
                regions: plan.regions,
                layout,
                rings,
                rings_file,
                adopted: true,
                stopped: None,
            };
            return installed.begin(target, memory);
        }
        if let (Rings::Closed, Some(layout)) = (plan.rings, plan.layout) {
            silence(memory, &layout)
                .map_err(|error| Refusal::from_io(pid, "write to the table", &error))?;
        }
        // What is there already keeps its sizes.
        may_map(plan.layout.map_or(geometry, |layout| layout.geometry))?;
        tries += 1;
        match map_missing(target, memory, &maps, &plan, geometry, &mut victim) {
            Ok(mapped) => {
                let all = mapped.all.clone();
                return finish(target, memory, plan, mapped)
                    .inspect_err(|_| take_back(target, memory, &all, &mut victim));
            }
            // Somebody mapped something there since the maps were read.
            Err(MapFailure::PlaceTaken) if tries < PLACE_TRIES => {}
            Err(MapFailure::PlaceTaken) => return Err(place_taken(pid)),
            Err(MapFailure::Refused(refusal)) => return Err(refusal),
        }
    }
}

/// The neighbourhoods in whose reach there is neither a region nor room for one, and the refusal for each.
///
/// # Errors
/// What is there cannot be taken over, or the maps cannot be read.
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

/// Puts trampolines into another neighbourhood of a target that has `layout` already. One thread stands still for it.
///
/// # Errors
/// Then nothing was changed, but for a mapping that could not be unmapped again (logged).
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
            Err(MapFailure::Refused(refusal)) => return Err(refusal),
        };
        return write_regions(pid, memory, &mut plan.regions, &mapped)
            .and_then(|()| plan.regions.pop().ok_or_else(|| place_taken(pid)))
            .inspect_err(|_| take_back(target, memory, &mapped.all, &mut Victim::Any));
    }
    Err(place_taken(pid))
}

fn place_taken(pid: Pid) -> Refusal {
    let message =
        format!("process {pid}: every place near its modules is taken as soon as it is found");
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
                let message =
                    format!("process {pid}: two different sets of xrayd's memory are in it");
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
            "process {pid} runs in the memory of process {owner}, as a vforked child does, and xrayd is in that one"
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
            open_map_file(pid, range)
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

/// What the table says of the process that it belongs to: its id above, and enough of its start time to tell it from another one with that id.
fn owner_mark(pid: Pid, start_time: u64) -> u64 {
    u64::from(pid.as_raw().unsigned_abs()) << 32 | start_time & 0xffff_ffff
}

/// Another process, living, whose memory this is: it reads the same mark at the same place.
fn other_owner(target: &Target, at: TargetAddr, mine: u64) -> Option<Pid> {
    if mine == 0 || mine == owner_mark(target.pid(), target.start_time()) {
        return None;
    }
    let owner = Pid::try_from(u32::try_from(mine >> 32).ok()?).ok()?;
    let owned = Memory::open(owner, owner.leader()).ok()?.read_u64(at);
    (owned.ok()? == mine).then_some(owner)
}

#[derive(Debug)]
enum MapFailure {
    PlaceTaken,
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
    let wishes = Wishes {
        places,
        geometry,
        by_file: plan.rings == Rings::Closed
            || !can_open_map_files(pid, maps)
            || Threads::can_open_map_files(pid),
    };
    let made = lender.lend(victim, |remote| {
        make_mappings(remote, target, memory, plan, &wishes)
    });
    match made {
        Ok((made, stopped)) => Ok(Mapped { stopped, ..made }),
        Err(BorrowError::Refusal(refusal)) => Err(refusal.into()),
        Err(BorrowError::Remote(RemoteError::Refused { source, .. }))
            if source.raw_os_error() == Some(libc::EEXIST) =>
        {
            Err(MapFailure::PlaceTaken)
        }
        Err(BorrowError::Remote(error)) => {
            Err(remote_refusal(target, &error, wishes.geometry).into())
        }
    }
}

/// What the borrowed thread shall do.
#[derive(Debug)]
struct Wishes {
    /// Address and size of each code mapping.
    places: Vec<(u64, u64)>,
    geometry: Geometry,
    /// Rings in a memfd instead of anonymous memory: `map_files` is closed to us, or is open to the target.
    by_file: bool,
}

/// Where the thread's id stands in its control block.
fn tid_offset(target: &Target, memory: &Memory, plan: &Plan, remote: &Remote<'_>) -> Result<i32> {
    let (pid, thread) = (target.pid(), remote.thread());
    let known = plan.layout.map(|layout| layout.tid_offset);
    known
        .or_else(|| thread_id::find(memory, pid, thread.tid(), thread.registers().fs_base))
        .ok_or_else(|| {
            let message = format!(
                "process {pid}: thread {} keeps its id nowhere in its control block",
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
    wishes: &Wishes,
) -> std::result::Result<Mapped, BorrowError> {
    let tid_offset = tid_offset(target, memory, plan, remote)?;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let data = libc::PROT_READ | libc::PROT_WRITE;
    // First of all: where the kernel chooses the place of a mapping, it may choose one of these.
    for &(address, bytes) in &wishes.places {
        let code = libc::PROT_READ | libc::PROT_EXEC;
        let place = Place::Free(address);
        remote.map("mmap of the trampolines", place, bytes, code, private, -1)?;
    }
    // What is there already keeps its sizes: the trampolines have them.
    let geometry = plan
        .layout
        .map_or(wishes.geometry, |layout| layout.geometry);
    let table = match plan.layout {
        Some(layout) => layout.table,
        None => {
            let bytes = geometry.table_bytes();
            let table = remote.map("mmap of the table", Place::Any, bytes, data, private, -1)?;
            // A forked child must find it zeroed (P58).
            remote.advise(table, bytes, libc::MADV_WIPEONFORK)?;
            table
        }
    };
    let scratch = table + SCRATCH_AT;
    if remote.has_no_counter(memory, scratch)? {
        let message = format!(
            "process {}: thread {} may not read the time stamp counter (PR_SET_TSC), as every traced call does",
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
        // The trampolines that are there name the place.
        (old, rings) => {
            let slack = geometry.chunk_bytes();
            let (wanted, bytes) = match (old.map(|layout| layout.rings_map), rings) {
                (Some((start, bytes)), Rings::Closed) => (Place::Over(start), bytes),
                (Some((start, bytes)), _) => (Place::Free(start), bytes),
                (None, _) => (Place::Any, geometry.rings_bytes() + slack),
            };
            let start = if wishes.by_file {
                let fd = remote.memfd(rings_name)?;
                let copy = i32::try_from(fd)
                    .map_err(io::Error::other)
                    .and_then(|number| match target.pidfd().get_fd(number) {
                        Ok(copy) => Ok(File::from(copy)),
                        // A process without its main thread has no descriptors by this way (P3).
                        Err(_) => open_descriptor(target.pid(), remote.thread().tid(), number),
                    })
                    .and_then(|copy| copy.set_len(bytes).map(|()| copy))
                    .map_err(refused("pidfd_getfd"));
                let shared = libc::MAP_SHARED | libc::MAP_NORESERVE;
                let start = copy.and_then(|copy| {
                    memfd = Some(copy);
                    remote.map("mmap of the rings", wanted, bytes, data, shared, fd)
                });
                remote.close(fd);
                start?
            } else {
                let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                remote.map("mmap of the rings", wanted, bytes, data, shared, -1)?
            };
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
    for &(address, bytes) in &wishes.places {
        remote.name(address, bytes, code_name);
    }
    memory
        .write(TargetAddr(scratch), &[0; NAMES.len() * NAME_BYTES])
        .map_err(refused("write to the table"))?;
    Ok(Mapped {
        layout,
        code: wishes.places.clone(),
        all: remote.commit(),
        memfd,
        stopped: None,
    })
}

/// Fills the code mappings that were made.
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

fn finish(target: &Target, memory: &Memory, plan: Plan, mapped: Mapped) -> Result<Installed> {
    let mut regions = plan.regions;
    write_regions(target.pid(), memory, &mut regions, &mapped)?;
    let (rings, rings_file) = share(target, &mapped.layout, mapped.memfd)?;
    let installed = Installed {
        regions,
        layout: mapped.layout,
        rings,
        rings_file,
        adopted: false,
        stopped: mapped.stopped,
    };
    installed.begin(target, memory)
}

/// Unmaps what was mapped in vain.
fn take_back(target: &Target, memory: &Memory, all: &[(u64, u64)], victim: &mut Victim<'_>) {
    let mut undo = || -> std::result::Result<(), BorrowError> {
        let maps = read_maps(target)?;
        let lender = Lender::find(target, memory, &maps)?;
        lender.lend(victim, |remote| {
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
            "mappings stay in the target"
        );
    }
}

// === impl Installed ===

impl Installed {
    /// From here on trampolines may record.
    fn begin(self, target: &Target, memory: &Memory) -> Result<Self> {
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
        Ok(self)
    }
}

/// Makes the slow path of trampolines return at once: nothing begins to be recorded any more.
pub(crate) fn clear_live(memory: &Memory, table: TargetAddr) -> io::Result<()> {
    set_live(memory, table, 0)
}

/// True while the address space is the one that was attached to: after an `exec` the old one cannot be read (P49).
pub(crate) fn is_ours_still(memory: &Memory, table: TargetAddr) -> bool {
    memory
        .read_u64(TargetAddr(table.0 + layout::table::LIVE))
        .is_ok_and(|live| live != 0)
}

fn set_live(memory: &Memory, table: TargetAddr, live: u64) -> io::Result<()> {
    memory.write(
        TargetAddr(table.0 + layout::table::LIVE),
        &live.to_le_bytes(),
    )
}

/// Ends all writing to the rings, also by sleds that a daemon left on when it died: every thread finds its slot empty, and
/// the slow path returns at once. Whoever is in a trampoline meanwhile is out of it after the pause.
fn silence(memory: &Memory, layout: &Layout) -> io::Result<()> {
    clear_live(memory, TargetAddr(layout.table))?;
    std::thread::sleep(SETTLE);
    let mut piece = vec![0u8; 1 << 16];
    let end = layout.table + layout.geometry.table_bytes();
    let mut at = layout.table + layout::HEADER_BYTES;
    while at < end {
        let length = usize::try_from(end - at).map_or(piece.len(), |left| left.min(piece.len()));
        let slots = &mut piece[..length];
        memory.read(TargetAddr(at), slots)?;
        // Pages that nobody has touched stay so.
        if slots.iter().any(|&byte| byte != 0) {
            slots.fill(0);
            memory.write(TargetAddr(at), slots)?;
        }
        at += length as u64;
    }
    std::thread::sleep(SETTLE);
    Ok(())
}

/// Maps the target's rings here.
fn share(target: &Target, layout: &Layout, memfd: Option<File>) -> Result<(Mapping, File)> {
    let pid = target.pid();
    let (start, bytes) = layout.rings_map;
    let (file, safe) = match memfd {
        Some(file) => {
            let sealed = fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).is_ok();
            (file, sealed)
        }
        None => {
            let range = start..start.saturating_add(bytes);
            let file = open_map_file(pid, range.clone()).map_err(|error| {
                Refusal::from_io(pid, "open the rings through map_files", &error)
            })?;
            let safe = cannot_shrink(pid, range, &file);
            (file, safe)
        }
    };
    let skip = layout.rings - start;
    let wanted = skip.saturating_add(layout.geometry.rings_bytes());
    let large_enough = file
        .metadata()
        .is_ok_and(|metadata| metadata.len() >= wanted);
    if !(safe && large_enough) {
        let message = format!("process {pid}: what lies at {start:#x} are not xrayd's rings");
        return Err(Refusal::new(Reason::OtherVersion, message));
    }
    let mapping = Mapping::new(&file, skip, layout.geometry.rings_bytes())
        .map_err(|error| Refusal::from_io(pid, "map the rings", &error))?;
    Ok((mapping, file))
}

/// True for memory whose length nobody can take back: reading beyond the end of a file that shrank would kill the
/// daemon. That is a sealed memfd, or anonymous shared memory, which has no descriptor but for those who may open
/// `map_files`.
fn cannot_shrink(pid: Pid, range: Range<u64>, file: &File) -> bool {
    let seals =
        fcntl(file, FcntlArg::F_GET_SEALS).map_or(SealFlag::empty(), SealFlag::from_bits_retain);
    if seals.contains(SealFlag::F_SEAL_SHRINK) {
        return true;
    }
    if Threads::can_open_map_files(pid) {
        return false;
    }
    let dir = Threads::proc_dir(pid);
    let link = std::fs::read_link(format!("{dir}/map_files/{:x}-{:x}", range.start, range.end));
    // The kernel's own mount for anonymous shared memory; no path leads into it.
    let device = memfd_create("xrayd", MFdFlags::MFD_CLOEXEC)
        .ok()
        .and_then(|own| File::from(own).metadata().ok())
        .map(|metadata| metadata.dev());
    link.is_ok_and(|link| link.as_os_str() == "/dev/zero (deleted)")
        && device.is_some()
        && file.metadata().ok().map(|metadata| metadata.dev()) == device
}

fn open_descriptor(pid: Pid, tid: Tid, number: i32) -> io::Result<File> {
    let path = format!("/proc/{pid}/task/{tid}/fd/{number}");
    File::options().read(true).write(true).open(path)
}

fn open_map_file(pid: Pid, range: Range<u64>) -> io::Result<File> {
    let dir = Threads::proc_dir(pid);
    let path = format!("{dir}/map_files/{:x}-{:x}", range.start, range.end);
    File::options().read(true).write(true).open(path)
}

fn can_open_map_files(pid: Pid, maps: &Maps) -> bool {
    let dir = Threads::proc_dir(pid);
    maps.iter()
        .find(|entry| entry.is_file())
        .is_some_and(|entry| {
            let range = &entry.range;
            File::open(format!("{dir}/map_files/{:x}-{:x}", range.start, range.end)).is_ok()
        })
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
                Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
                    (Reason::SeccompFilter, String::new())
                }
                _ => (Reason::Io, String::new()),
            };
            Refusal::new(reason, format!("process {pid}: {call}: {source}{hint}"))
        }
    }
}
