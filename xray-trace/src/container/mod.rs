//! The `.xtrace` file: a header, then sections. Each section has a frame and a checksum of its own.
//! `docs/trace-format.md` describes every byte.
//!
//! Writers only append to a file, and each section is complete in itself. So after a crash a file
//! is readable up to the cut. Readers skip sections of unknown kinds.

mod block;
mod chosen;
mod closed;
mod decode;
mod decode_error;
mod encode;
mod end;
mod event_head;
mod events;
mod excerpt;
mod function_set;
#[cfg(feature = "import")]
pub(crate) mod in_log;
mod kernel_events;
mod open_calls;
mod packed_bytes;
mod payload;
mod plain_calls;
mod predictor;
mod profile;
mod reader;
mod redaction;
mod runs;
mod section;
mod section_check;
mod stored;
mod stream_index;
mod tables;
mod timed_part;
pub(crate) mod varint;
mod writer;

pub use block::Block;
pub use chosen::{Chosen, ClosedPart, Excluded, Part, RecordedTime};
pub use closed::{BegunCalls, ClosedBlock, StackChange};
pub use decode_error::DecodeError;
pub use encode::BlockEncoder;
pub use end::End;
pub use events::Events;
pub(crate) use events::Form;
pub use excerpt::{Excerpt, ThreadEnd};
pub use function_set::FunctionSet;
pub use kernel_events::{KernelEncoder, KernelPart, KernelRecord, KernelRecordKind, KernelRecords};
pub use open_calls::{OpenCall, OpenCalls, OpenCallsEncoder};
pub use payload::Payload;
pub(crate) use plain_calls::PlainCalls;
pub use profile::{ProfileEncoder, ProfileError, ProfilePart, ProfiledCalls};
pub use reader::{Completeness, Item, ReadError, Reader};
pub use redaction::Redaction;
pub use runs::{RunsEncoder, RunsError, RunsPart};
pub use section::SectionKind;
pub use section_check::SectionCheck;
pub use stream_index::StreamIndex;
pub use writer::Writer;

/// The first eight bytes of every file.
pub const MAGIC: [u8; 8] = *b"\x89XTRACE\n";

/// The version of the format that is written, and the only one that is read.
pub const VERSION: u16 = 1;

/// The length of the file header: magic, version, flags, checksum.
pub const HEADER_LEN: usize = 16;

/// The longest payload of a section, in bytes.
pub const MAX_SECTION_LEN: usize = 16 << 20;

/// The longest data of a user event, in bytes.
pub const MAX_DATA_LEN: usize = 1 << 20;

/// The longest text in a section, in bytes.
pub const MAX_TEXT_LEN: usize = 64 << 10;
