//! The contract between the trampolines, which write events into memory shared with xrayd, and the
//! collector, which drains it: the places of everything ([`layout`]), the meaning of a word
//! ([`word`], [`view`]), the reader of a ring ([`Consumer`]), and, for tests, its writer
//! ([`Recording`]).
//!
//! ```text
//!           chunk 0            chunk 1            chunk 2            chunk 3
//!  ring  ┌──────────────────┬──────────────────┬──────────────────┬──────────────────┐
//!        │ 0 0 0 0 0 0 0 0 0│ S c c c c c c c c│ S c c c 0 0 0 0 0│ 0 0 0 0 0 0 0 0 0│
//!        └──────────────────┴──────────────────┴──────────────────┴──────────────────┘
//!          given back              ▲ cursor          ▲ head: only the producer has it
//! ```
//!
//! The producer reserves a word by adding to its head, and then writes it. A word whose low half is
//! not zero is whole. The consumer follows. It zeroes a chunk that it has read to the end, and
//! publishes that in `RELEASED`. The producer begins a chunk only if fewer than all chunks are
//! begun and not given back. Otherwise it counts the event in `LOST`. Where rings keep the newest
//! events ([`newest`]), a producer whose ring is full zeroes the oldest chunk and gives it back
//! itself.
//!
//! Nothing here blocks the producer, and nothing that a producer writes makes the consumer leave
//! the ring. The crate has no part in processes, ptrace or the contents of files.

mod consumer;
mod error;
#[expect(
    unsafe_code,
    reason = "the answer to faults in memory that another process takes away"
)]
mod fault;
pub mod layout;
#[expect(unsafe_code, reason = "words of memory that another process writes")]
mod mapping;
mod memory;
pub mod newest;
mod producer;
pub mod profile;
mod slot_owners;
mod sync;
mod table;
pub mod view;
pub mod word;

pub use consumer::{Consumer, Data, Drained, Item, Producer, Sink};
pub use error::GeometryError;
pub use layout::Geometry;
pub use mapping::{FirstLine, Mapping};
pub use memory::{Half, LOAD, STORE, SharedMemory};
pub use producer::{Content, Event, Outcome, Recording, Target};
pub use slot_owners::SlotOwners;
pub use table::Table;
pub use view::View;
pub use word::Word;
