//! A file that was opened, which has events or only sums of calls, and what commands make of either.

use std::path::Path;

use xray_trace::analysis::{Side, StackRoots, Stacks};
use xray_trace::model::{Calibration, Trace};
use xray_trace::source::{Opened, OpenedProfile};

use crate::input::{Selection, Unpaired};
use crate::output::Console;

/// A file that was opened.
#[derive(Debug)]
pub(crate) enum Log {
    /// It has events.
    Trace(Opened),
    /// It has sums of calls.
    Profile(OpenedProfile),
}

/// How stacks are gathered, of all files alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gathering<'a> {
    /// Which part is wanted.
    pub(crate) selection: &'a Selection,
    /// What calls without an exit become.
    pub(crate) unpaired: Unpaired,
    /// Whether threads are kept apart.
    pub(crate) roots: StackRoots,
}

// === impl Log ===

impl Log {
    /// The processes, modules, functions and threads; with the events, if there are any.
    pub(crate) fn tables(&self) -> &Trace {
        match self {
            Self::Trace(opened) => &opened.trace,
            Self::Profile(opened) => opened.profile.tables(),
        }
    }

    /// The same, in which functions are called by their symbols where they have one.
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

// === impl Gathering ===

impl Gathering<'_> {
    /// Adds the stacks of a file, and says what was met in it that is not an ordinary call. Gives whether its times are
    /// nanoseconds, and not ticks.
    pub(crate) fn add(
        &self,
        file: &Path,
        log: &Log,
        side: Side,
        stacks: &mut Stacks,
        console: &Console,
    ) -> anyhow::Result<bool> {
        let filter = self.selection.filter_of(log)?;
        match log {
            Log::Trace(Opened { trace, .. }) => {
                let siblings = self.unpaired.siblings();
                let notes = stacks.add(trace, &filter, siblings, self.roots, side);
                self.unpaired.tell(file, trace, &filter, notes, console);
                Ok(trace.clock().calibration() == Calibration::Measured)
            }
            Log::Profile(opened) => {
                stacks.add_profile(&opened.profile, &filter, self.roots, side);
                Ok(opened.profile.tables().clock().calibration() == Calibration::Measured)
            }
        }
    }
}
