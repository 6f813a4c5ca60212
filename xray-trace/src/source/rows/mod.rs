//! Imports our own exports in rows: JSON lines and CSV. Each row is an event, and repeats the names
//! of its process, thread and function. The tables of the trace are made of these names.
//!
//! All rows of a thread or of a range of time may be left out, and rows may be sorted by time. The
//! rows of a thread have to be in order of time. Rows of some functions alone are not enough: a row
//! `unwound` or `unmatched-exit` would then refer to other calls.

mod csv;
mod import;
mod json_lines;
mod row;

pub(super) use csv::import as import_csv;
pub(super) use json_lines::import as import_json_lines;

/// The most bytes of a row. The data of an event has up to 1 MiB, which JSON can escape with six
/// bytes each.
const MAX_ROW_LEN: usize = 16 << 20;
