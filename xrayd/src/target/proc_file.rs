//! Reading the files of `/proc`.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

/// What most of them fit into.
const USUAL: usize = 8 << 10;

/// All of a file. It says that it is empty, and is written anew for each read: what reads it with a small buffer that grows, as
/// [`std::fs::read`] does then, has it written ten times.
pub(super) fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}
