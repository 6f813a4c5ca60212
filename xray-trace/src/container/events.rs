//! The events of a block, in order. The caller does not see whether the block has packed events or
//! records of a log.

use super::decode::PackedEvents;
use super::decode_error::DecodeError;
#[cfg(feature = "import")]
use super::in_log;
use super::plain_calls::PlainCalls as _;
use crate::model::{DataRef, Event, EventBody, Values};

/// The events of a block, in order. [`super::Block::events`] makes them.
#[derive(Debug)]
pub struct Events(pub(crate) Form);

/// The form of a block's events.
#[derive(Debug)]
pub(crate) enum Form {
    /// Packed bytes.
    Packed(PackedEvents),
    /// Records of a log.
    #[cfg(feature = "import")]
    InLog(in_log::Events),
    /// No events, for this reason. The iterator returns the reason once.
    Failed(Option<DecodeError>),
}

// === impl Events ===

impl Events {
    /// The bytes of a custom or typed event of this block.
    #[must_use]
    pub fn data(&self, data: DataRef) -> &[u8] {
        match &self.0 {
            Form::Packed(packed) => packed.data(data),
            #[cfg(feature = "import")]
            Form::InLog(events) => events.data(data),
            Form::Failed(_) => &[],
        }
    }

    /// The begin of the next event in the block.
    pub(super) fn position(&self) -> usize {
        match &self.0 {
            Form::Packed(packed) => packed.position(),
            #[cfg(feature = "import")]
            Form::InLog(events) => events.position(),
            Form::Failed(_) => 0,
        }
    }
}

impl Iterator for Events {
    type Item = Result<Event, DecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let call = match &mut self.0 {
            Form::Packed(packed) => packed.next_plain_call(),
            #[cfg(feature = "import")]
            Form::InLog(events) => events.next_plain_call(),
            Form::Failed(_) => None,
        };
        if let Some((ticks, function, kind)) = call {
            let values = Values::NONE;
            let body = EventBody::Call {
                function,
                kind,
                values,
            };
            return Some(Ok(Event { ticks, body }));
        }
        match &mut self.0 {
            Form::Packed(packed) => packed.next_other(),
            #[cfg(feature = "import")]
            Form::InLog(events) => events.next_other(),
            Form::Failed(why) => why.take().map(Err),
        }
    }
}
