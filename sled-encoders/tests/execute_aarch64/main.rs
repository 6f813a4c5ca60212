//! Runs the machine code of AArch64 in an emulator (Debian's `qemu-user`), driven by a debugger's
//! protocol: both flavours, every path, with every register watched, and with handlers at every
//! instruction that record events themselves.
//!
//! The emulated process has a table, rings and trampolines as xrayd would map them, in files that
//! the test process maps as well. The test reads the ring with the collector's own consumer. The
//! emulator keeps the order of stores that its host has. So the tests prove registers, arithmetic
//! and the protocol, not the order of memory.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of a test")]

mod gdb;
mod image;
mod machine;
mod nested;
mod paths;
mod returning;
