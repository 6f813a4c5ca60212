//! An opened file, which has events or only sums of calls, and the operations on either.

use std::path::Path;

use xray_trace::analysis::{Side, StackRoots, StackTrie};
use xray_trace::model::{Calibration, Trace};
use xray_trace::source::{Opened, OpenedProfile};

use crate::input::{Selection, Unpaired};
use crate::output::Console;

/// An opened file.
#[derive(Debug)]
pub(crate) enum Log {
    /// A trace, which has events.
    Trace(Opened),
    /// A profile, which has sums of calls.
    Profile(OpenedProfile),
}

/// The way in which stacks are gathered from all files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gathering<'a> {
    /// The wanted part of the files.
    pub(crate) selection: &'a Selection,
    /// The treatment of calls without an exit.
    pub(crate) unpaired: Unpaired,
    /// Whether threads are kept apart.
    pub(crate) roots: StackRoots,
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

// === impl Gathering ===

impl Gathering<'_> {
    /// Adds the stacks of a file, and notes everything in it that is not an ordinary call. Returns
    /// true if its times are nanoseconds, false if they are ticks.
    pub(crate) fn add(
        &self,
        file: &Path,
        log: &Log,
        side: Side,
        stacks: &mut StackTrie,
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
