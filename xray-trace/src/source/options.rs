//! How a file is read, and what the caller knows of the program that wrote it.

use std::collections::BTreeMap;

use crate::FileAddr;
use crate::llvm::Mode;
use crate::model::SourceLine;

/// How a file is read.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What a reader does about damage in a log of LLVM.
    pub mode: Mode,
    /// The functions of a log of LLVM, by their ids. An `.xtrace` has its own functions.
    pub functions: BTreeMap<i32, KnownFunction>,
    /// The program that has the functions.
    pub program: String,
}

/// A function of an instrumentation map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownFunction {
    /// The symbol.
    pub symbol: Option<String>,
    /// The name that a user reads.
    pub name: String,
    /// The first byte.
    pub address: FileAddr,
    /// The first line of its source.
    pub source: Option<SourceLine>,
    /// The number of its sleds.
    pub sleds: u32,
}
