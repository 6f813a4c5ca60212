//! The control of a session: every change to the target after the attach, and the watch on the
//! target's life. It runs as a task (`task.rs`). The attach itself is in `process/attach.rs`.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{SendError, TryRecvError},
    },
    time::{Duration, Instant},
};

use xray_trace::model::{ClockAnchor, FunctionId, Gap, GapCause, ProcessId, Ticks};

use super::{
    child::StartedChild,
    choices::{ChoiceKeeper, Choices, CompiledChoices},
    event_types::Reading,
    governor::Governor,
    handle::Commands,
    loading::Loading,
    patching::Patching,
    request::{Command, ToggleRequest},
    rules::{RuleEffect, Rules},
    settings::{PreparedUpdate, SettingsWriter},
    switcher::Switcher,
};
use crate::{
    collect::DrainHandle,
    inject::{ClaimState, RENEW_EVERY, TableSession, clear_live},
    lock::lock,
    panics::message_of,
    pid::TargetAddr,
    quotas::Ticket,
    refusal::{Reason, Refusal, Result},
    sys::{Claim, ticks_now},
    target::{Ending, Indexes, let_threads_run},
    tasks::{Next, shared_time_after},
    types::{
        DetachReport, LeaseId, PatchSite, Phase, Run, Settings, SettingsUpdate, ToggleReport,
        ToggleTo, Wanted,
    },
};

/// Work that is due after this time or later may be a little late.
const NOT_URGENT: Duration = Duration::from_millis(500);

/// The state of a session's control.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) patching: Patching,
    pub(crate) loading: Loading,
    pub(crate) reading: Reading,
    /// Address of the table's mapping.
    pub(crate) table: TargetAddr,
    /// A process that xrayd started, to be collected when it ends.
    pub(crate) child: StartedChild,
    /// Keep other tracers away until the detach. The record in the table is dropped first.
    pub(crate) claim: Option<(TableSession, Claim)>,
    /// The counter when recording was last seen to be open.
    pub(crate) held_at: Ticks,
    /// The clocks at the attach.
    pub(crate) attached: ClockAnchor,
    /// When the program was last seen in the target.
    pub(crate) seen: Instant,
    pub(crate) governor: Governor,
    /// Keeps the choices for a later daemon. `None` if there is none to come.
    pub(crate) keeper: Option<Arc<dyn ChoiceKeeper>>,
    /// The session's share of its payer's quotas. Dropped last, after everything above.
    pub(crate) ticket: Arc<Ticket>,
}

// === impl Controller ===

impl Controller {
    /// Comes before the first step.
    pub(super) fn begin(&mut self) {
        self.reading.read(&self.patching);
    }

    /// Carries a command out, if there is one, and does what is due.
    pub(super) fn step(&mut self, commands: &Commands) -> Next {
        let pid = self.patching.target.pid().as_raw();
        self.loading.receive();
        let now = Instant::now();
        match self.tend_claim() {
            ClaimState::Held => self.held_at = ticks_now(),
            ClaimState::Closed(at) => self.open_again(at),
            ClaimState::Gone => {
                self.end_of_target(self.seen);
                return Next::Done;
            }
            ClaimState::Lost(why) => {
                self.end_of_claim(&why);
                return Next::Done;
            }
        }
        self.seen = now;
        if self.patching.output.failure.get().is_some() {
            self.end_of_session("drain");
            return Next::Done;
        }
        // Before functions are switched on: no call is to begin in one way and to end in another.
        if let Err(refusal) = self.settings_writer().settle_dispatch_mode() {
            tracing::debug!(pid, %refusal, "cannot change how calls are recorded");
        }
        let has_command = match commands.next() {
            Ok(command) => {
                if self.carry_out(command).is_break() {
                    return Next::Done;
                }
                true
            }
            Err(TryRecvError::Empty) => false,
            Err(TryRecvError::Disconnected) => {
                if let Err(error) = self.detach() {
                    tracing::error!(pid, %error, "cannot detach");
                }
                return Next::Done;
            }
        };
        self.reading.tend(&self.patching);
        self.governor.tend(&mut self.patching);
        if self.loading.is_due(&self.patching.traced)
            && let Err(error) = self.look()
        {
            tracing::debug!(pid, %error, "cannot look for libraries");
        }
        if has_command {
            // Another one may wait.
            return Next::Now;
        }
        let pause = self.loading.until_look(&self.patching.traced);
        let pause = pause.min(self.governor.until_due()).min(RENEW_EVERY);
        match pause < NOT_URGENT {
            true => Next::At(Instant::now() + pause),
            false => Next::At(shared_time_after(pause)),
        }
    }

