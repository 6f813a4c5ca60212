//! Opens files of all formats as the trace model: our own format directly, and LLVM's logs and
//! YAML, exports in rows, trace events, CTF and `perf.data` after a conversion to it.
//! A foreign log is written as an `.xtrace`, block by block, into memory, or into a file without a
//! name when it grows. Logs of the flight data recorder are not converted: their buffers serve as
//! blocks. So memory does not grow with the number of events, except
//! for trace events, which can be in any order.

mod anchors;
mod basic;
mod builder;
mod chrome;
mod ctf;
mod damage;
mod error;
mod fdr;
mod ids;
mod importer;
mod merge;
mod notes;
mod open;
mod opened;
mod options;
mod perf;
mod profile;
mod rows;
mod spool;
mod yaml;

pub use error::OpenError;
pub use merge::{CommonUnit, ProfileSum, merge};
pub use open::{open, open_folder, open_profile};
pub use opened::{Opened, OpenedProfile};
pub use options::{KnownFunction, Options};
