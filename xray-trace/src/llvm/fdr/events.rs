//! Makes events from records: each with its thread, process, processor and time.

use std::io::Read;
use std::ops::Range;

use super::verify::{InvalidEnd, State, Verifier};
use super::{FunctionKind, Kind, Layout, PlainCall, Reader, Record};
use crate::llvm::{Error, Header, Mode, SkippedList};

/// An event with its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<P> {
    /// The offset of its record.
    pub offset: u64,
    /// The counter.
    pub tsc: u64,
    /// The counter at the previous record.
    pub base: u64,
    /// The thread.
    pub tid: i32,
    /// The process. In version 2, without process records, it is the thread's id; unknown in
    /// version 1.
    pub pid: Option<i32>,
    /// The processor.
    pub cpu: u16,
    /// The kind of the event, with its data.
    pub body: Body<P>,
}

/// The kind of an event, with its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<P> {
    /// An entry or an exit.
    Call {
        /// Entry or exit. Old runtimes write [`FunctionKind::Enter`] even if an argument follows.
        kind: FunctionKind,
        /// The function's id.
        function: u32,
    },
    /// An argument of the call that the previous event entered, or a further one.
    Argument(u64),
    /// A custom event.
    Custom(P),
    /// A typed event.
    Typed {
        /// The type, as the program has registered it.
        event_type: u16,
        /// The data.
        data: P,
    },
}

/// The buffer of the last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Buffer {
    /// The offset of its first byte.
    pub offset: u64,
    /// Its thread.
    pub tid: Option<i32>,
    /// Its process, see [`Event::pid`].
    pub pid: Option<i32>,
    /// The wall clock at its begin: seconds and microseconds.
    pub wall: Option<(u64, u32)>,
    /// The counter at its first NewCPUId record, which follows the wall clock.
    pub first: Option<u64>,
}

/// Consecutive calls, see [`Events::calls`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calls {
    /// The number of calls; not 0.
    pub count: usize,
    /// The kind of the last one.
    pub last: FunctionKind,
}

/// The content of a record, with its payload still in the window.
struct Happened {
    tsc: u64,
    cpu: u16,
    body: Body<Range<usize>>,
}

/// Reads the events of a log.
#[derive(Debug)]
pub struct Events<R> {
    reader: Reader<R>,
    verifier: Verifier,
    buffer: Buffer,
    /// The counter at the last record; undefined before the buffer's first NewCPUId.
    tsc: u64,
    cpu: u16,
    /// True if an argument may follow.
    entered: bool,
}

// === impl Events ===

impl<R: Read> Events<R> {
    /// Reads the header of a log.
    ///
    /// # Errors
    ///
    /// If the input does not begin with the header of an FDR log of a known version.
    pub fn new(input: R, mode: Mode) -> Result<Self, Error> {
        Ok(Self::on(Reader::new(input, mode)?))
    }

    /// Continues reading at this offset of the file, where a buffer begins.
    ///
    /// # Errors
    ///
    /// The errors of the input.
    pub fn resume(input: R, header: Header, offset: u64, mode: Mode) -> Result<Self, Error> {
        Ok(Self::on(Reader::resume(input, header, offset, mode)?))
    }

    fn on(reader: Reader<R>) -> Self {
        Self {
            reader,
            verifier: Verifier::default(),
            buffer: Buffer::default(),
            tsc: 0,
            cpu: 0,
            entered: false,
        }
    }

    /// The header of the log.
    pub fn header(&self) -> &Header {
        self.reader.header()
    }

    /// The buffer of the last event.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The offset at which reading continues.
    pub fn offset(&self) -> u64 {
        self.reader.offset()
    }

    /// The number of buffers that end in the middle of a record, see [`Reader::cut`].
    pub fn cut(&self) -> u64 {
        self.reader.cut()
    }

    /// The parts that were skipped so far; always empty in [`Mode::Strict`].
    pub fn skipped(&self) -> &SkippedList {
        self.reader.skipped()
    }

    /// All skipped parts; always empty in [`Mode::Strict`].
    #[must_use]
    pub fn into_skipped(self) -> SkippedList {
        self.reader.into_skipped()
    }

