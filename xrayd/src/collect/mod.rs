//! Drains the rings of one target into event blocks.

mod drain;
mod extent;
mod keep;
mod lane;
mod lanes;
mod names;
mod numbers;
mod pictures;
mod ring;
mod ring_budget;
mod ring_sizes;
mod room;
mod sample;
mod sites;
mod slots;
mod stacks;
mod switches;
mod watch;

#[cfg(fuzzing)]
pub use drain::drain_rings;
pub(crate) use drain::{Drain, DrainHandle, events_since};
pub(crate) use extent::{Extent, NO_BEGIN};
pub(crate) use keep::Keep;
pub(crate) use pictures::{Moment, OpenByThread, Pictures, room};
pub(crate) use ring_budget::{Promises, RingRefusal};
pub(crate) use ring_sizes::{RingSizes, bytes_of_threads};
pub(crate) use sample::{Look, RingId, RingSample, Sample, Tally};
pub(crate) use sites::{CallSite, SiteKind, SiteTable};
pub(crate) use switches::Switches;
