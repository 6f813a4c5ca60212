//! The functions and sleds of an object file, and selections among them.
//!
//! | file | content |
//! |---|---|
//! | `object` | all facts of an object file that concern sleds |
//! | `file`, `bytes`, `machine` | the common interface to object files of all formats |
//! | `formats` | detection of the format |
//! | `elf`, `macho` | the formats: segments, sections, symbols, identity |
//! | `words` | values of words after linking and loading |
//! | `index` | the sleds, and their groups: the functions |
//! | `symbols`, `names`, `shared_text` | names of the functions |
//! | `event_types` | places of the names of typed events' types |
//! | `source` | source lines of the functions |
//! | `filter` | selections of functions |
//! | `map` | the map by itself |
//! | `read_map` | the map of an object file or of YAML |
//! | `yaml`, `write_yaml` | the map in LLVM's YAML |
//!
//! Bytes go in, owned values come out. No code here opens files or handles processes. The files
//! belong to the traced programs and may be crafted to do harm: every range is checked, memory
//! grows with the bytes of the file that are present, and time grows with its size.

mod bytes;
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
mod shared_text;
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
pub use self::names::{without_llvm_suffix, without_parameters};
pub use self::object::Object;
pub use self::read_map::MapError;
use self::section_addr::SectionAddr;
pub use self::shared_text::SharedText;
pub use self::source::{SourceError, SourceMap, Statement};
pub use self::warning::Warning;
pub use self::write_yaml::FunctionNames;
pub use self::yaml::{YamlError, YamlProblem};
use crate::FileAddr;

/// A place in the code that can be patched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sled {
    /// The address of its first byte.
    pub address: FileAddr,
    /// The address of its function.
    pub function: FileAddr,
    /// The event at this place.
    pub kind: SledKind,
    /// True if the source requires sleds in this function by attribute.
    pub always_instrument: bool,
    /// The version of its entry: 0, 1 or 2. The layout of event sleds depends on it.
    pub version: u8,
}

/// The event at a sled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SledKind {
    /// The function is entered.
    Entry,
    /// The function returns.
    Exit,
    /// The function ends by jumping to another one.
    TailExit,
    /// The function is entered, and its first argument is to be recorded.
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
    /// The number of the section that its addresses count from, if the file is still to be linked;
    /// else 0.
    pub section: u32,
    /// The address of its first byte.
    pub address: FileAddr,
    /// Its size in bytes by the symbol table; 0 if the table does not give one.
    pub size: u64,
    /// Its symbol; `None` if the file is stripped.
    pub symbol: Option<SharedText>,
    /// Its readable name: demangled if possible, else the symbol, else the address in hex.
    pub name: SharedText,
    /// Its sleds, as a range of [`Object::sleds`].
    pub sleds: Range<usize>,
}

/// The presence and the layout of the function index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FunctionIndex {
    /// There is none (`-fno-xray-function-index`).
    Absent,
    /// Addresses of begin and end: LLVM up to 16.
    Addresses,
    /// Distance to the begin and a count: LLVM from 17.
    Distances,
    /// There is one that fits the map in neither layout; only the map is used.
    Disagrees,
}

/// The presence in an object of LLVM's own XRay runtime, which could patch the same sleds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum XrayRuntime {
    /// The file is stripped: the runtime may be present without its symbols.
    Unknown,
    /// The symbol table is present and contains no symbol of it.
    Absent,
    /// The object imports it from another one.
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
