//! Traces as bytes: of live streams and of snapshots. Streams are sent in `rpc`.

mod shot;
mod source;
mod trace_writer;

pub use shot::Shot;
pub(crate) use shot::{LEAST_SPAN_NS, ticks_in};
pub use source::TraceSource;
pub use trace_writer::TraceWriter;
