//! XRay sleds and trampolines as machine code: bytes in, bytes out.
//!
//! [`x86_64`] and [`aarch64`] hold the form of a sled in each of its states, the ways to stage and
//! switch it, and the code behind a tail sled. They generate the trampolines that staged sleds
//! call. Both are there on every host. The crate has no part in processes, files or I/O.

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
