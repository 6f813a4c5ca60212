//! Texts that several formats share.

use std::borrow::Cow;

use crate::model::{Calibration, DataKind, ThreadId, Trace};

/// The name of a custom or typed event. A typed event has the name of its type, if the program has
/// registered one.
pub(super) fn user_event_name(trace: &Trace, thread: ThreadId, kind: DataKind) -> Cow<'_, str> {
    match kind {
        DataKind::Custom => "custom event".into(),
        DataKind::Typed(number) => match trace.event_type(thread, number) {
            Some(name) => name.into(),
            None => format!("typed event {number}").into(),
        },
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