    /// Breaks if the session has ended.
    fn carry_out(&mut self, command: Command) -> ControlFlow<()> {
        match command {
            Command::Toggle { request, answer } => {
                let lasts = request.to.lease.is_none_or(LeaseId::outlives_daemon);
                let is_choice = request.run == Run::Real && lasts;
                let toggled = self.toggle(*request);
                if is_choice {
                    self.keep_choices();
                }
                // The client may have gone. The toggle stands all the same.
                let _ = answer.send(toggled);
            }
            Command::Release { from, answer } => {
                let released = self.release(from);
                if from.outlives_daemon() {
                    self.keep_choices();
                }
                let _ = answer.send(released);
            }
            Command::Begin {
                rules,
                effect,
                of,
                answer,
            } => {
                let begun = self.begin_rules(rules, effect, &of);
                self.keep_choices();
                let _ = answer.send(begun);
            }
            Command::Look { answer } => {
                let _ = answer.send(self.look());
            }
            Command::Update { prepared, answer } => {
                let updated = self.look().and_then(|()| self.update(*prepared));
                self.keep_choices();
                // An update that was given up is undone.
                if let Err(SendError(Ok(before))) = answer.send(updated) {
                    self.settings_writer().restore(&before);
                    self.keep_choices();
                }
            }
            Command::Settle { answer } => {
                let _ = answer.send(self.settings_writer().settle_dispatch_mode());
            }
            Command::NameTypes { answer } => {
                self.reading.read(&self.patching);
                let _ = answer.send(Ok(()));
            }
            Command::Resume { answer } => {
                let _ = answer.send(self.resume());
            }
            Command::Detach { answer } => {
                // The report waits for the next detach if this one was given up.
                if let Err(SendError(report)) = answer.send(self.detach()) {
                    *lock(&self.patching.shared.final_report) = Some((Instant::now(), report));
                }
                return ControlFlow::Break(());
            }
            Command::Leave { answer } => {
                let _ = answer.send(self.leave_to_next());
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    // --- for a later daemon

    /// Goes on with the choices of an earlier session of the process. Its functions are in the
    /// modules `of`.
    ///
    /// # Errors
    /// The settings or the functions cannot be set. The session has to be given up then.
    pub(crate) fn resume_choices(
        &mut self,
        choices: CompiledChoices,
        effect: RuleEffect,
        of: &Indexes,
    ) -> Result<()> {
        let CompiledChoices {
            settings, rules, ..
        } = choices;
        let pid = self.patching.target.pid();
        let now = self.patching.settings();
        // What a new session has already is no change.
        let update = SettingsUpdate {
            mode: None,
            filter: (settings.filter != now.filter).then_some(settings.filter),
            budget: (settings.budget != now.budget).then_some(settings.budget),
        };
        if !update.is_empty() {
            let prepared = PreparedUpdate::new(pid, update, self.attached, &self.ticket)?;
            self.update(prepared)?;
        }
        self.patching.is_resuming = true;
        let begun = self.begin_rules(rules, effect, of);
        self.patching.is_resuming = false;
        begun?;
        // The pages that the earlier session has copied are still private.
        self.patching.note_copies();
        Ok(())
    }

    /// Keeps the choices as they are now.
    pub(crate) fn keep_choices(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.keep(Choices::of(
                self.patching.settings(),
                self.loading.rules(),
                &self.patching.traced.functions,
                &self.patching.shared,
            ));
        }
    }

    fn forget_choices(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.forget();
        }
    }

    /// Ends the session, and leaves sleds, table and rings as they are. The next daemon finds the
    /// record empty, and reads on where the drain stopped.
    fn leave_to_next(&mut self) -> Result<()> {
        self.patching.shared.set_phase(Phase::Detaching);
        let drain = lock(&self.patching.shared.drain).take();
        let left = drain.map_or(Ok(()), DrainHandle::abandon);
        self.patching.output.close();
        if let Some((table_session, _claim)) = self.claim.take() {
            table_session.leave();
        }
        let resumed = self.resume();
        self.patching.shared.set_phase(Phase::Exited);
        left.and(resumed)
    }

    /// Records again after trampolines have closed recording at `closed_at`, because this daemon
    /// moved the deadline too late. The program may have written any time there. Recording was open
    /// at the last look at the table.
    fn open_again(&mut self, closed_at: Ticks) {
        let pid = self.patching.target.pid();
        let now = ticks_now();
        let from = closed_at.max(self.held_at).min(now);
        self.held_at = now;
        self.patching.switches().mark_all(now);
        let is_first = self.patching.shared.add_gap(Gap {
            process: ProcessId(0),
            from: Some(from),
            until: now,
            cause: GapCause::NoDaemon,
        });
        let opened = self.claim.as_ref().map(|(table, _)| table.open_again());
        if let Err(error) = opened.unwrap_or(Ok(())) {
            tracing::warn!(%pid, %error, "cannot open recording again");
        } else if is_first {
            tracing::warn!(
                %pid,
                "the daemon moved the deadline of recording too late, so recording had closed \
                 itself; an unknown number of events is missing"
            );
        }
    }

    /// Renews the claim to the table, and checks that it still holds. The process may have ended,
    /// or may have replaced its program by `exec`.
    fn tend_claim(&mut self) -> ClaimState {
        match &mut self.claim {
            _ if self.patching.target.has_exited() => ClaimState::Gone,
            Some((table_session, _)) => table_session.tend(),
            None => ClaimState::Held,
        }
    }

    /// True if the process has ended, or if an `exec` has replaced the address space of the attach.
    fn has_no_memory(&self) -> bool {
        self.patching.target.has_exited() || self.patching.memory.read_u64(self.table).is_err()
    }

    /// Ends the session of a program that is gone. The program was last seen at `seen`. The session
    /// keeps what the program recorded up to its last event.
    fn end_of_target(&mut self, seen: Instant) {
        if let Some(keeper) = &self.keeper {
            keeper.end();
        }
        let _failed = self.finish_drain();
        self.patching.output.close();
        self.claim = None;
        self.child.collect(&self.patching.shared);
        // An ending process gives its memory back before it counts as ended. So missing memory
        // means an `exec` only if a thread still lives.
        let executed = self.patching.target.live_thread().is_ok() && self.has_no_memory();
        if executed {
            // This is the only place that sets it, and it runs once.
            let _ = self.patching.shared.executed.set(seen);
        }
        if !executed {
            let ending = self.ending();
            let _ = self.patching.shared.ending.set(ending);
            // All events are retained by now, and the session does not count as over yet.
            self.patching.output.triggers.ended(ending);
        }
        let report = self.totals(DetachReport {
            exited: true,
            ..DetachReport::default()
        });
        self.leave(Phase::Exited, Ok(report));
        let pid = self.patching.target.pid().as_raw();
        match executed {
            true => tracing::info!(pid, "the process executed another program"),
            false => tracing::info!(pid, "the process has ended"),
        }
    }

    /// How the process ended. If xrayd started the process, the exit status is exact.
    fn ending(&self) -> Ending {
        let status = *lock(&self.patching.shared.exit_status);
        status.map_or_else(|| self.patching.target.ending(), Ending::from)
    }

    /// Ends the session after a panic of one of its threads, or after the loss of its rings. The
    /// controller detaches from the program. The session keeps what the program recorded until
    /// a detach asks for the report.
    pub(super) fn end_of_session(&mut self, thread: &'static str) {
        let let_go = catch_unwind(AssertUnwindSafe(|| self.let_go()));
        self.forget_choices();
        let report = let_go.unwrap_or_else(|payload| Err(self.abandon(message_of(&*payload))));
        let pid = self.patching.target.pid().as_raw();
        let failure = self.patching.output.failure.get();
        let failure = failure.map_or("", String::as_str);
        match &report {
            Ok(_) => tracing::error!(pid, thread, failure, "the session has failed"),
            Err(error) => {
                tracing::error!(
                    pid,
                    thread,
                    failure,
                    %error,
                    "the session has failed, and the daemon cannot detach from its process"
                );
            }
        }
        self.leave(Phase::Failed, report);
    }

    /// Ends the session after another xrayd has taken the process over. Another xrayd may do that
    /// once this one has not renewed its claim for some time. Sleds, table and rings belong to the
    /// other tracer, so this session touches nothing of them any more.
    fn end_of_claim(&mut self, why: &str) {
        self.forget_choices();
        let pid = self.patching.target.pid();
        let failure = format!("{why}; this session has changed nothing more in the process");
        tracing::error!(%pid, failure, "another xrayd has taken over the session's process");
        self.patching.output.fail(failure.clone());
        let report = self.leave_to_others(&failure);
        self.leave(Phase::Failed, report);
    }

    fn leave_to_others(&mut self, failure: &str) -> Result<DetachReport> {
        let drain = lock(&self.patching.shared.drain).take();
        if let Some(Err(refusal)) = drain.map(DrainHandle::abandon) {
            tracing::warn!(%refusal, "the drain did not read the last events");
        }
        self.patching.output.close();
        self.claim = None;
        self.resume()?;
        let message = format!("process {}: {failure}", self.patching.target.pid());
        Err(Refusal::new(Reason::SessionFailed, message))
    }

    /// The last resort after a panic during the detach. Sleds may stay on. They record nothing any
    /// more.
    fn abandon(&mut self, message: &str) -> Refusal {
        let pid = self.patching.target.pid();
        if let Err(error) = clear_live(&self.patching.memory, self.table) {
            tracing::error!(%pid, %error, "cannot write to the table");
        }
        let _failed = self.finish_drain();
        self.patching.output.close();
        self.claim = None;
        let message = format!(
            "process {pid}: because of a bug in xrayd, its sleds are still on ({message}); they \
             record nothing, and the next attach switches them off"
        );
        Refusal::new(Reason::SessionFailed, message)
    }

    /// Ends the session, and keeps `report` for a detach.
    fn leave(&self, phase: Phase, report: Result<DetachReport>) {
        *lock(&self.patching.shared.final_report) = Some((Instant::now(), report));
        self.patching.shared.set_phase(phase);
    }

    /// The parts that switch functions.
    fn switcher(&mut self) -> Switcher<'_> {
        Switcher {
            patching: &mut self.patching,
            governor: &mut self.governor,
        }
    }

