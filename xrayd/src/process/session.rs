//! One attached process, as clients and other processes of its group see it. It changes the process
//! only through the control thread.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use shm_ring::Geometry;
use xray_trace::{
    instr_map::{Candidate, Selection},
    model::{Clock, ClockAnchor, FunctionId, ModuleId, Process},
};

use super::{attach_options::AttachOptions, attach_report::other_rings};
use crate::{
    collect::RingRefusal,
    control::{Chosen, Patterns, PreparedUpdate, RuleEffect, Rules, ToggleRequest},
    export::{PendingSnapshot, TraceSource, TraceWriter},
    pid::Pid,
    quotas::Ticket,
    refusal::{Reason, Refusal, Result},
    store::{
        Ask, CallCounts, EventSubscription, Metered, ProfileSums, Publisher, Source, StreamItem,
        Tables, TracedProcess, subscription,
    },
    target::{Credentials, Ending, Indexes, RefusedModule, let_threads_run},
    types::{
        BudgetStatus, DetachReport, FunctionRow, Kinship, LeaseId, Mode, ModuleStatus, Phase,
        Reach, Run, Settings, SettingsUpdate, Status, ToggleReport, ToggleTo, compile,
    },
};

/// One attached process.
#[derive(Debug)]
pub struct Session {
    pub(super) pid: Pid,
    /// The credentials of the process at its attach.
    pub(super) credentials: Credentials,
    pub(super) command_line: String,
    pub(super) source: TraceSource,
    pub(super) ring_bytes: u64,
    pub(super) max_threads: u32,
    pub(super) ring_refusal: Arc<RingRefusal>,
    pub(super) attached: ClockAnchor,
    /// The entry of the session in the metrics, if they are enabled.
    pub(super) _metered: Option<Metered>,
    /// The session's share of its payer's quotas. The control thread holds it as well, so the later
    /// of the two ends gives it back.
    pub(super) ticket: Arc<Ticket>,
}

// === impl Session ===

impl Session {
    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Field 22 of `/proc/<pid>/stat`. Pid and start time together name one process.
    pub(crate) fn start_time(&self) -> u64 {
        self.source.process.start_time_ticks
    }

    /// The effective user of the process at its attach.
    pub fn uid(&self) -> u32 {
        self.credentials.user
    }

    /// The credentials of the process at its attach.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The differences from what `options` ask for, for the report of a second attach.
    pub(crate) fn otherwise(&self, options: &AttachOptions) -> impl Iterator<Item = String> {
        let wanted = Geometry::new(options.ring_bytes, options.max_threads);
        let there = Geometry::new(self.ring_bytes, self.max_threads);
        let rings = wanted.ok().zip(there.ok());
        let rings = rings.and_then(|(wanted, there)| other_rings(wanted, there));
        let (is, other) = (self.source.output.mode(), options.mode);
        let mode = (is != other).then(|| {
            format!("the process stays in mode {is}; `xrayctl mode {other}` changes the mode")
        });
        rings.into_iter().chain(mode)
    }

    /// The process as a trace describes it.
    pub fn process(&self) -> Process {
        self.source.process.clone()
    }

    /// The origin of the process, if it was followed from another process.
    pub fn kinship(&self) -> Option<Kinship> {
        self.source.kinship()
    }

    /// The clock anchors taken so far.
    pub fn anchors(&self) -> Vec<ClockAnchor> {
        self.source
            .output
            .with_retained(|retained| retained.anchors().to_vec())
    }

    /// The functions that a selection matches, by id. Without a selection, all functions.
    ///
    /// # Errors
    /// An invalid selection.
    pub fn functions(&self, selection: Option<&Selection>) -> Result<Vec<FunctionRow>> {
        // If the process has ended, the known functions are returned.
        let _ = self.source.control.look();
        let rows = match selection {
            Some(selection) => {
                let compiled = compile(selection)?;
                self.source
                    .functions
                    .matching(&self.source.functions.loaded(), &compiled)
            }
            None => self.source.functions.living(),
        };
        let row = |id: FunctionId| {
            let (recorded, calls) = (
                self.source.control.shared.states.recorded(id),
                self.source.output.counts.calls(id),
            );
            let row = self.source.functions.row(id, recorded, calls)?;
            Some(FunctionRow {
                suppressed: recorded.is_some()
                    && self.source.control.shared.history.is_suppressed(id),
                ..row
            })
        };
        Ok(rows.into_iter().filter_map(row).collect())
    }

