//! The header of a profile in a file: 32 bytes before the blocks. Files for LLVM's loader have no
//! such header.

use std::io::{self, Write};

use crate::llvm::ByteOrder;

/// The first number of a file with header.
pub const MAGIC: u64 = 0x7872_6179_7072_6f66;

/// The only version of the format.
pub const VERSION: u64 = 0x2018_0424;

/// The length of the header.
pub(super) const FILE_HEADER_LEN: usize = 32;

/// The header of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    /// The time at which the runtime wrote the file, in nanoseconds.
    pub timestamp: u64,
    /// The process.
    pub pid: u64,
}

/// Writes the header of a file.
///
/// # Errors
///
/// The errors of the output.
pub fn write_file_header(
    header: &FileHeader,
    order: ByteOrder,
    output: &mut dyn Write,
) -> io::Result<()> {
    for word in [MAGIC, VERSION, header.timestamp, header.pid] {
        output.write_all(&order.put_u64(word))?;
    }
    Ok(())
}
