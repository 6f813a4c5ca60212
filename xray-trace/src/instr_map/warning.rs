//! What is odd about a file that can be read nevertheless.

use std::fmt;

use super::FileAddr;

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
