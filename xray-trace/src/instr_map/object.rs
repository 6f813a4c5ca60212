//! An object file with all facts that concern its sleds. It owns its data, and keeps no reference
//! to the file's bytes.

use super::bytes::ObjectBytes;
use super::elf::{Accept, Elf};
use super::event_types::{self, EventTypeTables};
use super::file::{Identity, ObjectFile, ObjectKind, Segment, address_to_offset};
use super::formats;
use super::index::Map;
use super::symbols::SymbolLookup;
use super::{
    FileAddr, FunctionIndex, InstrMap, Machine, MapFunction, ObjectError, Sled, Warning,
    XrayRuntime, names,
};
use crate::model::BuildId;

/// Bytes of names for each byte of the file that is present. Symbols of templates become six times
/// as long when they are demangled.
const NAME_FACTOR: usize = 8;
/// The most bytes of all names together, about three times the need of the largest programs.
const MOST_NAME_BYTES: usize = 256 << 20;

/// An object file with sleds: a program, a shared library, or a file that is still to be linked.
#[derive(Clone, Debug)]
pub struct Object {
    identity: Identity,
    sleds: Vec<Sled>,
    functions: Vec<MapFunction>,
    index: FunctionIndex,
    runtime: XrayRuntime,
    event_types: EventTypeTables,
    warnings: Vec<Warning>,
}

// === impl Object ===

