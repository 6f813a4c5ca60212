//! Runs the machine code: every flavour, every path, with every register watched, and with signal
//! handlers at every instruction that record events themselves.
//!
//! The test process plays the target. It maps a table, rings and trampolines as xrayd would, finds
//! its own thread id in the thread's control block, and calls small functions that consist of
//! staged sleds. It reads the ring with the collector's own consumer.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![expect(unsafe_code, reason = "it runs machine code that it made")]
#![expect(clippy::unwrap_used, reason = "helpers of a test")]

mod area;
mod closed;
mod counted;
mod filtered;
mod forks;
mod function;
mod machine;
mod nested;
mod newest;
mod paths;
mod payloads;
mod profiled;
mod registers;
mod returning;
mod step;
mod tid_offset;
mod values;
mod waiting;