    /// The next event; `None` at the end of the file.
    ///
    /// # Errors
    ///
    /// In [`Mode::Strict`] the first damage, after which the events have no meaning; and the errors
    /// of the input.
    #[expect(
        clippy::should_implement_trait,
        reason = "an event borrows from the reader, which Iterator cannot say"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Event<&[u8]>>, Error> {
        loop {
            let left_out = self.reader.skipped().places();
            let Some((offset, record)) = self.reader.step()? else {
                return self.end().map(|()| None);
            };
            // An argument behind a gap belongs to an unknown call.
            self.entered &= self.reader.skipped().places() == left_out;
            let base = self.tsc;
            let happened = match self.apply(offset, record) {
                Ok(happened) => happened,
                Err(error) if self.reader.mode() == Mode::Salvage => {
                    self.reader.leave_out(offset, self.reader.offset(), error);
                    self.entered = false;
                    None
                }
                Err(error) => return Err(error),
            };
            if let (Some(happened), Some(tid)) = (happened, self.buffer.tid) {
                return Ok(Some(Event {
                    offset,
                    tsc: happened.tsc,
                    base,
                    tid,
                    pid: self.buffer.pid,
                    cpu: happened.cpu,
                    body: happened.body.map(|payload| self.reader.payload(payload)),
                }));
            }
        }
    }

    /// Takes the next calls that have been read already and have no other records between them, and
    /// passes the function of each to `see`. This is many times as fast as [`Events::next`]. Call
    /// [`Events::next`] afterwards in any case.
    ///
    /// Returns `None` if the counter is before `floor` or might overflow, so time only advances in
    /// these calls. Only the last one can be followed by an argument.
    ///
    /// # Errors
    ///
    /// The errors of the input.
    #[inline(never)]
    pub fn calls(&mut self, floor: u64, mut see: impl FnMut(u32)) -> Result<Option<Calls>, Error> {
        let may = self.tsc >= floor
            && self.reader.layout().is_plain()
            && self.buffer.tid.is_some()
            && Verifier::step(&mut self.verifier.clone(), Kind::Function).is_ok();
        if !may {
            return Ok(None);
        }
        let begun = self.tsc;
        let records = self.reader.read_ahead()?.as_chunks().0;
        let longest = (records.len() as u64).checked_mul(u32::MAX.into());
        if longest.and_then(|ticks| begun.checked_add(ticks)).is_none() {
            return Ok(None);
        }
        let (mut ticks, mut last) = (0, None);
        let mut count = 0;
        for bytes in records {
            let Some(call) = PlainCall::new(*bytes) else {
                break;
            };
            ticks += u64::from(call.delta());
            see(call.function());
            last = Some(call.kind());
            count += 1;
        }
        let Some(last) = last else {
            return Ok(None);
        };
        self.reader.take(count * PlainCall::LEN);
        self.verifier.force(Kind::Function);
        self.tsc = begun + ticks;
        self.entered = matches!(last, FunctionKind::Enter | FunctionKind::EnterArg);
        Ok(Some(Calls { count, last }))
    }

    /// The layout of the log's records.
    pub fn layout(&self) -> Layout {
        self.reader.layout()
    }

    /// The counter and the processor at the last record.
    pub fn place(&self) -> (u64, u16) {
        (self.tsc, self.cpu)
    }

    #[inline]
    fn apply(
        &mut self,
        offset: u64,
        record: Record<Range<usize>>,
    ) -> Result<Option<Happened>, Error> {
        if let Record::Function {
            kind,
            function,
            delta,
        } = record
        {
            self.order(Kind::Function, offset)?;
            self.advance(Kind::Function, offset, i64::from(delta))?;
            self.entered = matches!(kind, FunctionKind::Enter | FunctionKind::EnterArg);
            return Ok(Some(self.now(Body::Call { kind, function })));
        }
        self.apply_other(offset, record)
    }

