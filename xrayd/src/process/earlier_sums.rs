//! The sums of ended threads that an earlier daemon has kept of a process, in the rings' memory.

use std::sync::Mutex;

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
    lock::lock,
    store::EarlierSums,
    types::Mode,
};

/// One log is read at a time: a log that the program has written takes several times its bytes.
static READING: Mutex<()> = Mutex::new(());

/// Reads the sums of a session that goes on in this mode. `None`: it has none, and makes none.
pub(super) fn sums_before(
    installed: &Installed,
    mode: Mode,
    tables: &ProcessTables,
) -> Option<EarlierSums> {
    let memory = &installed.rings;
    let kind = sums_kind(mode)?;
    if !installed.adopted || memory.load(rings::SUMS_KIND) != kind {
        return None;
    }
    let since = Ticks(memory.load(rings::SUMS_SINCE));
    let end = End::of_word(memory.load(rings::SUMS));
    let read = end.map_or(Ok(Vec::new()), |end| {
        let _one_at_a_time = lock(&READING);
        read(installed, end, mode, tables)
    });
    let is_incomplete = end.is_some_and(|end| end.is_incomplete) || read.is_err();
    if is_incomplete {
        let pid = tables.process.pid;
        let why = read
            .as_ref()
            .err()
            .map_or("they did not fit", String::as_str);
        tracing::warn!(pid, %why, "sums of threads that ended before this daemon are missing");
    }
    Some(EarlierSums {
        since,
        taken_along: memory.load(rings::SUMS_TAKEN),
        threads: read.unwrap_or_default(),
        end,
        is_incomplete,
    })
}

fn read(
    installed: &Installed,
    end: End,
    mode: Mode,
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
    read_sums(&bytes, mode, &tables.process, &tables.functions).map_err(|error| error.to_string())
}
