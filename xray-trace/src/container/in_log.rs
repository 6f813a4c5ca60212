//! Blocks whose events are still records of a log of LLVM's flight data recorder. The records are
//! read when events are needed. Their order was checked when the log was opened. If the file
//! changes afterwards, reading gives an error, or other events.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::MAX_DATA_LEN;
use super::decode_error::DecodeError;
use super::plain_calls::PlainCalls;
use crate::function_map::FunctionMap;
use crate::llvm::fdr::{FunctionKind, Layout, PlainCall, Record};
use crate::model::{CallKind, DataKind, DataRef, Event, EventBody, FunctionId, Ticks, Values};

/// The kind of call of each kind of function record, unless an argument follows. It is a table,
/// because a processor cannot predict whether a call begins or ends.
const KINDS: [Option<CallKind>; 4] = {
    let mut kinds = [None; 4];
    kinds[FunctionKind::Enter as usize] = Some(CallKind::Enter);
    kinds[FunctionKind::Exit as usize] = Some(CallKind::Exit);
    kinds[FunctionKind::TailExit as usize] = Some(CallKind::TailExit);
    kinds
};

/// An open log.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) file: Arc<File>,
    pub(crate) layout: Layout,
    /// The id + 1 of each function in the trace, by its id in the log.
    pub(crate) functions: FunctionMap<u32>,
}

/// Records of one thread of a log, in consecutive buffers.
#[derive(Debug, Clone)]
pub(crate) struct Stretch {
    pub(crate) log: Arc<Log>,
    pub(crate) place: LogPosition,
}

/// The place of records, and the state before the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogPosition {
    /// The offset of the first record.
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// The counter at the record before the first one.
    pub(crate) base: u64,
    /// The processor at that record.
    pub(crate) cpu: u16,
    /// Times before this one are replaced by it.
    pub(crate) floor: u64,
}

/// The events of a stretch.
#[derive(Debug)]
pub(crate) struct Events {
    log: Arc<Log>,
    /// The records, with zeros behind them, so that the next record's first byte can always be
    /// read.
    bytes: Vec<u8>,
    /// The end of the records.
    end: usize,
    /// Before this offset, calls may be taken one after the other without checking other state.
    plain_end: usize,
    /// The begin of the next record.
    at: usize,
    /// The counter at the latest record.
    tsc: u64,
    /// The time of the latest event.
    ticks: u64,
    /// The processor at the latest record.
    cpu: u16,
    /// The processor of the latest processor event.
    reported: Option<u16>,
}

// === impl Stretch ===

impl Stretch {
    pub(super) fn events(&self) -> Result<Events, DecodeError> {
        let Self { log, place } = self;
        let unreadable = |kind| DecodeError::Unreadable(kind);
        let end =
            usize::try_from(place.len).map_err(|_| unreadable(std::io::ErrorKind::OutOfMemory))?;
        let mut bytes = vec![0; end + PlainCall::LEN];
        log.file
            .read_exact_at(&mut bytes[..end], place.offset)
            .map_err(|error| unreadable(error.kind()))?;
        Ok(Events {
            log: log.clone(),
            bytes,
            end,
            plain_end: 0,
            at: 0,
            tsc: place.base,
            ticks: place.floor,
            cpu: place.cpu,
            reported: None,
        })
    }
}

// === impl Events ===

impl PlainCalls for Events {
    #[inline(always)]
    fn next_plain_call(&mut self) -> Option<(Ticks, FunctionId, CallKind)> {
        if self.at >= self.plain_end {
            return None;
        }
        let bytes = self.bytes.get(self.at..)?.first_chunk::<9>()?;
        let call = PlainCall::new(*bytes.first_chunk()?)?;
        let kind = KINDS[call.kind() as usize]?;
        if PlainCall::is_argument(bytes[PlainCall::LEN]) {
            return None;
        }
        let function = self.log.functions.get(FunctionId(call.function()));
        let function = FunctionId(function.checked_sub(1)?);
        self.tsc = self.tsc.checked_add(call.delta().into())?;
        self.ticks = self.ticks.max(self.tsc);
        self.at += PlainCall::LEN;
        Some((Ticks(self.ticks), function, kind))
    }
}

