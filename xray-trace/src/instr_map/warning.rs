//! Oddities of a file that can be read nevertheless. Errors, which end reading, are in `error`.

use std::fmt;

use super::FileAddr;

/// An oddity of a file that can be read nevertheless.
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
    /// Entries of version 0 or 1 without an address, and without a relocation that could give one.
    Unrelocated {
        /// The number of entries.
        count: usize,
    },
    /// Sleds outside executable memory.
    OutsideCode {
        /// The number of sleds.
        count: usize,
        /// The address of the first of them.
        first: FileAddr,
    },
    /// Sleds of kinds that no known compiler writes.
    UnknownKind {
        /// The number of sleds.
        count: usize,
        /// The address of the first of them.
        first: FileAddr,
        /// The kind of the first of them.
        kind: u8,
    },
    /// Functions without a name, because all names together are longer than a file of this size can
    /// need.
    NamesLeftOut {
        /// The number of functions.
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
                "xray_fn_idx with {entries} entries does not agree with the {functions} functions \
                 of xray_instr_map, first at entry {first}; xray_instr_map is used"
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
                    "{count} functions have no name, because all names together are too long"
                )
            }
        }
    }
}
