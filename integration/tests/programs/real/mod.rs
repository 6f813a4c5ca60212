//! Real programs with a sled in every function, traced again and again while they work: what they do is the same as
//! untraced, none of them crashes, and nothing is lost uncounted.
//!
//! Each is traced in every way once, and on until `XRAYD_SOAK_SECONDS` have passed, which `cargo xtask soak` sets. It also runs
//! those whose programs take long to build, which a short run leaves out.

mod client;
mod nginx;
mod redis;
mod service;
mod sqlite;
mod storm;
