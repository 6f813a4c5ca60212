//! From records to events: each with its thread, process, processor and time.

use std::io::Read;
use std::ops::Range;

use super::verify::{InvalidEnd, State, Verifier};
use super::{FunctionKind, Kind, Layout, PlainCall, Reader, Record};
use crate::llvm::{Error, Header, Mode, SkippedList};

/// An event, and where it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<P> {
    /// Its record's first byte.
    pub offset: u64,
    /// The counter.
    pub tsc: u64,
    /// The counter at the record before.
    pub base: u64,
    /// The thread.
    pub tid: i32,
    /// The process: the thread's id in version 2, where no record tells; unknown in version 1.
    pub pid: Option<i32>,
    /// The processor.
    pub cpu: u16,
    /// What happened.
    pub body: Body<P>,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<P> {
    /// An entry or an exit.
    Call {
        /// Which of them. Old runtimes write [`FunctionKind::Enter`] also where an argument follows.
        kind: FunctionKind,
        /// The function's id.
        function: u32,
    },
    /// An argument of the call that the event in front entered, or a further one.
    Argument(u64),
    /// An event of the program's own.
    Custom(P),
    /// An event of the program's own with a type.
    Typed {
        /// The type, as the program has registered it.
        event_type: u16,
        /// What the program says.
        data: P,
    },
}

/// The buffer that the last event came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Buffer {
    /// Its first byte.
    pub offset: u64,
    /// Its thread.
    pub tid: Option<i32>,
    /// Its process, see [`Event::pid`].
    pub pid: Option<i32>,
    /// The clock that its thread read when it began: seconds and microseconds.
    pub wall: Option<(u64, u32)>,
    /// The counter at its first NewCPUId record, right after that.
    pub first: Option<u64>,
}

/// Calls that follow one on the other, see [`Events::calls`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calls {
    /// How many there are; not 0.
    pub count: usize,
    /// What the last one is.
    pub last: FunctionKind,
}

/// What a record tells, with its payload still in the window.
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
    /// The counter at the last record; meaningless before the buffer's first NewCPUId.
    tsc: u64,
    cpu: u16,
    /// An argument may follow.
    entered: bool,
}

// === impl Events ===

impl<R: Read> Events<R> {
    /// Reads the header of a log.
    ///
    /// # Errors
    ///
    /// If that is not the header of an FDR log of a version that is known.
    pub fn new(input: R, mode: Mode) -> Result<Self, Error> {
        Ok(Self::on(Reader::new(input, mode)?))
    }

    /// Reads on where a buffer begins, at this offset of the file.
    ///
    /// # Errors
    ///
    /// Those of the input.
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

    /// The buffer that the last event came from.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Where reading goes on.
    pub fn offset(&self) -> u64 {
        self.reader.offset()
    }

    /// How many buffers end in the middle of a record, see [`Reader::cut`].
    pub fn cut(&self) -> u64 {
        self.reader.cut()
    }

    /// What was left out so far; nothing but in [`Mode::Salvage`].
    pub fn skipped(&self) -> &SkippedList {
        self.reader.skipped()
    }

    /// What was left out in all; nothing but in [`Mode::Salvage`].
    #[must_use]
    pub fn into_skipped(self) -> SkippedList {
        self.reader.into_skipped()
    }

    /// The next event; `None` at the end of the file.
    ///
    /// # Errors
    ///
    /// In [`Mode::Strict`] the first damage, behind which nothing sensible comes; those of the input.
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
            // What an argument behind a gap belongs to is not known.
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

    /// Takes the calls that come next, one after the other with nothing in between, as far as they have been read already, and
    /// shows the function of each to `see`. Many times as fast as [`Events::next`], which comes next in any case. Time only goes on in
    /// them, from a counter that is not before `floor`; where it is, or might overflow, none are taken. None of them is followed by
    /// an argument but the last.
    ///
    /// # Errors
    ///
    /// Those of the input.
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

    /// How the records of the log are laid out.
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
                // Deltas behind it count from the record before it, as LLVM's reader has them.
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

    /// A buffer begins, and so the one before it ends.
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

    /// As [`Events::order`], but a record that says something of those behind it is of use wherever it stands.
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
    /// The same event with its payload held otherwise.
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
