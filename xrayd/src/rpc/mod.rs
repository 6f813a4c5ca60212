//! gRPC: `xrayd.v1` over the [`Registry`](crate::process::Registry). No code outside of this folder
//! uses the messages.
//!
//! ```text
//!  socket ─► accept ─► Connection (caller) ─► Service ─► Workers ─► authorise ─► Registry
//!              │                                 │           │      (blocking threads)
//!              │                                 │         audit: each decision
//!              │                                 │
//!          admission                          convert ◄─► proto types, which stop here
//!                                                │
//!                                     EventBatcher · TraceWriter ◄─ subscription of a session or a
//!                                     group
//! ```
//!
//! Bounded are: connections, streams and blocking calls of each user, calls of each connection,
//! bytes of a message, threads of each user, events of a batch, batches on their way, and seconds
//! that a stream waits for its reader.

mod access;
mod admission;
mod authorise;
mod connection;
pub(crate) mod convert;
mod counts;
mod described;
mod embedded;
mod error;
mod events;
mod fetch;
#[cfg(fuzzing)]
pub mod fuzzing;
mod handling;
mod kernel_tracepoints;
mod live;
mod peer;
mod policies;
mod profile;
mod recorded;
mod redactor;
mod rotation;
mod run_records;
mod server;
mod service;
mod trace_messages;
mod trigger;
mod turns;
mod undo;
mod workers;

pub use embedded::embedded;
pub use error::reason_of;
pub use server::{ServeError, serve};
pub(crate) use workers::BLOCKING_THREADS;
