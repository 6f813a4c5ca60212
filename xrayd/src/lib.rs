//! Traces functions of running Linux programs through their XRay sleds, from outside: the engine,
//! and the daemon around it.
//!
//! ```text
//!  rpc ──► process ──► control ──► inject ──► target ──► sys
//!             │           └──► collect ──► store ──► triggers
//!             └──► export
//! ```
//!
//! [`process::Registry`] is the entry point. `docs/ARCHITECTURE.md` describes the design.

pub mod access;
pub mod app;
pub mod audit;
mod collect;
pub mod config;
pub mod config_file;
pub mod control;
pub mod export;
#[cfg(fuzzing)]
pub mod fuzzing;
mod inject;
mod liveness;
mod lock;
pub mod logs;
mod matching;
pub mod metrics;
mod notify;
mod panics;
pub mod parse;
mod pid;
pub mod policies;
pub mod process;
pub mod program;
mod quotas;
mod rate;
mod refusal;
pub mod rpc;
mod segments;
mod shutdown;
mod size;
pub mod socket;
pub mod state;
pub mod store;
#[expect(unsafe_code, reason = "the only raw system calls")]
mod sys;
pub mod target;
mod tasks;
mod text;
mod toml_file;
pub mod trigger_text;
pub mod triggers;
pub mod types;

pub use pid::{NotAPid, Pid, TargetAddr, Tid};
pub use refusal::{Reason, Refusal};
pub use rpc::embedded;
pub use size::{ByteSize, SizeError};
pub use socket::{client_paths, default_path};
pub use toml_file::Mistake;
