//! Mode, filter and budget: one change, which is put into force as a whole or refused as a whole.
//!
//! The thread of a request compiles the patterns ([`PreparedUpdate`]). The controller checks
//! the change against the settings in force, and makes it ([`SettingsWriter`]).
//!
//! ```text
//!  budget, unless calls are counted ─► filter ─► mode ─► budget, if calls were counted
//! ```

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use xray_trace::model::{ClockAnchor, FunctionId};

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
    refusal::{Refusal, Result},
    sys::{ns_of, ticks_now},
    triggers::EventNeed,
    types::{Budget, CallFilter, Filter, Mode, Settings, SettingsUpdate, Wanted},
};

/// Limit on filters that a trace names.
const MOST_FILTER_NOTES: usize = 256;

/// A change of settings whose patterns are compiled.
#[derive(Debug, Default)]
pub(crate) struct PreparedUpdate {
    mode: Option<Mode>,
    filtering: Option<Filtering>,
    /// The budget, and the functions that it never suppresses.
    budget: Option<(Budget, KeptFunctions)>,
}

/// The parts of the controller that put settings into force.
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
        let budget = match update.budget {
            Some(budget) => {
                budget.check()?;
                let kept = KeptFunctions::new(&budget, take)?;
                Some((budget, kept))
            }
            None => None,
        };
        Ok(Self {
            mode: update.mode,
            filtering,
            budget,
        })
    }

    fn is_empty(&self) -> bool {
        self.mode.is_none() && self.filtering.is_none() && self.budget.is_none()
    }

    /// The change without the compiled patterns.
    fn update(&self) -> SettingsUpdate {
        SettingsUpdate {
            mode: self.mode,
            filter: self.filtering.as_ref().map(|new| new.filter().clone()),
            budget: self.budget.as_ref().map(|(budget, _)| budget.clone()),
        }
    }
}

// === impl SettingsWriter ===

