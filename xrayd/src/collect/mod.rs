//! Drains the rings of one target into event blocks.
//!
//! The drain (`drain`) reads each ring, and gives the events to the decoder of the
//! ring's thread (`thread_decoder`). The decoder follows the open calls (`shadow_stack`) and
//! publishes blocks to the event store. Retention and live streams are in `store`.

mod activity;
mod buckets;
mod call_reading;
#[cfg(test)]
mod closed_blocks;
mod drain;
mod event_filter;
mod frame_budget;
mod names;
mod numbers;
mod profile_reader;
mod ring;
mod ring_budget;
mod ring_bytes;
mod ring_copies;
mod ring_sizes;
mod sample;
mod shadow_stack;
mod sites;
mod slots;
mod sums_log;
mod switches;
mod thread_decoder;
mod thread_decoders;
mod time_range;
mod watch;

pub(crate) use activity::Collectors;
#[cfg(fuzzing)]
pub use drain::drain_rings;
pub(crate) use drain::{
    Asked, DrainCaller, DrainHandle, SumsKeeper, events_since, spawn as spawn_drain,
};
pub(crate) use event_filter::EventFilter;
pub(crate) use profile_reader::AddUp;
pub(crate) use ring_budget::{Promises, RingRefusal};
pub(crate) use ring_bytes::{Beside, bytes_of_threads, small_profiles};
pub(crate) use ring_copies::{Moment, RingCopies, room};
pub(crate) use ring_sizes::RingSizes;
pub(crate) use sample::{Edge, Look, RingId, RingSample, Sample, Tally, Window};
pub(crate) use sites::{CallSite, SiteKind, SiteTable};
pub(crate) use sums_log::kind_of as sums_kind;
pub(crate) use switches::Switches;
pub(crate) use time_range::{NO_BEGIN, OpenByThread, TimeRange};
