//! The memory that rings take, by their geometry and by the number of their threads.

use shm_ring::{Geometry, layout};

/// Address space of rings of these sizes. It is also their memory, if as many threads as there is
/// room for fill them.
pub(super) fn mapped_bytes(geometry: Geometry) -> u64 {
    // The mapping begins at any page, and the rings in it at a multiple of a chunk.
    geometry.rings_bytes() + geometry.chunk_bytes()
}

/// The bytes that all threads together write, and the bytes that each thread can write.
fn shares(geometry: Geometry) -> (u64, u64) {
    let region = geometry.count_region();
    let each = geometry.ring_bytes() + region.counts_bytes() + layout::filter::PAGE_BYTES;
    let shared = geometry.filter_offset(0) + 8 * region.names();
    (shared, each)
}

/// The bytes that this many threads can write.
pub(crate) fn bytes_of_threads(geometry: Geometry, threads: u32) -> u64 {
    let (shared, each) = shares(geometry);
    let threads = u64::from(threads.min(geometry.slots()));
    (shared + threads * each).min(mapped_bytes(geometry))
}

/// The most slots whose threads write no more than `bytes`.
pub(super) fn slots_within(geometry: Geometry, bytes: u64) -> u32 {
    let (shared, each) = shares(geometry);
    let slots = bytes.saturating_sub(shared) / each;
    u32::try_from(slots).map_or(geometry.slots(), |slots| slots.min(geometry.slots()))
}
