//! Imports a trace in the Common Trace Format, version 1.8: a folder with a description
//! (`metadata`) and files of streams. It takes the calls, those of xrayctl's own export and those
//! of LTTng's `lttng_ust_cyg_profile` and `lttng_ust_cyg_profile_fast`, whose programs were
//! compiled with `-finstrument-functions`.
//!
//! | file | |
//! |---|---|
//! | `lexer`, `metadata`, `types` | the description |
//! | `decode` | the fields of packets and events |
//! | `stream` | a file of packets |
//! | `calls` | the meaning of events |
//!
//! The folder may be crafted to do harm: memory grows with the bytes that are present, and types
//! have a limited depth. (<https://diamon.org/ctf/v1.8.3/>)

mod calls;
mod decode;
mod lexer;
mod metadata;
mod stream;
mod types;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};

use self::calls::Calls;
use self::metadata::{parse, text_of};
use self::stream::StreamFile;
use super::OpenError;
use super::damage::Damage;
use super::options::Options;
use crate::model::Trace;

/// The most bytes of metadata.
const MOST_METADATA: u64 = 256 << 20;
/// The most files that are read at the same time, in the order of all their events.
const MOST_MERGED: usize = 256;
/// The name of the description.
pub(super) const METADATA: &str = "metadata";

/// Imports the trace in a folder with these files. `open` opens one of them.
///
/// # Errors
///
/// A file cannot be read, or is damaged and the options do not salvage it.
pub(super) fn import(
    mut names: Vec<OsString>,
    open: impl Fn(&OsStr) -> io::Result<File>,
    options: &Options,
) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
    let mut bytes = Vec::new();
    open(METADATA.as_ref())?
        .take(MOST_METADATA)
        .read_to_end(&mut bytes)?;
    let described = text_of(bytes).and_then(|text| parse(&text));
    let described = described.map_err(OpenError::CtfMetadata)?;
    names.retain(|name| name != METADATA);
    names.sort_unstable();
    let mut damage = Damage::new(options.mode);
    let mut calls = Calls::new(described.frequency)?;
    // A thread may have events in the files of several processors. So few files are merged by
    // time. With many, each thread has a file of its own.
    let at_once = if names.len() <= MOST_MERGED {
        names.len()
    } else {
        1
    };
    for group in names.chunks(at_once.max(1)) {
        let mut files = Vec::new();
        for name in group {
            let shown = name.to_string_lossy();
            files.push(StreamFile::new(open(name)?, &shown, &described));
        }
        let mut next = BinaryHeap::new();
        for (place, file) in files.iter_mut().enumerate() {
            advance(file, &mut damage)?;
            calls.lost(file.take_losses());
            next.extend(file.time().map(|time| Reverse((time, place))));
        }
        while let Some(Reverse((_, place))) = next.pop() {
            let Some(file) = files.get_mut(place) else {
                continue;
            };
            if let Some((event, bytes)) = file.event() {
                calls.add(event, bytes)?;
            }
            if advance(file, &mut damage)? == Damaged::Yes {
                calls.forget_open();
            }
            calls.lost(file.take_losses());
            next.extend(file.time().map(|time| Reverse((time, place))));
        }
    }
    calls.finish(damage)
}

/// Whether a part of a file was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damaged {
    No,
    Yes,
}

/// Goes to the next event of a file.
fn advance(file: &mut StreamFile<'_>, damage: &mut Damage) -> Result<Damaged, OpenError> {
    let mut damaged = Damaged::No;
    loop {
        match file.advance() {
            Ok(()) => return Ok(damaged),
            Err(error @ OpenError::CtfPacket { .. }) => damage.skip(error)?,
            Err(error) => return Err(error),
        }
        damaged = Damaged::Yes;
    }
}
