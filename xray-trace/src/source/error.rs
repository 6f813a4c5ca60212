//! Reasons why a file cannot be opened.

use std::io;

use crate::container::{ProfileError, ReadError};
use crate::llvm;

/// Reasons why a file gives no trace or no profile.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be read, or there is no space to convert it.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is a damaged `.xtrace`.
    #[error(transparent)]
    Xtrace(#[from] ReadError),
    /// The file is a damaged log of LLVM.
    #[error(transparent)]
    Llvm(#[from] llvm::Error),
    /// The file is text, but not a trace in LLVM's YAML.
    #[error("not a trace in llvm-xray's YAML: {0}")]
    Yaml(llvm::Error),
    /// A row of an export is damaged.
    #[error("line {line} of the {format}: {why}")]
    Row {
        /// The format.
        format: &'static str,
        /// The line on which the row begins, from 1.
        line: u64,
        /// The reason.
        why: String,
    },
    /// A trace event in JSON is damaged.
    #[error("trace event at offset {offset}: {why}")]
    TraceEvent {
        /// The offset of the event.
        offset: u64,
        /// The reason.
        why: String,
    },
    /// The file is JSON without trace events.
    #[error(
        "not a trace: the file is JSON, but neither JSON lines of xrayctl nor trace events (it has \
         no list 'traceEvents')"
    )]
    NoTraceEvents,
    /// The metadata of a trace in CTF cannot be read.
    #[error("not a trace in the Common Trace Format 1.8: {0}")]
    CtfMetadata(String),
    /// A packet of a trace in CTF is damaged.
    #[error("packet of {file} at offset {offset}: {why}")]
    CtfPacket {
        /// The name of the file in the folder.
        file: String,
        /// The offset of the packet.
        offset: u64,
        /// The reason.
        why: String,
    },
    /// The calls of a trace in CTF have no threads.
    #[error(
        "the calls of the trace do not have the ids of their threads; record with          `lttng add-context -u -t vpid -t vtid -t procname`"
    )]
    CtfThreads,
    /// A `perf.data` cannot be read.
    #[error("a perf.data that cannot be read: {0}")]
    PerfData(String),
    /// A record of a `perf.data` is damaged.
    #[error("record at offset {offset}: {why}")]
    PerfRecord {
        /// The offset of the record.
        offset: u64,
        /// The reason.
        why: String,
    },
    /// A `perf.data` has no events of both the entry and the return of a function.
    #[error(
        "the perf.data has no calls: it needs the events of `perf probe -x PROGRAM FUNCTION` and \
         `perf probe -x PROGRAM FUNCTION%return`"
    )]
    PerfCalls,
    /// A folder has no trace.
    #[error(
        "the folder has no file 'metadata', so it is no trace in the Common Trace Format; give the          folder that contains that file"
    )]
    NoMetadata,
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// The file is a profile, for [`super::open_profile`].
    #[error("the file is a profile, not a trace: it has sums of calls, but no events")]
    Profile,
    /// The profile is too large.
    #[error("the profile has more than {limit} different stacks of calls")]
    TooManyStacks {
        /// The greatest number of stacks.
        limit: usize,
    },
    /// The file has another unit of time than the files to which it is added.
    #[error("its times are in {unit}, but the times of the files before it are in {others}")]
    OtherUnit {
        /// Its unit.
        unit: &'static str,
        /// The unit of the others.
        others: &'static str,
    },
    /// The file is no profile.
    #[error("not a profile")]
    NoProfile,
    /// The profile in an `.xtrace` is damaged.
    #[error(transparent)]
    Damaged(#[from] ProfileError),
    /// The file has no known format.
    #[error(
        "not a trace: neither an .xtrace, an XRay log (basic mode, flight data recorder), \
         llvm-xray's YAML, JSON lines or CSV of xrayctl, trace events in JSON, a perf.data, nor a \
         folder in the Common Trace Format"
    )]
    Unknown,
}
