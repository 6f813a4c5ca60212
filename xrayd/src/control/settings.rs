//! Mode, filter and budget: one change, which is put into force as a whole or refused as a whole.
//!
//! The thread of a request compiles the patterns ([`PreparedUpdate`]). The control thread checks
//! the change against the settings in force, and makes it ([`SettingsWriter`]).
//!
//! ```text
//!  budget, if calls are to be counted ─► filter ─► mode ─► budget, otherwise
//! ```

use std::sync::Arc;

use xray_trace::model::ClockAnchor;

use super::{
    event_types::Reading,
    filter::Filtering,
    governor::{Governor, KeptFunctions},
    patching::Patching,
};
use crate::{
    inject::{DispatchMode, SETTLE, TrampolineFilter},
    lock::lock,
    pid::Pid,
    quotas::{Resource, Ticket},
    refusal::Result,
    sys::ticks_now,
    types::{CallFilter, Filter, Mode, Settings, SettingsUpdate, Wanted},
};

/// Limit on filters that a trace names.
const MOST_FILTER_NOTES: usize = 256;

/// A change of settings whose patterns are compiled.
#[derive(Debug)]
pub(crate) struct PreparedUpdate {
    update: SettingsUpdate,
    /// The new filter.
    filtering: Option<Filtering>,
    /// The functions that the new budget never suppresses.
    kept: KeptFunctions,
}

/// The parts of the control thread that put settings into force.
#[derive(Debug)]
pub(super) struct SettingsWriter<'a> {
    pub(super) patching: &'a mut Patching,
    pub(super) governor: &'a mut Governor,
    pub(super) reading: &'a mut Reading,
    /// The clocks at the attach.
    pub(super) attached: ClockAnchor,
    /// The user who attached pays for the patterns.
    pub(super) ticket: &'a Ticket,
}

// === impl PreparedUpdate ===

impl PreparedUpdate {
    /// Compiles the patterns of an update. `attached` is a moment in the past. The quota of
    /// `ticket`'s user counts the patterns.
    ///
    /// # Errors
    /// A filter or a budget that is invalid by itself, or an exceeded quota.
    pub(crate) fn new(
        pid: Pid,
        update: SettingsUpdate,
        attached: ClockAnchor,
        ticket: &Ticket,
    ) -> Result<Self> {
        let take = |bytes: usize| {
            let wanted = [(Resource::Patterns, bytes as u64)];
            ticket.accounts().take(ticket.payer(), &wanted)
        };
        let filtering = match &update.filter {
            Some(filter) => {
                let mut filtering = Filtering::new(pid, filter, attached)?;
                filtering.pay(take)?;
                Some(filtering)
            }
            None => None,
        };
        let kept = match &update.budget {
            Some(budget) => {
                budget.check()?;
                KeptFunctions::new(budget, take)?
            }
            None => KeptFunctions::default(),
        };
        Ok(Self {
            update,
            filtering,
            kept,
        })
    }
}

// === impl SettingsWriter ===

