//! Which functions and sleds an object file has, and how to choose among them.
//!
//! | file | says |
//! |---|---|
//! | `elf`, `machine` | what the ELF file is: segments, sections, build id, processor |
//! | `relocate` | what words mean before the file is linked or loaded |
//! | `index` | the sleds, and the functions they make up |
//! | `symbols`, `names` | what the functions are called |
//! | `source` | which line each of them begins at |
//! | `filter` | which of them somebody means |
//! | `map` | the map by itself, wherever it stands |
//! | `yaml`, `write_yaml` | the map in LLVM's YAML |
//!
//! Bytes go in, owned values come out; nothing here opens files or knows of processes. The files belong to the traced
//! programs and may be made to harm: every range is checked, and memory and time grow with the file's size only.

mod elf;
mod error;
mod filter;
mod index;
mod machine;
mod map;
mod names;
mod relocate;
mod source;
mod symbols;
mod write_yaml;
mod yaml;

use std::fmt;
use std::ops::Range;

use self::elf::{Accept, Elf, Place};
pub use self::elf::{ObjectKind, Segment};
pub use self::error::ObjectError;
pub use self::filter::{Candidate, CompiledSelection, Rule, Selection, SelectionError};
use self::index::Map;
pub use self::machine::Machine;
pub use self::map::{InstrMap, MapError};
pub use self::source::{SourceError, SourceMap};
use self::symbols::SymbolLookup;
pub use self::write_yaml::FunctionNames;
pub use self::yaml::{YamlError, YamlProblem};
use crate::FileAddr;
use crate::model::BuildId;

/// An object file with sleds: a program, a shared library, or a file that is still to be linked.
#[derive(Clone, Debug)]
pub struct Object {
    machine: Machine,
    kind: ObjectKind,
    interpreter: bool,
    soname: Option<String>,
    build_id: Option<BuildId>,
    segments: Vec<Segment>,
    sleds: Vec<Sled>,
    functions: Vec<MapFunction>,
    index: FunctionIndex,
    runtime: XrayRuntime,
    warnings: Vec<Warning>,
}

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

/// Something odd in a file that can be read nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The function index does not fit the map.
    IndexDisagrees {
        /// Entries in the index.
        entries: usize,
        /// Functions in the map.
        functions: usize,
        /// The first entry that differs, from zero.
        first: usize,
    },
    /// Entries of version 0 or 1 with no address and no relocation that could give one.
    Unrelocated {
        /// How many.
        count: usize,
    },
    /// Sleds outside executable memory.
    OutsideCode {
        /// How many.
        count: usize,
        /// The first of them.
        first: FileAddr,
    },
    /// Sleds of kinds that no known compiler writes.
    UnknownKind {
        /// How many.
        count: usize,
        /// The first of them.
        first: FileAddr,
        /// Its kind.
        kind: u8,
    },
    /// Functions were left without a name, because the names together are longer than a file of this size can need.
    NamesLeftOut {
        /// How many functions.
        count: usize,
    },
}

// === impl Object ===

impl Object {
    /// Reads a 64-bit program or library.
    ///
    /// # Errors
    ///
    /// [`ObjectError::NoMap`] for a sound file that was compiled without XRay, others for files that cannot be read.
    pub fn parse(bytes: &[u8]) -> Result<Self, ObjectError> {
        Self::read(bytes, Accept::Loadable)
    }

    /// Reads an ELF file of any kind: also a 32-bit one, and one that is still to be linked.
    ///
    /// # Errors
    ///
    /// As [`Object::parse`].
    pub fn parse_any(bytes: &[u8]) -> Result<Self, ObjectError> {
        Self::read(bytes, Accept::All)
    }

    fn read(bytes: &[u8], accept: Accept) -> Result<Self, ObjectError> {
        let elf = Elf::parse(bytes, accept)?;
        let Map {
            sleds,
            groups,
            index,
            warnings,
        } = Map::read(&elf)?;
        let functions = (1..)
            .zip(groups)
            .map(|(id, group)| MapFunction {
                section: group.function.section,
                ..MapFunction::unnamed(id, group.function.address, group.sleds)
            })
            .collect();
        let mut object = Self {
            machine: elf.machine,
            kind: elf.kind,
            interpreter: elf.interpreter,
            soname: elf.soname.clone(),
            build_id: elf.build_id.clone(),
            segments: elf.segments.clone(),
            sleds,
            functions,
            index,
            runtime: XrayRuntime::Unknown,
            warnings,
        };
        object.runtime = object.name_functions(&elf, bytes.len()).0;
        Ok(object)
    }

