//! Unpacks the events of a block. The bytes come from untrusted sources, so every one is checked.
//! It does not check that calls are properly nested.

use std::sync::Arc;

use super::MAX_DATA_LEN;
use super::decode_error::DecodeError;
use super::event_head::{HEAD_LEN, extended, head_kind};
use super::plain_calls::PlainCalls;
use super::predictor::Predictor;
use super::varint::{self, VarintError};
use crate::model::{CallKind, DataKind, DataRef, Event, EventBody, FunctionId, Ticks, Values};

/// The greatest length of an event of the common kinds: a head and a number.
const COMMON_LEN: usize = 5 + varint::MAX_LEN;

/// The bits of a head, by its length code.
const HEAD_BITS: [u64; 4] = [0xff, 0xffff, 0xff_ffff, 0xff_ffff_ffff];

/// The packed events of a block.
#[derive(Debug)]
pub(crate) struct PackedEvents {
    /// The packed events.
    payload: Arc<[u8]>,
    /// The begin of the next event; the end after an error.
    at: usize,
    /// The time of the previous event.
    ticks: u64,
    /// The expectation of the next event.
    predictor: Box<Predictor>,
}

// === impl PackedEvents ===

impl PlainCalls for PackedEvents {
    #[inline(always)]
    fn next_plain_call(&mut self) -> Option<(Ticks, FunctionId, CallKind)> {
        let bytes = self.payload.get(self.at..)?.first_chunk::<COMMON_LEN>()?;
        let word = u64::from_le_bytes(*bytes.first_chunk()?);
        let code = (word >> 2 & 3) as usize;
        let ticks = self.ticks.checked_add((word & HEAD_BITS[code]) >> 4)?;
        let mut end = HEAD_LEN[code];
        let (function, kind) = match word & 3 {
            head_kind::EXIT_INNERMOST => (self.predictor.exit_expected()?, CallKind::Exit),
            head_kind::ENTER_EXPECTED => (self.predictor.enter_expected()?, CallKind::Enter),
            head_kind::ENTER_NAMED => {
                let (number, len) = varint::read(bytes.get(end..)?).ok()?;
                end += len;
                let function = FunctionId(u32::try_from(number).ok()?);
                self.predictor.enter(function);
                (function, CallKind::Enter)
            }
            _ => return None,
        };
        self.at += end;
        self.ticks = ticks;
        Some((Ticks(ticks), function, kind))
    }
}

impl PackedEvents {
    pub(super) fn new(first: Ticks, payload: Arc<[u8]>) -> Self {
        Self {
            payload,
            at: 0,
            ticks: first.0,
            predictor: Predictor::new(),
        }
    }

    /// The data of a user event of this block.
    pub(super) fn data(&self, data: DataRef) -> &[u8] {
        let at = usize::try_from(data.at).unwrap_or(usize::MAX);
        self.payload
            .get(at..at.saturating_add(data.len()))
            .unwrap_or_default()
    }

    /// The begin of the next event in the block.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The next event of any kind; `None` at the end.
    pub(super) fn next_other(&mut self) -> Option<Result<Event, DecodeError>> {
        if self.at >= self.payload.len() {
            return None;
        }
        let event = self.decode();
        if event.is_err() {
            self.at = self.payload.len();
        }
        Some(event)
    }

    /// Unpacks one event. There is at least one byte. After an error the position is unchanged.
    fn decode(&mut self) -> Result<Event, DecodeError> {
        let start = self.at;
        let mut at = self.at;
        let mut ticks = self.ticks;
        loop {
            let (head, len) = self.head(at).ok_or(DecodeError::Cut { at: start })?;
            at += len;
            ticks = ticks
                .checked_add(head >> 4)
                .ok_or(DecodeError::OutOfRange { at: start })?;
            let call = |function, kind| EventBody::Call {
                function,
                kind,
                values: Values::NONE,
            };
            let body = match head & 3 {
                head_kind::EXIT_INNERMOST => {
                    let function = self.predictor.innermost();
                    let function = function.ok_or(DecodeError::NothingExpected { at: start })?;
                    self.predictor.exit_innermost(function);
                    call(function, CallKind::Exit)
                }
                head_kind::ENTER_EXPECTED => {
                    let function = self.predictor.next_entry();
                    let function = function.ok_or(DecodeError::NothingExpected { at: start })?;
                    self.predictor.enter(function);
                    call(function, CallKind::Enter)
                }
                head_kind::ENTER_NAMED => {
                    let function = self.function(&mut at, start)?;
                    self.predictor.enter(function);
                    call(function, CallKind::Enter)
                }
                _ => {
                    let byte = *self.payload.get(at).ok_or(DecodeError::Cut { at: start })?;
                    at += 1;
                    match byte {
                        extended::LOST => EventBody::Lost {
                            events: self.number(&mut at, start)?,
                        },
                        extended::UNWOUND => {
                            let calls = self.number(&mut at, start)?;
                            self.predictor.unwind(calls);
                            EventBody::Unwound { calls }
                        }
                        extended::UNMATCHED_EXIT => EventBody::UnmatchedExit,
                        extended::DATA | extended::SAID => self.data_event(byte, &mut at, start)?,
                        extended::CPU => {
                            let cpu = self.number(&mut at, start)?;
                            let cpu = u16::try_from(cpu);
                            EventBody::Cpu {
                                cpu: cpu.map_err(|_| DecodeError::OutOfRange { at: start })?,
                            }
                        }
                        extended::ADVANCE => {
                            let more = self.number(&mut at, start)?;
                            ticks = ticks
                                .checked_add(more)
                                .ok_or(DecodeError::OutOfRange { at: start })?;
                            continue;
                        }
                        _ => self.extended_call(byte, &mut at, start)?,
                    }
                }
            };
            self.at = at;
            self.ticks = ticks;
            return Ok(Event {
                ticks: Ticks(ticks),
                body,
            });
        }
    }

