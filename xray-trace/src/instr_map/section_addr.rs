//! An address in an object file, which counts from a section where the file is still to be linked.

use crate::FileAddr;

/// An address and the number of the section that it counts from. The number is 0 unless the file is
/// a relocatable ELF file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SectionAddr {
    pub(super) section: u32,
    pub(super) address: FileAddr,
}
