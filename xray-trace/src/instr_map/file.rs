//! What is asked of an object file, whatever its format.

use super::bytes::{RawName, WordFormat};
use super::section_addr::SectionAddr;
use super::words::Words;
use super::{FileAddr, Machine, ObjectError};
use crate::model::BuildId;

/// How an object is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A program at a fixed address.
    Executable,
    /// A position-independent program.
    PieExecutable,
    /// A shared library.
    SharedLibrary,
    /// Not at all: it is still to be linked (`.o`). Addresses count from the begin of their section in an ELF file, and
    /// from the begin of all sections in a Mach-O file.
    Relocatable,
}

/// A part of the file that is mapped into memory (`PT_LOAD`, `LC_SEGMENT_64`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins in the file.
    pub file_offset: u64,
    /// Where it begins in memory, before the load bias.
    pub address: FileAddr,
    /// Its bytes in the file.
    pub file_size: u64,
    /// Its bytes in memory; what exceeds `file_size` is zero.
    pub memory_size: u64,
    /// It can be read.
    pub readable: bool,
    /// It can be written.
    pub writable: bool,
    /// It can be executed.
    pub executable: bool,
}

/// What a file says of itself.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) machine: Machine,
    pub(super) kind: ObjectKind,
    pub(super) interpreter: bool,
    pub(super) soname: Option<String>,
    pub(super) build_id: Option<BuildId>,
    pub(super) segments: Vec<Segment>,
}

/// The instrumentation map and the function index, each in the parts that the linker makes one of.
#[derive(Debug)]
pub(super) struct MapSections<'a> {
    pub(super) map: Vec<Words<'a>>,
    pub(super) index: Vec<Words<'a>>,
}

/// What the best symbol table of a file holds.
pub(super) struct Symbols<'a> {
    /// What the table does not name is not there: it has not been stripped.
    pub(super) complete: bool,
    pub(super) symbols: Box<dyn Iterator<Item = Symbol<'a>> + 'a>,
}

/// A symbol with a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol<'a> {
    pub(super) name: RawName<'a>,
    /// Where it is, if this file defines it.
    pub(super) place: Option<SectionAddr>,
    /// How well it names a function, if it may: of several at one place the greatest does.
    pub(super) rank: Option<Rank>,
    /// Its bytes, or 0 where the file does not say.
    pub(super) size: u64,
}

/// How well a symbol names a function: functions before labels, global before weak before local, sized before sizeless.
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

/// An object file, its headers read.
pub(super) trait ObjectFile {
    fn identity(&self) -> &Identity;

    fn format(&self) -> WordFormat;

    /// Reads the sections of the map.
    fn map_sections(&self) -> Result<MapSections<'_>, ObjectError>;

    /// Whether there is code at this place of a relocatable file.
    fn is_code(&self, place: SectionAddr) -> bool;

    /// Where the section of this name is in memory, and how long it is.
    fn section_range(&self, name: &str) -> Option<(FileAddr, u64)>;

    /// The best symbol table, if there is one.
    fn symbols(&self) -> Option<Symbols<'_>>;
}

/// The offset in the file of the byte at this address, if the file holds it.
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
