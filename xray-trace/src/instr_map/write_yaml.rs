//! Writes the instrumentation map in YAML, byte for byte as `llvm-xray extract`.
//!
//! ```yaml
//! ---
//! - { id: 1, address: 0x1278, function: 0x1278, kind: function-enter,
//!     always-instrument: true, function-name: main, version: 2 }
//! ...
//! ```
//!
//! A sled has one line, which is broken here. Addresses are in capitals, version 0 is omitted, and
//! quotes are where LLVM's YAML writer puts them. LLVM has no word for typed events, and cannot
//! read a program with such sleds; this file uses `typed-event`.

use std::fmt;
use std::io::{self, Write};

use super::{FileAddr, InstrMap, MapFunction, Sled, SledKind};
use crate::yaml_scalar;

/// LLVM's words for the kinds.
pub(super) const KINDS: [(&str, SledKind); 6] = [
    ("function-enter", SledKind::Entry),
    ("function-exit", SledKind::Exit),
    ("tail-exit", SledKind::TailExit),
    ("log-args-enter", SledKind::EntryWithArgument),
    ("custom-event", SledKind::CustomEvent),
    ("typed-event", SledKind::TypedEvent),
];

/// The word for an unknown kind, before its number.
pub(super) const UNKNOWN: &str = "unknown-";

/// The form of the names of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionNames {
    /// No names.
    None,
    /// The symbol; `@(address)` without one.
    Symbols,
    /// The readable name; `@(address)` without a symbol.
    Demangled,
    /// Always `@(address)`.
    Addresses,
}

// === impl SledKind ===

impl fmt::Display for SledKind {
    /// LLVM's word for the kind in YAML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Unknown(number) = self {
            return write!(f, "{UNKNOWN}{number}");
        }
        let word = KINDS.iter().find(|(_, kind)| kind == self);
        f.pad(word.map_or("", |(word, _)| word))
    }
}

// === impl InstrMap ===

impl InstrMap {
    /// Writes the map as `llvm-xray extract` does.
    ///
    /// # Errors
    ///
    /// The errors of `out`.
    pub fn write_yaml(&self, names: FunctionNames, out: &mut dyn Write) -> io::Result<()> {
        if self.sleds().is_empty() {
            return out.write_all(b"--- []\n...\n");
        }
        out.write_all(b"---\n")?;
        let mut name = Vec::new();
        for function in self.functions() {
            name.clear();
            yaml_scalar::push(&mut name, &names.of(function));
            for sled in self.sleds_of(function) {
                let Sled {
                    address,
                    function: in_function,
                    kind,
                    always_instrument,
                    version,
                } = sled;
                write!(
                    out,
                    "- {{ id: {}, address: 0x{:X}, function: 0x{:X}, kind: {kind}, always-instrument: {always_instrument}, function-name: ",
                    function.id, address.0, in_function.0
                )?;
                out.write_all(&name)?;
                if *version != 0 {
                    write!(out, ", version: {version}")?;
                }
                out.write_all(b" }\n")?;
            }
        }
        out.write_all(b"...\n")
    }
}

// === impl FunctionNames ===

impl FunctionNames {
    /// The name of a function in LLVM's form. It contains the address if the symbol is unknown.
    #[must_use]
    pub fn of(self, function: &MapFunction) -> String {
        match (self, &function.symbol) {
            (Self::None, _) => String::new(),
            (Self::Symbols | Self::Demangled, None) | (Self::Addresses, _) => {
                nameless(function.address)
            }
            (Self::Symbols, Some(symbol)) => symbol.to_string(),
            (Self::Demangled, Some(_)) => function.name.to_string(),
        }
    }
}

/// LLVM's name for a function without a symbol.
pub(super) fn nameless(address: FileAddr) -> String {
    format!("@({:x})", address.0)
}
