//! Traces as bytes: of live streams and of snapshots. Streams are sent in `rpc`.

mod archive;
mod earlier;
mod kept_sums;
mod process_tables;
mod snapshot;
mod source;
mod trace_writer;

pub(crate) use archive::SegmentArchive;
pub(crate) use earlier::{OpenSegments, damage_before, events_of};
pub(crate) use kept_sums::{SumsWriter, read_sums};
pub(crate) use process_tables::{EarlierChoices, ProcessTables};
pub use snapshot::PendingSnapshot;
pub(crate) use snapshot::{LEAST_SPAN_NS, ticks_in};
pub use source::TraceSource;
pub use trace_writer::{TraceTotals, TraceWriter};