    /// The head at `at`, without the bits above its length, and its length.
    #[inline]
    fn head(&self, at: usize) -> Option<(u64, usize)> {
        let rest = self.payload.get(at..)?;
        let len = HEAD_LEN[usize::from(rest.first()? >> 2 & 3)];
        let word = match rest.first_chunk::<8>() {
            Some(bytes) => u64::from_le_bytes(*bytes),
            None => {
                let mut bytes = [0; 8];
                bytes[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(bytes)
            }
        };
        (len <= rest.len()).then_some((word & ((1 << (8 * len)) - 1), len))
    }

    fn extended_call(
        &mut self,
        byte: u8,
        at: &mut usize,
        start: usize,
    ) -> Result<EventBody, DecodeError> {
        let kind = match byte & !(extended::NAMED | extended::VALUES) {
            extended::ENTER => CallKind::Enter,
            extended::EXIT => CallKind::Exit,
            extended::TAIL_EXIT => CallKind::TailExit,
            _ => {
                return Err(DecodeError::UnknownKind {
                    at: start,
                    kind: byte,
                });
            }
        };
        let function = if byte & extended::NAMED != 0 {
            self.function(at, start)?
        } else {
            let expected = match kind {
                CallKind::Enter => self.predictor.next_entry(),
                CallKind::Exit | CallKind::TailExit => self.predictor.innermost(),
            };
            expected.ok_or(DecodeError::NothingExpected { at: start })?
        };
        let values = self.values(byte, at, start)?;
        self.predictor.follow(function, kind);
        Ok(EventBody::Call {
            function,
            kind,
            values,
        })
    }

    /// The values after a call's function.
    fn values(&self, byte: u8, at: &mut usize, start: usize) -> Result<Values, DecodeError> {
        let count = usize::from((byte & extended::VALUES) >> extended::VALUES_SHIFT);
        let mut values = [0; Values::MOST];
        let (values, kind) = (values.get_mut(..count), byte);
        let values = values.ok_or(DecodeError::UnknownKind { at: start, kind })?;
        for value in &mut *values {
            *value = self.number(at, start)?;
        }
        Ok(Values::new(values.iter().copied()))
    }

    fn data_event(&self, byte: u8, at: &mut usize, start: usize) -> Result<EventBody, DecodeError> {
        let out_of_range = DecodeError::OutOfRange { at: start };
        let kind = match self.number(at, start)? {
            0 => DataKind::Custom,
            number => DataKind::Typed(u16::try_from(number - 1).map_err(|_| out_of_range)?),
        };
        let (function, size) = match byte {
            extended::SAID => {
                let function = self.number(at, start)?.checked_sub(1);
                let function = function.map(u32::try_from).transpose();
                let function = function.map_err(|_| out_of_range)?.map(FunctionId);
                let size = self.number(at, start)?;
                (
                    function,
                    Some(u32::try_from(size).map_err(|_| out_of_range)?),
                )
            }
            _ => (None, None),
        };
        let len = usize::try_from(self.number(at, start)?)
            .ok()
            .filter(|len| *len <= MAX_DATA_LEN)
            .ok_or(out_of_range)?;
        if self.payload.len() - *at < len {
            return Err(DecodeError::Cut { at: start });
        }
        let there = u32::try_from(len).map_err(|_| out_of_range)?;
        let data = DataRef {
            at: u32::try_from(*at).map_err(|_| out_of_range)?,
            len: there,
            size: size.unwrap_or(there).max(there),
            function,
        };
        *at += len;
        Ok(EventBody::Data { kind, data })
    }

    fn function(&self, at: &mut usize, start: usize) -> Result<FunctionId, DecodeError> {
        let number = self.number(at, start)?;
        let id = u32::try_from(number).map_err(|_| DecodeError::OutOfRange { at: start })?;
        Ok(FunctionId(id))
    }

    fn number(&self, at: &mut usize, start: usize) -> Result<u64, DecodeError> {
        let rest = self.payload.get(*at..).unwrap_or_default();
        let (number, len) = varint::read(rest).map_err(|error| match error {
            VarintError::Short => DecodeError::Cut { at: start },
            VarintError::TooLong => DecodeError::OutOfRange { at: start },
        })?;
        *at += len;
        Ok(number)
    }
}
