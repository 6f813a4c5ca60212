//! gRPC: `xrayd.v1` over the [`Registry`](crate::session::Registry).
//!
//! ```text
//!  socket ─► accept ─► Connection (caller) ─► Service ─► authorise ─► Registry (blocking threads)
//!              │                                 │
//!          admission                          convert ◄─► proto types, which stop here
//!                                                │
//!                                     EventBatcher · TraceWriter ◄─ Feed of a session or a family
//! ```
//!
//! What is bounded: connections, streams and blocking calls of each user, calls of each connection, bytes of a message,
//! events of a batch, batches on their way, seconds that a fetch waits for its reader.

mod admission;
mod authorise;
mod connection;
mod convert;
mod counts;
mod embedded;
mod error;
mod events;
mod fetch;
mod live;
mod profile;
mod server;
mod service;
mod trigger;
mod undo;

pub use embedded::embedded;
pub use error::reason_of;
pub use server::{ServeError, serve};
