//! The options for reading a file, and the caller's knowledge of the program that wrote it.

use std::collections::BTreeMap;

use crate::FileAddr;
use crate::llvm::Mode;
use crate::model::SourceLine;

/// The options for reading a file.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The behaviour of a reader at damage in a log of LLVM, in rows or in trace events.
    pub mode: Mode,
    /// The functions of a log of LLVM, by their ids. An `.xtrace` has its own functions.
    pub functions: BTreeMap<i32, KnownFunction>,
    /// The files that have the functions: the program, and then its libraries in the order of their
    /// numbers.
    pub objects: Vec<String>,
}

/// A function of an instrumentation map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownFunction {
    /// The symbol.
    pub symbol: Option<String>,
    /// Its readable name.
    pub name: String,
    /// The address of its first byte.
    pub address: FileAddr,
    /// The first line of its source.
    pub source: Option<SourceLine>,
    /// The number of its sleds.
    pub sleds: u32,
}
