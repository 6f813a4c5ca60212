//! LLVM's own log formats, record by record: what LLVM's runtime writes and `llvm-xray` reads.
//!
//! Nothing here knows the trace model. Each reader streams from any [`std::io::Read`] in bounded memory, takes either
//! byte order, checks every byte that it uses, and lends payloads from its buffer instead of allocating.
//!
//! | module | files |
//! |---|---|
//! | [`header`] | the 32 bytes in front of basic and FDR logs |
//! | [`basic`] | basic ("naive") mode, versions 1 to 3 |
//! | [`fdr`] | the flight data recorder, versions 1 to 5 |
//! | [`profile`] | profiling mode, with and without file header |
//! | [`yaml`] | what `llvm-xray convert` prints, of any version |
//!
//! [`Format`] tells the kind of a file from its first bytes.
//!
//! A damaged file ends in an [`Error`] that says which record is wrong, where and why. In [`Mode::Salvage`] the reader
//! goes on behind the damage instead, and lists what it left out ([`Skipped`]).

pub mod basic;
pub mod fdr;
pub mod header;
pub mod profile;
pub mod yaml;

mod byte_order;
mod error;
mod format;
mod salvage;
mod window;

pub use byte_order::ByteOrder;
pub use error::Error;
pub use format::{Format, PREFIX_LEN};
#[cfg(feature = "import")]
pub(crate) use header::HEADER_LEN;
pub use header::Header;
pub use salvage::{Mode, Skipped, SkippedList};
