//! The instructions that sleds consist of, as words. The trampolines use an assembler instead.

/// `nop`
pub(super) const NOP: u32 = 0xd503_201f;

/// `b .+distance`, forwards, a multiple of four below 128 MiB.
pub(super) const fn branch(distance: u32) -> u32 {
    0x1400_0000 | (distance / 4)
}

/// The word at `offset`, which lies within `bytes`.
pub(super) const fn word_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([
        bytes[offset],
        bytes[offset + 1],
        bytes[offset + 2],
        bytes[offset + 3],
    ])
}
