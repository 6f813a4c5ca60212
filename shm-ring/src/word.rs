//! The 8-byte words of a ring, and their decoding. The meaning of times and places is in `view.rs`.
//!
//! ```text
//!  63            32 31             0
//! ┌────────────────┬────────────────┐
//! │ time and stack │ odd: site      │  call event at the sled of this return address; see `view`
//! │ count          │ 4              │  gap: this many events were lost here
//! │ any            │ 6              │  filler: reserved and not used
//! │ bits 0..32     │ 8              │  argument of the next call word, low half
//! │ bits 32..64    │ 10             │  argument of the next call word, high half
//! │ true size      │ 12             │  payload of the next call word begins: its true bytes
//! │ any            │ 14             │  the payload's type; all bits set: values of registers
//! │ ticks          │ 20             │  wait: the thread has waited that long in a full ring
//! └────────────────┴────────────────┘
//!  63                      8 7     0
//! ┌──────────────────────────┬──────┐
//! │ counter, bits 8..64      │ 2    │  sync: the base for the times of the call words that follow
//! │ 7 bytes, first lowest    │ 16   │  the payload's next bytes; 0 behind its end
//! │ address, bits 0..56      │ 18   │  stack: the base for the places of later call words
//! └──────────────────────────┴──────┘
//! ```
//!
//! Sleds are 2-byte aligned. Their calls are 5 bytes long, and begin at the sled's own address, or
//! 2 bytes behind it (tail, entry). So a return address into a sled is always odd. A word whose low
//! half is 0 has not been written. Its high half is the number of chunks that the ring had given
//! back when the word became empty. By that a context which comes back late sees that the ring was
//! gone around meanwhile.

use crate::view::View;

/// Low byte of a sync word.
pub const SYNC: u8 = 2;
/// Low half of a gap word.
pub const GAP: u32 = 4;
/// Low half of a filler word.
pub const FILLER: u32 = 6;
/// Low half of the word with an argument's bits 0..32.
pub const ARGUMENT_LOW: u32 = 8;
/// Low half of the word with an argument's bits 32..64.
pub const ARGUMENT_HIGH: u32 = 10;

/// Low half of the word that begins a payload.
pub const SIZE: u32 = 12;
/// Low half of the word with a payload's type.
pub const TYPE: u32 = 14;
/// The type of a payload that consists of values of registers, 8 bytes each. The call word behind
/// it belongs to an entry or an exit.
pub const VALUES: u32 = u32::MAX;
/// Low byte of a word with bytes of a payload.
pub const PAYLOAD: u8 = 16;
/// Low byte of a stack word.
pub const STACK: u8 = 18;
/// Low half of a wait word.
pub const WAIT: u32 = 20;
/// Bytes of a payload in a word.
pub const PAYLOAD_BYTES: usize = 7;

/// A word of a ring, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Not written yet.
    Empty,
    /// A call event.
    Call {
        /// Low 32 bits of the return address into the sled.
        site: u32,
        /// Time and stack, relative to the view: see [`crate::View::unpack`].
        packed: u32,
    },
    /// The moment of the view from here on.
    Sync(u64),
    /// The lowest place on the stack of the view from here on.
    Stack(u64),
    /// The number of events lost here.
    Gap(u32),
    /// Nothing.
    Filler,
    /// Low half of an argument.
    ArgumentLow(u32),
    /// High half of an argument.
    ArgumentHigh(u32),
    /// The begin of a payload, with its true size in bytes. A payload that was cut has fewer bytes.
    Size(u32),
    /// A payload's type.
    Type(u32),
    /// The next bytes of a payload.
    Payload([u8; PAYLOAD_BYTES]),
    /// Ticks that the thread has waited in a full ring since the last such word.
    Wait(u32),
    /// A word that no trampoline writes: the target scribbled here.
    Unknown(u64),
}

/// The sync word and the stack word that begin a view.
pub const fn begin_view(view: View) -> [u64; 2] {
    [view.since | SYNC as u64, view.base << 8 | STACK as u64]
}

/// The empty word of a chunk that was given back as the `released`th of its ring.
pub const fn empty(released: u64) -> u64 {
    released << 32
}

// === impl Word ===

impl Word {
    /// Decodes a word; every bit pattern has a meaning.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the two halves of the word"
    )]
    pub const fn decode(raw: u64) -> Self {
        let (low, high) = (raw as u32, (raw >> 32) as u32);
        match low {
            site if site & 1 == 1 => Self::Call { site, packed: high },
            0 => Self::Empty,
            GAP => Self::Gap(high),
            FILLER => Self::Filler,
            ARGUMENT_LOW => Self::ArgumentLow(high),
            ARGUMENT_HIGH => Self::ArgumentHigh(high),
            SIZE => Self::Size(high),
            TYPE => Self::Type(high),
            WAIT => Self::Wait(high),
            _ => match low as u8 {
                PAYLOAD => {
                    let [_, a, b, c, d, e, f, g] = raw.to_le_bytes();
                    Self::Payload([a, b, c, d, e, f, g])
                }
                SYNC => Self::Sync(raw & !0xff),
                STACK => Self::Stack(raw >> 8),
                _ => Self::Unknown(raw),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_decode() {
        let rows = [
            (0, Word::Empty),
            (7 << 32, Word::Empty),
            (0x0000_0005_0000_0001, Word::Call { site: 1, packed: 5 }),
            (
                0xffff_ffff_ffff_ffff,
                Word::Call {
                    site: u32::MAX,
                    packed: u32::MAX,
                },
            ),
            (2, Word::Sync(0)),
            (0x0807_0605_0403_0202, Word::Sync(0x0807_0605_0403_0200)),
            (18, Word::Stack(0)),
            (0x0800_7fff_1234_5612, Word::Stack(0x08_007f_ff12_3456)),
            (9 << 32 | 4, Word::Gap(9)),
            (9 << 32 | 6, Word::Filler),
            (9 << 32 | 8, Word::ArgumentLow(9)),
            (9 << 32 | 10, Word::ArgumentHigh(9)),
            (9 << 32 | 12, Word::Size(9)),
            (9 << 32 | 14, Word::Type(9)),
            (16, Word::Payload([0; 7])),
            (0x0706_0504_0302_0110, Word::Payload([1, 2, 3, 4, 5, 6, 7])),
            (9 << 32 | 0x020c, Word::Unknown(9 << 32 | 0x020c)),
            (9 << 32 | 20, Word::Wait(9)),
            (9 << 32 | 22, Word::Unknown(9 << 32 | 22)),
        ];
        for (raw, word) in rows {
            assert_eq!(Word::decode(raw), word, "{raw:#x}");
        }
    }
}