impl Object {
    /// Reads a 64-bit ELF program or library.
    ///
    /// # Errors
    ///
    /// [`ObjectError::NoMap`] for a sound file that was compiled without XRay, other variants for
    /// files that cannot be read.
    pub fn parse<'a>(file: impl Into<ObjectBytes<'a>>) -> Result<Self, ObjectError> {
        let file = file.into();
        Self::read(&Elf::parse(file, Accept::Loadable)?, file)
    }

    /// Reads an object file of any kind: an ELF file, also of 32 bits, or a 64-bit Mach-O file,
    /// loadable or still to be linked.
    ///
    /// # Errors
    ///
    /// As [`Object::parse`].
    pub fn parse_any<'a>(file: impl Into<ObjectBytes<'a>>) -> Result<Self, ObjectError> {
        let file = file.into();
        Self::read(&*formats::open(file)?, file)
    }

    /// An object of which only these functions are known, for example from a trace. It has no sleds
    /// and no segments.
    #[must_use]
    pub fn of_functions(
        machine: Machine,
        build_id: Option<BuildId>,
        functions: Vec<MapFunction>,
    ) -> Self {
        Self {
            identity: Identity {
                machine,
                kind: ObjectKind::SharedLibrary,
                interpreter: false,
                soname: None,
                build_id,
                segments: Vec::new(),
            },
            sleds: Vec::new(),
            functions,
            index: FunctionIndex::Absent,
            runtime: XrayRuntime::Unknown,
            event_types: EventTypeTables {
                llvm: None,
                plain: None,
            },
            warnings: Vec::new(),
        }
    }

    fn read(file: &dyn ObjectFile, bytes: ObjectBytes<'_>) -> Result<Self, ObjectError> {
        let Map {
            sleds,
            groups,
            index,
            warnings,
        } = Map::read(file)?;
        let functions = (1..)
            .zip(groups)
            .map(|(id, group)| MapFunction {
                section: group.function.section,
                ..MapFunction::unnamed(id, group.function.address, group.sleds)
            })
            .collect();
        let mut object = Self {
            identity: file.identity().clone(),
            sleds,
            functions,
            index,
            runtime: XrayRuntime::Unknown,
            event_types: EventTypeTables {
                llvm: None,
                plain: file.section_range(event_types::SECTION),
            },
            warnings,
        };
        object.runtime = object.name_functions(file, bytes).0;
        Ok(object)
    }

    /// Names functions without a symbol from a separate debug file, and returns how many it named.
    /// The caller finds the file (by build id or `.gnu_debuglink`).
    ///
    /// # Errors
    ///
    /// [`ObjectError::OtherBuild`] if both files have a build id and the ids differ.
    pub fn add_symbols_from<'a>(
        &mut self,
        debug: impl Into<ObjectBytes<'a>>,
    ) -> Result<usize, ObjectError> {
        let debug = debug.into();
        let file = formats::open(debug)?;
        if let (Some(expected), Some(found)) = (self.build_id(), &file.identity().build_id)
            && expected != found
        {
            return Err(ObjectError::OtherBuild {
                expected: expected.clone(),
                found: found.clone(),
            });
        }
        let (runtime, named) = self.name_functions(&*file, debug);
        self.runtime = self.runtime.max(runtime);
        Ok(named)
    }

    /// The processor of the object.
    pub fn machine(&self) -> Machine {
        self.identity.machine
    }

    /// The way in which it is loaded.
    pub fn kind(&self) -> ObjectKind {
        self.identity.kind
    }

    /// Whether it names a dynamic linker. A program without one is static.
    pub fn interpreter(&self) -> bool {
        self.identity.interpreter
    }

    /// The name that programs link a library by.
    pub fn soname(&self) -> Option<&str> {
        self.identity.soname.as_deref()
    }

    /// The id that the linker gave this build.
    pub fn build_id(&self) -> Option<&BuildId> {
        self.identity.build_id.as_ref()
    }

    /// The parts that are mapped into memory, in the file's order.
    pub fn segments(&self) -> &[Segment] {
        &self.identity.segments
    }

    /// All sleds in the map's order.
    pub fn sleds(&self) -> &[Sled] {
        &self.sleds
    }

    /// All functions. In an object that was read from a file, the one with id n is at n - 1.
    pub fn functions(&self) -> &[MapFunction] {
        &self.functions
    }

    /// The sleds of one of [`Object::functions`]; none for a function of another object.
    pub fn sleds_of(&self, function: &MapFunction) -> &[Sled] {
        self.sleds.get(function.sleds.clone()).unwrap_or_default()
    }

    /// The presence and the layout of the function index.
    pub fn index(&self) -> FunctionIndex {
        self.index
    }

    /// The presence of LLVM's own runtime.
    pub fn runtime(&self) -> XrayRuntime {
        self.runtime
    }

    /// The tables with the names of its typed events' types.
    pub fn event_types(&self) -> EventTypeTables {
        self.event_types
    }

    /// Oddities of the file, at most one of each kind. Only [`Warning::NamesLeftOut`] can repeat,
    /// once for each debug file.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Bytes of memory that it takes, without the allocator's overhead.
    #[must_use]
    pub fn memory(&self) -> usize {
        let names = self.functions.iter().map(|function| {
            let symbol = function.symbol.as_ref().map_or(0, String::capacity);
            function.name.capacity() + symbol
        });
        self.sleds.capacity() * size_of::<Sled>()
            + self.functions.capacity() * size_of::<MapFunction>()
            + self.identity.segments.capacity() * size_of::<Segment>()
            + self.identity.soname.as_ref().map_or(0, String::capacity)
            + names.sum::<usize>()
    }

    /// The offset in the file of the byte at this address, if the file contains it.
    pub fn address_to_offset(&self, address: FileAddr) -> Option<u64> {
        address_to_offset(&self.identity.segments, address)
    }

    /// Names functions without a symbol. Returns the presence of the runtime by the symbols, and
    /// the number of functions named.
    fn name_functions(
        &mut self,
        file: &dyn ObjectFile,
        bytes: ObjectBytes<'_>,
    ) -> (XrayRuntime, usize) {
        // The demangled names of a real file are a small multiple of its string table. These bounds
        // only stop a crafted file, in which all functions share one long name, from filling the
        // memory.
        let mut budget = bytes.allowance(NAME_FACTOR).min(MOST_NAME_BYTES);
        let nameless = || {
            self.functions
                .iter()
                .filter(|function| function.symbol.is_none())
        };
        let lookup = SymbolLookup::new(file, nameless().map(MapFunction::place), budget);
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
        let llvm = &mut self.event_types.llvm;
        *llvm = llvm.or(lookup.event_types.found());
        (lookup.runtime, named)
    }
}

// === impl InstrMap ===

impl From<Object> for InstrMap {
    fn from(object: Object) -> Self {
        Self::new(object.sleds, object.functions, object.warnings)
            .of_machine(object.identity.machine)
    }
}
