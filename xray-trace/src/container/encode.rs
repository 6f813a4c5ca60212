//! Packs events into the bytes of a block. This is the collector's innermost loop: no allocation
//! per event, no branch that a well-behaved program mispredicts.

use std::sync::Arc;

use super::event_head::{DELTA_BITS, extended, head_kind};
use super::events::Events;
use super::function_set::{FunctionSet, NamedFunctions};
use super::packed_bytes::PackedBytes;
use super::predictor::Predictor;
use crate::model::{CallKind, DataKind, Event, EventBody, FunctionId, ThreadId, Ticks, Values};

/// Packs the events of one thread.
#[derive(Debug)]
pub struct BlockEncoder {
    /// The thread of the events.
    thread: ThreadId,
    /// The packed events of the block. Emptied by `finish`.
    packed: PackedBytes,
    /// The time of the block's first event. Set by the first push after `finish`.
    first: u64,
    /// The time of the latest event, across blocks: time never runs backwards within a thread.
    last: u64,
    /// The number of call events in the block. Reset by `finish`.
    calls: u32,
    /// The number of entries among them. Reset by `finish`.
    entries: u32,
    /// The functions that events of the block name. Emptied by `finish`.
    named: NamedFunctions,
    /// The number of lost events in the block. Reset by `finish`.
    lost: u64,
    /// The expectation of the next event; `None` before the first event. Reset by `finish`.
    predictor: Option<Box<Predictor>>,
}

/// The packed events of a block, and the facts about them for the block.
#[derive(Debug)]
pub(super) struct EncodedBlock {
    /// The time of the first event.
    pub(super) first: Ticks,
    /// The time of the last event.
    pub(super) last: Ticks,
    /// The number of call events.
    pub(super) calls: u32,
    /// The number of lost events.
    pub(super) lost: u64,
    /// The packed events.
    pub(super) bytes: Arc<[u8]>,
}

// === impl BlockEncoder ===

impl BlockEncoder {
    /// A good length for finishing a block. It is long enough that the cost of tables and headers
    /// does not matter, and short enough that few events are held back.
    pub const GOOD_LEN: usize = 64 * 1024;

    /// Makes an encoder for the events of `thread`.
    #[must_use]
    pub fn new(thread: ThreadId) -> Self {
        Self {
            thread,
            packed: PackedBytes::default(),
            first: 0,
            last: 0,
            calls: 0,
            entries: 0,
            named: NamedFunctions::new(),
            lost: 0,
            predictor: None,
        }
    }

    /// The thread of the events.
    #[must_use]
    pub fn thread(&self) -> ThreadId {
        self.thread
    }