impl SettingsWriter<'_> {
    /// Puts a change into force. Returns the settings before.
    ///
    /// # Errors
    /// A budget that does not suit the mode or the filter, a filter that selects too many
    /// functions, a drain that hangs, or memory that cannot be written. The settings are as before
    /// then, unless sleds cannot be switched back: their budget stays in force, and can be ended
    /// later.
    pub(super) fn update(&mut self, prepared: PreparedUpdate) -> Result<Settings> {
        let before = self.patching.settings();
        let after = prepared.update.applied_to(&before);
        after.budget.suits(after.mode, &after.filter)?;
        if let Err(refusal) = self.write(prepared, after.mode) {
            self.restore(&before);
            return Err(refusal);
        }
        Ok(before)
    }

    /// Puts settings into force again that were in force before.
    pub(super) fn restore(&mut self, before: &Settings) {
        let now = self.patching.settings();
        let update = SettingsUpdate {
            mode: (now.mode != before.mode).then_some(before.mode),
            filter: (now.filter != before.filter).then(|| before.filter.clone()),
            budget: (now.budget != before.budget).then(|| before.budget.clone()),
        };
        let pid = self.patching.target.pid();
        let prepared = PreparedUpdate::new(pid, update, self.attached, self.ticket);
        let restored = prepared.and_then(|prepared| self.write(prepared, before.mode));
        if let Err(refusal) = restored {
            tracing::warn!(%pid, %refusal, "cannot restore the settings before a failed change");
        }
    }

    /// Makes a change that was checked. `mode` is the mode after it. After an error, a part of it
    /// may be in force.
    fn write(&mut self, prepared: PreparedUpdate, mode: Mode) -> Result<()> {
        let PreparedUpdate {
            update:
                SettingsUpdate {
                    mode: new_mode,
                    filter: _,
                    budget,
                },
            filtering,
            kept,
        } = prepared;
        let mut budget = budget.map(|budget| (budget, kept));
        // A budget that ends switches the exit sleds of suppressed functions on. While calls are
        // counted, exit sleds are off.
        if mode == Mode::Count
            && let Some((budget, kept)) = budget.take()
        {
            self.governor.set_budget(self.patching, budget, kept)?;
        }
        if let Some(filtering) = filtering {
            self.set_filter(filtering)?;
        }
        if let Some(mode) = new_mode {
            self.set_mode(mode)?;
        }
        if let Some((budget, kept)) = budget {
            self.governor.set_budget(self.patching, budget, kept)?;
        }
        Ok(())
    }

    /// Events in the rings of flight mode are retained from then on. When flight mode begins,
    /// retained events are dropped, and count as overwritten.
    fn set_mode(&mut self, mode: Mode) -> Result<()> {
        let filter = self.patching.shared.filter();
        // Counting begins before the mode is `Count`, and ends before another mode is set.
        self.set_dispatch_mode(dispatch_mode(mode, &filter))?;
        self.patching.output.set_mode(mode);
        if let Some(drain) = self.patching.shared.drain() {
            drain.flush()?;
        }
        if self.patching.output.event_types.is_wanting() {
            self.reading.read(self.patching);
        }
        Ok(())
    }

    /// Events that were read before keep the former filter. In flight mode, the rings are not read
    /// yet.
    fn set_filter(&mut self, filtering: Filtering) -> Result<()> {
        let (shared, pid) = (
            Arc::clone(&self.patching.shared),
            self.patching.target.pid(),
        );
        let functions = Arc::clone(&self.patching.traced.functions);
        let choice = filtering.choice(pid, &functions)?;
        let filter = filtering.filter().clone();
        let before = std::mem::replace(&mut *lock(&shared.filtering), filtering);
        let now = ticks_now();
        let kept = shared.keep_events(&functions);
        let written = kept.and_then(|()| self.write_choice(choice.as_ref(), &filter));
        if let Err(refusal) = written {
            // Events are kept by the filter that was in force. The program may leave calls out by
            // either one, if the failed operation fails again.
            let (choice, filter) = (before.choice(pid, &functions), before.filter().clone());
            if let Some(drain) = shared.drain() {
                drain.keep_again(before.keep(&functions), before.threads());
            }
            *lock(&shared.filtering) = before;
            let _ = choice.and_then(|choice| self.write_choice(choice.as_ref(), &filter));
            return Err(refusal);
        }
        if *before.filter() != filter {
            let mut notes = lock(&shared.filter_notes);
            if notes.len() == MOST_FILTER_NOTES {
                notes.pop_front();
            }
            notes.push_back((now, filter.note()));
        }
        Ok(())
    }

    /// Records only the chosen calls of `filter` from now on. `None`: all calls.
    fn write_choice(&mut self, choice: Option<&TrampolineFilter>, filter: &Filter) -> Result<()> {
        if let Some(choice) = choice {
            self.patching.write_choice(choice)?;
        }
        let mode = self.patching.output.mode();
        self.set_dispatch_mode(dispatch_mode(mode, filter))
    }

    /// Sets the dispatch mode of all sleds. While calls are counted no exit is recorded, so
    /// functions are marked as if all were off.
    fn set_dispatch_mode(&mut self, dispatch_mode: DispatchMode) -> Result<()> {
        let before = self.patching.patcher.dispatch_mode();
        if before == dispatch_mode {
            return Ok(());
        }
        if dispatch_mode == DispatchMode::Filter {
            // Calls that were open when the filter was last in use are long over.
            self.patching.renew_filters()?;
        }
        if dispatch_mode == DispatchMode::Count
            && let Some(drain) = self.patching.shared.drain()
        {
            drain.begin_counts()?;
        }
        let set = self.switch_dispatch_mode(before, dispatch_mode);
        if before == DispatchMode::Filter {
            // A thread that is in the filter leaves it within the pause. Calls that waited there
            // count as left out.
            std::thread::sleep(SETTLE);
            return set.and(self.patching.renew_filters());
        }
        set
    }

    fn switch_dispatch_mode(&mut self, before: DispatchMode, to: DispatchMode) -> Result<()> {
        let (switches, on) = (self.patching.switches(), self.patching.all_on());
        let mut exits = self.patching.traced.functions.sites(&on);
        exits.retain(|site| !site.kind.is_entry());
        if before == DispatchMode::Count {
            switches.mark(&on);
            self.patching.patch_as_wanted(&on)?;
        }
        let patching = &mut *self.patching;
        patching.patcher.set_dispatch_mode(&patching.memory, to)?;
        if to == DispatchMode::Count {
            switches.mark(&on);
            self.patching.patch(&exits, Wanted::Off)?;
        }
        Ok(())
    }
}

/// The dispatch mode that a mode and a filter need.
fn dispatch_mode(mode: Mode, filter: &Filter) -> DispatchMode {
    match mode {
        Mode::Count => DispatchMode::Count,
        _ if filter.calls != CallFilter::default() => DispatchMode::Filter,
        Mode::Flight | Mode::Stream | Mode::Profile => DispatchMode::None,
    }
}
