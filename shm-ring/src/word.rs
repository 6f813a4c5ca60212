//! The 8-byte words of a ring.
//!
//! ```text
//!  63            32 31             0
//! ┌────────────────┬────────────────┐
//! │ counter low 32 │ odd: site      │  call event at the sled with this return address (its low 32 bits)
//! │ counter high 32│ 2              │  sync: high half of the counter for the call words that follow
//! │ count          │ 4              │  gap: so many events were lost here
//! │ any            │ 6              │  filler: reserved and not used
//! │ bits 0..32     │ 8              │  argument of the next call word, low half
//! │ bits 32..64    │ 10             │  argument of the next call word, high half
//! └────────────────┴────────────────┘
//! ```
//!
//! Sleds are 2-byte aligned and their calls are 5 bytes long at an even (tail, entry: +2) or the sled's own address, so a return address into one is always
//! odd. A word whose low half is 0 has not been written.

/// Low half of a sync word.
pub const SYNC: u32 = 2;
/// Low half of a gap word.
pub const GAP: u32 = 4;
/// Low half of a filler word.
pub const FILLER: u32 = 6;
/// Low half of the word with an argument's bits 0..32.
pub const ARGUMENT_LOW: u32 = 8;
/// Low half of the word with an argument's bits 32..64.
pub const ARGUMENT_HIGH: u32 = 10;

/// A word of a ring, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Not written yet.
    Empty,
    /// A call event.
    Call {
        /// Low 32 bits of the return address into the sled.
        site: u32,
        /// Low 32 bits of the counter.
        low: u32,
    },
    /// High 32 bits of the counter from here on.
    Sync(u32),
    /// Events lost here.
    Gap(u32),
    /// Nothing.
    Filler,
    /// Low half of an argument.
    ArgumentLow(u32),
    /// High half of an argument.
    ArgumentHigh(u32),
    /// Nothing that a trampoline writes: the target scribbled here.
    Unknown(u64),
}

// === impl Word ===

impl Word {
    /// Decodes; every bit pattern has a meaning.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the two halves of the word"
    )]
    pub const fn decode(raw: u64) -> Self {
        let (low, high) = (raw as u32, (raw >> 32) as u32);
        match low {
            site if site & 1 == 1 => Self::Call { site, low: high },
            0 => Self::Empty,
            SYNC => Self::Sync(high),
            GAP => Self::Gap(high),
            FILLER => Self::Filler,
            ARGUMENT_LOW => Self::ArgumentLow(high),
            ARGUMENT_HIGH => Self::ArgumentHigh(high),
            _ => Self::Unknown(raw),
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
            (0x0000_0005_0000_0001, Word::Call { site: 1, low: 5 }),
            (
                0xffff_ffff_ffff_ffff,
                Word::Call {
                    site: u32::MAX,
                    low: u32::MAX,
                },
            ),
            (9 << 32 | 2, Word::Sync(9)),
            (9 << 32 | 4, Word::Gap(9)),
            (9 << 32 | 6, Word::Filler),
            (9 << 32 | 8, Word::ArgumentLow(9)),
            (9 << 32 | 10, Word::ArgumentHigh(9)),
            (9 << 32 | 12, Word::Unknown(9 << 32 | 12)),
        ];
        for (raw, word) in rows {
            assert_eq!(Word::decode(raw), word, "{raw:#x}");
        }
    }
}
