//! Functions that can be traced.

use super::ModuleId;
use crate::addr::FileAddr;

/// A function's index in its trace, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// A function with sleds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its index in the trace.
    pub id: FunctionId,
    /// The module that holds its code.
    pub module: ModuleId,
    /// Its id in the instrumentation map of its module, from 1, as `llvm-xray` shows it.
    pub xray_id: u32,
    /// Where it begins, as addresses are written in the module's file.
    pub address: FileAddr,
    /// Its symbol as the linker knows it. `None` for a stripped function.
    pub symbol: Option<String>,
    /// Its name for people: demangled where possible, made from the address where there is no symbol.
    pub name: String,
    /// Where its source stands, if debug information says so.
    pub source: Option<SourceLine>,
    /// How many sleds it has.
    pub sleds: u32,
}

/// A line of a source file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLine {
    /// The file's path, as the compiler recorded it.
    pub file: String,
    /// The line, from 1; 0 if only the file is known.
    pub line: u32,
}
