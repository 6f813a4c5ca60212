//! The state of the daemon that outlives it: a record of each session, in a folder of files, and
//! files of retained events if these are wanted. A daemon that starts goes on with the sessions
//! whose records it finds.
//!
//! | file | holds |
//! |---|---|
//! | `segments` | the files of retained events |
//! | `policies` | the files of policies |
//! | `folder` | the folder, and the files of records |
//! | `file` | the bytes of a file: a record with a checksum |
//! | `message` | the record as protobuf messages |
//! | `convert` | conversion between messages and types of the engine |
//!
//! Each file imports only files that stand below it in this list.

mod access;
mod convert;
mod file;
mod folder;
#[cfg(fuzzing)]
mod fuzzing;
mod message;
mod policies;
mod segments;

pub use folder::{FolderError, StateFolder, default_folder};
#[cfg(fuzzing)]
pub use fuzzing::read_record;
