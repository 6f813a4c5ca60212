//! Real programs with a sled in every function, traced again and again while they work. Their
//! results are the same as untraced, none of them crashes, and every lost event is counted.
//!
//! Each program is traced for one round of `storm`, and then further until `XRAYD_SOAK_SECONDS`
//! have passed, which `cargo xtask soak` sets. That command also runs the programs that take long
//! to build, which a short run leaves out.

mod client;
mod nginx;
mod redis;
mod service;
mod sqlite;
mod storm;