    /// Switches the functions that a selection matches, permanently or until [`Self::release`] ends
    /// the lease.
    ///
    /// # Errors
    /// An invalid selection, a process that ended, or memory that cannot be written.
    pub fn toggle<'a>(
        &self,
        selection: impl Into<Chosen<'a>>,
        to: impl Into<ToggleTo>,
        run: Run,
    ) -> Result<ToggleReport> {
        let patterns = self.compiled(selection.into())?;
        let compiled = patterns.matcher();
        let modules = self.source.functions.loaded();
        let ids = self.source.functions.matching(&modules, &compiled);
        if compiled.needs_source() && self.source.functions.lacks_lines() {
            let message = format!(
                "process {}: functions cannot be selected by source file, because a file with \
                 source lines does not answer",
                self.pid()
            );
            return Err(Refusal::new(Reason::Busy, message));
        }
        let to = to.into();
        self.begin_lease(to.lease, run);
        self.source.control.toggle(ToggleRequest {
            ids,
            of: Indexes::of(&modules),
            patterns,
            later: Some(compiled),
            to,
            run,
        })
    }

    /// Sends the begin of the lease to its subscriptions. Earlier events are not part of it.
    fn begin_lease(&self, lease: Option<LeaseId>, run: Run) {
        if let (Some(lease), Run::Real) = (lease, run) {
            self.source.output.readers.begin_lease(lease);
        }
    }

    /// Sends the end of the lease to its subscriptions. Later events are not part of it.
    pub(super) fn stop_lease(&self, lease: LeaseId) {
        self.source.output.readers.stop_lease(lease);
    }

    /// Ends a lease, and the subscriptions of the lease. The subscriptions have all events up to
    /// now.
    ///
    /// # Errors
    /// A process that ended, or memory that cannot be written.
    pub fn release(&self, from: LeaseId) -> Result<ToggleReport> {
        self.stop_lease(from);
        let report = self.source.control.release(from);
        if self.source.output.readers.has_lease(from) {
            // A thread may still be in a trampoline with an event of the lease.
            let_threads_run(self.pid());
            let flushed = self.source.control.flush();
            self.source.output.readers.end_lease(from);
            return report.and_then(|report| flushed.map(|()| report));
        }
        report
    }

    /// Compiles a selection for the user who attached, unless it is compiled already.
    pub(super) fn compiled(&self, selection: Chosen<'_>) -> Result<Arc<Patterns>> {
        selection.compiled(self.ticket.accounts(), self.ticket.payer())
    }

    /// Switches the functions that a selection matches in another process. Ids in it are those of
    /// `other`, and mean functions that are loaded in both.
    pub(super) fn toggle_as(
        &self,
        other: &Self,
        patterns: &Arc<Patterns>,
        to: ToggleTo,
        run: Run,
    ) -> Result<ToggleReport> {
        let compiled = patterns.matcher();
        let modules = self.source.functions.loaded();
        self.begin_lease(to.lease, run);
        let matching = modules.iter().flat_map(|loaded| {
            let first = other.source.functions.first_of_same(loaded);
            let needs_source = compiled.needs_source();
            self.source
                .functions
                .matching_in(loaded, needs_source, |candidate| {
                    let id = first.map(|first| first + (candidate.id - loaded.first()));
                    // No function has this id.
                    let id = id.unwrap_or(u32::MAX - 1);
                    compiled.matches(&Candidate { id, ..*candidate })
                })
        });
        self.source.control.toggle(ToggleRequest {
            ids: matching.collect(),
            of: Indexes::of(&modules),
            patterns: Arc::clone(patterns),
            later: patterns.lasting_matcher(),
            to,
            run,
        })
    }

    /// Takes over `rules`, and switches on what they select. In modules that are loaded in
    /// `parent`, too, the functions are switched on that are on there.
    pub(super) fn begin_as(&self, rules: Rules, parent: Option<&Self>) -> Result<()> {
        let modules = self.source.functions.loaded();
        let mut effect = RuleEffect::default();
        for loaded in &modules {
            let like = parent
                .and_then(|parent| Some((parent, parent.source.functions.first_of_same(loaded)?)));
            match like {
                Some((parent, first)) => {
                    for (like, id) in (first..).zip(loaded.functions()) {
                        let like = FunctionId(like);
                        if let Some(capture) = parent.source.control.shared.states.recorded(like) {
                            effect.on.entry(capture).or_default().push(id);
                        }
                        if let Some(lease) = parent.source.control.shared.lease(like) {
                            effect.leases.insert(id, lease);
                        }
                    }
                }
                None => {
                    let RuleEffect { on, leases } = rules.wishes_in(&self.source.functions, loaded);
                    for (capture, its) in on {
                        effect.on.entry(capture).or_default().extend(its);
                    }
                    effect.leases.extend(leases);
                }
            }
        }
        self.source
            .control
            .begin(rules, effect, Indexes::of(&modules))
    }

    /// State and counters.
    pub fn status(&self) -> Status {
        // Read before the sum, so that the sum is never less.
        let losses = self
            .source
            .output
            .with_retained(|retained| retained.losses());
        let counters = self.source.output.counters();
        let Settings { mode, filter, .. } = self.settings();
        Status {
            pid: self.pid,
            uid: self.uid(),
            command: self.command_line.clone(),
            phase: self.source.control.shared.phase(),
            kinship: self.kinship(),
            executed: self.source.control.shared.executed().is_some(),
            failure: self.source.output.failure.get().cloned(),
            mode,
            functions: u32::try_from(self.source.functions.len()).unwrap_or(u32::MAX),
            functions_on: self.source.control.shared.functions_on(),
            functions_with_values: self.source.control.shared.functions_with_values(),
            threads: counters.threads,
            events: counters.events,
            events_per_second: counters.events_per_second,
            filtered: counters.filtered,
            left_out: counters.left_out,
            filter,
            budget: self.budget_status(),
            clock_faults: self
                .source
                .output
                .with_retained(|retained| retained.clock_faults()),
            lost: counters.lost,
            losses,
            ring_use_permille: counters.ring_use_permille,
            ring_bytes: self.ring_bytes,
            max_threads: self.max_threads,
            rings_refused: self.ring_refusal.get(),
            copied_bytes: self.source.control.shared.copied_bytes(),
            retained_bytes: counters.retained_bytes,
            retained_events: counters.retained_events,
            overwritten_events: counters.overwritten_events,
            triggers: u32::try_from(self.source.output.triggers.count()).unwrap_or(u32::MAX),
            attached_wall_ns: self.attached.wall_ns,
            modules: self.module_statuses(),
            detection: self.source.control.shared.detection(),
        }
    }

    fn budget_status(&self) -> BudgetStatus {
        let history = &self.source.control.shared.history;
        history.status(|id| self.source.functions.name(id).map(|(_, name)| name))
    }

    fn module_statuses(&self) -> Vec<ModuleStatus> {
        let modules = self.source.functions.loaded();
        let traced = modules.iter().map(|loaded| {
            let on = loaded
                .functions()
                .filter(|&id| self.source.control.shared.states.recorded(id).is_some());
            let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            ModuleStatus {
                path: loaded.module.path.clone(),
                build_id: loaded.module.object.build_id().cloned(),
                functions: count(loaded.functions().count()),
                functions_on: count(on.count()),
                copied_bytes: loaded.copied(),
                armed: loaded.armed(),
                refusal: None,
            }
        });
        let refused = self.source.control.shared.refused().into_iter();
        let refused = refused.map(|RefusedModule { path, refusal, .. }| ModuleStatus {
            path,
            build_id: None,
            functions: 0,
            functions_on: 0,
            copied_bytes: 0,
            armed: None,
            refusal: Some(refusal),
        });
        traced.chain(refused).collect()
    }

    /// A live subscription of all events from now on. A subscription for a lease ends with the
    /// lease. The threads seen so far come first.
    pub fn subscribe(self: &Arc<Self>, lease: Option<LeaseId>) -> EventSubscription {
        let (publisher, subscription) = subscription(1, lease);
        let _coming = self.expect_reader();
        self.publish_to(&publisher, Source::default());
        subscription
    }

    /// Has the rings read until the returned value is dropped. The events in them are not new any
    /// more then.
    pub(super) fn expect_reader(&self) -> impl Drop {
        let coming = self.source.output.readers.expect_reader();
        if self.source.output.mode() == Mode::Flight {
            // A drain that hangs publishes them later.
            let _ = self.source.control.flush();
        }
        coming
    }

    /// Sends all events from now on to a subscription of several processes. A reader has to be
    /// expected. Waits for no thread.
    pub(super) fn publish_to(self: &Arc<Self>, publisher: &Publisher, source: Source) {
        let mut sender = publisher.sender(source);
        sender.send(StreamItem::Process(
            Arc::clone(self) as Arc<dyn TracedProcess>
        ));
        if let Some(kinship) = self.kinship() {
            sender.send(StreamItem::Origin(kinship.origin()));
        }
        self.source.output.subscribe(sender);
    }

    /// The settings in force.
    pub fn settings(&self) -> Settings {
        self.source.control.settings()
    }

    /// Changes settings, and returns the settings before. A filter holds in every mode and for
    /// every reader. Events that were read before keep the former filter; in flight mode, the rings
    /// are not read yet.
    ///
    /// # Errors
    /// A value out of range, a pattern that does not compile, a budget that does not suit the mode
    /// or the filter, an exceeded quota, a process that has ended, or memory that cannot be
    /// written. The settings are as before then.
    pub fn update(&self, update: impl Into<SettingsUpdate>) -> Result<Settings> {
        let update = update.into();
        let prepared = PreparedUpdate::new(self.pid, update, self.attached, &self.ticket)?;
        self.source.control.update(prepared)
    }

    /// Writes all events that rings hold or that are retained as an `.xtrace` file. With `last`,
    /// only events of the last part of this length.
    ///
    /// # Errors
    /// The error of writing to `out`.
    pub fn write_snapshot(
        &self,
        last: Option<Duration>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        let reach = last.map_or(Reach::All, Reach::Last);
        PendingSnapshot::take(vec![self], reach).write(out)
    }

    /// Begins sums of calls. They are made until the returned value is dropped.
    ///
    /// # Errors
    /// The process or its files do not answer.
    pub fn begin_profile(self: &Arc<Self>) -> Result<Profiling> {
        let number = self.source.output.profiles.number();
        // The events in the rings were recorded before.
        let _coming = self.source.output.readers.expect_reader();
        self.source.control.profile(Ask::Begin(number))?;
        Ok(Profiling {
            session: Arc::clone(self),
            number,
        })
    }

    /// The sums of calls that are kept in [`Mode::Profile`]; `None` in another mode.
    ///
    /// # Errors
    /// As [`Self::begin_profile`].
    pub fn kept_profile(&self) -> Result<Option<ProfileSums>> {
        self.source.control.profile(Ask::Kept)
    }

    /// The name of a function, and the path of its module. Reads no file.
    pub(crate) fn name_of(&self, id: FunctionId) -> Option<(String, String)> {
        let (module, name) = self.source.functions.name(id)?;
        Some((name, module))
    }

    /// The number of calls of each function since the mode became [`Mode::Count`]. `None` in
    /// another mode.
    ///
    /// # Errors
    /// As [`Self::begin_profile`].
    pub fn call_counts(&self) -> Result<Option<CallCounts>> {
        if self.source.output.mode() != Mode::Count {
            return Ok(None);
        }
        self.source.control.flush()?;
        Ok(Some(self.source.output.calls.get()))
    }

    /// Switches everything off, drains the rings, verifies the text, and detaches from the process.
    /// Ends the subscriptions.
    ///
    /// # Errors
    /// Memory that cannot be read or written. The session is over nevertheless.
    pub fn detach(&self) -> Result<DetachReport> {
        self.source.control.detach()
    }

    /// The clock of the session's events.
    pub(super) fn clock(&self) -> Clock {
        Clock::new(
            self.source
                .output
                .with_retained(|retained| retained.anchors().to_vec()),
        )
    }

    /// How the process ended, if it has. `None` after an `exec`.
    pub fn ending(&self) -> Option<Ending> {
        self.source.control.shared.ending()
    }

    /// True if events may still come.
    pub fn is_living(&self) -> bool {
        matches!(
            self.source.control.shared.phase(),
            Phase::Tracing | Phase::Detaching
        )
    }

    /// The time at which the process ended or the session failed, unless a detach came before.
    pub(crate) fn ended(&self) -> Option<Instant> {
        self.source.control.shared.ended()
    }

    /// The size of retained events in bytes.
    pub(crate) fn retained_bytes(&self) -> u64 {
        self.source.output.counters().retained_bytes
    }

    /// The refusal of a failed session. A failed session only gives out its events and can be
    /// detached.
    pub(crate) fn failure(&self) -> Option<Refusal> {
        self.source
            .output
            .failure
            .get()
            .map(|_| self.source.control.failed())
    }

    /// True once the process has ended.
    pub fn has_exited(&self) -> bool {
        self.source.control.shared.phase() == Phase::Exited
    }
}

