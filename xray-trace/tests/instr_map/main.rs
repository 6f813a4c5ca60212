//! Instrumentation maps of real compilers, of hand-written files, and of hostile files.
//!
//! The compilers' maps are compared with the output of `llvm-xray extract` for the same file, and
//! their source lines with `llvm-symbolizer`. If a tool is missing, the test fails with the name of
//! its package.

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
