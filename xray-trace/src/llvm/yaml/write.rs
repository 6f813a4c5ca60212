//! Writes records in the format of LLVM's YAML writer. The numbers of functions and threads come
//! from the caller.

use std::io::{self, Write};

use super::{Kind, Record, TraceHeader};
use crate::yaml_scalar;

/// Bytes after which the buffer is written.
const GATHERED: usize = 64 << 10;
/// The begin of a record, up to its type.
const START: &[u8] = b"  - { type: ";

/// Writes a trace.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    pending: Vec<u8>,
    /// True before the first record.
    empty: bool,
    altered: u64,
}

/// The prepared text of a record's place.
#[derive(Debug)]
pub(crate) struct RecordPrefix {
    /// The text of a record from its processor up to its kind.
    text: Vec<u8>,
}

/// The prepared text of a record's function. Quoting names takes longer than all other work.
#[derive(Debug)]
pub(crate) struct Callee {
    /// The text of a record of type 0, from its begin up to the function's name.
    text: Vec<u8>,
}

// === impl Writer ===

impl<W: Write> Writer<W> {
    /// Writes the header.
    pub fn new(output: W, header: &TraceHeader) -> Self {
        let TraceHeader {
            version,
            log,
            constant_tsc,
            nonstop_tsc,
            cycle_frequency,
        } = header;
        let head = format!(
            "---\nheader:\n  version:         {version}\n  type:            {log}\n  constant-tsc:    {constant_tsc}\n  \
             nonstop-tsc:     {nonstop_tsc}\n  cycle-frequency: {cycle_frequency}\n"
        );
        Self {
            output,
            pending: head.into_bytes(),
            empty: true,
            altered: 0,
        }
    }

    /// Writes a record. Bytes in its data that are not UTF-8 become U+FFFD, because YAML contains
    /// only text.
    ///
    /// # Errors
    ///
    /// The errors of the output.
    pub fn record(&mut self, record: &Record<'_>) -> io::Result<()> {
        let callee = Callee::new(record.function_id, &record.function);
        let place = RecordPrefix::new(record.cpu, record.thread, record.process);
        self.record_of(&callee, &place, record)
    }

    /// Writes a record with a prepared function and place. The corresponding fields of the record
    /// are ignored.
    pub(crate) fn record_of(
        &mut self,
        callee: &Callee,
        place: &RecordPrefix,
        record: &Record<'_>,
    ) -> io::Result<()> {
        let Record {
            record_type,
            function_id: _,
            function: _,
            args,
            cpu: _,
            thread: _,
            process: _,
            kind,
            tsc,
            data,
        } = record;
        self.begin(*record_type, callee);
        if let Some((first, others)) = args.split_first() {
            let out = &mut self.pending;
            out.extend_from_slice(b", args: [ ");
            push_number(out, *first);
            for arg in others {
                out.extend_from_slice(b", ");
                push_number(out, *arg);
            }
            out.extend_from_slice(b" ]");
        }
        self.happened(place, *kind, *tsc);
        self.end(data)
    }

    /// Writes a record of a call without arguments.
    pub(crate) fn call(
        &mut self,
        callee: &Callee,
        place: &RecordPrefix,
        kind: Kind,
        tsc: u64,
    ) -> io::Result<()> {
        self.begin(0, callee);
        self.happened(place, kind, tsc);
        self.end(b"")
    }

    /// Writes a record up to the name of its function.
    #[inline]
    fn begin(&mut self, record_type: u16, callee: &Callee) {
        let out = &mut self.pending;
        if std::mem::take(&mut self.empty) {
            out.extend_from_slice(b"records:\n");
        }
        if record_type == 0 {
            out.extend_from_slice(&callee.text);
        } else {
            out.extend_from_slice(START);
            push_number(out, record_type.into());
            out.extend_from_slice(callee.text.get(START.len() + 1..).unwrap_or_default());
        }
    }

    /// Writes the place, the kind and the time of a record.
    #[inline]
    fn happened(&mut self, place: &RecordPrefix, kind: Kind, tsc: u64) {
        let out = &mut self.pending;
        out.extend_from_slice(&place.text);
        out.extend_from_slice(kind.name().as_bytes());
        out.extend_from_slice(b", tsc: ");
        push_number(out, tsc);
    }

    /// Writes the data of a record, and its end.
    #[inline]
    fn end(&mut self, data: &[u8]) -> io::Result<()> {
        let out = &mut self.pending;
        if data.is_empty() {
            out.extend_from_slice(b", data: '' }\n");
        } else {
            out.extend_from_slice(b", data: ");
            match std::str::from_utf8(data) {
                Ok(text) => yaml_scalar::push(out, text),
                Err(_) => {
                    self.altered += 1;
                    yaml_scalar::push(out, &String::from_utf8_lossy(data));
                }
            }
            out.extend_from_slice(b" }\n");
        }
        if out.len() >= GATHERED {
            self.flush()?;
        }
        Ok(())
    }

    /// The number of records whose data is not text, and was altered.
    pub fn altered(&self) -> u64 {
        self.altered
    }

    /// Writes the end, and returns the output.
    ///
    /// # Errors
    ///
    /// The errors of the output.
    pub fn finish(mut self) -> io::Result<W> {
        let records: &[u8] = if self.empty {
            b"records:         []\n"
        } else {
            b""
        };
        self.pending.extend_from_slice(records);
        self.pending.extend_from_slice(b"...\n");
        self.flush()?;
        Ok(self.output)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.write_all(&self.pending)?;
        self.pending.clear();
        Ok(())
    }
}

/// Appends a number in decimal; `write!` takes several times as long.
fn push_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

// === impl Callee ===

impl Callee {
    /// A function with this id and this name.
    pub(crate) fn new(function_id: i32, name: &str) -> Self {
        let mut text = START.to_vec();
        text.extend_from_slice(b"0, func-id: ");
        text.extend_from_slice(itoa::Buffer::new().format(function_id).as_bytes());
        text.extend_from_slice(b", function: ");
        yaml_scalar::push(&mut text, name);
        Self { text }
    }
}

// === impl RecordPrefix ===

impl RecordPrefix {
    /// A thread, on a processor.
    pub(crate) fn new(cpu: u16, thread: u32, process: u32) -> Self {
        let mut text = b", cpu: ".to_vec();
        push_number(&mut text, cpu.into());
        for (name, id) in [(&b", thread: "[..], thread), (b", process: ", process)] {
            if id != 0 {
                text.extend_from_slice(name);
                push_number(&mut text, id.into());
            }
        }
        text.extend_from_slice(b", kind: ");
        Self { text }
    }
}
