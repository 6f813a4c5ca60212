//! Logs of basic ("naive") mode, versions 1 to 3: records of 32 bytes behind the
//! [header](super::header).
//!
//! ```text
//!     function record                              argument of the record in front
//!  0  u16  0                                       u16  1
//!  2  u8   processor, its low byte                 2 B  padding
//!  3  u8   0 entry, 1 exit, 2 tail exit,
//!          3 entry with argument
//!  4  i32  function id                             i32  function id
//!  8  u64  counter                                 u32  thread id
//! 12                                               u32  process id (version 3)
//! 16  u32  thread id                               u64  argument
//! 20  u32  process id (version 3)
//! 24  8 B  padding                                 8 B  padding
//! ```
//!
//! Version 1 has only entries and exits; an exit there can also be a tail exit. Ids of functions in
//! shared objects are negative if the object's number, in their upper 8 bits, is 128 or more.

pub(super) mod owner;

use std::io::{self, Read, Write};

use super::fdr::FunctionKind;
use super::header::{Header, LogType};
use super::window::Window;
use super::{ByteOrder, Error, Mode, SkippedList};

pub use owner::Owner;

/// Bytes of a record.
pub const RECORD_LEN: usize = 32;

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// An entry or an exit.
    Function {
        /// Entry or exit.
        kind: FunctionKind,
        /// The processor's low byte.
        cpu: u8,
        /// The counter.
        tsc: u64,
        /// The call that the record belongs to.
        owner: Owner,
    },
    /// An argument of the call that the previous record entered, or a further one.
    Argument {
        /// The argument.
        value: u64,
        /// The call that it belongs to: the call of the previous record.
        owner: Owner,
    },
}

/// Reads the records of a log.
#[derive(Debug)]
pub struct Reader<R> {
    window: Window<R>,
    header: Header,
    mode: Mode,
    /// The entry that an argument may follow.
    entered: Option<Owner>,
    skipped: SkippedList,
}

// === impl Reader ===

impl<R: Read> Reader<R> {
    /// Reads the header of a log.
    ///
    /// # Errors
    ///
    /// If the input does not begin with the header of a basic-mode log of a known version.
    pub fn new(input: R, mode: Mode) -> Result<Self, Error> {
        let mut window = Window::new(input, 0);
        let header = Header::read(&mut window, LogType::Basic)?;
        Ok(Self {
            window,
            header,
            mode,
            entered: None,
            skipped: SkippedList::default(),
        })
    }

    /// The header of the log.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The offset at which reading continues.
    pub fn offset(&self) -> u64 {
        self.window.offset()
    }

    /// The parts that were skipped so far; always empty in [`Mode::Strict`].
    pub fn skipped(&self) -> &SkippedList {
        &self.skipped
    }

    fn step(&mut self) -> Result<Option<(u64, Record)>, Error> {
        loop {
            let offset = self.window.offset();
            let ahead = self.window.ahead(RECORD_LEN)?;
            let has = ahead.len();
            let result = match ahead.first_chunk::<RECORD_LEN>() {
                Some(bytes) => parse(&self.header, bytes, offset),
                None if has == 0 => return Ok(None),
                None => Err(Error::Truncated {
                    record: "function",
                    offset,
                    needs: RECORD_LEN as u64,
                    has: has as u64,
                }),
            };
            let result = result.and_then(|record| self.check(record, offset));
            match result {
                Ok(record) => {
                    self.window.take(RECORD_LEN);
                    return Ok(Some((offset, record)));
                }
                Err(error) if self.mode == Mode::Salvage => {
                    self.window.take(RECORD_LEN);
                    self.entered = None;
                    self.skipped.push(offset, self.window.offset(), error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Checks that arguments follow the entry that they belong to.
    fn check(&mut self, record: Record, offset: u64) -> Result<Record, Error> {
        match record {
            Record::Function { kind, owner, .. } => {
                let enters = matches!(kind, FunctionKind::Enter | FunctionKind::EnterArg);
                self.entered = enters.then_some(owner);
            }
            Record::Argument { owner, .. } => {
                let entry = self.entered.ok_or(Error::Argument { offset })?;
                if entry != owner {
                    return Err(Error::OtherArgument {
                        offset,
                        argument: owner,
                        entry,
                    });
                }
            }
        }
        Ok(record)
    }
}

/// Yields each record with the offset of its first byte. After the first error in [`Mode::Strict`]
/// the records have no meaning.
impl<R: Read> Iterator for Reader<R> {
    type Item = Result<(u64, Record), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

fn parse(header: &Header, bytes: &[u8; RECORD_LEN], offset: u64) -> Result<Record, Error> {
    let order = header.order;
    let owner = |tid: usize, pid: usize| Owner {
        function: order.i32(bytes, 4),
        tid: order.u32(bytes, tid),
        pid: (header.version >= 3).then(|| order.u32(bytes, pid)),
    };
    match order.u16(bytes, 0) {
        0 => {
            let number = u32::from(bytes[3]);
            let unknown = Error::UnknownKind {
                what: "kind of function record",
                number,
                offset,
            };
            Ok(Record::Function {
                kind: FunctionKind::from_number(number).ok_or(unknown)?,
                cpu: bytes[2],
                tsc: order.u64(bytes, 8),
                owner: owner(16, 20),
            })
        }
        1 => Ok(Record::Argument {
            value: order.u64(bytes, 16),
            owner: owner(8, 12),
        }),
        number => Err(Error::UnknownKind {
            what: "record type",
            number: number.into(),
            offset,
        }),
    }
}

// === impl Record ===

impl Record {
    /// Writes the record.
    ///
    /// # Errors
    ///
    /// The errors of the output.
    pub fn write(&self, order: ByteOrder, output: &mut dyn Write) -> io::Result<()> {
        let pid = |owner: &Owner| order.put_u32(owner.pid.unwrap_or_default());
        match self {
            Self::Function {
                kind,
                cpu,
                tsc,
                owner,
            } => {
                let kind = u8::try_from(kind.number()).unwrap_or_default();
                output.write_all(&[0, 0, *cpu, kind])?;
                output.write_all(&order.put_u32(owner.function.cast_unsigned()))?;
                output.write_all(&order.put_u64(*tsc))?;
                output.write_all(&order.put_u32(owner.tid))?;
                output.write_all(&pid(owner))?;
            }
            Self::Argument { value, owner } => {
                output.write_all(&order.put_u16(1))?;
                output.write_all(&[0, 0])?;
                output.write_all(&order.put_u32(owner.function.cast_unsigned()))?;
                output.write_all(&order.put_u32(owner.tid))?;
                output.write_all(&pid(owner))?;
                output.write_all(&order.put_u64(*value))?;
            }
        }
        output.write_all(&[0; 8])
    }
}
