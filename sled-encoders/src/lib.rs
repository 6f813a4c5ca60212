//! XRay sleds and trampolines as machine code: bytes in, bytes out.
//!
//! [`x86_64`] and [`aarch64`] know what a sled looks like in each of its states, how it is staged and switched, what follows
//! a tail sled, and generate the trampolines that staged sleds call. Both are there on every host. Nothing here knows
//! processes, files or I/O.

#![forbid(unsafe_code)]

pub mod aarch64;
mod capture;
mod error;
mod sled;
mod state;
pub mod x86_64;

pub use capture::Capture;
pub use error::EncodeError;
pub use sled::SledKind;
