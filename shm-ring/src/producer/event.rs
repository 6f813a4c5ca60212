//! An event of the reference producer, and the words that it takes. Writing them is in
//! `writing.rs`.

use crate::{
    layout::{Geometry, PAYLOAD_WORDS},
    word::{self, PAYLOAD_BYTES},
};

/// An event to record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Low 32 bits of the return address into the sled: odd.
    pub site: u32,
    /// The place on the stack. For an entry or an exit, the address of the function's return
    /// address.
    pub sp: u64,
    /// The content of the event.
    pub content: Content,
}

/// The content that is recorded beside place and time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Nothing.
    Nothing,
    /// The first argument.
    Argument(u64),
    /// The payload of an event of the program's own.
    Payload {
        /// Its type.
        kind: u32,
        /// The size of the payload in the program, in bytes.
        size: u32,
        /// The bytes, or none where they cannot be read.
        bytes: Vec<u8>,
    },
}

// === impl Event ===

impl Event {
    /// The number of words that the hot path reserves.
    pub(super) fn words(&self, geometry: Geometry) -> u64 {
        match &self.content {
            Content::Nothing => 1,
            Content::Argument(_) => 3,
            Content::Payload { .. } => PAYLOAD_WORDS + self.payload_words(geometry),
        }
    }

    /// The number of words among them with bytes of a payload.
    pub(super) fn payload_words(&self, geometry: Geometry) -> u64 {
        match &self.content {
            Content::Nothing | Content::Argument(_) => 0,
            Content::Payload { bytes, .. } => kept(bytes, geometry).div_ceil(PAYLOAD_BYTES) as u64,
        }
    }

    /// The words that stand before the call word.
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

/// The number of recorded bytes of a payload.
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
