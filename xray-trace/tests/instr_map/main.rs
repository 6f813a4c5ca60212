//! Instrumentation maps of real compilers, of hand-written files, and of files that are out to harm.
//!
//! The compilers' maps are compared with what `llvm-xray extract` reads from the same file, their source lines with
//! `llvm-symbolizer`. A tool that is missing fails the test and says which package it is in.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail the test like its assertions do"
)]

mod architectures;
mod compilers;
mod hand_written;
mod hostile;
mod image;
mod macho;
mod names;
mod sources;
mod toolchain;
mod yaml;
