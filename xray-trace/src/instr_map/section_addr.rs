//! An address in an object file. It counts from a section if the file is still to be linked. It is
//! not an address in a process.

use crate::FileAddr;

/// An address and the number of the section that it counts from. The number is 0 unless the file is
/// a relocatable ELF file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SectionAddr {
    pub(super) section: u32,
    pub(super) address: FileAddr,
}