    /// Names what is still nameless from a separate debug file, and returns how many functions that were. Finding the
    /// file (by build id or `.gnu_debuglink`) is the caller's business.
    ///
    /// # Errors
    ///
    /// [`ObjectError::OtherBuild`] if both files have build ids that differ.
    pub fn add_symbols_from(&mut self, debug: &[u8]) -> Result<usize, ObjectError> {
        let elf = Elf::parse(debug, Accept::All)?;
        if let (Some(expected), Some(found)) = (&self.build_id, &elf.build_id)
            && expected != found
        {
            return Err(ObjectError::OtherBuild {
                expected: expected.clone(),
                found: found.clone(),
            });
        }
        let (runtime, named) = self.name_functions(&elf, debug.len());
        self.runtime = self.runtime.max(runtime);
        Ok(named)
    }

    /// The processor it is made for.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// How it is loaded.
    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Whether it names a dynamic linker: a program without one is static.
    pub fn interpreter(&self) -> bool {
        self.interpreter
    }

    /// The name that a library is linked by.
    pub fn soname(&self) -> Option<&str> {
        self.soname.as_deref()
    }

    /// The linker's id of this build.
    pub fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }

    /// The parts that are mapped into memory, in the file's order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// All sleds in the map's order.
    pub fn sleds(&self) -> &[Sled] {
        &self.sleds
    }

    /// All functions; the one with id n is at n - 1.
    pub fn functions(&self) -> &[MapFunction] {
        &self.functions
    }

    /// The sleds of one of [`Object::functions`]; none for a function of another object.
    pub fn sleds_of(&self, function: &MapFunction) -> &[Sled] {
        self.sleds.get(function.sleds.clone()).unwrap_or_default()
    }

    /// Whether there is a function index, and of which layout.
    pub fn index(&self) -> FunctionIndex {
        self.index
    }

    /// Whether LLVM's own runtime is part of it.
    pub fn runtime(&self) -> XrayRuntime {
        self.runtime
    }

    /// What is odd about the file; at most a few.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The offset in the file of the byte at this address, if the file holds it.
    pub fn address_to_offset(&self, address: FileAddr) -> Option<u64> {
        elf::address_to_offset(&self.segments, address)
    }

    /// Names the functions that have no symbol yet. Returns what the symbols say of the runtime, and how many got one.
    fn name_functions(&mut self, elf: &Elf<'_>, file_size: usize) -> (XrayRuntime, usize) {
        // A real file's names, demangled, are a small multiple of its string table. This bound only keeps a made-up
        // file, in which all functions share one long name, from filling the memory.
        let mut budget = file_size.saturating_mul(16).saturating_add(1 << 20);
        let nameless = || {
            self.functions
                .iter()
                .filter(|function| function.symbol.is_none())
        };
        let lookup = SymbolLookup::new(elf, nameless().map(MapFunction::place), budget);
        let (mut named, mut left_out) = (0, lookup.left_out);
        for function in self
            .functions
            .iter_mut()
            .filter(|function| function.symbol.is_none())
        {
            let Some(found) = lookup.found.get(&function.place()) else {
                continue;
            };
            let Some(left) = budget.checked_sub(2 * found.name.len()) else {
                left_out += 1;
                continue;
            };
            budget = left;
            function.name =
                names::demangle(&found.name, &mut budget).unwrap_or_else(|| found.name.clone());
            function.symbol = Some(found.name.clone());
            function.size = found.size;
            named += 1;
        }
        if left_out > 0 {
            self.warnings
                .push(Warning::NamesLeftOut { count: left_out });
        }
        (lookup.runtime, named)
    }
}

// === impl MapFunction ===

impl MapFunction {
    fn place(&self) -> Place {
        Place {
            section: self.section,
            address: self.address,
        }
    }
}

// === impl Warning ===

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IndexDisagrees {
                entries,
                functions,
                first,
            } => write!(
                f,
                "xray_fn_idx with {entries} entries does not fit the {functions} functions of xray_instr_map, first at entry {first}; the map is taken"
            ),
            Self::Unrelocated { count } => {
                write!(
                    f,
                    "{count} entries of xray_instr_map have neither address nor relocation"
                )
            }
            Self::OutsideCode { count, first } => {
                write!(
                    f,
                    "{count} sleds lie outside executable memory, the first at {first}"
                )
            }
            Self::UnknownKind { count, first, kind } => {
                write!(
                    f,
                    "{count} sleds are of an unknown kind, the first at {first} of kind {kind}"
                )
            }
            Self::NamesLeftOut { count } => {
                write!(
                    f,
                    "{count} functions are left without their very long names"
                )
            }
        }
    }
}
