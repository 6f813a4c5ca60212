//! The common interface to object files of all formats. The formats implement it in `elf` and
//! `macho`.

use super::bytes::{RawName, WordFormat};
use super::section_addr::SectionAddr;
use super::words::Words;
use super::{FileAddr, Machine, ObjectError};
use crate::model::BuildId;

/// The way in which an object is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A program at a fixed address.
    Executable,
    /// A position-independent program.
    PieExecutable,
    /// A shared library.
    SharedLibrary,
    /// Not loaded: the file is still to be linked (`.o`). Addresses count from the begin of their
    /// section in an ELF file, and from the begin of all sections in a Mach-O file.
    Relocatable,
}

/// A part of the file that is mapped into memory (`PT_LOAD`, `LC_SEGMENT_64`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its offset in the file.
    pub file_offset: u64,
    /// Its address in memory, before the load bias.
    pub address: FileAddr,
    /// Its size in the file, in bytes.
    pub file_size: u64,
    /// Its size in memory, in bytes. The bytes after `file_size` are zero.
    pub memory_size: u64,
    /// True if it is readable.
    pub readable: bool,
    /// True if it is writable.
    pub writable: bool,
    /// True if it is executable.
    pub executable: bool,
}

/// The properties of an object file that its headers and its dynamic section give.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) machine: Machine,
    pub(super) kind: ObjectKind,
    pub(super) interpreter: bool,
    pub(super) soname: Option<String>,
    pub(super) build_id: Option<BuildId>,
    pub(super) segments: Vec<Segment>,
}

/// The instrumentation map and the function index. A relocatable file has each of them in several
/// parts, which the linker joins.
#[derive(Debug)]
pub(super) struct MapSections<'a> {
    pub(super) map: Vec<Words<'a>>,
    pub(super) index: Vec<Words<'a>>,
}

/// The best symbol table of a file.
pub(super) struct Symbols<'a> {
    /// True if the table names all symbols. A stripped table does not.
    pub(super) complete: bool,
    pub(super) symbols: Box<dyn Iterator<Item = Symbol<'a>> + 'a>,
}

/// A symbol with a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol<'a> {
    pub(super) name: RawName<'a>,
    /// Its address, if this file defines it.
    pub(super) place: Option<SectionAddr>,
    /// How well it names a function; `None` if it never does. Of several symbols at one address the
    /// one with the greatest rank names the function.
    pub(super) rank: Option<Rank>,
    /// Its size in bytes; 0 if the file does not give one.
    pub(super) size: u64,
}

/// The order in which symbols name a function: functions before labels, global before weak before
/// local, sized before sizeless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) function: bool,
    pub(super) binding: Binding,
    pub(super) sized: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Binding {
    Local,
    Weak,
    Global,
}

/// An object file whose headers were read.
pub(super) trait ObjectFile {
    fn identity(&self) -> &Identity;

    fn format(&self) -> WordFormat;

    /// Reads the sections of the map.
    fn map_sections(&self) -> Result<MapSections<'_>, ObjectError>;

    /// Whether there is code at this address of a relocatable file.
    fn is_code(&self, place: SectionAddr) -> bool;

    /// The address and the size in memory of the section with this name.
    fn section_range(&self, name: &str) -> Option<(FileAddr, u64)>;

    /// The best symbol table, if there is one.
    fn symbols(&self) -> Option<Symbols<'_>>;
}

/// The offset in the file of the byte at this address, if the file contains it.
pub(super) fn address_to_offset(segments: &[Segment], address: FileAddr) -> Option<u64> {
    segments
        .iter()
        .find_map(|segment| segment.offset_of(address))
}

// === impl Segment ===

impl Segment {
    /// Whether the address lies in this segment's memory.
    pub fn contains(&self, address: FileAddr) -> bool {
        address
            .offset_from(self.address)
            .is_some_and(|offset| offset < self.memory_size)
    }

    fn offset_of(&self, address: FileAddr) -> Option<u64> {
        let inside = address.offset_from(self.address)?;
        (inside < self.file_size).then(|| self.file_offset.checked_add(inside))?
    }
}
