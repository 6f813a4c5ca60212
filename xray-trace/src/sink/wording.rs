//! Texts that several formats share.

use std::borrow::Cow;

use crate::event_format::TypeOfEvent;
use crate::model::{Calibration, DataKind, ThreadId, Trace};

/// The name of a custom, typed or kernel event. A typed event has the name of its type, if the
/// program has registered one. A kernel event has the name of its tracepoint.
pub(super) fn user_event_name(trace: &Trace, thread: ThreadId, kind: DataKind) -> Cow<'_, str> {
    match trace.type_of(thread, kind) {
        TypeOfEvent::Custom => "custom event".into(),
        TypeOfEvent::Typed(_, Some(name)) => name.into(),
        TypeOfEvent::Typed(number, None) => format!("typed event {number}").into(),
        TypeOfEvent::Kernel(tracepoint) if tracepoint.name.is_empty() => "kernel event".into(),
        TypeOfEvent::Kernel(tracepoint) => tracepoint.name.as_str().into(),
    }
}

/// The calibration of a trace's clock, as text.
pub(super) fn calibration(trace: &Trace) -> &'static str {
    match trace.clock().calibration() {
        Calibration::None => "none: a tick is shown as a nanosecond",
        Calibration::SingleAnchor => "one anchor: a tick is shown as a nanosecond",
        Calibration::Measured => "measured",
    }
}
