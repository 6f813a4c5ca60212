//! The sums of ended threads that an earlier daemon has kept of a process, in the rings' memory.

use shm_ring::{
    SharedMemory as _,
    layout::{rings, sums::End},
};
use xray_trace::{
    analysis::StackSums,
    model::{Thread, Ticks},
};

use crate::{
    collect::sums_kind,
    export::{ProcessTables, read_sums},
    inject::Installed,
    store::EarlierSums,
    types::Mode,
};

/// What was found.
pub(super) struct FoundSums {
    pub(super) sums: EarlierSums,
    /// The end of the sums in memory; `None` if there are none.
    pub(super) end: Option<End>,
    /// True if sums are missing.
    pub(super) is_damaged: bool,
}

/// Reads the sums of a session that goes on in this mode. `None`: it has none, and makes none.
pub(super) fn sums_before(
    installed: &Installed,
    mode: Mode,
    tables: &ProcessTables,
) -> Option<FoundSums> {
    let memory = &installed.rings;
    let kind = sums_kind(mode)?;
    if !installed.adopted || memory.load(rings::SUMS_KIND) != kind {
        return None;
    }
    let since = Ticks(memory.load(rings::SUMS_SINCE));
    let end = End::of_word(memory.load(rings::SUMS));
    let read = end.map_or(Ok(Vec::new()), |end| read(installed, end, tables));
    let is_incomplete = end.is_some_and(|end| end.is_incomplete);
    let is_damaged = is_incomplete || read.is_err();
    if is_damaged {
        let pid = tables.process.pid;
        let why = read.as_ref().err().map_or("it was full", String::as_str);
        tracing::warn!(pid, %why, "sums of threads that ended before this daemon are missing");
    }
    let threads = read.unwrap_or_default();
    Some(FoundSums {
        sums: EarlierSums { since, threads },
        end,
        is_damaged,
    })
}

fn read(
    installed: &Installed,
    end: End,
    tables: &ProcessTables,
) -> Result<Vec<(Thread, StackSums)>, String> {
    if end.length == 0 || !installed.layout.geometry.has_profiles() {
        return Ok(Vec::new());
    }
    let layout = &installed.layout;
    let skip = layout.rings.saturating_sub(layout.rings_map.0);
    let place = skip.saturating_add(end.half_offset(layout.geometry));
    let bytes = installed.rings_file.read_at(place, end.length);
    let bytes = bytes.map_err(|error| error.to_string())?;
    read_sums(&bytes, &tables.process, &tables.functions).map_err(|error| error.to_string())
}
