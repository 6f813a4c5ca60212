//! Names and source lines of functions, by the map that the option `-m` names.

use std::ffi::OsStr;
use std::path::Path;

use xray_trace::instr_map::{
    FunctionNames, InstrMap, MapError, MapFunction, ObjectError, SledKind, SourceMap, Statement,
};

use super::failure::Failure;
use super::log;

/// The functions of a map.
#[derive(Debug, Default)]
pub(super) struct Names {
    map: Option<InstrMap>,
    lines: SourceMap,
    has_symbols: bool,
}

/// Reads a map from an object file or from YAML.
pub(super) fn read_map(path: &OsStr) -> Result<InstrMap, Failure> {
    parse_map(path, &read(path)?)
}

fn read(path: &OsStr) -> Result<Vec<u8>, Failure> {
    if Path::new(path).is_dir() {
        let path = path.to_string_lossy();
        return Err(Failure::new(format!(
            "Failed memory-mapping file '{path}'."
        )));
    }
    log::read(path)
}

fn parse_map(path: &OsStr, bytes: &[u8]) -> Result<InstrMap, Failure> {
    const UNSUPPORTED: &str =
        "File format not supported (only does ELF and Mach-O little endian 64-bit).";
    if bytes.is_empty() {
        let what = "The file was not recognized as a valid object file";
        return Err(Failure::new(what));
    }
    if is_i386(bytes) {
        return Err(Failure::new(UNSUPPORTED));
    }
    let map = InstrMap::read(bytes).map_err(|error| {
        Failure::new(match error {
            MapError::Object(ObjectError::NoMap) => {
                "Failed to find XRay instrumentation map.".to_owned()
            }
            MapError::Object(ObjectError::MapSize { .. }) => {
                "Instrumentation map entries not evenly divisible by size of an XRay sled entry."
                    .to_owned()
            }
            MapError::Object(error) => error.to_string(),
            MapError::Yaml(_) | MapError::Unknown => {
                let path = path.to_string_lossy();
                format!("Failed loading YAML document from '{path}'.")
            }
        })
    })?;
    // LLVM reads the kinds up to custom events from an object file.
    let is_unknown = |kind| matches!(kind, SledKind::TypedEvent | SledKind::Unknown(_));
    let mut sleds = map.sleds().iter();
    if map.machine().is_some() && sleds.any(|sled| is_unknown(sled.kind)) {
        return Err(Failure::new("Exec format error"));
    }
    Ok(map)
}

/// The form of the names of a map. LLVM looks for symbols in the file itself, and YAML has none.
pub(super) fn forms(map: &InstrMap, demangled: bool) -> FunctionNames {
    match (map.machine(), demangled) {
        (None, _) => FunctionNames::Addresses,
        (Some(_), true) => FunctionNames::Demangled,
        (Some(_), false) => FunctionNames::Symbols,
    }
}

/// Whether the file is an ELF file for 32-bit x86.
fn is_i386(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF\x01") && bytes.get(18..20) == Some(&[3, 0])
}

// === impl Names ===

impl Names {
    /// The functions of a file; none if the path is empty.
    pub(super) fn open(path: &OsStr) -> Result<Self, Failure> {
        if path.is_empty() {
            return Ok(Self::default());
        }
        let bytes = read(path)?;
        let map = parse_map(path, &bytes)?;
        let addresses = map.functions().iter().map(|function| function.address);
        Ok(Self {
            lines: SourceMap::parse(&bytes, addresses).unwrap_or_default(),
            map: Some(map),
            has_symbols: false,
        })
    }

    /// The same functions, with the linker's symbols as names.
    #[must_use]
    pub(super) fn with_symbols(self) -> Self {
        Self {
            has_symbols: true,
            ..self
        }
    }

    /// The functions of the file that an option names.
    pub(super) fn of_option(path: &OsStr) -> Result<Self, Failure> {
        Self::open(path).map_err(|failure| {
            let path = path.to_string_lossy();
            failure.in_context(format!("Cannot open instrumentation map '{path}'"))
        })
    }

    /// The name of a function, or its number.
    pub(super) fn name(&self, id: i32) -> String {
        match self.find(id) {
            None => format!("#{id}"),
            Some((map, function)) => forms(map, !self.has_symbols).of(function),
        }
    }

    /// The source file without its directory, line and column of a function.
    pub(super) fn source(&self, id: i32) -> String {
        let Some((_, function)) = self.find(id) else {
            return "(unknown)".to_owned();
        };
        let address = function.address;
        match (self.lines.lookup(address), self.lines.statement(address)) {
            (Some(source), Some(Statement { line, column })) => {
                let file = Path::new(&source.file).file_name().unwrap_or_default();
                format!("{}:{line}:{column}", file.to_string_lossy())
            }
            _ => "<invalid>:0:0".to_owned(),
        }
    }

    fn find(&self, id: i32) -> Option<(&InstrMap, &MapFunction)> {
        let map = self.map.as_ref()?;
        Some((map, map.function(u32::try_from(id).ok()?)?))
    }
}
