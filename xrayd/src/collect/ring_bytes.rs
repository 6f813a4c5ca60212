//! The memory that rings take, by their geometry and by the number of their threads.

use shm_ring::{
    Geometry, layout,
    profile::{Limits, written_bytes},
};

/// What threads write beside their rings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Beside {
    /// Filter pages and counts.
    #[default]
    Counts,
    /// These and profiles, within [`small_profiles`].
    Profiles,
}

/// Address space of rings of these sizes.
pub(super) fn mapped_bytes(geometry: Geometry) -> u64 {
    // The mapping begins at any page, and the rings in it at a multiple of a chunk.
    geometry.rings_bytes() + geometry.chunk_bytes()
}

/// The limits on profiles where a control group limits the memory. There a profile takes about half
/// of what a ring takes.
pub(crate) fn small_profiles(geometry: Geometry) -> Limits {
    Limits::part(geometry, 8)
}

/// The bytes that all threads together write, and the bytes that each thread can write.
fn shares(geometry: Geometry, beside: Beside) -> (u64, u64) {
    let region = geometry.count_region();
    let each = geometry.ring_bytes() + region.counts_bytes() + layout::filter::PAGE_BYTES;
    let shared = geometry.filter_offset(0) + 8 * region.names();
    if beside == Beside::Counts {
        return (shared, each);
    }
    let profiles = geometry.profile_region();
    let sites = profiles.profile_offset(0) - profiles.switched_offset();
    let profile = written_bytes(profiles, small_profiles(geometry));
    (shared + sites, each + profile)
}

/// The bytes that this many threads can write.
pub(crate) fn bytes_of_threads(geometry: Geometry, threads: u32, beside: Beside) -> u64 {
    let (shared, each) = shares(geometry, beside);
    let threads = u64::from(threads.min(geometry.slots()));
    // Without profiles, both are the same but for what begins at a page.
    (shared + threads * each).min(mapped_bytes(geometry))
}

/// The bytes that as many threads can write as there are slots, beside profiles.
pub(super) fn bytes_of_all(geometry: Geometry) -> u64 {
    bytes_of_threads(geometry, geometry.slots(), Beside::Counts)
}

/// The most slots whose threads write no more than `bytes`.
pub(super) fn slots_within(geometry: Geometry, bytes: u64, beside: Beside) -> u32 {
    let (shared, each) = shares(geometry, beside);
    let slots = bytes.saturating_sub(shared) / each;
    u32::try_from(slots).map_or(geometry.slots(), |slots| slots.min(geometry.slots()))
}
