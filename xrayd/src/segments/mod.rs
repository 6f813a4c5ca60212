//! Segments: files with retained events, which outlive the daemon.
//!
//! A segment is a trace (`.xtrace`) with a part of the events that one session retains. The
//! [`SegmentStore`] makes and removes segments, and has those of the earlier daemon. The archive in
//! `export` writes their contents, and `export` also reads them.
//!
//! ```text
//!  archive ──► SegmentStore::create ──► memfd ──► service manager ──► the next daemon
//!                                       file of the state folder ────► the next daemon
//!  Segment dropped ──► removed there, unless the daemon leaves its sessions to the next one
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `name` | the name of a segment: its process, and its place among the segments of the process |
//! | `store` | all segments of this daemon |
//! | `sender` | the thread that gives segments to the service manager, and takes them back |

mod name;
mod sender;
mod store;

pub(crate) use name::SegmentName;
#[cfg(test)]
pub(crate) use store::MOST_SEGMENTS;
pub(crate) use store::{Segment, SegmentFolder, SegmentStore, bytes_of_files, refuse_files};
