//! Imports a `perf.data` of `perf record`: the calls of functions for which `perf probe` has made
//! two events, one at the entry and one at the return.
//!
//! ```text
//! perf probe -x ./server handle      # probe_server:handle
//! perf probe -x ./server handle%return   # probe_server:handle__return
//! ```
//!
//! | file | |
//! |---|---|
//! | `file` | header, attributes and names of events, records |
//! | `calls` | samples as calls |
//!
//! The file may be crafted to do harm: every size is checked against the bytes that are there.
//! (<https://docs.kernel.org/6.12/tools/perf/Documentation/perf.data-file-format.html>, and
//! `tools/perf/Documentation/perf.data-file-format.txt` of Linux)

mod calls;
mod file;

use std::fs::File;

use self::calls::Calls;
use self::file::{PerfFile, Record};
use super::OpenError;
use super::damage::Damage;
use super::options::Options;
use crate::model::Trace;

/// Imports a file.
///
/// # Errors
///
/// The file cannot be read, has no calls, or is damaged and the options do not salvage it.
pub(super) fn import(
    file: File,
    options: &Options,
) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
    let mut file = PerfFile::open(file)?;
    let mut damage = Damage::new(options.mode);
    let mut calls = Calls::new(file.names())?;
    loop {
        match file.next() {
            Ok(None) => break,
            Ok(Some(Record::Sample(sample))) => calls.sample(&sample)?,
            Ok(Some(Record::Comm { pid, tid, name })) => calls.name(pid, tid, &name),
            Ok(Some(Record::Lost(events))) => calls.lost(events),
            Ok(Some(Record::LostSamples(events))) => calls.lost_samples(events),
            Ok(Some(Record::Compressed)) => calls.compressed(),
            Err(error @ OpenError::PerfRecord { .. }) => damage.skip(error)?,
            Err(error) => return Err(error),
        }
    }
    calls.finish(damage)
}
