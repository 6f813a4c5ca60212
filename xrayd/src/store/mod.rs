//! The event store of one session: counters, retained events, sums, and live readers.
//!
//! ```text
//!  collect ──► EventStore ──┬──► retained blocks ──► snapshots
//!                           ├──► counters, call counts, sums of calls
//!                           └──► one bounded queue for each live reader
//! ```
//!
//! Nothing here reads rings or changes a target.

mod calls;
mod clock_watch;
mod counts;
mod event_store;
mod event_types;
mod feed;
mod metering;
mod profiles;
mod retained;
mod tables;

pub use calls::{CallCounts, ThreadCalls};
pub(crate) use counts::Counts;
pub(crate) use event_store::{Counters, EventStore, Keeps};
pub(crate) use event_types::NameRequest;
#[cfg(test)]
pub(crate) use feed::closed_feed;
pub use feed::{Feed, FeedItem, Published, Source};
pub(crate) use feed::{Publisher, feed};
pub(crate) use metering::{
    Figures, Latencies, Measured, Meter, Metered, Metering, Numbers, Reading, Readings, Standing,
    Subject,
};
#[cfg(test)]
pub(crate) use metering::{Series, Totals};
pub(crate) use profiles::Ask;
pub use profiles::ProfileSums;
pub(crate) use retained::Snapshot;
pub use tables::{NumberedModule, Tables, TracedProcess};
