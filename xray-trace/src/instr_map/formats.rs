//! Detects the format of an object file, and opens the file. The formats themselves are in `elf`
//! and `macho`.

use super::ObjectError;
use super::bytes::ObjectBytes;
use super::elf::{self, Elf};
use super::file::ObjectFile;
use super::macho::{self, MachO};

/// Opens a file of any format that can hold a map.
pub(super) fn open(file: ObjectBytes<'_>) -> Result<Box<dyn ObjectFile + '_>, ObjectError> {
    if macho::is_macho(file.all()) {
        Ok(Box::new(MachO::parse(file.all())?))
    } else {
        Ok(Box::new(Elf::parse(file, elf::Accept::All)?))
    }
}

/// Whether a file begins like one that [`open`] may be able to read.
pub(super) fn is_object(bytes: &[u8]) -> bool {
    elf::is_elf(bytes) || macho::is_macho(bytes)
}
