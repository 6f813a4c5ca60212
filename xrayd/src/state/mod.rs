//! The state of the daemon that outlives it: a record of each session, in a folder of files. A
//! daemon that starts goes on with the sessions whose records it finds.
//!
//! | file | holds |
//! |---|---|
//! | `folder` | the folder and its files |
//! | `file` | the bytes of a file: a record with a checksum |
//! | `message` | the record as protobuf messages |
//! | `convert` | conversion between messages and types of the engine |
//!
//! Each file imports only files that stand below it in this list.

mod convert;
mod file;
mod folder;
#[cfg(fuzzing)]
mod fuzzing;
mod message;

pub use folder::{FolderError, StateFolder, default_folder};
#[cfg(fuzzing)]
pub use fuzzing::read_record;
