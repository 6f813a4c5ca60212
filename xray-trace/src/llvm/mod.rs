//! The formats of LLVM's own logs, record by record: LLVM's runtime writes them and `llvm-xray`
//! reads them.
//!
//! The module does not depend on the trace model. Each reader streams from any [`std::io::Read`] in
//! bounded memory, accepts either byte order, checks every byte that it uses, and lends payloads
//! from its buffer instead of allocating.
//!
//! | module | files |
//! |---|---|
//! | [`header`] | the first 32 bytes of basic and FDR logs |
//! | [`basic`] | basic ("naive") mode, versions 1 to 3 |
//! | [`fdr`] | the flight data recorder, versions 1 to 5 |
//! | [`profile`] | profiling mode, with and without file header |
//! | [`yaml`] | the output of `llvm-xray convert`, of any version |
//!
//! [`Format`] detects the kind of a file from its first bytes.
//!
//! Reading a damaged file ends in an [`Error`] with the record, its offset and the reason. In
//! [`Mode::Salvage`] the reader continues behind the damage instead, and lists the skipped parts
//! ([`Skipped`]).

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