impl AsRef<TraceSource> for Session {
    fn as_ref(&self) -> &TraceSource {
        &self.source
    }
}

impl TracedProcess for Session {
    fn pid(&self) -> Pid {
        self.pid
    }

    fn process(&self) -> Process {
        self.process()
    }

    fn tables(&self) -> &dyn Tables {
        &self.source
    }

    fn anchors(&self) -> Vec<ClockAnchor> {
        self.anchors()
    }

    fn functions(&self, selection: Option<&Selection>) -> Result<Vec<FunctionRow>> {
        self.functions(selection)
    }

    fn functions_known(&self) -> usize {
        self.source.functions.ids()
    }

    fn module_path(&self, id: ModuleId) -> String {
        self.source.functions.path(id)
    }

    fn failure(&self) -> Option<Refusal> {
        self.failure()
    }
}

/// Sums of calls that are being made of a process.
#[derive(Debug)]
pub struct Profiling {
    session: Arc<Session>,
    number: u64,
}

// === impl Profiling ===

impl Profiling {
    /// The process.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The sums of calls since [`Session::begin_profile`].
    ///
    /// # Errors
    /// As [`Session::begin_profile`].
    pub fn finish(self) -> Result<ProfileSums> {
        let sums = self.session.source.control.profile(Ask::End(self.number))?;
        Ok(sums.unwrap_or_default())
    }
}

impl Drop for Profiling {
    fn drop(&mut self) {
        // After `finish` there are no sums to end.
        self.session
            .source
            .output
            .profiles
            .answer(Ask::End(self.number));
    }
}

/// Writes sums of calls of several processes as one `.xtrace` file.
///
/// # Errors
/// The error of writing to `out`.
pub fn write_profile(
    profiles: &[(Arc<Session>, ProfileSums)],
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let mut writer = TraceWriter::new(out)?;
    for (source, (session, sums)) in (0..).map(Source).zip(profiles) {
        session.source.write_sums(source, sums, &mut writer)?;
        if let Some(since) = sums.since() {
            writer.begins(source, since);
        }
        writer.ended(source, &session.source)?;
    }
    writer.no_sums()?;
    writer.end()
}