impl Events {
    pub(super) fn data(&self, data: DataRef) -> &[u8] {
        let at = usize::try_from(data.at).unwrap_or(usize::MAX);
        self.bytes
            .get(at..at.saturating_add(data.len()))
            .unwrap_or_default()
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The next event of any kind; `None` at the end.
    #[inline(never)]
    pub(super) fn next_other(&mut self) -> Option<Result<Event, DecodeError>> {
        let event = self.decode().transpose()?;
        if event.is_err() {
            self.at = self.end;
        }
        self.plain_end = match self.reported == Some(self.cpu) && self.log.layout.is_plain() {
            true => self.end,
            false => 0,
        };
        Some(event)
    }

    fn decode(&mut self) -> Result<Option<Event>, DecodeError> {
        while self.at < self.end {
            let start = self.at;
            let (record, len) = self.record(start)?;
            let out_of_range = DecodeError::OutOfRange { at: start };
            let (delta, cpu) = match record {
                Record::Function { delta, .. } => (i64::from(delta), self.cpu),
                Record::CustomEventDelta { delta, .. } | Record::TypedEvent { delta, .. } => {
                    (delta.into(), self.cpu)
                }
                // The record has a time of its own, which does not count for the records behind it.
                Record::CustomEvent { cpu, .. } if self.log.layout.version() == 4 => (0, cpu),
                Record::CustomEvent { .. } => (0, self.cpu),
                other => {
                    match other {
                        Record::NewCpu { cpu, tsc } => (self.cpu, self.tsc) = (cpu, tsc),
                        Record::TscWrap { tsc } => self.tsc = tsc,
                        _ => {}
                    }
                    self.at += len;
                    continue;
                }
            };
            let tsc = self.tsc.checked_add_signed(delta).ok_or(out_of_range)?;
            let now = match record {
                Record::CustomEvent { tsc, .. } => tsc,
                _ => tsc,
            };
            self.ticks = self.ticks.max(now);
            let ticks = Ticks(self.ticks);
            if self.reported != Some(cpu) {
                self.reported = Some(cpu);
                let body = EventBody::Cpu { cpu };
                return Ok(Some(Event { ticks, body }));
            }
            self.tsc = tsc;
            self.at += len;
            let body = match record {
                Record::Function { kind, function, .. } => self.call(kind, function, start)?,
                Record::CustomEvent { data, .. } | Record::CustomEventDelta { data, .. } => {
                    user_event(DataKind::Custom, start, data)?
                }
                Record::TypedEvent {
                    event_type, data, ..
                } => user_event(DataKind::Typed(event_type), start, data)?,
                _ => continue,
            };
            return Ok(Some(Event { ticks, body }));
        }
        Ok(None)
    }

    /// A call, with the argument that follows it.
    fn call(
        &mut self,
        kind: FunctionKind,
        function: u32,
        start: usize,
    ) -> Result<EventBody, DecodeError> {
        let known = self.log.functions.get(FunctionId(function));
        let function = known
            .checked_sub(1)
            .ok_or(DecodeError::OutOfRange { at: start })?;
        let kind = match kind {
            FunctionKind::Enter | FunctionKind::EnterArg => CallKind::Enter,
            FunctionKind::Exit => CallKind::Exit,
            FunctionKind::TailExit => CallKind::TailExit,
        };
        let values = match (kind, self.record(self.at)) {
            (CallKind::Enter, Ok((Record::CallArgument { value }, len))) => {
                self.at += len;
                Values::new([value])
            }
            _ => Values::NONE,
        };
        Ok(EventBody::Call {
            function: FunctionId(function),
            kind,
            values,
        })
    }

    /// The record at `at`, the range of its payload relative to `at`, and its length.
    fn record(&self, at: usize) -> Result<(Record<std::ops::Range<usize>>, usize), DecodeError> {
        let bytes = self.bytes.get(at..self.end).unwrap_or_default();
        let record = self.log.layout.record(bytes);
        record.ok_or(DecodeError::Cut { at })
    }
}

fn user_event(
    kind: DataKind,
    start: usize,
    data: std::ops::Range<usize>,
) -> Result<EventBody, DecodeError> {
    let out_of_range = |_| DecodeError::OutOfRange { at: start };
    let data = DataRef {
        at: u32::try_from(start + data.start).map_err(out_of_range)?,
        len: u32::try_from(data.len().min(MAX_DATA_LEN)).map_err(out_of_range)?,
        size: u32::try_from(data.len()).map_err(out_of_range)?,
        function: None,
    };
    Ok(EventBody::Data { kind, data })
}
