//! Logs of the flight data recorder (FDR mode), versions 1 to 5.
//!
//! Buffers follow the [header](super::header). Each has the records of one thread:
//!
//! ```text
//! version 1   NewBuffer WallClockTime NewCPUId events… EndOfBuffer, then arbitrary bytes up to the
//!             buffer size
//! version 2   BufferExtents NewBuffer WallClockTime NewCPUId events…
//! version 3…  BufferExtents NewBuffer WallClockTime PIDEntry NewCPUId events…
//!
//! metadata, 16 bytes    bit 0 of the first byte: 1; bits 1 to 7: the kind; 15 bytes: fields, then
//!                       padding
//! function, 8 bytes     u32: bit 0: 0; bits 1 to 3: entry, exit, tail exit, entry with argument;
//!                            bits 4 to 31: id
//!                       u32: ticks since the previous record
//!
//! 0 NewBuffer      i32 thread id
//! 1 EndOfBuffer    version 1 only
//! 2 NewCPUId       u16 processor, u64 counter
//! 3 TSCWrap        u64 counter
//! 4 WallClockTime  u64 seconds, u32 microseconds
//! 5 CustomEvent    i32 size, u64 counter, from version 4 u16 processor; in version 5 i32 size,
//!                  i32 ticks since the previous record. `size` bytes follow, unaligned
//! 6 CallArg        u64, of the function record before it
//! 7 BufferExtents  u64 bytes of the buffer behind this record
//! 8 TypedEvent     i32 size, i32 ticks, u16 type; `size` bytes follow
//! 9 PIDEntry       i32 process id
//! ```
//!
//! LLVM's runtime (19) does not count the 16 bytes of a typed event's record in the extents, and
//! writes only as many bytes as it has counted. The end of such a buffer is lost, and the reader
//! skips a record that is cut there. If the buffer continues beyond such extents, the reader reads
//! it to its end.
//!
//! In a log of the other byte order the bits of the first byte may be numbered from the other end,
//! as C compilers for such machines number them, or not, as LLVM's own code for it does. The first
//! record shows the numbering.
//!
//! [`Reader`] yields every record with its offset. [`Events`] checks the order of records in a
//! buffer ([`verify`]) and tracks thread, process, processor and counter, so that each event has
//! all of them. [`Writer`] writes records.

pub mod verify;

mod blocks;
mod bounds;
mod events;
mod layout;
mod print;
mod reader;
mod record;
mod signs;
mod writer;

pub use blocks::{BlockInfo, blocks};
pub use events::{Body, Buffer, Calls, Event, Events};
pub use layout::{Layout, PlainCall};
pub use print::{BlockPrinter, print};
pub use reader::{Item, MAX_EVENT_LEN, Reader};
pub use record::{FunctionKind, Kind, MAX_FUNCTION_ID, Record};
pub use writer::Writer;

use record::BitOrder;
