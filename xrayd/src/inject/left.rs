//! What an earlier tracer has left in a process, as far as a look shows it. Nothing is changed.

use super::{
    region::{FoundRegion, Region},
    tracer_record::TableClaim,
};
use crate::{pid::TargetAddr, sys::Memory, target::Maps};

/// The tracer that uses xrayd's memory in a process, in words. `None` if there is no such memory,
/// or if its tracer is gone. A tracer that cannot be seen from here counts as living.
pub(crate) fn living_tracer(memory: &Memory, maps: &Maps) -> Option<String> {
    let regions = maps.iter().filter_map(|entry| Region::find(memory, entry));
    let mut tables = regions.filter_map(|found| match found {
        Ok(FoundRegion::Usable(found)) => Some(TargetAddr(found.1.table)),
        Ok(FoundRegion::OtherVersion(other)) => Some(other.table),
        Err(_) => None,
    });
    tables.find_map(|table| TableClaim::living_tracer(memory, table))
}
