//! Reasons why a file yields no instrumentation map.

use super::FileAddr;
use crate::model::BuildId;

/// Reasons why an object file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// A Mach-O file of a kind that never has sleds.
    #[error(
        "a Mach-O file that is 32-bit, big-endian or for several processors; extract a 64-bit \
         file with lipo -thin"
    )]
    OtherMachO,
    /// A Mach-O file for a processor without sleds in LLVM.
    #[error("Mach-O processor {0:#x} is neither x86-64 nor AArch64")]
    MachOProcessor(u32),
    /// A Mach-O file, but neither a program nor a library.
    #[error("Mach-O type {0} is neither a program nor a library")]
    MachOType(u32),
    /// The file does not begin like an ELF file.
    #[error("not an ELF file")]
    NotElf,
    /// The file is a 32-bit ELF file (also x32).
    #[error("a 32-bit ELF file; only 64-bit files can be traced")]
    ThirtyTwoBit,
    /// The file is a relocatable object, not yet linked.
    #[error("a relocatable object file; link it first")]
    Relocatable,
    /// The file is an ELF file, but neither a program nor a library.
    #[error("ELF type {0} is neither a program nor a library")]
    NotLoadable(u16),
    /// A table does not lie in the file.
    #[error("{what} at offset {offset:#x} do not lie in the file of {file_size:#x} bytes")]
    OutsideFile {
        /// The name of the table.
        what: &'static str,
        /// Its offset in the file.
        offset: u64,
        /// The file's length.
        file_size: u64,
    },
    /// The header, or a table that must follow it, is damaged.
    #[error("damaged header")]
    BadHeader,
    /// The section headers have been removed, so the map cannot be found.
    #[error("the file has no section headers, so its instrumentation map cannot be found")]
    NoSectionHeaders,
    /// The file has no instrumentation map: it was compiled without XRay.
    #[error("no xray_instr_map section: not compiled with -fxray-instrument")]
    NoMap,
    /// The map's size is not a multiple of an entry's size.
    #[error("xray_instr_map has {size:#x} bytes, which is not a multiple of {entry}")]
    MapSize {
        /// The section's size.
        size: u64,
        /// The size of an entry.
        entry: u64,
    },
    /// The map does not lie in the address space.
    #[error("xray_instr_map at {address} with {size:#x} bytes does not fit into the address space")]
    MapAddress {
        /// The section's address.
        address: FileAddr,
        /// The section's size.
        size: u64,
    },
    /// An entry has an unknown version. Its fields cannot be understood, so the ids of the
    /// functions after it are unknown, too.
    #[error("entry {entry} of xray_instr_map has the unknown version {version}")]
    UnknownVersion {
        /// The entry's index, from zero.
        entry: usize,
        /// Its version.
        version: u8,
    },
    /// All bytes of an entry are zero, and no relocation changes it. No compiler writes such an
    /// entry.
    #[error("entry {entry} of xray_instr_map is empty")]
    EmptyEntry {
        /// The entry's index, from zero.
        entry: usize,
    },
    /// There are more sleds than the code has room for.
    #[error("{sleds} sleds do not fit into {text:#x} bytes of code")]
    TooManySleds {
        /// Entries in the map.
        sleds: usize,
        /// Bytes in executable segments.
        text: u64,
    },
    /// The sections have more bytes than the file.
    #[error("sections of the file overlap each other, or are holes")]
    Overlap,
    /// There are more functions than ids.
    #[error("more than {} functions", u32::MAX)]
    TooManyFunctions,
    /// The debug file belongs to another build.
    #[error("the debug file has build id {found}, but the object has build id {expected}")]
    OtherBuild {
        /// The build id of the object.
        expected: BuildId,
        /// The build id of the debug file.
        found: BuildId,
    },
}
