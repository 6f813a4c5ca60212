//! Traces as bytes: of live streams and of snapshots. Streams are sent in `rpc`.

mod snapshot;
mod source;
mod trace_writer;

pub use snapshot::PendingSnapshot;
pub(crate) use snapshot::{LEAST_SPAN_NS, ticks_in};
pub use source::TraceSource;
pub use trace_writer::{TraceTotals, TraceWriter};
