//! Reads JSON lines: an object for each event.

use std::io::{self, BufRead, Read as _};

use super::MAX_ROW_LEN;
use super::import::{RowError, RowImporter};
use super::row::Row;
use crate::model::Trace;
use crate::source::damage::Damage;
use crate::source::{OpenError, Options};

/// The most characters of the reason of an error.
const MAX_REASON_LEN: usize = 200;

/// Imports JSON lines.
pub(in crate::source) fn import(
    mut input: impl BufRead,
    options: &Options,
) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
    let mut importer = RowImporter::new()?;
    let mut damage = Damage::new(options.mode);
    let mut text = Vec::new();
    let mut line = 0;
    while read_line(&mut input, &mut text)? {
        line += 1;
        let added = match content(&text, line) {
            [] => continue,
            bytes if bytes.len() > MAX_ROW_LEN => {
                if text.last() != Some(&b'\n') {
                    skip_line(&mut input)?;
                }
                Err(format!("it has more than {MAX_ROW_LEN} bytes").into())
            }
            bytes => match serde_json::from_slice::<Row<'_>>(bytes) {
                Ok(row) => importer.add(&row),
                Err(error) => Err(reason(&error).into()),
            },
        };
        match added {
            Ok(()) => {}
            Err(RowError::Io(error)) => return Err(error.into()),
            Err(RowError::Invalid(why)) => damage.skip(OpenError::Row {
                format: "JSON lines",
                line,
                why,
            })?,
        }
    }
    importer.finish(damage)
}

/// Reads a line, or the first bytes of a line that is too long. Returns false at the end.
fn read_line(input: &mut impl BufRead, text: &mut Vec<u8>) -> io::Result<bool> {
    text.clear();
    // Room for the line break, and for the byte that shows that the line is too long.
    let most = u64::try_from(MAX_ROW_LEN + 2).unwrap_or(u64::MAX);
    let count = input.by_ref().take(most).read_until(b'\n', text)?;
    Ok(count > 0)
}

/// The line without blanks around it, and without the mark of the encoding before the first line.
fn content(line: &[u8], number: u64) -> &[u8] {
    let line = match number {
        1 => line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line),
        _ => line,
    };
    line.trim_ascii()
}

/// Skips the rest of a line.
fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let bytes = input.fill_buf()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let count = end.map_or(bytes.len(), |at| at + 1);
        input.consume(count);
        if end.is_some() {
            return Ok(());
        }
    }
}

/// The reason of an error, with the column. The error itself counts the lines of one row.
fn reason(error: &serde_json::Error) -> String {
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = error.to_string();
    let why = text.strip_suffix(&place).unwrap_or(&text);
    // The reason can quote a text of the row, which may be long.
    let start: String = why.chars().take(MAX_REASON_LEN).collect();
    format!("column {}: {start}", error.column())
}
