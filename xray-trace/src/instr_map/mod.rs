//! Which functions and sleds an object file has, and how to choose among them.
//!
//! | file | says |
//! |---|---|
//! | `object` | all of an object file that concerns sleds |
//! | `file`, `bytes`, `machine` | what is asked of an object file of any format |
//! | `formats` | which format a file has |
//! | `elf`, `macho` | the formats: segments, sections, symbols, identity |
//! | `words` | what words mean when the file will be linked and loaded |
//! | `index` | the sleds, and the functions they make up |
//! | `symbols`, `names`, `cxx` | what the functions are called |
//! | `event_types` | where the program keeps names of its typed events' types |
//! | `source` | which line each of them begins at |
//! | `filter` | which of them somebody means |
//! | `map` | the map by itself |
//! | `read_map` | the map of an object file or of YAML |
//! | `yaml`, `write_yaml` | the map in LLVM's YAML |
//!
//! Bytes go in, owned values come out; nothing here opens files or knows of processes. The files belong to the traced
//! programs and may be made to harm: every range is checked, memory grows with the
//! bytes of the file that are there, and time with its size.

mod bytes;
mod cxx;
mod elf;
mod error;
mod event_types;
mod file;
mod filter;
mod formats;
#[cfg(fuzzing)]
mod fuzzing;
mod index;
mod machine;
mod macho;
mod map;
mod names;
mod object;
mod read_map;
mod section_addr;
mod source;
mod symbols;
mod warning;
mod words;
mod write_yaml;
mod yaml;

use std::ops::Range;

pub use self::bytes::ObjectBytes;
pub use self::error::ObjectError;
pub use self::event_types::EventTypeTables;
pub use self::file::{ObjectKind, Segment};
pub use self::filter::{Candidate, CompiledSelection, Rule, Selection, SelectionError};
#[cfg(fuzzing)]
pub use self::fuzzing::read_symbol;
pub use self::machine::Machine;
pub use self::map::InstrMap;
pub use self::object::Object;
pub use self::read_map::MapError;
use self::section_addr::SectionAddr;
pub use self::source::{SourceError, SourceMap};
pub use self::warning::Warning;
pub use self::write_yaml::FunctionNames;
pub use self::yaml::{YamlError, YamlProblem};
use crate::FileAddr;

/// A patchable place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sled {
    /// Its first byte.
    pub address: FileAddr,
    /// The function it belongs to.
    pub function: FileAddr,
    /// What happens there.
    pub kind: SledKind,
    /// The source asked for this function by attribute.
    pub always_instrument: bool,
    /// The entry's version: 0, 1 or 2. It says how event sleds are laid out.
    pub version: u8,
}

/// What happens at a sled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SledKind {
    /// The function is entered.
    Entry,
    /// The function returns.
    Exit,
    /// The function ends by jumping to another one.
    TailExit,
    /// The function is entered, and its first argument is wanted.
    EntryWithArgument,
    /// `__xray_customevent`.
    CustomEvent,
    /// `__xray_typedevent`.
    TypedEvent,
    /// A kind that no known compiler writes.
    Unknown(u8),
}

/// A function with sleds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapFunction {
    /// The id that XRay gives it in this object, from 1.
    pub id: u32,
    /// In a file that is still to be linked, the number of the section that its addresses count from; else 0.
    pub section: u32,
    /// Its first byte.
    pub address: FileAddr,
    /// Its bytes by the symbol table, or 0 when that does not say.
    pub size: u64,
    /// Its symbol, or `None` where the file is stripped.
    pub symbol: Option<String>,
    /// Its name to be read: demangled where that works, else the symbol, else the address in hex.
    pub name: String,
    /// Its sleds, as a range of [`Object::sleds`].
    pub sleds: Range<usize>,
}

/// Whether an object has the function index, and in which layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FunctionIndex {
    /// There is none (`-fno-xray-function-index`).
    Absent,
    /// Addresses of begin and end: LLVM up to 16.
    Addresses,
    /// Distance to the begin and a count: LLVM from 17.
    Distances,
    /// There is one that does not fit the map in either layout; the map was taken.
    Disagrees,
}

/// Whether LLVM's own XRay runtime, which could patch the same sleds, belongs to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum XrayRuntime {
    /// Stripped: it may be there under no name.
    Unknown,
    /// The symbol table is there and names no part of it.
    Absent,
    /// The object expects it from another one.
    Imported,
    /// It is linked in.
    Defined,
}

// === impl MapFunction ===

impl MapFunction {
    fn place(&self) -> SectionAddr {
        SectionAddr {
            section: self.section,
            address: self.address,
        }
    }
}
