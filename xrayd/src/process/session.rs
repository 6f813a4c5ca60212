//! One attached process, as clients and other processes of its group see it. It changes the process
//! only through the controller.

use std::{sync::Arc, time::Instant};

use xray_trace::{
    instr_map::Selection,
    model::{ClockAnchor, FunctionId, GapCause, ModuleId, Process},
};

use super::{session_record::SessionKeeper, session_status, switching};
use crate::{
    collect::RingRefusal,
    control::{Chosen, Patterns, PreparedUpdate},
    export::TraceSource,
    lock::lock,
    pid::Pid,
    quotas::Ticket,
    refusal::{Refusal, Result},
    store::{
        Ask, CallCounts, EventSubscription, ExpectedReader, Metered, ProfileSums, Publisher,
        ResumedStream, Source, StreamBegin, StreamItem, Tables, TracedProcess, subscription,
    },
    target::{Credentials, Ending, ProcessFacts},
    types::{
        DetachReport, FunctionRow, Kinship, LeaseId, Mode, Phase, Run, Settings, SettingsUpdate,
        Status, ToggleReport, ToggleTo, compile,
    },
};

/// One attached process.
#[derive(Debug)]
pub struct Session {
    pub(super) pid: Pid,
    /// The credentials of the process at its attach.
    pub(super) credentials: Credentials,
    /// What rules of access look at, at the attach. `None` if it could not be read.
    pub(super) facts: Option<ProcessFacts>,
    pub(super) command_line: String,
    pub(super) source: TraceSource,
    pub(super) ring_bytes: u64,
    pub(super) max_threads: u32,
    pub(super) ring_refusal: Arc<RingRefusal>,
    pub(super) attached: ClockAnchor,
    /// True if a policy has attached to the process.
    pub(super) by_policy: bool,
    /// Keeps the session's record for a later daemon. `None` if there is none to come.
    pub(super) keeper: Option<Arc<SessionKeeper>>,
    /// The entry of the session in the metrics, if they are enabled.
    pub(super) _metered: Option<Metered>,
    /// The session's share of its payer's quotas. The controller holds it as well, so the later
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
        self.source.tables.process.start_time_ticks
    }

    /// The effective user of the process at its attach.
    pub fn uid(&self) -> u32 {
        self.credentials.user
    }

    /// The credentials of the process at its attach.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// What rules of access look at, at the attach.
    pub(crate) fn facts(&self) -> Option<&ProcessFacts> {
        self.facts.as_ref()
    }

    /// The process as a trace describes it.
    pub fn process(&self) -> Process {
        self.source.tables.process.clone()
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
                    .tables
                    .functions
                    .matching(&self.source.tables.functions.loaded(), &compiled)
            }
            None => self.source.tables.functions.living(),
        };
        let row = |id: FunctionId| {
            let (recorded, calls) = (
                self.source.control.shared.states.recorded(id),
                self.source.output.counts.calls(id),
            );
            let row = self.source.tables.functions.row(id, recorded, calls)?;
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
        switching::toggle(
            &self.source,
            self.compiled(selection.into())?,
            to.into(),
            run,
        )
    }

    /// Compiles a selection for the user who attached, unless it is compiled already.
    pub(super) fn compiled(&self, selection: Chosen<'_>) -> Result<Arc<Patterns>> {
        selection.compiled(self.ticket.accounts(), self.ticket.payer())
    }

    /// Ends a lease, and the subscriptions of the lease. The subscriptions have all events up to
    /// now.
    ///
    /// # Errors
    /// A process that ended, or memory that cannot be written.
    pub fn release(&self, from: LeaseId) -> Result<ToggleReport> {
        switching::release(&self.source, from)
    }

    /// Has the drain look at the rings soon, so that the counters of [`Self::status`] are new. True
    /// if the counters may be old now.
    pub fn refresh(&self) -> bool {
        self.source.output.drain.wake();
        self.source.control.shared.phase() == Phase::Tracing
            && self.source.output.counters.are_old()
    }

    /// State and counters. While few events come, the counters are up to 30 seconds old, unless
    /// [`Self::refresh`] was called a moment before. The drain looks again now, for the next call.
    pub fn status(&self) -> Status {
        self.refresh();
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
            functions: u32::try_from(self.source.tables.functions.len()).unwrap_or(u32::MAX),
            functions_on: self.source.control.shared.functions_on(),
            functions_with_values: self.source.control.shared.functions_with_values(),
            threads: counters.threads,
            events: counters.events,
            events_per_second: counters.events_per_second,
            filtered: counters.filtered,
            left_out: counters.left_out,
            filter,
            budget: session_status::budget(&self.source),
            clock_faults: self
                .source
                .output
                .with_retained(|retained| retained.clock_faults()),
            gaps: session_status::gaps(&self.source),
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
            modules: session_status::modules(&self.source),
            detection: self.source.control.shared.detection(),
        }
    }

    /// The events and losses so far, as the drain has counted them at its last look.
    pub(crate) fn events_and_losses(&self) -> (u64, u64) {
        let counters = self.source.output.counters();
        (counters.events, counters.lost)
    }

    /// True if a policy has attached to the process, and nothing else needs the session: no
    /// function is on, and no client reads or waits for events.
    pub(crate) fn is_left_by_policies(&self) -> bool {
        let output = &self.source.output;
        self.by_policy
            && self.source.control.shared.functions_on() == 0
            && !output.is_live()
            && output.triggers.count() == 0
    }

    /// True if a policy has attached to the process.
    pub(crate) fn is_by_policy(&self) -> bool {
        self.by_policy
    }

    /// True if the process has executed another program, which has ended the session.
    pub(crate) fn has_executed(&self) -> bool {
        self.source.control.shared.executed().is_some()
    }

    /// True if the policy with this lease has a function on.
    pub(crate) fn is_of_policy(&self, lease: LeaseId) -> bool {
        lock(&self.source.control.shared.leases).has(lease)
    }

    /// The leases of policies in force.
    pub(crate) fn policy_leases(&self) -> Vec<LeaseId> {
        lock(&self.source.control.shared.leases).of_policies()
    }

    /// A live subscription of all events from now on. A subscription for a lease ends with the
    /// lease. The threads seen so far come first.
    ///
    /// Each time that a thread finds its ring full, it waits `wait` ticks at most for the drain to
    /// read from it.
    pub fn subscribe(self: &Arc<Self>, lease: Option<LeaseId>, wait: u64) -> EventSubscription {
        let (publisher, subscription) = subscription(1, lease, wait);
        let _coming = self.expect_reader();
        self.publish_to(&publisher, Source::default());
        subscription
    }

    /// A live stream that begins with retained events. If the position after which it is to begin
    /// is not found, it begins with the oldest of them that are later. A reader that is too slow
    /// for its queue comes back to retained events.
    pub fn resume(self: &Arc<Self>, begin: StreamBegin) -> ResumedStream {
        let reader = self.expect_reader();
        let process = StreamItem::Process(Arc::clone(self) as Arc<dyn TracedProcess>);
        let origin = self.kinship().map(|kinship| kinship.origin());
        let items = [Some(process), origin.map(StreamItem::Origin)];
        let store = Arc::clone(&self.source.output);
        let gaps = self.source.tables.gaps();
        let is_damaged = gaps.iter().any(|gap| gap.cause == GapCause::DamagedEvents);
        let begin = (begin, is_damaged);
        ResumedStream::new(store, begin, items.into_iter().flatten(), reader)
    }

    /// Has events recorded and the rings read until the returned value is dropped. The events in
    /// them are not new any more then.
    pub(super) fn expect_reader(&self) -> ExpectedReader {
        let coming = self.source.output.expect_reader();
        self.record_events();
        if self.source.output.mode() == Mode::Flight {
            // A drain that hangs publishes them later.
            let _ = self.source.control.flush();
        }
        coming
    }

    /// Has events recorded from now on, for a reader or a trigger that waits for them.
    pub(super) fn record_events(&self) {
        if self.source.output.mode() == Mode::Profile {
            // A controller that hangs does it later.
            let _ = self.source.control.settle();
        }
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

    /// The sums of calls that are kept in [`Mode::Profile`]; `None` in another mode.
    ///
    /// # Errors
    /// The process or its files do not answer.
    pub fn kept_profile(&self) -> Result<Option<ProfileSums>> {
        self.source.control.profile(Ask::Kept)
    }

    /// The number of calls of each function since the mode became [`Mode::Count`]. `None` in
    /// another mode.
    ///
    /// # Errors
    /// The process or its files do not answer.
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

    /// Ends the session, and leaves its process as it is for a later daemon.
    ///
    /// # Errors
    /// The controller or the drain hangs, or the session is over.
    pub(super) fn leave(&self) -> Result<()> {
        self.source.control.leave()
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

    /// True if the process had ended before this daemon came.
    pub(super) fn ended_before(&self) -> bool {
        self.source.control.shared.ended_before
    }

    /// Removes the record, unless the daemon leaves its sessions to the next one.
    pub(super) fn drop_record(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.drop_record();
        }
    }

    /// The time at which the process ended or the session failed, unless a detach came before.
    pub(crate) fn ended(&self) -> Option<Instant> {
        self.source.control.shared.ended()
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
        &*self.source.tables
    }

    fn anchors(&self) -> Vec<ClockAnchor> {
        self.anchors()
    }

    fn functions(&self, selection: Option<&Selection>) -> Result<Vec<FunctionRow>> {
        self.functions(selection)
    }

    fn functions_known(&self) -> usize {
        self.source.tables.functions.ids()
    }

    fn module_path(&self, id: ModuleId) -> String {
        self.source.tables.functions.path(id)
    }

    fn failure(&self) -> Option<Refusal> {
        self.failure()
    }
}
