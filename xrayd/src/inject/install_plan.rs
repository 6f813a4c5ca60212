//! The parts of xrayd's memory that a target has already, and the parts that it lacks. Nothing is
//! changed here.

use std::io;

use shm_ring::layout;

use super::{
    Neighbourhood,
    region::{FoundRegion, Layout, OtherVersion, Region},
};
use crate::{
    pid::{Pid, TargetAddr},
    refusal::{Reason, Refusal, Result},
    sys::Memory,
    target::{Maps, Target, memory_owner, open_map_file},
};

/// The parts that are in the target already, and the missing ones.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) regions: Vec<Region>,
    /// Memory of other versions. It stays, and new memory is mapped beside it.
    pub(super) others: Vec<OtherVersion>,
    pub(super) layout: Option<Layout>,
    pub(super) rings: Rings,
    pub(super) missing: Vec<Neighbourhood>,
}

/// The state of the rings of an earlier attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rings {
    /// There are no rings.
    Missing,
    /// The rings can be mapped here.
    Open,
    /// The rings are there and must not be used. Either they are the parent's, in a forked child.
    /// Or they are closed to us, because `map_files` needs CAP_CHECKPOINT_RESTORE and the
    /// descriptor of their maker is gone. New rings take their place.
    Closed,
}

/// Most code mappings of other versions in one process. A process can forge them.
const MOST_OTHERS: usize = 16;

pub(super) fn plan(
    target: &Target,
    memory: &Memory,
    maps: &Maps,
    neighbourhoods: &[Neighbourhood],
) -> Result<Plan> {
    let pid = target.pid();
    let mut regions = Vec::new();
    let mut others: Vec<OtherVersion> = Vec::new();
    let mut layout: Option<Layout> = None;
    for entry in maps.iter() {
        match Region::find(memory, entry) {
            None => {}
            Some(Ok(FoundRegion::Usable(found)))
                if layout.is_none_or(|layout| layout == found.1) =>
            {
                let (region, its) = *found;
                layout = Some(its);
                regions.push(region);
            }
            Some(Ok(FoundRegion::OtherVersion(other))) => {
                if others.len() == MOST_OTHERS || !is_table(maps, other.table) {
                    let message = format!(
                        "process {pid}: memory of another version of xrayd at {:#x} cannot be let \
                         go of",
                        other.range.start
                    );
                    return Err(Refusal::new(Reason::OtherVersion, message));
                }
                others.push(other);
            }
            Some(Ok(FoundRegion::Usable(_))) => {
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
    let mine = |table: u64| {
        let at = TargetAddr(table + layout::table::MINE);
        (at, memory.read_u64(at).unwrap_or(0))
    };
    let tables = others.iter().map(|other| other.table.0);
    let tables = tables.chain(layout.map(|layout| layout.table));
    let mut owners = tables.filter_map(|table| {
        let (at, mine) = mine(table);
        other_owner(target, at, mine)
    });
    if let Some(owner) = owners.next() {
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
        let inherited = mine(layout.table).1 == 0;
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
        others,
        layout,
        rings,
        missing,
    })
}

/// True if a table can be there: in memory that the process can write, and that is its own.
fn is_table(maps: &Maps, table: TargetAddr) -> bool {
    let end = table.0.checked_add(layout::table::COMMON_BYTES);
    maps.at(table.0).is_some_and(|entry| {
        entry.permissions == *b"rw-p" && end.is_some_and(|end| end <= entry.range.end)
    })
}

/// The mark in the table of the process that the table belongs to. It holds the pid in the upper
/// half, and in the lower half enough of the start time to tell the process from another one with
/// that pid.
pub(super) fn owner_mark(pid: Pid, start_time: u64) -> u64 {
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
