//! What the reference producer records, and the words that this takes.

use crate::{
    layout::{Geometry, PAYLOAD_WORDS},
    word::{self, PAYLOAD_BYTES},
};

/// What is to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Low 32 bits of the return address into the sled: odd.
    pub site: u32,
    /// Where the stack stands: of an entry or an exit, the address of the function's return address.
    pub sp: u64,
    /// What goes with it.
    pub content: Content,
}

/// What is recorded beside the place and the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Nothing.
    Nothing,
    /// The first argument.
    Argument(u64),
    /// What the program says.
    Payload {
        /// Its type.
        kind: u32,
        /// How many bytes the program says there are.
        size: u32,
        /// They, or none where they cannot be read.
        bytes: Vec<u8>,
    },
}

// === impl Event ===

impl Event {
    /// Words that the hot path reserves.
    pub(super) fn words(&self, geometry: Geometry) -> u64 {
        match &self.content {
            Content::Nothing => 1,
            Content::Argument(_) => 3,
            Content::Payload { .. } => PAYLOAD_WORDS + self.payload_words(geometry),
        }
    }

    /// Those of them with bytes of a payload.
    pub(super) fn payload_words(&self, geometry: Geometry) -> u64 {
        match &self.content {
            Content::Nothing | Content::Argument(_) => 0,
            Content::Payload { bytes, .. } => kept(bytes, geometry).div_ceil(PAYLOAD_BYTES) as u64,
        }
    }

    /// What stands before its call word.
    pub(super) fn content_words(&self, geometry: Geometry) -> Vec<(u32, u32)> {
        match &self.content {
            Content::Nothing => Vec::new(),
            &Content::Argument(argument) => vec![
                (word::ARGUMENT_LOW, lower(argument)),
                (word::ARGUMENT_HIGH, upper(argument)),
            ],
            Content::Payload { kind, size, bytes } => {
                let kept = &bytes[..kept(bytes, geometry)];
                let begin = [(word::SIZE, *size), (word::TYPE, *kind)];
                let payload = kept.chunks(PAYLOAD_BYTES).map(payload_word);
                begin.into_iter().chain(payload).collect()
            }
        }
    }

    pub(super) const fn has_payload(&self) -> bool {
        matches!(self.content, Content::Payload { .. })
    }
}

/// How many bytes of a payload are recorded.
fn kept(bytes: &[u8], geometry: Geometry) -> usize {
    let limit = usize::try_from(geometry.payload_limit()).unwrap_or(usize::MAX);
    bytes.len().min(limit)
}

fn payload_word(bytes: &[u8]) -> (u32, u32) {
    let mut word = [0; 8];
    word[0] = word::PAYLOAD;
    for (to, from) in word[1..].iter_mut().zip(bytes) {
        *to = *from;
    }
    let word = u64::from_le_bytes(word);
    (lower(word), upper(word))
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
pub(super) const fn lower(value: u64) -> u32 {
    value as u32
}

pub(super) const fn upper(value: u64) -> u32 {
    lower(value >> 32)
}
