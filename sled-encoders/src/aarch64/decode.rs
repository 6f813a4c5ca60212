//! Reading the words of a sled: as compiled, staged, on, or foreign. It also reads the instruction
//! behind a sled.

use super::{
    encode::{
        CALL_X16, LOAD_TARGET, OVER_SLED, OVER_TARGET, RESTORE_PAIR, RESTORE_X30, SAVE_PAIR,
        SAVE_X30, SLED_BYTES,
    },
    words::{NOP, word_at},
};
use crate::state::State;

/// `stp x0, x30, [sp, #-16]!`, with which the runtime's sled begins.
const RUNTIME_FIRST: u32 = 0xa9bf_7be0;
/// The second word of the runtime's sled: `ldr w17, .+12` (LLVM 17 and later) or `ldr w0, .+12`
/// (before). Unpatching leaves it.
const RUNTIME_SECOND: [u32; 2] = [0x1800_0071, 0x1800_0060];

/// The instruction behind an exit or tail sled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// The function returns.
    Return,
    /// The function jumps to another one. LLVM up to 20 gives such a sled the kind of an exit.
    TailJump,
    /// Neither: an event would be false there.
    Other,
}

/// The state that the words of a sled at `address` show, whatever its kind.
pub fn classify(address: u64, bytes: &[u8; SLED_BYTES]) -> State {
    let words: [u32; SLED_BYTES / 4] = std::array::from_fn(|i| word_at(bytes, 4 * i));
    let [first, body @ ..] = words;
    // brk, with any number.
    if first & 0xffe0_001f == 0xd420_0000 {
        return State::Breakpoint;
    }
    if first == RUNTIME_FIRST || first == OVER_SLED && RUNTIME_SECOND.contains(&body[0]) {
        return State::Runtime;
    }
    if first == OVER_SLED && body == [NOP; 7] {
        return State::Compiled;
    }
    match (first, target(address, body)) {
        (OVER_SLED, Some(target)) => State::Staged { target },
        (NOP, Some(target)) => State::On { target },
        _ => State::Foreign,
    }
}

/// The address that the call of a staged body leads to.
fn target(address: u64, body: [u32; 7]) -> Option<u64> {
    match body {
        [SAVE_X30, NOP, call, RESTORE_X30, NOP, NOP, NOP] if call >> 26 == 0x25 => {
            // 26 bits with a sign, in words.
            let distance = i64::from((call << 6).cast_signed() >> 4);
            Some(address.wrapping_add(12).wrapping_add_signed(distance))
        }
        [
            SAVE_PAIR,
            LOAD_TARGET,
            CALL_X16,
            OVER_TARGET,
            low,
            high,
            RESTORE_PAIR,
        ] => Some(u64::from(high) << 32 | u64::from(low)),
        _ => None,
    }
}

/// Reads the instruction behind an exit or tail sled; `bytes` begin at the sled's address +
/// [`SLED_BYTES`].
pub fn after(bytes: &[u8]) -> After {
    let Some(word) = bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else {
        return After::Other;
    };
    match word {
        // ret xN, retaa, retab
        _ if word & 0xffff_fc1f == 0xd65f_0000 => After::Return,
        0xd65f_0bff | 0xd65f_0fff => After::Return,
        // b; br xN; braaz, brabz; braa, brab
        _ if word >> 26 == 0x05 => After::TailJump,
        _ if word & 0xffff_fc1f == 0xd61f_0000 => After::TailJump,
        _ if word & 0xffff_f81f == 0xd61f_081f => After::TailJump,
        _ if word & 0xffff_f800 == 0xd71f_0800 => After::TailJump,
        _ => After::Other,
    }
}
