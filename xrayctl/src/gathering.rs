//! Gathering the stacks of opened files, traces and profiles alike.

use std::path::Path;

use xray_trace::analysis::{Side, StackRoots, StackTrie};
use xray_trace::model::Calibration;
use xray_trace::source::Opened;

use crate::input::{Selection, Unpaired};
use crate::log::Log;
use crate::output::Console;
use crate::run_times::no_run_times;

/// The way in which stacks are gathered from all files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gathering<'a> {
    /// The wanted part of the files.
    pub(crate) selection: &'a Selection,
    /// The treatment of calls without an exit.
    pub(crate) unpaired: Unpaired,
    /// Whether threads are kept apart.
    pub(crate) roots: StackRoots,
    /// The time that counts.
    pub(crate) time: Time,
}

/// The time that a call counts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    /// All of it.
    All,
    /// The time for which its thread had no processor.
    OffCpu,
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
                let (roots, time) = (self.roots, self.time);
                if time == Time::OffCpu && !trace.has_runs() {
                    return Err(no_run_times(file));
                }
                let notes = match time {
                    Time::All => stacks.add(trace, &filter, siblings, roots, side),
                    Time::OffCpu => stacks.add_off_cpu(trace, &filter, siblings, roots, side),
                };
                self.unpaired.tell(file, trace, &filter, notes, console);
                Ok(trace.clock().calibration() == Calibration::Measured)
            }
            Log::Profile(_) if self.time == Time::OffCpu => Err(no_run_times(file)),
            Log::Profile(opened) => {
                stacks.add_profile(&opened.profile, &filter, self.roots, side);
                Ok(opened.profile.tables().clock().calibration() == Calibration::Measured)
            }
        }
    }
}
