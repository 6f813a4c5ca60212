//! XRay sleds and trampolines as machine code: bytes in, bytes out.
//!
//! [`x86_64`] knows what a sled looks like in each of its states, how it is staged and switched, what follows a tail
//! sled, and generates the trampolines that staged sleds call. Nothing here knows processes, files or I/O.

#![forbid(unsafe_code)]

mod error;
mod sled;
pub mod x86_64;

pub use error::EncodeError;
pub use sled::SledKind;
