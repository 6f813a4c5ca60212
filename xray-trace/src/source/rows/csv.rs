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
            Err(RowError::Invalid(why)) => damage.skip(invalid(line, why))?,
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
        let mut is_empty = true;
        let is_first = self.line == 1;
        while let Some(byte) = self.take()? {
            is_empty = false;
            self.line += u64::from(byte == b'\n');
            place = match (place, byte) {
                (Place::Quoted, b'"') => Place::Quote,
                (Place::FieldBegin, b'"') => Place::Quoted,
                (Place::Quoted, _) => self.keep(byte, Place::Quoted),
                (Place::Quote, b'"') => self.keep(byte, Place::Quoted),
                (_, b',') => {
                    self.ends.push(self.text.len());
                    Place::FieldBegin
                }
                (_, b'\n') => break,
                (_, b'\r') if self.peek()? == Some(b'\n') => place,
                (Place::Quote, _) => {
                    fault = Some("text follows the end of a quoted field");
                    self.keep(byte, Place::Plain)
                }
                (Place::FieldBegin | Place::Plain, _) => self.keep(byte, Place::Plain),
            };
            if is_first && self.ends.is_empty() && self.text == b"\xef\xbb\xbf" {
                // The mark of the encoding.
                self.text.clear();
                place = Place::FieldBegin;
            }
            if self.text.len() > MAX_ROW_LEN || self.ends.len() > MAX_FIELDS {
                let why = format!(
                    "it has more than {MAX_ROW_LEN} bytes or more than {MAX_FIELDS} fields"
                );
                return Ok(Some(Err(why)));
            }
        }
        if is_empty {
            return Ok(None);
        }
        self.ends.push(self.text.len());
        if place == Place::Quoted {
            fault = Some("the file ends inside a quoted field");
        }
        Ok(Some(fault.map_or(Ok(()), |fault| Err(fault.to_owned()))))
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
