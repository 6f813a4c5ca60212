//! Writes records as bytes. It also writes records in an order that no runtime would use.

use std::io::{self, Write};

use super::{BitOrder, Kind, MAX_FUNCTION_ID, Record};
use crate::llvm::{ByteOrder, Header};

/// Writes records in the byte order and the version of the log's header.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    header: Header,
    bits: BitOrder,
}

// === impl Writer ===

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    ///
    /// The errors of the output.
    pub fn new(mut output: W, header: Header) -> io::Result<Self> {
        header.write(&mut output)?;
        let bits = match header.order {
            ByteOrder::Little => BitOrder::LowFirst,
            ByteOrder::Big => BitOrder::HighFirst,
        };
        Ok(Self {
            output,
            header,
            bits,
        })
    }

    /// The same writer, with the bits of the first byte numbered as on the other kind of machine.
    /// LLVM's own `FDRTraceWriter` numbers them like this in big-endian logs.
    #[must_use]
    pub fn with_bits_from_low(mut self) -> Self {
        self.bits = BitOrder::LowFirst;
        self
    }

    /// Writes a record.
    ///
    /// # Errors
    ///
    /// The errors of the output; [`io::ErrorKind::InvalidInput`] if a function's id or an event's
    /// length is too great for the record.
    pub fn record(&mut self, record: &Record<&[u8]>) -> io::Result<()> {
        let order = self.header.order;
        let kind = record.kind();
        match *record {
            Record::Function {
                kind,
                function,
                delta,
            } => {
                if function > MAX_FUNCTION_ID {
                    return Err(too_great("function id"));
                }
                let word = self.bits.function_word(kind.number(), function);
                self.output.write_all(&order.put_u32(word))?;
                self.output.write_all(&order.put_u32(delta))
            }
            Record::BufferExtents { size: value }
            | Record::TscWrap { tsc: value }
            | Record::CallArgument { value } => self.metadata(kind, &[&order.put_u64(value)]),
            Record::NewBuffer { tid: id } | Record::Pid { pid: id } => {
                self.metadata(kind, &[&order.put_u32(id.cast_unsigned())])
            }
            Record::EndOfBuffer => self.metadata(kind, &[]),
            Record::NewCpu { cpu, tsc } => {
                self.metadata(kind, &[&order.put_u16(cpu), &order.put_u64(tsc)])
            }
            Record::WallTime { seconds, micros } => {
                self.metadata(kind, &[&order.put_u64(seconds), &order.put_u32(micros)])
            }
            Record::CustomEvent { tsc, cpu, data } => {
                let (size, tsc, cpu) = (size(data)?, order.put_u64(tsc), order.put_u16(cpu));
                self.metadata(kind, &[&order.put_u32(size), &tsc, &cpu])?;
                self.output.write_all(data)
            }
            Record::CustomEventDelta { delta, data } => {
                let (size, delta) = (size(data)?, order.put_u32(delta.cast_unsigned()));
                self.metadata(kind, &[&order.put_u32(size), &delta])?;
                self.output.write_all(data)
            }
            Record::TypedEvent {
                delta,
                event_type,
                data,
            } => {
                let (size, delta) = (size(data)?, order.put_u32(delta.cast_unsigned()));
                let fields: [&[u8]; 3] = [&order.put_u32(size), &delta, &order.put_u16(event_type)];
                self.metadata(kind, &fields)?;
                self.output.write_all(data)
            }
        }
    }

    /// The output.
    pub fn into_inner(self) -> W {
        self.output
    }

    fn metadata(&mut self, kind: Kind, fields: &[&[u8]]) -> io::Result<()> {
        let mut record = [0; 16];
        record[0] = self.bits.first_byte(kind.number().unwrap_or_default());
        let bytes = fields.iter().copied().flatten();
        record[1..]
            .iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        self.output.write_all(&record)
    }
}

fn size(data: &[u8]) -> io::Result<u32> {
    let size = i32::try_from(data.len()).map_err(|_| too_great("event"))?;
    Ok(size.cast_unsigned())
}

fn too_great(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("the {what} is too large for an FDR log"),
    )
}
