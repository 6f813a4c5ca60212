//! The words of a staged sled, and the word that switches it. Writing them into a process is not
//! done here.

use super::words::{NOP, branch, word_at};
use crate::EncodeError;

/// Bytes of a sled, from its address on.
pub const SLED_BYTES: usize = 32;

/// The first word of a sled that is off: `b #32`.
pub(super) const OVER_SLED: u32 = branch(32);
/// `str x30, [sp, #-16]!`
pub(super) const SAVE_X30: u32 = 0xf81f_0ffe;
/// `ldr x30, [sp], #16`
pub(super) const RESTORE_X30: u32 = 0xf841_07fe;
/// `stp x16, x30, [sp, #-16]!`
pub(super) const SAVE_PAIR: u32 = 0xa9bf_7bf0;
/// `ldp x16, x30, [sp], #16`
pub(super) const RESTORE_PAIR: u32 = 0xa8c1_7bf0;
/// `ldr x16, .+12`
pub(super) const LOAD_TARGET: u32 = 0x5800_0070;
/// `blr x16`
pub(super) const CALL_X16: u32 = 0xd63f_0200;
/// `b .+12`
pub(super) const OVER_TARGET: u32 = branch(12);

/// The write that stages a sled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staging {
    /// The place of the write, relative to the sled's address.
    pub offset: u8,
    bytes: [u8; SLED_BYTES - 4],
}

/// The word that switches a staged sled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// The place of the word, relative to the sled's address: it is 4-byte aligned.
    pub offset: u8,
    /// Its bytes when off, as compiled.
    pub off: [u8; 4],
    /// Its bytes when on.
    pub on: [u8; 4],
}

// === impl Staging ===

impl Staging {
    /// The bytes to write.
    pub const fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The write that stages a sled at `address` to call `trampoline`. It is the same for all kinds in
/// [`crate::SledKind::OF_FUNCTIONS`]. The call is a `bl` where that reaches the trampoline (128
/// MiB), and otherwise goes through an address in the sled.
///
/// # Errors
/// [`EncodeError::Unaligned`] if one of the two is no address of an instruction.
pub fn stage(address: u64, trampoline: u64) -> Result<Staging, EncodeError> {
    for place in [address, trampoline] {
        if !place.is_multiple_of(4) {
            return Err(EncodeError::Unaligned { address: place });
        }
    }
    let words = match call(address.wrapping_add(12), trampoline) {
        Some(call) => [SAVE_X30, NOP, call, RESTORE_X30, NOP, NOP, NOP],
        None => [
            SAVE_PAIR,
            LOAD_TARGET,
            CALL_X16,
            OVER_TARGET,
            word_at(&trampoline.to_le_bytes(), 0),
            word_at(&trampoline.to_le_bytes(), 4),
            RESTORE_PAIR,
        ],
    };
    let mut bytes = [0; SLED_BYTES - 4];
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    Ok(Staging { offset: 4, bytes })
}

/// The word that switches a sled. `b #32` and `nop` may replace each other while other threads
/// execute them.
pub const fn switch() -> Switch {
    Switch {
        offset: 0,
        off: OVER_SLED.to_le_bytes(),
        on: NOP.to_le_bytes(),
    }
}

/// The name of a sled in the ring: one more than the return address of the call in it, since that
/// is a multiple of four and names are odd.
pub const fn call_site(address: u64) -> u64 {
    address.wrapping_add(17)
}

/// `bl` at `from` to `to`, if it reaches.
fn call(from: u64, to: u64) -> Option<u32> {
    const REACH: i64 = 128 << 20;
    let distance = to.wrapping_sub(from).cast_signed();
    let words = (-REACH..REACH)
        .contains(&distance)
        .then_some(distance / 4)?;
    let words = u32::try_from(words & 0x03ff_ffff).ok()?;
    Some(0x9400_0000 | words)
}
