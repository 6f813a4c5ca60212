//! Instrumentation maps in JSON.

use serde::Serialize;
use xray_trace::instr_map::{InstrMap, MapFunction, Sled};

/// The map of a file.
#[derive(Debug, Serialize)]
pub(crate) struct FileMap<'a> {
    file: &'a str,
    #[serde(flatten)]
    map: Contents<'a>,
}

/// The maps of a process.
#[derive(Debug, Serialize)]
pub(crate) struct ProcessMaps<'a> {
    process: u32,
    modules: Vec<ModuleMap<'a>>,
}

/// The map of one module.
#[derive(Debug, Serialize)]
pub(crate) struct ModuleMap<'a> {
    pub(crate) object: u32,
    pub(crate) file: &'a str,
    pub(crate) build_id: Option<String>,
    pub(crate) load_bias: Option<u64>,
    #[serde(flatten)]
    pub(crate) map: Contents<'a>,
}

/// The contents of a map.
#[derive(Debug, Serialize)]
pub(crate) struct Contents<'a> {
    machine: Option<String>,
    functions: Vec<Function<'a>>,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Function<'a> {
    id: u32,
    name: &'a str,
    symbol: Option<&'a str>,
    section: u32,
    address: u64,
    size: u64,
    sleds: Vec<SledRow>,
}

#[derive(Debug, Serialize)]
struct SledRow {
    address: u64,
    kind: String,
    always_instrument: bool,
    version: u8,
}

// === impl FileMap ===

impl<'a> FileMap<'a> {
    pub(crate) fn new(file: &'a str, map: &'a InstrMap) -> Self {
        Self {
            file,
            map: Contents::of(map),
        }
    }
}

// === impl ProcessMaps ===

impl<'a> ProcessMaps<'a> {
    pub(crate) fn new(process: u32, modules: Vec<ModuleMap<'a>>) -> Self {
        Self { process, modules }
    }
}

// === impl Contents ===

impl<'a> Contents<'a> {
    pub(crate) fn of(map: &'a InstrMap) -> Self {
        Self {
            machine: map.machine().map(|machine| machine.to_string()),
            functions: map
                .functions()
                .iter()
                .map(|function| Function::of(function, map.sleds_of(function)))
                .collect(),
            warnings: map.warnings().iter().map(ToString::to_string).collect(),
        }
    }
}

// === impl Function ===

impl<'a> Function<'a> {
    fn of(function: &'a MapFunction, sleds: &[Sled]) -> Self {
        let MapFunction {
            id,
            section,
            address,
            size,
            symbol,
            name,
            sleds: _,
        } = function;
        Self {
            id: *id,
            name,
            symbol: symbol.as_deref(),
            section: *section,
            address: address.0,
            size: *size,
            sleds: sleds.iter().map(SledRow::of).collect(),
        }
    }
}

// === impl SledRow ===

impl SledRow {
    fn of(sled: &Sled) -> Self {
        let Sled {
            address,
            function: _,
            kind,
            always_instrument,
            version,
        } = sled;
        Self {
            address: address.0,
            kind: kind.to_string(),
            always_instrument: *always_instrument,
            version: *version,
        }
    }
}
