//! Traces as bytes: of a live stream, and of everything up to one moment.

mod shot;
mod source;
mod trace_writer;

pub use shot::Shot;
pub(crate) use shot::{LEAST_SPAN_NS, ticks_in};
pub use source::TraceSource;
pub use trace_writer::TraceWriter;
