//! The fast path through the events of a block: calls without values. Nearly all events are such
//! calls.

use crate::model::{CallKind, FunctionId, Ticks};

/// A source of calls without values. It does not look at other events.
pub(crate) trait PlainCalls {
    /// The next event, if it is a call without values. If the next event is another one, or is
    /// damaged, it stays the next event.
    fn next_plain_call(&mut self) -> Option<(Ticks, FunctionId, CallKind)>;
}
