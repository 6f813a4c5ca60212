//! Reads the files of `/proc`.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

/// Bytes that most of them fit into.
const USUAL: usize = 8 << 10;

/// All of a file. The file shows length 0, and the kernel generates it anew for each read.
/// [`std::fs::read`] then starts with a small buffer that grows, and makes the kernel generate it
/// ten times.
pub(super) fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}
