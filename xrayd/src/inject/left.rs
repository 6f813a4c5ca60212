//! What an earlier tracer has left in a process, as far as a look shows it. Nothing is changed.

use std::sync::Arc;

use super::{
    install_plan::plan,
    region::{FoundRegion, OtherVersion, Region},
    tracer_record::TableClaim,
};
use crate::{
    pid::{Pid, TargetAddr},
    refusal::Result,
    sys::Memory,
    target::{Maps, Target},
};

/// Most code mappings in which a tracer's record is looked for. A process can forge them, and each
/// takes milliseconds to compare.
const MOST_REGIONS: usize = 64;

/// The code of xrayd in a process.
#[derive(Debug)]
pub(crate) struct LeftCode {
    pub(crate) regions: Vec<Region>,
    pub(crate) others: Vec<OtherVersion>,
    /// True if the process has it from its parent, by a fork.
    pub(crate) is_inherited: bool,
    tables: Vec<TargetAddr>,
}

/// Finds the code of xrayd in a process.
///
/// # Errors
/// It cannot be used, or another living process uses the same memory.
pub(crate) fn left_code(target: &Target, memory: &Memory, maps: &Maps) -> Result<LeftCode> {
    let plan = plan(target, memory, maps, &[])?;
    let tables = plan.layout.map(|layout| TargetAddr(layout.table));
    let tables = tables
        .into_iter()
        .chain(plan.others.iter().map(|other| other.table));
    let mut tables: Vec<TargetAddr> = tables.collect();
    tables.sort_unstable();
    tables.dedup();
    let is_wiped = |table: &TargetAddr| {
        let mine = memory.read_u64(TargetAddr(table.0 + shm_ring::layout::table::MINE));
        mine.is_ok_and(|mine| mine == 0)
    };
    Ok(LeftCode {
        is_inherited: !tables.is_empty() && tables.iter().all(is_wiped),
        regions: plan.regions,
        others: plan.others,
        tables,
    })
}

// === impl LeftCode ===

impl LeftCode {
    /// Takes the records in its tables, until the result is dropped.
    ///
    /// # Errors
    /// A living tracer has one.
    pub(crate) fn claim(&self, memory: &Arc<Memory>, pid: Pid) -> Result<Vec<TableClaim>> {
        let tables = self.tables.iter();
        tables
            .map(|table| TableClaim::take(memory, *table, pid))
            .collect()
    }
}

/// The tracer that uses xrayd's memory in a process, in words. `None` if there is no such memory,
/// or if its tracer is gone. A tracer that cannot be seen from here counts as living.
pub(crate) fn living_tracer(memory: &Memory, maps: &Maps) -> Option<String> {
    let regions = maps.iter().filter_map(|entry| Region::find(memory, entry));
    let regions = regions.take(MOST_REGIONS);
    let mut tables = regions.filter_map(|found| match found {
        Ok(FoundRegion::Usable(found)) => Some(TargetAddr(found.1.table)),
        Ok(FoundRegion::OtherVersion(other)) => Some(other.table),
        Err(_) => None,
    });
    tables.find_map(|table| TableClaim::living_tracer(memory, table))
}
