//! An object file with all facts that concern its sleds. It owns its data, and keeps no reference
//! to the file's bytes.

use super::bytes::{ObjectBytes, RawName};
use super::elf::{Accept, Elf};
use super::event_types::{self, EventTypeTables};
use super::file::{Identity, ObjectFile, ObjectKind, Segment, address_to_offset};
use super::formats;
use super::index::Map;
use super::shared_text::{TextCollector, TextPlace};
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
    event_formats: Vec<String>,
    warnings: Vec<Warning>,
}

/// Collects the names of an object's functions.
///
/// The demangled names of a real file are a small multiple of its string table. The budget only
/// stops a crafted file, in which all functions share one long name, from filling the memory.
struct NameCollector {
    texts: TextCollector,
    /// Bytes that names may still take.
    budget: usize,
    named: usize,
    left_out: usize,
}

/// The place of a function's names among the collected ones.
struct NamePlace {
    symbol: Option<TextPlace>,
    name: TextPlace,
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
            event_formats: Vec::new(),
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
            event_formats: event_types::formats(file, bytes),
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

    /// The same object with these descriptions of events.
    #[must_use]
    pub fn with_event_formats(self, event_formats: Vec<String>) -> Self {
        Self {
            event_formats,
            ..self
        }
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

    /// The descriptions of the data of its events, as the file has them: `TYPE=FIELDS`. At most
    /// 256, of 16 KiB together. They need not be valid.
    pub fn event_formats(&self) -> &[String] {
        &self.event_formats
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
            let symbol = function.symbol.as_ref().map_or(0, |symbol| symbol.len());
            function.name.len() + symbol
        });
        self.sleds.capacity() * size_of::<Sled>()
            + self.functions.capacity() * size_of::<MapFunction>()
            + self.identity.segments.capacity() * size_of::<Segment>()
            + self.identity.soname.as_ref().map_or(0, String::capacity)
            + self
                .event_formats
                .iter()
                .map(|text| size_of::<String>() + text.capacity())
                .sum::<usize>()
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
        let nameless = self.functions.iter();
        let nameless = nameless.filter(|function| function.symbol.is_none());
        let lookup = SymbolLookup::new(file, nameless.map(MapFunction::place));
        let (runtime, event_types) = (lookup.runtime, lookup.event_types.found());
        let mut names = NameCollector::new(bytes.allowance(NAME_FACTOR).min(MOST_NAME_BYTES));
        let mut places = Vec::with_capacity(self.functions.len());
        for function in &mut self.functions {
            let found = match function.symbol {
                Some(_) => None,
                None => lookup.get(function.place()),
            };
            let place = found.and_then(|found| names.add_symbol(found.name));
            if let (Some(_), Some(found)) = (&place, found) {
                function.size = found.size;
            }
            places.push(match place {
                None if function.name.is_empty() => names.add_address(function.address),
                place => place,
            });
        }
        drop(lookup);
        let NameCollector {
            texts,
            named,
            left_out,
            budget: _,
        } = names;
        let text_at = texts.finish();
        for (function, place) in self.functions.iter_mut().zip(places) {
            if let Some(NamePlace { symbol, name }) = place {
                function.symbol = symbol.map(&text_at);
                function.name = text_at(name);
            }
        }
        if left_out > 0 {
            self.warnings
                .push(Warning::NamesLeftOut { count: left_out });
        }
        let llvm = &mut self.event_types.llvm;
        *llvm = llvm.or(event_types);
        (runtime, named)
    }
}

// === impl NameCollector ===

impl NameCollector {
    fn new(budget: usize) -> Self {
        Self {
            texts: TextCollector::default(),
            budget,
            named: 0,
            left_out: 0,
        }
    }

    /// Adds a function's symbol and its readable name. `None`, and the name counts as left out, if
    /// they do not fit.
    fn add_symbol(&mut self, symbol: RawName<'_>) -> Option<NamePlace> {
        let place = self.try_symbol(symbol);
        match place {
            Some(_) => self.named += 1,
            None => self.left_out += 1,
        }
        place
    }

    fn try_symbol(&mut self, symbol: RawName<'_>) -> Option<NamePlace> {
        if self.budget == 0 {
            return None;
        }
        // Bytes that are not UTF-8 become longer.
        let symbol = String::from_utf8_lossy(symbol.read());
        let left = self.budget.checked_sub(2 * symbol.len());
        // A name that does not fit also uses up budget, because reading it took the time.
        self.budget = left.unwrap_or_else(|| self.budget.saturating_sub(symbol.len()));
        left?;
        let place = self.texts.add(&symbol)?;
        let name = match names::demangle(&symbol, &mut self.budget) {
            Some(name) => self.texts.add(&name)?,
            None => place.clone(),
        };
        Some(NamePlace {
            symbol: Some(place),
            name,
        })
    }

    /// Adds the address of a function without a symbol as its name.
    fn add_address(&mut self, address: FileAddr) -> Option<NamePlace> {
        let name = self.texts.add(&address.to_string())?;
        Some(NamePlace { symbol: None, name })
    }
}

// === impl InstrMap ===

impl From<Object> for InstrMap {
    fn from(object: Object) -> Self {
        Self::new(object.sleds, object.functions, object.warnings)
            .of_machine(object.identity.machine)
    }
}
