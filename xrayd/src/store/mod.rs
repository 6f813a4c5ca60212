//! The event store of one session: counters, retained events, sums, and live readers.
//!
//! ```text
//!  collect ──► EventStore ──┬──► retained blocks ──► snapshots
//!                           ├──► counters, call counts, sums of calls
//!                           └──► one bounded queue for each live reader
//! ```
//!
//! Nothing here reads rings or changes a target.

mod archive;
mod calls;
mod clock_watch;
mod counts;
mod event_counters;
mod event_store;
mod event_types;
mod evictions;
mod kept_sums;
mod live_readers;
mod metering;
mod position;
mod profiles;
mod resumed;
mod retained;
mod subscription;
mod tables;

pub(crate) use archive::{
    Archive, ArchivedBlock, EarlierEvents, FunctionNumbers, NotArchived, fingerprint,
};
pub use calls::{CallCounts, ThreadCalls};
pub(crate) use counts::Counts;
pub(crate) use event_counters::Counters;
pub(crate) use event_store::{EventStore, EventUses, ExpectedReader};
pub(crate) use event_types::NameRequest;
pub(crate) use kept_sums::{EarlierSums, SumsTrace};
pub(crate) use metering::{
    Figures, Latencies, Measured, Meter, Metered, Metering, Numbers, Reading, Readings, Standing,
    Subject,
};
#[cfg(test)]
pub(crate) use metering::{Series, Totals};
pub use position::{Position, StreamBegin};
pub use profiles::ProfileSums;
pub(crate) use profiles::{Ask, Handover};
pub use resumed::ResumedStream;
pub(crate) use retained::{FORGOTTEN, Snapshot};
#[cfg(test)]
pub(crate) use subscription::STALLED;
#[cfg(test)]
pub(crate) use subscription::closed_subscription;
pub use subscription::{EventSubscription, PublishedBlock, Source, StreamItem};
pub(crate) use subscription::{Publisher, subscription};
pub use tables::{NumberedModule, Tables, TracedProcess};
