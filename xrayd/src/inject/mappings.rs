//! The mappings that a borrowed thread makes in its process: trampolines, table and rings.

use std::{
    fs, io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use nix::libc;
use shm_ring::Geometry;

use super::{
    Neighbourhood,
    borrow::{BorrowError, Lender, Victim, trace_refusal},
    install_plan::{Plan, Rings},
    region::Layout,
    remote::{MappingPlace, Remote, RemoteError, refused},
    rings_file::{self, RingsFile, Unproven},
    thread_id,
};
use crate::{
    pid::{Pid, TargetAddr, Tid},
    refusal::{Reason, Refusal, Result},
    sys::{Memory, PidFd},
    target::{
        Maps, Target, Threads, has_locked_memory, memory_lock_limit, open_map_file,
        overcommit_is_strict, stack_limit,
    },
};

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

/// The mappings that the borrowed thread made: address and bytes each.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) layout: Layout,
    /// Mappings for trampolines.
    pub(super) code: Vec<(u64, u64)>,
    /// All mappings.
    pub(super) all: Vec<(u64, u64)>,
    pub(super) memfd: Option<RingsFile>,
    pub(super) stopped: Option<(Tid, Duration)>,
}

#[derive(Debug)]
pub(super) enum MapFailure {
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

/// The work of the borrowed thread.
#[derive(Debug)]
struct MappingWork {
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

pub(super) fn map_missing(
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
    let work = MappingWork {
        places,
        geometry,
        by_file: plan.rings == Rings::Closed
            || !can_open_map_files(pid, maps)
            || Threads::can_open_map_files(pid),
        huge: shared_memory_is_huge(),
        exchanged: AtomicBool::new(false),
    };
    if work.by_file && plan.rings != Rings::Open && overcommit_is_strict() {
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
        make_mappings(remote, target, memory, plan, &work)
    });
    match made {
        Ok((made, stopped)) => Ok(Mapped { stopped, ..made }),
        Err(BorrowError::Refusal(refusal)) if work.exchanged.load(Ordering::Relaxed) => {
            Err(MapFailure::Exchanged(refusal))
        }
        Err(BorrowError::Refusal(refusal)) => Err(refusal.into()),
        Err(BorrowError::Remote(RemoteError::Refused { source, .. }))
            if source.raw_os_error() == Some(libc::EEXIST) =>
        {
            Err(MapFailure::PlaceTaken)
        }
        Err(BorrowError::Remote(error)) => {
            Err(remote_refusal(target, &error, work.geometry).into())
        }
    }
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
    work: &MappingWork,
) -> std::result::Result<Mapped, BorrowError> {
    let tid_offset = tid_offset(target, memory, plan, remote)?;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let data = libc::PROT_READ | libc::PROT_WRITE;
    // First of all: where the kernel chooses the place of a mapping, it may choose one of these.
    for &(address, bytes) in &work.places {
        let code = libc::PROT_READ | libc::PROT_EXEC;
        let place = MappingPlace::Free(address);
        remote.map("mmap of the trampolines", place, bytes, code, private, -1)?;
    }
    // An existing table keeps its sizes: they are part of the trampolines.
    let geometry = plan.layout.map_or(work.geometry, |layout| layout.geometry);
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
            let start = if work.by_file {
                let place = scratch + NAMES.as_flattened().len() as u64;
                let wanted = (wanted, bytes, protection);
                let made = map_memfd(remote, target, memory, place, wanted, work)?;
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
            if work.huge {
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
    for &(address, bytes) in &work.places {
        remote.name(address, bytes, code_name);
    }
    memory
        .write(TargetAddr(scratch), &[0; SCRATCH_BYTES])
        .map_err(refused("write to the table"))?;
    Ok(Mapped {
        layout,
        code: work.places.clone(),
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
    work: &MappingWork,
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
                    work.exchanged.store(true, Ordering::Relaxed);
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
            work.exchanged.store(is_exchanged, Ordering::Relaxed);
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

pub(super) fn place_for(
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
