//! Records as LLVM's YAML writer prints them.

use std::io::{self, Write};

use super::{Record, TraceHeader};
use crate::yaml_scalar;

/// Bytes that are gathered before they are written.
const GATHERED: usize = 64 << 10;

/// Writes a trace.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    pending: Vec<u8>,
    /// No record has been written.
    empty: bool,
    altered: u64,
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

    /// Writes a record. What is not UTF-8 in its data becomes U+FFFD: YAML holds texts only.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn record(&mut self, record: &Record<'_>) -> io::Result<()> {
        let Record {
            record_type,
            function_id,
            function,
            args,
            cpu,
            thread,
            process,
            kind,
            tsc,
            data,
        } = record;
        let out = &mut self.pending;
        if std::mem::take(&mut self.empty) {
            out.extend_from_slice(b"records:\n");
        }
        out.extend_from_slice(b"  - { type: ");
        push_number(out, (*record_type).into());
        out.extend_from_slice(b", func-id: ");
        if *function_id < 0 {
            out.push(b'-');
        }
        push_number(out, function_id.unsigned_abs().into());
        out.extend_from_slice(b", function: ");
        yaml_scalar::push(out, function);
        if let Some((first, others)) = args.split_first() {
            out.extend_from_slice(b", args: [ ");
            push_number(out, *first);
            for arg in others {
                out.extend_from_slice(b", ");
                push_number(out, *arg);
            }
            out.extend_from_slice(b" ]");
        }
        out.extend_from_slice(b", cpu: ");
        push_number(out, (*cpu).into());
        for (name, id) in [(&b", thread: "[..], thread), (b", process: ", process)] {
            if *id != 0 {
                out.extend_from_slice(name);
                push_number(out, (*id).into());
            }
        }
        out.extend_from_slice(b", kind: ");
        out.extend_from_slice(kind.name().as_bytes());
        out.extend_from_slice(b", tsc: ");
        push_number(out, *tsc);
        out.extend_from_slice(b", data: ");
        match std::str::from_utf8(data) {
            Ok(text) => yaml_scalar::push(out, text),
            Err(_) => {
                self.altered += 1;
                yaml_scalar::push(out, &String::from_utf8_lossy(data));
            }
        }
        out.extend_from_slice(b" }\n");
        if out.len() >= GATHERED {
            self.flush()?;
        }
        Ok(())
    }

    /// How many records have data that is no text, and so are not as they were.
    pub fn altered(&self) -> u64 {
        self.altered
    }

    /// Writes the end, and gives the output back.
    ///
    /// # Errors
    ///
    /// Those of the output.
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
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut left = number;
    for digit in digits.iter_mut().rev() {
        // A digit.
        *digit = b'0' + u8::try_from(left % 10).unwrap_or_default();
        at -= 1;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}