impl SettingsWriter<'_> {
    /// Puts a change into force. Returns the settings before.
    ///
    /// # Errors
    /// A budget that does not suit the mode or the filter, a filter that selects too many
    /// functions, a drain that hangs, or memory that cannot be written. The settings are as before
    /// then. If memory cannot be written back either, the log has the reason. Sleds that a refused
    /// duty cycle has switched off are switched on as soon as that is possible.
    pub(super) fn update(&mut self, mut prepared: PreparedUpdate) -> Result<Settings> {
        let before = self.patching.settings();
        let after = prepared.update().applied_to(&before);
        after.budget.suits(after.mode, &after.filter)?;
        let mut replaced = PreparedUpdate::default();
        if let Err(refusal) = self.write(&mut prepared, &mut replaced) {
            self.undo(replaced);
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
        match PreparedUpdate::new(pid, update, self.attached, self.ticket) {
            Ok(prepared) => self.undo(prepared),
            Err(refusal) => self.warn(&refusal),
        }
    }

    /// Makes a change that undoes another one: as much of it as is possible.
    fn undo(&mut self, mut change: PreparedUpdate) {
        let mut replaced = PreparedUpdate::default();
        // Each pass makes the next part of the change, whether the last part succeeded or not.
        while !change.is_empty() {
            let is_last = change.mode.is_none() && change.filtering.is_none();
            if is_last && let Some((budget, _)) = &change.budget {
                let now = self.patching.settings();
                if let Err(refusal) = budget.suits(now.mode, &now.filter) {
                    // The mode or the filter could not be restored.
                    return self.warn(&refusal);
                }
            }
            if let Err(refusal) = self.write(&mut change, &mut replaced) {
                self.warn(&refusal);
            }
        }
    }

    fn warn(&self, refusal: &Refusal) {
        let pid = self.patching.target.pid();
        tracing::warn!(%pid, %refusal, "cannot restore the settings before a failed change");
    }

    /// Makes a change that was checked, part by part. Each part is taken out of `change`, and
    /// `replaced` gets what it replaces. After an error, `replaced` has what is to be put into
    /// force again.
    fn write(&mut self, change: &mut PreparedUpdate, replaced: &mut PreparedUpdate) -> Result<()> {
        let budget = change.budget.as_ref().map(|(budget, _)| budget);
        if matches!(budget, Some(Budget::Duty(_)))
            && self.patching.patcher.dispatch_mode() == DispatchMode::Profile
        {
            // The windows of a duty cycle would end all open calls of the sums.
            self.set_dispatch_mode(DispatchMode::None)?;
        }
        // A budget that ends switches the exit sleds of suppressed functions on. While calls are
        // counted, exit sleds are off.
        if self.patching.output.mode() != Mode::Count {
            self.write_budget(change, replaced)?;
        }
        if let Some(filtering) = change.filtering.take() {
            replaced.filtering = Some(self.set_filter(filtering)?);
        }
        if let Some(mode) = change.mode.take() {
            replaced.mode = Some(self.patching.output.mode());
            self.set_mode(mode)?;
        }
        self.write_budget(change, replaced)?;
        self.settle_dispatch_mode()
    }

    /// Has calls added up in the program if the settings allow it and no reader waits for events,
    /// and only then.
    ///
    /// # Errors
    /// The drain hangs, or memory cannot be written. Then it is as before.
    pub(super) fn settle_dispatch_mode(&mut self) -> Result<()> {
        let adds_up = self.patching.output.adds_up.load(Ordering::Relaxed);
        if adds_up != self.patching.patcher.dispatch_mode().adds_up() {
            // A change has failed halfway.
            self.set_dispatch_mode(DispatchMode::None)?;
            self.patching.end_profiles()?;
        }
        let settings = self.patching.settings();
        self.set_dispatch_mode(self.wanted_dispatch_mode(&settings))?;
        match self.patching.patcher.dispatch_mode() {
            DispatchMode::ProfileAndRecord => self.note_long_calls(),
            _ => Ok(()),
        }
    }

    /// Has the program note the calls that triggers wait for.
    fn note_long_calls(&mut self) -> Result<()> {
        match self.patching.output.triggers.need() {
            EventNeed::LongCalls(ticks) => self.patching.note_calls_from(ticks),
            EventNeed::Nothing | EventNeed::Events => Ok(()),
        }
    }

    /// The dispatch mode for these settings. Calls are added up in the program if nothing but sums
    /// is wanted of them, and if there is room for the sums. For a trigger that waits for long
    /// calls, they are recorded, too. No flavour adds up a call and records its values.
    fn wanted_dispatch_mode(&self, settings: &Settings) -> DispatchMode {
        let output = &self.patching.output;
        let plain = dispatch_mode(settings.mode, &settings.filter);
        if plain != DispatchMode::None
            || !adds_up(settings)
            || output.readers.has_any()
            || !self.patching.layout.geometry.has_profiles()
            || output.lacks_room.load(Ordering::Relaxed)
        {
            return plain;
        }
        let records_values = self.patching.shared.states.functions_with_values() > 0;
        match output.triggers.need() {
            EventNeed::Nothing => DispatchMode::Profile,
            EventNeed::LongCalls(_) if !records_values => DispatchMode::ProfileAndRecord,
            EventNeed::LongCalls(_) | EventNeed::Events => DispatchMode::None,
        }
    }

    fn write_budget(
        &mut self,
        change: &mut PreparedUpdate,
        replaced: &mut PreparedUpdate,
    ) -> Result<()> {
        match change.budget.take() {
            Some(budget) => {
                let replaced = &mut replaced.budget;
                self.governor.set_budget(self.patching, budget, replaced)
            }
            None => Ok(()),
        }
    }

    /// Events in the rings of flight mode are retained from then on. When flight mode begins,
    /// retained events are dropped, and count as overwritten.
    fn set_mode(&mut self, mode: Mode) -> Result<()> {
        let filter = self.patching.shared.filter();
        self.governor.measure_anew();
        // Counting begins before the mode is `Count`, and ends before another mode is set. Adding
        // up begins once the mode is `Profile`.
        self.patching
            .output
            .lacks_room
            .store(false, Ordering::Relaxed);
        let settings = Settings {
            mode,
            ..self.patching.settings()
        };
        let wanted = self.wanted_dispatch_mode(&settings);
        self.set_dispatch_mode(match self.patching.patcher.dispatch_mode() {
            before if before != wanted => dispatch_mode(mode, &filter),
            same => same,
        })?;
        self.patching.output.set_mode(mode);
        if let Some(drain) = self.patching.shared.drain() {
            drain.flush()?;
        }
        if self.patching.output.event_types.is_wanting() {
            self.reading.read(self.patching);
        }
        self.settle_dispatch_mode()
    }

    /// Puts a filter into force. Returns the filter before. Events that were read before keep the
    /// former filter. In flight mode, the rings are not read yet.
    fn set_filter(&mut self, filtering: Filtering) -> Result<Filtering> {
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
        Ok(before)
    }

    /// Records only the chosen calls of `filter` from now on. `None`: all calls.
    fn write_choice(&mut self, choice: Option<&TrampolineFilter>, filter: &Filter) -> Result<()> {
        if let Some(choice) = choice {
            self.patching.write_choice(choice)?;
        }
        let settings = Settings {
            filter: filter.clone(),
            ..self.patching.settings()
        };
        self.set_dispatch_mode(self.wanted_dispatch_mode(&settings))
    }

    /// Sets the dispatch mode of all sleds. After an error it is as before, unless memory cannot be
    /// written back either.
    fn set_dispatch_mode(&mut self, dispatch_mode: DispatchMode) -> Result<()> {
        let before = self.patching.patcher.dispatch_mode();
        if before == dispatch_mode {
            return Ok(());
        }
        // Where events are recorded beside the sums, they do not count. Where they count, there are
        // no sums. Nothing is recorded in between, so no event is taken for one of the other kind.
        let modes = [before, dispatch_mode];
        if modes.contains(&DispatchMode::ProfileAndRecord)
            && !modes.contains(&DispatchMode::Profile)
        {
            self.set_dispatch_mode(DispatchMode::Profile)?;
            if self.patching.patcher.dispatch_mode() != DispatchMode::Profile {
                // There is no room for the sums.
                return Ok(());
            }
            return self.set_dispatch_mode(dispatch_mode);
        }
        let pid = self.patching.target.pid();
        tracing::debug!(%pid, ?before, to = ?dispatch_mode, "changes how calls are recorded");
        self.governor.measure_anew();
        let set = self.change_dispatch_mode(before, dispatch_mode);
        if set.is_err() {
            self.undo_dispatch_mode(dispatch_mode, before);
        }
        set
    }

    /// Changes the dispatch mode of all sleds. While calls are counted or added up no exit is
    /// recorded, so functions are marked as if all were off.
    fn change_dispatch_mode(&mut self, before: DispatchMode, to: DispatchMode) -> Result<()> {
        if to == DispatchMode::Filter {
            // Calls that were open when the filter was last in use are long over.
            self.patching.renew_filters()?;
        }
        if to == DispatchMode::Count
            && let Some(drain) = self.patching.shared.drain()
        {
            drain.begin_counts()?;
        }
        if to.adds_up() && !before.adds_up() && !self.patching.begin_profiles()? {
            // Not before the next mode is set, or each step would ask again.
            self.patching
                .output
                .lacks_room
                .store(true, Ordering::Relaxed);
            return Ok(());
        }
        if to == DispatchMode::ProfileAndRecord {
            // What was recorded before adding up began counts.
            self.let_threads_leave();
            if let Some(drain) = self.patching.shared.drain() {
                drain.flush()?;
            }
            // The rings keep the newest events before there are any.
            self.patching.record_beside(true)?;
            self.note_long_calls()?;
        }
        let set = self.switch_dispatch_mode(before, to);
        if before.adds_up() {
            set?;
            // A thread that is in a trampoline leaves it within the pause.
            self.let_threads_leave();
            if before == DispatchMode::ProfileAndRecord {
                self.patching.note_calls_from(u64::MAX)?;
                self.patching.record_beside(false)?;
            }
            if !to.adds_up()
                && let Err(refusal) = self.patching.end_profiles()
            {
                // The next step tries it again.
                let pid = self.patching.target.pid();
                tracing::warn!(%pid, %refusal, "cannot read the last sums of the program");
            }
            return Ok(());
        }
        if before == DispatchMode::Filter {
            // A thread that is in the filter leaves it within the pause. Calls that waited there
            // count as left out.
            self.let_threads_leave();
            return set.and(self.patching.renew_filters());
        }
        set
    }

    /// Pauses until threads that are in a trampoline have left it, also those that wait there for
    /// room in their rings.
    fn let_threads_leave(&self) {
        let wait = ns_of(self.patching.output.wait()).unwrap_or(0);
        std::thread::sleep(SETTLE + Duration::from_nanos(wait));
    }

    /// Undoes a change to dispatch mode `to` that failed, as far as possible. Some sleds and some
    /// flavours may have it.
    fn undo_dispatch_mode(&mut self, to: DispatchMode, before: DispatchMode) {
        let (switches, on) = (self.patching.switches(), self.patching.all_on());
        let uses_filter = [to, before].contains(&DispatchMode::Filter);
        if uses_filter && let Err(refusal) = self.patching.renew_filters() {
            self.warn(&refusal);
        }
        switches.mark(&on);
        let patching = &mut *self.patching;
        if let Err(refusal) = patching.patcher.set_dispatch_mode(&patching.memory, before) {
            self.warn(&refusal);
        }
        if before != DispatchMode::ProfileAndRecord
            && let Err(refusal) = self.patching.record_beside(false)
        {
            self.warn(&refusal);
        }
        let profiles = match (to.adds_up(), before.adds_up()) {
            (true, false) => self.patching.end_profiles(),
            // Some gates may have led elsewhere for a moment.
            (false, true) => self.patching.mark_all_in_program(),
            _ => Ok(()),
        };
        if let Err(refusal) = profiles {
            self.warn(&refusal);
        }
        let exits = match before {
            DispatchMode::Count => self.switch_exits_off(&on),
            _ if to == DispatchMode::Count => self.patching.patch_what_can_be(&on).1,
            _ => Ok(()),
        };
        // Calls that were open when their exit sleds were off may have ended unseen.
        switches.mark(&on);
        if let Err(refusal) = exits {
            self.warn(&refusal);
        }
    }

    /// Switches the exit sleds of these functions off.
    fn switch_exits_off(&mut self, ids: &[FunctionId]) -> Result<()> {
        let mut exits = self.patching.traced.functions.sites(ids);
        exits.retain(|site| !site.kind.is_entry());
        self.patching.patch(&exits, Wanted::Off).map(drop)
    }

    fn switch_dispatch_mode(&mut self, before: DispatchMode, to: DispatchMode) -> Result<()> {
        let (switches, on) = (self.patching.switches(), self.patching.all_on());
        if before == DispatchMode::Count {
            switches.mark(&on);
            self.patching.patch_as_wanted(&on)?;
        }
        let patching = &mut *self.patching;
        patching.patcher.set_dispatch_mode(&patching.memory, to)?;
        if to == DispatchMode::Count {
            switches.mark(&on);
            self.switch_exits_off(&on)?;
        }
        if to.adds_up() {
            switches.mark(&on);
        }
        if to.adds_up() && !before.adds_up() {
            // The gates were set one by one. A call of that moment may end in another way than it
            // began.
            self.patching.mark_all_in_program()?;
        }
        Ok(())
    }
}

/// True if the settings want nothing of calls but their sums.
pub(crate) fn adds_up(settings: &Settings) -> bool {
    settings.mode == Mode::Profile
        && settings.filter == Filter::default()
        && !matches!(settings.budget, Budget::Duty(_))
}

/// The dispatch mode that a mode and a filter need, where events are recorded in mode `profile`.
fn dispatch_mode(mode: Mode, filter: &Filter) -> DispatchMode {
    match mode {
        Mode::Count => DispatchMode::Count,
        _ if filter.calls != CallFilter::default() => DispatchMode::Filter,
        Mode::Flight | Mode::Stream | Mode::Profile => DispatchMode::None,
    }
}
