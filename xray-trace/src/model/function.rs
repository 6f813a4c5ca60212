//! Functions that can be traced. Their sleds are in `instr_map`.

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
    /// The module with its code.
    pub module: ModuleId,
    /// Its id in the instrumentation map of its module, from 1, as `llvm-xray` shows it.
    pub xray_id: u32,
    /// The address of its first byte, before the load bias.
    pub address: FileAddr,
    /// Its symbol. `None` for a stripped function.
    pub symbol: Option<String>,
    /// Its readable name: demangled if possible, made from the address without a symbol.
    pub name: String,
    /// The place of its definition, if debug information has it.
    pub source: Option<SourceLine>,
    /// The number of its sleds.
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
