//! Imports trace events in JSON (Chrome's `trace_event`): a list of events, or an object whose
//! `traceEvents` is that list.
//!
//! ```text
//!  file ─► scanner: the bytes of one event ─► event: its fields ─► moments of its thread
//!                                                                        │ sorted by time
//!                                         trace ◄─ nesting of calls ◄────┘
//! ```
//!
//! Events may come in any order, and a complete event (`X`) has the end of its call beside the
//! begin. So the moments of all threads stay in memory until the end of the file. Memory is
//! proportional to the size of the file.

mod decimal;
mod event;
mod import;
mod moments;
mod scan;

pub(super) use import::import;
