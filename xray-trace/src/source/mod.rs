//! From files of any kind to the trace model: our own format as it is, LLVM's logs and YAML by way of it.
//!
//! A foreign log is written anew as an `.xtrace`, block by block, into memory or, when it grows, into a file without a name; but
//! for those of the flight data recorder, whose buffers are blocks as they are. So memory does not grow with the number of events.

mod basic;
mod error;
mod fdr;
mod importer;
mod open;
mod opened;
mod options;
mod profile;
mod spool;
mod yaml;

pub use error::OpenError;
pub use open::{open, open_profile};
pub use opened::{Opened, OpenedProfile};
pub use options::{KnownFunction, Options};
