//! Checks the sections of a trace while its bytes pass by, in pieces of any length. It compares
//! checksums, keeps no bytes of a section, and does not read its fields.

use super::payload::{CHECKSUM_LEN, FRAME_LEN};
use super::{HEADER_LEN, MAX_SECTION_LEN};

/// The check of a trace. The bytes come from a stranger: a length that is not possible ends it.
#[derive(Debug)]
pub struct SectionCheck {
    place: Position,
    hasher: crc32fast::Hasher,
    /// True once a section is damaged, or has a length that is not possible.
    damaged: bool,
}

/// The place of the next byte.
#[derive(Debug, Clone, Copy)]
enum Position {
    /// In the header of the file, of which this many bytes are missing.
    Header(usize),
    /// In a frame, of which this many bytes are known.
    Frame([u8; FRAME_LEN], usize),
    /// In a payload, of which this many bytes are missing.
    Payload(usize),
    /// In a checksum, of which this many bytes are known.
    Checksum([u8; CHECKSUM_LEN], usize),
    /// Behind a frame that cannot be used.
    Unknown,
}

// === impl SectionCheck ===

impl SectionCheck {
    /// The check of a trace, from its first byte on.
    #[must_use]
    pub fn new() -> Self {
        Self {
            place: Position::Header(HEADER_LEN),
            hasher: crc32fast::Hasher::new(),
            damaged: false,
        }
    }

    /// True if nothing is damaged so far, and the bytes end where a section ends.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.damaged && matches!(self.place, Position::Frame(_, 0))
    }

    /// Checks the next bytes.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = self.step(bytes);
        }
    }

    /// Checks bytes up to a boundary at most. Returns the others.
    fn step<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        match &mut self.place {
            Position::Header(missing) => {
                let (_, rest) = bytes.split_at(bytes.len().min(*missing));
                *missing -= bytes.len() - rest.len();
                if *missing == 0 {
                    self.place = Position::next_section();
                }
                rest
            }
            Position::Frame(frame, known) => {
                let rest = fill(frame, known, bytes);
                if *known == FRAME_LEN {
                    let [_, _, _, _, len @ ..] = *frame;
                    let len = usize::try_from(u32::from_le_bytes(len)).unwrap_or(usize::MAX);
                    self.hasher = crc32fast::Hasher::new();
                    self.hasher.update(&frame[..]);
                    self.place = match len {
                        0 => Position::Checksum([0; CHECKSUM_LEN], 0),
                        1..=MAX_SECTION_LEN => Position::Payload(len),
                        _ => {
                            self.damaged = true;
                            Position::Unknown
                        }
                    };
                }
                rest
            }
            Position::Payload(missing) => {
                let (now, rest) = bytes.split_at(bytes.len().min(*missing));
                self.hasher.update(now);
                *missing -= now.len();
                if *missing == 0 {
                    self.place = Position::Checksum([0; CHECKSUM_LEN], 0);
                }
                rest
            }
            Position::Checksum(checksum, known) => {
                let rest = fill(checksum, known, bytes);
                if *known == CHECKSUM_LEN {
                    let computed = self.hasher.clone().finalize();
                    self.damaged |= u32::from_le_bytes(*checksum) != computed;
                    self.place = Position::next_section();
                }
                rest
            }
            Position::Unknown => &[],
        }
    }
}

impl Default for SectionCheck {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Position ===

impl Position {
    fn next_section() -> Self {
        Self::Frame([0; FRAME_LEN], 0)
    }
}

/// Copies bytes into the unknown part of `field`. Returns the others.
fn fill<'a, const N: usize>(field: &mut [u8; N], known: &mut usize, bytes: &'a [u8]) -> &'a [u8] {
    let (now, rest) = bytes.split_at(bytes.len().min(N - *known));
    field[*known..*known + now.len()].copy_from_slice(now);
    *known += now.len();
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{BlockEncoder, Writer};
    use crate::model::{CallKind, FunctionId, ThreadId, Ticks};

    fn trace() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let mut encoder = BlockEncoder::new(ThreadId(0));
        for at in 0..3 {
            encoder.push_call(Ticks(at), FunctionId(1), CallKind::Enter, None);
            writer.block(&encoder.finish().unwrap()).unwrap();
            writer.lost(ThreadId(0), 1).unwrap();
        }
        writer.end(&writer.totals()).unwrap();
        writer.into_inner()
    }

    fn checked(bytes: &[u8], piece: usize) -> SectionCheck {
        let mut check = SectionCheck::new();
        bytes.chunks(piece).for_each(|piece| check.pass(piece));
        check
    }

    #[test]
    fn a_whole_trace_is_whole_in_pieces_of_any_length() {
        let bytes = trace();
        for piece in 1..=bytes.len() {
            let check = checked(&bytes, piece);
            assert!(check.is_whole(), "{piece}");
        }
        assert!(!checked(&bytes[..bytes.len() - 1], 7).is_whole());
        assert!(!SectionCheck::new().is_whole());
    }

    #[test]
    fn each_changed_byte_behind_the_header_is_found() {
        let bytes = trace();
        for at in HEADER_LEN..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x80;
            let check = checked(&bytes, 5);
            assert!(!check.is_whole(), "{at}");
        }
    }
}
