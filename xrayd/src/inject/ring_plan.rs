//! The question and the answer about rings, before they are mapped.

use shm_ring::Geometry;

/// The rings that a recording of a process needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingsNeeded {
    /// New rings.
    New,
    /// New rings. Rings of another version of xrayd are there, too, and stay unused.
    Beside,
    /// New rings of these sizes, which the trampolines in the process have.
    NewOfSize(Geometry),
    /// The rings that the process has, of these sizes.
    Present {
        geometry: Geometry,
        /// Slots that are not closed.
        open_slots: u32,
    },
}

/// The rings that were chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RingPlan {
    /// Their sizes.
    pub(crate) geometry: Geometry,
    /// Closed slots of new rings: no memory is reserved for their rings yet.
    pub(crate) closed: Vec<u32>,
}