    /// Whether no event was pushed since the last `finish`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    /// The bytes packed since the last `finish`. Blocks must stay below [`super::MAX_SECTION_LEN`];
    /// finish them at about [`Self::GOOD_LEN`].
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.packed.len()
    }

    /// The number of call events pushed since the last `finish`.
    #[must_use]
    pub fn events(&self) -> u32 {
        self.calls
    }

    /// The number of entries pushed since the last `finish`.
    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    /// Takes the functions of the events pushed since the last `finish`. To be called before it.
    pub(super) fn take_functions(&mut self) -> FunctionSet {
        self.named.take()
    }

    /// Adds an event from `events`, with another id of its function.
    pub(super) fn push(
        &mut self,
        event: &Event,
        events: &Events,
        number: impl FnOnce(FunctionId) -> FunctionId,
    ) {
        let ticks = event.ticks;
        match event.body {
            EventBody::Call {
                function,
                kind,
                values,
            } => self.push_call(ticks, number(function), kind, values),
            EventBody::Data { kind, data } if data.function().is_some() || data.is_cut() => {
                let size = u32::try_from(data.size()).unwrap_or(u32::MAX);
                let function = data.function().map(number);
                self.push_user_event(ticks, kind, function, size, events.data(data));
            }
            EventBody::Data { kind, data } => {
                self.push_data(ticks, kind, events.data(data));
            }
            EventBody::Cpu { cpu } => self.push_cpu(ticks, cpu),
            EventBody::Unwound { calls } => self.push_unwound(ticks, calls),
            EventBody::UnmatchedExit => self.push_unmatched_exit(ticks),
            EventBody::Lost { events } => self.push_lost(ticks, events),
        }
    }

    /// Adds a call event: an entry with its arguments, or an exit with its result, if recorded. A
    /// time before the latest event's is replaced by that event's.
    #[expect(
        clippy::inline_always,
        reason = "the collector's innermost loop, where it takes longer to call this than to do it"
    )]
    #[inline(always)]
    pub fn push_call(
        &mut self,
        ticks: Ticks,
        function: FunctionId,
        kind: CallKind,
        values: impl Into<Values> + Copy,
    ) {
        // The values are created only if there are any, which is rare.
        let bare = values.into().is_empty();
        let delta = self.delta(ticks);
        // The count cannot overflow, because each event takes a byte.
        self.calls = self.calls.wrapping_add(1);
        self.entries = self
            .entries
            .wrapping_add(u32::from(kind == CallKind::Enter));
        if !bare || kind == CallKind::TailExit || delta >> DELTA_BITS != 0 {
            self.put_rare(function, kind, &values.into(), delta);
        } else if kind == CallKind::Enter {
            match self.predictor().enter(function) {
                true => self.packed.put_head(head_kind::ENTER_EXPECTED, delta),
                false => self.put_unexpected(function, kind, delta),
            }
        } else {
            match self.predictor().exit_innermost(function) {
                true => self.packed.put_head(head_kind::EXIT_INNERMOST, delta),
                false => self.put_unexpected(function, kind, delta),
            }
        }
    }

    /// Adds a loss of `events` events.
    pub fn push_lost(&mut self, ticks: Ticks, events: u64) {
        self.begin_extended(ticks, extended::LOST);
        self.packed.put_number(events);
        self.lost = self.lost.saturating_add(events);
    }

    /// Records that `calls` of the innermost calls have ended without an exit.
    pub fn push_unwound(&mut self, ticks: Ticks, calls: u64) {
        self.begin_extended(ticks, extended::UNWOUND);
        self.packed.put_number(calls);
        self.predictor().unwind(calls);
    }

    /// Marks the exit that is pushed next: it belongs to no open call.
    pub fn push_unmatched_exit(&mut self, ticks: Ticks) {
        self.begin_extended(ticks, extended::UNMATCHED_EXIT);
    }

    /// Adds a user event. Returns the number of its bytes beyond [`MAX_DATA_LEN`], which are
    /// dropped. Kernel events have sections of their own, so of such an event all bytes are
    /// dropped.
    pub fn push_data(&mut self, ticks: Ticks, kind: DataKind, data: &[u8]) -> usize {
        let Some(number) = number_of(kind) else {
            return data.len();
        };
        self.begin_extended(ticks, extended::DATA);
        self.packed.put_number(number);
        self.packed.put_data(data)
    }

    /// Adds a user event in `function`, if that is known. The program announced `size` bytes, of
    /// which `data` is available. Returns the number of dropped bytes of `data`, as
    /// [`Self::push_data`].
    pub fn push_user_event(
        &mut self,
        ticks: Ticks,
        kind: DataKind,
        function: Option<FunctionId>,
        size: u32,
        data: &[u8],
    ) -> usize {
        let Some(number) = number_of(kind) else {
            return data.len();
        };
        self.begin_extended(ticks, extended::SAID);
        self.packed.put_number(number);
        self.packed
            .put_number(function.map_or(0, |function| u64::from(function.0) + 1));
        if let Some(function) = function {
            self.named.add(function);
        }
        self.packed.put_number(u64::from(size));
        self.packed.put_data(data)
    }

    /// Records that the thread runs on another processor from here on.
    pub fn push_cpu(&mut self, ticks: Ticks, cpu: u16) {
        self.begin_extended(ticks, extended::CPU);
        self.packed.put_number(u64::from(cpu));
    }

    /// Takes the packed events, if the block has any, and begins the next block.
    pub(super) fn take(&mut self) -> Option<EncodedBlock> {
        if self.is_empty() {
            return None;
        }
        let block = EncodedBlock {
            first: Ticks(self.first),
            last: Ticks(self.last),
            calls: self.calls,
            lost: self.lost,
            bytes: Arc::from(self.packed.as_slice()),
        };
        self.packed.clear();
        self.calls = 0;
        self.entries = 0;
        self.named.clear();
        self.lost = 0;
        if let Some(predictor) = &mut self.predictor {
            predictor.reset();
        }
        Some(block)
    }

    /// Writes the head of an event that is no call, and its kind.
    fn begin_extended(&mut self, ticks: Ticks, kind: u8) {
        let delta = self.delta(ticks);
        let delta = self.packed.put_advance(delta);
        self.packed.put_head(head_kind::EXTENDED, delta);
        self.packed.put_byte(kind);
    }

    /// The expectation of the next event. A thread without events has none: it takes 18 KiB.
    #[inline]
    fn predictor(&mut self) -> &mut Predictor {
        self.predictor.get_or_insert_with(Predictor::new)
    }

    /// The time since the previous event.
    #[inline]
    fn delta(&mut self, ticks: Ticks) -> u64 {
        if self.packed.is_empty() {
            self.last = self.last.max(ticks.0);
            self.first = self.last;
            return 0;
        }
        let delta = ticks.0.saturating_sub(self.last);
        self.last += delta;
        delta
    }

    /// Writes an event that was not expected, with its function.
    #[cold]
    fn put_unexpected(&mut self, function: FunctionId, kind: CallKind, delta: u64) {
        self.named.add(function);
        match kind {
            CallKind::Enter => self.packed.put_head(head_kind::ENTER_NAMED, delta),
            CallKind::Exit | CallKind::TailExit => {
                self.predictor().exit_other(function);
                self.packed.put_head(head_kind::EXTENDED, delta);
                self.packed.put_byte(extended::EXIT | extended::NAMED);
            }
        }
        self.packed.put_number(u64::from(function.0));
    }

    /// Writes tail exits, events with values, and times that no head has room for.
    #[inline(never)]
    fn put_rare(&mut self, function: FunctionId, kind: CallKind, values: &Values, delta: u64) {
        let delta = self.packed.put_advance(delta);
        let mut byte = match kind {
            CallKind::Enter => extended::ENTER,
            CallKind::Exit => extended::EXIT,
            CallKind::TailExit => extended::TAIL_EXIT,
        };
        let expected = self.predictor().follow(function, kind);
        if !expected {
            byte |= extended::NAMED;
        }
        // At most six.
        byte |= u8::try_from(values.len()).unwrap_or(0) << extended::VALUES_SHIFT;
        self.packed.put_head(head_kind::EXTENDED, delta);
        self.packed.put_byte(byte);
        if !expected {
            self.named.add(function);
            self.packed.put_number(u64::from(function.0));
        }
        for value in values.as_slice() {
            self.packed.put_number(*value);
        }
    }
}

/// The number of a kind in a block. Blocks have no kernel events.
fn number_of(kind: DataKind) -> Option<u64> {
    match kind {
        DataKind::Custom => Some(0),
        DataKind::Typed(event_type) => Some(u64::from(event_type) + 1),
        DataKind::Kernel(_) => None,
    }
}