    /// Looks for modules that were loaded or unloaded.
    ///
    /// # Errors
    /// The process has ended.
    fn look(&mut self) -> Result<()> {
        let mut switcher = Switcher {
            patching: &mut self.patching,
            governor: &mut self.governor,
        };
        self.loading.look(&mut switcher)?;
        if self.loading.takes_change() {
            self.keep_choices();
        }
        Ok(())
    }

    /// Changes settings. Returns the settings before.
    ///
    /// # Errors
    /// As [`SettingsWriter::update`].
    pub(crate) fn update(&mut self, prepared: PreparedUpdate) -> Result<Settings> {
        self.settings_writer().update(prepared)
    }

    /// The parts that change settings.
    fn settings_writer(&mut self) -> SettingsWriter<'_> {
        SettingsWriter {
            patching: &mut self.patching,
            governor: &mut self.governor,
            reading: &mut self.reading,
            attached: self.attached,
            ticket: &self.ticket,
        }
    }

    /// Ends a lease, and switches its functions back. A failure does not stop the rest.
    fn release(&mut self, from: LeaseId) -> Result<ToggleReport> {
        self.loading.release(from);
        let back = lock(&self.patching.shared.leases).release(from);
        let ids: Vec<FunctionId> = back.iter().map(|(id, _)| *id).collect();
        let mut report = self.patching.report_on(&ids);
        let mut ways = BTreeMap::<Wanted, Vec<FunctionId>>::new();
        for (id, to) in back {
            ways.entry(to).or_default().push(id);
        }
        let started = Instant::now();
        let mut failed = None;
        for (to, ids) in ways {
            let changing = self.patching.shared.states.changing(ids, to);
            match self.switcher().switch(&changing, to) {
                Ok((patched, copied)) => {
                    report.changed += u32::try_from(changing.len()).unwrap_or(u32::MAX);
                    report.add(&patched, copied);
                }
                Err(refusal) => failed = failed.or(Some(refusal)),
            }
        }
        report.elapsed = started.elapsed();
        failed.map_or(Ok(report), Err)
    }

    fn begin_rules(&mut self, rules: Rules, effect: RuleEffect, of: &Indexes) -> Result<()> {
        self.loading.take_rules(rules);
        lock(&self.patching.shared.leases).extend(effect.leases);
        effect.on.into_iter().try_for_each(|(capture, ids)| {
            self.switcher().switch(&ids, Wanted::On(capture)).map(drop)
        })?;
        let mut switcher = Switcher {
            patching: &mut self.patching,
            governor: &mut self.governor,
        };
        self.loading.arm_others(&mut switcher, of);
        Ok(())
    }

    fn toggle(&mut self, request: ToggleRequest) -> Result<ToggleReport> {
        let ToggleRequest {
            patterns,
            later,
            mut ids,
            of,
            to,
            run,
        } = request;
        let ToggleTo { wanted, lease } = to;
        // The selection includes libraries that were loaded just now. Switching off needs no look,
        // because the rule holds for libraries that are found later.
        if wanted != Wanted::Off || run == Run::Dry {
            self.look()?;
        }
        // Functions of libraries that were found after the request was matched may be on already,
        // so they are matched here.
        if let Some(later) = later {
            let mut others = self.patching.traced.functions.loaded();
            others.retain(|loaded| !of.has(loaded));
            ids.extend(self.patching.traced.functions.matching(&others, &later));
        }
        let functions = Arc::clone(&self.patching.traced.functions);
        let mut report = self.patching.report_on(&ids);
        let (changing, leased) = match (lease, wanted) {
            (Some(lease), Wanted::On(capture)) => {
                let mut leases = lock(&self.patching.shared.leases);
                leases.acquire_all(&self.patching.shared.states, &ids, lease, capture, run)
            }
            _ => (
                self.patching.shared.states.changing(ids.clone(), wanted),
                Vec::new(),
            ),
        };
        report.changed = u32::try_from(changing.len()).unwrap_or(u32::MAX);
        let started = Instant::now();
        if run == Run::Dry {
            let sites = functions.sites(&changing);
            report.sleds = sites.len() as u64;
            report.copied_bytes = self.patching.patcher.private_pages().would_copy(&sites);
            if let Wanted::On(capture) = wanted {
                report.restaged =
                    self.patching
                        .patcher
                        .would_restage(&self.patching.memory, &sites, capture);
            }
            let patcher = &self.patching.patcher;
            report.copied_by_module = self
                .patching
                .traced
                .by_module(&sites, |sites| patcher.private_pages().would_copy(sites));
            report.elapsed = started.elapsed();
            return Ok(report);
        }
        let switched = self.switcher().switch(&changing, wanted);
        if switched.is_err() {
            let shared = &self.patching.shared;
            lock(&shared.leases).restore_all(&shared.states, leased);
        }
        // Functions that could not be switched off must not be switched on in later libraries.
        if switched.is_ok() || wanted == Wanted::Off {
            if lease.is_none() {
                lock(&self.patching.shared.leases).end(ids);
            }
            self.loading.add_rule(&patterns, to);
        }
        let (patched, copied) = switched?;
        report.elapsed = started.elapsed();
        report.add(&patched, copied);
        Ok(report)
    }

    /// Has the drain read the rest and end.
    ///
    /// # Errors
    /// The drain hangs. The session has failed then.
    fn finish_drain(&self) -> Result<()> {
        let drain = lock(&self.patching.shared.drain).take();
        let finished = drain.map_or(Ok(()), DrainHandle::finish);
        finished.map_err(|refusal| {
            tracing::warn!(%refusal, "the drain did not read the last events");
            let message = "xrayd did not read the rings: the process's memory does not answer";
            self.patching.output.fail(message.to_owned());
            let message = format!("process {}: {message}", self.patching.target.pid());
            Refusal::new(Reason::SessionFailed, message)
        })
    }

    fn resume(&mut self) -> Result<()> {
        let Some(held) = self.patching.held.take() else {
            return Ok(());
        };
        held.resume()
    }

    pub(crate) fn detach(&mut self) -> Result<DetachReport> {
        let report = self.let_go();
        // Not before: a daemon that is killed in the middle leaves a session for the next one.
        self.forget_choices();
        self.patching.shared.set_phase(Phase::Exited);
        report
    }

    fn let_go(&mut self) -> Result<DetachReport> {
        self.patching.shared.set_phase(Phase::Detaching);
        match self.tend_claim() {
            ClaimState::Lost(why) => return self.leave_to_others(&why),
            ClaimState::Closed(at) => self.open_again(at),
            ClaimState::Held | ClaimState::Gone => {}
        }
        self.governor.forget(&self.patching.shared.history);
        let sites = self.patching.traced.sites();
        let result = self.switch_off_and_prove(&sites);
        // No more events come, and the memory still exists.
        if self.patching.output.event_types.is_wanting() {
            self.reading.read(&self.patching);
        }
        let finished = self.finish_drain();
        self.patching.output.close();
        self.claim = None;
        let resumed = self.resume();
        match result {
            Err(_) if self.has_no_memory() => Ok(self.totals(DetachReport {
                exited: true,
                ..DetachReport::default()
            })),
            Err(refusal) => Err(refusal),
            Ok(report) => resumed.and(finished).map(|()| self.totals(report)),
        }
    }

    fn switch_off_and_prove(&mut self, sites: &[PatchSite]) -> Result<DetachReport> {
        let patched = self.patching.patch(sites, Wanted::Off);
        // A thread that has just taken a sled is in a trampoline. If it waits there for room, this
        // gives it some.
        if self.patching.output.wait() > 0
            && let Some(drain) = self.patching.shared.drain()
        {
            let _ = drain.flush();
        }
        let_threads_run(self.patching.target.pid());
        if let Some(Err(refusal)) = self.patching.shared.drain().map(|drain| drain.flush()) {
            tracing::warn!(
                %refusal,
                "the drain did not read the last events before the detach"
            );
        }
        // This matters most if a sled could not be switched off: each thread that still takes it
        // stops recording at the end of its chunk.
        clear_live(&self.patching.memory, self.table).map_err(|error| {
            Refusal::from_io(self.patching.target.pid(), "write to the table", &error)
        })?;
        let patched = patched?;
        if patched.foreign > 0 {
            tracing::warn!(
                pid = self.patching.target.pid().as_raw(),
                sleds = patched.foreign,
                "left sleds alone, because another tracer or the program has changed them"
            );
        }
        let maps = self.patching.target.maps()?;
        let proof = self
            .patching
            .patcher
            .prove(&self.patching.memory, &maps, sites)?;
        Ok(DetachReport {
            sleds_off: proof.sleds_off,
            sleds_on: proof.sleds_on,
            text_bytes_compared: proof.compared,
            text_bytes_different: proof.different,
            ..DetachReport::default()
        })
    }

    fn totals(&self, report: DetachReport) -> DetachReport {
        let counters = self.patching.output.counters();
        DetachReport {
            events: counters.events,
            lost: counters.lost,
            ..report
        }
    }
}
