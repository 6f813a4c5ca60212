//! What is asked and answered before rings are mapped.

use shm_ring::Geometry;

/// Rings that a process is about to be recorded with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingsNeeded {
    /// New ones.
    New,
    /// New ones of these sizes, which the trampolines in it have.
    NewOfSize(Geometry),
    /// Those that it has, of these sizes.
    Present {
        geometry: Geometry,
        /// Slots that are not closed.
        open_slots: u32,
    },
}

/// Rings as they are to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RingPlan {
    /// Their sizes.
    pub(crate) geometry: Geometry,
    /// Slots of new ones that are closed: no memory is promised for their rings so far.
    pub(crate) closed: Vec<u32>,
}