    fn apply_other(
        &mut self,
        offset: u64,
        record: Record<Range<usize>>,
    ) -> Result<Option<Happened>, Error> {
        let kind = record.kind();
        if let Record::BufferExtents { size } = record {
            self.begin(offset)?;
            if size != 0 {
                self.order(kind, offset)?;
            }
            return Ok(None);
        }
        if kind == Kind::NewBuffer && self.reader.buffer() == offset {
            self.begin(offset)?;
        }
        self.order_or_note(kind, offset)?;
        if kind != Kind::CallArg {
            self.entered = false;
        }
        let body = match record {
            Record::NewBuffer { tid } => {
                self.buffer.tid = Some(tid);
                if self.header().version == 2 {
                    self.buffer.pid = Some(tid);
                }
                return Ok(None);
            }
            Record::WallTime { seconds, micros } => {
                self.buffer.wall = Some((seconds, micros));
                return Ok(None);
            }
            Record::Pid { pid } => {
                self.buffer.pid = Some(pid);
                return Ok(None);
            }
            Record::NewCpu { cpu, tsc } => {
                self.cpu = cpu;
                self.tsc = tsc;
                self.buffer.first.get_or_insert(tsc);
                return Ok(None);
            }
            Record::TscWrap { tsc } => {
                self.tsc = tsc;
                return Ok(None);
            }
            Record::CallArgument { value } if self.entered => Body::Argument(value),
            Record::CallArgument { .. } => return Err(Error::Argument { offset }),
            Record::CustomEvent { tsc, cpu, data } => {
                // Deltas behind it count from the record before it, as in LLVM's reader.
                let cpu = if self.header().version == 4 {
                    cpu
                } else {
                    self.cpu
                };
                let body = Body::Custom(data);
                return Ok(Some(Happened { tsc, cpu, body }));
            }
            Record::CustomEventDelta { delta, data } => {
                self.advance(kind, offset, delta.into())?;
                Body::Custom(data)
            }
            Record::TypedEvent {
                delta,
                event_type,
                data,
            } => {
                self.advance(kind, offset, delta.into())?;
                Body::Typed { event_type, data }
            }
            Record::BufferExtents { .. } | Record::EndOfBuffer | Record::Function { .. } => {
                return Ok(None);
            }
        };
        Ok(Some(self.now(body)))
    }

    /// Begins a buffer, and ends the previous one.
    fn begin(&mut self, offset: u64) -> Result<(), Error> {
        self.buffer = Buffer {
            offset,
            ..Buffer::default()
        };
        self.entered = false;
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        if self.verifier.state() == State::Unknown {
            return Ok(());
        }
        let offset = self.reader.offset();
        match self.verifier.finish() {
            Ok(()) => Ok(()),
            Err(InvalidEnd { last }) if self.reader.mode() == Mode::Salvage => {
                let why = Error::Terminal { offset, last };
                self.reader.leave_out(offset, offset, why);
                Ok(())
            }
            Err(InvalidEnd { last }) => Err(Error::Terminal { offset, last }),
        }
    }

    #[inline]
    fn order(&mut self, kind: Kind, offset: u64) -> Result<(), Error> {
        let step = self.verifier.step(kind);
        step.map_err(|why| Error::Order { offset, why })
    }

    /// Like [`Events::order`], but in [`Mode::Salvage`] accepts a record with facts about later
    /// records at any place.
    fn order_or_note(&mut self, kind: Kind, offset: u64) -> Result<(), Error> {
        let useful = match kind {
            Kind::NewBuffer => true,
            Kind::WallClockTime | Kind::PidEntry | Kind::NewCpuId | Kind::TscWrap => {
                self.buffer.tid.is_some()
            }
            _ => false,
        };
        match self.order(kind, offset) {
            Err(why) if useful && self.reader.mode() == Mode::Salvage => {
                self.reader.leave_out(offset, offset, why);
                self.verifier.force(kind);
                Ok(())
            }
            result => result,
        }
    }

    #[inline]
    fn advance(&mut self, record: Kind, offset: u64, delta: i64) -> Result<(), Error> {
        let base = self.tsc;
        let error = || Error::Time {
            record,
            offset,
            base,
            delta,
        };
        self.tsc = base.checked_add_signed(delta).ok_or_else(error)?;
        Ok(())
    }

    #[inline]
    fn now(&self, body: Body<Range<usize>>) -> Happened {
        Happened {
            tsc: self.tsc,
            cpu: self.cpu,
            body,
        }
    }
}

// === impl Event ===

impl<P> Event<P> {
    /// The same event with another representation of its payload.
    pub fn map<Q>(self, payload: impl FnOnce(P) -> Q) -> Event<Q> {
        let Self {
            offset,
            tsc,
            base,
            tid,
            pid,
            cpu,
            body,
        } = self;
        Event {
            offset,
            tsc,
            base,
            tid,
            pid,
            cpu,
            body: body.map(payload),
        }
    }
}

// === impl Body ===

impl<P> Body<P> {
    #[inline]
    fn map<Q>(self, payload: impl FnOnce(P) -> Q) -> Body<Q> {
        match self {
            Self::Call { kind, function } => Body::Call { kind, function },
            Self::Argument(value) => Body::Argument(value),
            Self::Custom(data) => Body::Custom(payload(data)),
            Self::Typed { event_type, data } => Body::Typed {
                event_type,
                data: payload(data),
            },
        }
    }
}
