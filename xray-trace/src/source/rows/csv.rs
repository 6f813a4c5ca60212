//! Reads CSV (RFC 4180): a row of column names, then a row for each event. Columns may be in any
//! order, and unknown columns are ignored.

use std::io::{self, BufRead};

use super::MAX_ROW_LEN;
use super::import::{RowError, RowImporter};
use super::row::Row;
use crate::model::Trace;
use crate::source::damage::Damage;
use crate::source::{OpenError, Options};

/// The most fields of a record.
const MAX_FIELDS: usize = 1 << 12;

/// The records of a CSV file.
#[derive(Debug)]
struct Records<R> {
    input: R,
    /// The line on which the next record begins, from 1.
    line: u64,
    /// The line on which the latest record ends.
    last_line: u64,
    /// Whether a line break has to follow each record, because CR and LF follow the first one. A
    /// file without the last line break was cut.
    ends_with_break: bool,
    /// The text of the latest record, without quotes and commas between the fields.
    text: Vec<u8>,
    /// The end of each of its fields in `text`.
    ends: Vec<usize>,
}

/// A place in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    FieldBegin,
    Plain,
    Quoted,
    /// Behind a quote in a quoted field: the end of the field, or half of a quote in it.
    Quote,
}

/// Imports CSV.
pub(in crate::source) fn import(
    input: impl BufRead,
    options: &Options,
) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
    let mut importer = RowImporter::new()?;
    let mut damage = Damage::new(options.mode);
    let mut records = Records {
        input,
        line: 1,
        last_line: 1,
        ends_with_break: false,
        text: Vec::new(),
        ends: Vec::new(),
    };
    let invalid = |line: u64, why: String| OpenError::Row {
        format: "CSV",
        line,
        why,
    };
    let head = records.next()?.unwrap_or(Ok(()));
    let names = head.and_then(|()| records.fields());
    let names: Vec<String> = match names {
        Ok(names) => names.into_iter().map(str::to_owned).collect(),
        // Without the names of the columns no row can be read.
        Err(why) => return Err(invalid(1, why)),
    };
    let mut line = records.line;
    while let Some(read) = records.next()? {
        let added = match read {
            Ok(()) => add(&records, &names, &mut importer),
            Err(why) => Err(why.into()),
        };
        match added {
            Ok(()) => {}
            Err(RowError::Io(error)) => return Err(error.into()),
            Err(RowError::Invalid(why)) => {
                let why = match records.last_line {
                    last if last > line => format!("{why} (the row has lines {line} to {last})"),
                    _ => why,
                };
                damage.skip(invalid(line, why))?;
            }
        }
        line = records.line;
    }
    importer.finish(damage)
}

fn add<R: BufRead>(
    records: &Records<R>,
    names: &[String],
    importer: &mut RowImporter,
) -> Result<(), RowError> {
    let fields = records.fields()?;
    if let [""] = fields[..] {
        return Ok(());
    }
    if fields.len() != names.len() {
        let (has, needs) = (fields.len(), names.len());
        return Err(format!("it has {has} fields, but there are {needs} columns").into());
    }
    let mut row = Row::default();
    for (name, value) in names.iter().zip(fields) {
        row.set(name, value)?;
    }
    importer.add(&row)
}

// === impl Records ===

impl<R: BufRead> Records<R> {
    /// Reads the next record; `None` at the end. The inner error is the fault of the record.
    fn next(&mut self) -> io::Result<Option<Result<(), String>>> {
        self.text.clear();
        self.ends.clear();
        let mut place = Place::FieldBegin;
        let mut fault = None;
        let mut is_too_long = false;
        let mut latest = None;
        let is_first = self.line == 1;
        let mut has_break = false;
        while let Some(byte) = self.take()? {
            self.last_line = self.line;
            self.line += u64::from(byte == b'\n');
            let before = latest.replace(byte);
            place = match (place, byte) {
                (Place::Quoted, b'"') => Place::Quote,
                (Place::FieldBegin, b'"') => Place::Quoted,
                (Place::Quoted, _) => self.keep(byte, Place::Quoted),
                (Place::Quote, b'"') => self.keep(byte, Place::Quoted),
                (_, b',') => {
                    self.ends.push(self.text.len());
                    Place::FieldBegin
                }
                (_, b'\n') => {
                    has_break = true;
                    self.ends_with_break |= is_first && before == Some(b'\r');
                    break;
                }
                (_, b'\r') if self.peek()? == Some(b'\n') => place,
                (Place::Quote, _) => {
                    fault = Some("text follows the end of a quoted field".to_owned());
                    self.keep(byte, Place::Plain)
                }
                (Place::FieldBegin | Place::Plain, _) => self.keep(byte, Place::Plain),
            };
            let is_plain = place == Place::Plain && self.ends.is_empty() && !is_too_long;
            if is_first && is_plain && self.text == b"\xef\xbb\xbf" {
                // The mark of the encoding.
                self.text.clear();
                place = Place::FieldBegin;
            }
            is_too_long |= self.text.len() > MAX_ROW_LEN || self.ends.len() > MAX_FIELDS;
            if is_too_long {
                // The rest of the record is read, but not kept. Its lines are no records.
                self.text.clear();
                self.ends.clear();
            }
        }
        if latest.is_none() {
            return Ok(None);
        }
        self.ends.push(self.text.len());
        if is_too_long {
            fault = Some(format!(
                "it has more than {MAX_ROW_LEN} bytes or more than {MAX_FIELDS} fields"
            ));
        }
        if place == Place::Quoted {
            fault = Some("the file ends inside a quoted field".to_owned());
        } else if self.ends_with_break && !has_break {
            fault = Some("the file ends inside the row".to_owned());
        }
        Ok(Some(fault.map_or(Ok(()), Err)))
    }

    /// The fields of the latest record.
    fn fields(&self) -> Result<Vec<&str>, String> {
        let text = std::str::from_utf8(&self.text).map_err(|_| "it is not UTF-8".to_owned())?;
        let mut start = 0;
        let mut fields = Vec::with_capacity(self.ends.len());
        for end in &self.ends {
            let field = text.get(start..*end).ok_or("it is not UTF-8")?;
            fields.push(field);
            start = *end;
        }
        Ok(fields)
    }

    fn keep(&mut self, byte: u8, place: Place) -> Place {
        self.text.push(byte);
        place
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        Ok(self.input.fill_buf()?.first().copied())
    }

    fn take(&mut self) -> io::Result<Option<u8>> {
        let byte = self.peek()?;
        self.input.consume(usize::from(byte.is_some()));
        Ok(byte)
    }
}
