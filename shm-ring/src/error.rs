//! Errors about the sizes of a ring.

/// A size that no ring can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The bytes of one ring: not a power of two, or out of range.
    #[error(
        "a ring of {0} bytes: the size must be a power of two from 65536 (64KiB) to 1073741824 (1GiB)"
    )]
    RingBytes(u64),
    /// The number of threads: zero, or too many.
    #[error("rings for {0} threads: the number must be from 1 to 65536")]
    Threads(u32),
    /// The bytes of all rings together.
    #[error(
        "the rings would take {0} bytes of address space; the maximum is 4398046511104 bytes (4TiB)"
    )]
    Total(u64),
}
