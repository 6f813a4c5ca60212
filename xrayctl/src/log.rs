//! An opened file, which has events or only sums of calls, and the operations on either.

use xray_trace::model::Trace;
use xray_trace::source::{Opened, OpenedProfile};

/// An opened file.
#[derive(Debug)]
pub(crate) enum Log {
    /// A trace, which has events.
    Trace(Opened),
    /// A profile, which has sums of calls.
    Profile(OpenedProfile),
}

// === impl Log ===

impl Log {
    /// The processes, modules, functions and threads, and the events if there are any.
    pub(crate) fn tables(&self) -> &Trace {
        match self {
            Self::Trace(opened) => &opened.trace,
            Self::Profile(opened) => opened.profile.tables(),
        }
    }

    /// The same file, with symbols as the names of functions that have one.
    pub(crate) fn with_symbols_as_names(self) -> Self {
        match self {
            Self::Trace(opened) => Self::Trace(Opened {
                trace: opened.trace.with_symbols_as_names(),
                ..opened
            }),
            Self::Profile(opened) => Self::Profile(OpenedProfile {
                profile: opened.profile.with_symbols_as_names(),
                ..opened
            }),
        }
    }
}
