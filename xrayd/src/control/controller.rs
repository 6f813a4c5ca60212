//! The loop of the control thread `ctl-<pid>`: every change to the target after the attach, and the
//! watch on the target's life. The attach itself is in `process/attach.rs`.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::Child,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{RecvTimeoutError, SendError},
    },
    time::{Duration, Instant},
};

use xray_trace::model::FunctionId;

use super::{
    event_types::Reading,
    handle::{Command, Commands, Counting, Shared, ToggleRequest},
    loading::Loading,
    rules::{RuleEffect, Rules},
};
use crate::{
    collect::{DrainHandle, Switches, bytes_of_threads},
    control::governor::Governor,
    inject::{
        DispatchMode, PatchReport, Patcher, RunState, SETTLE, TableClaim, Tenure, TrampolineFilter,
        clear_live,
    },
    lock::lock,
    panics::message_of,
    pid::TargetAddr,
    quotas::Ticket,
    refusal::{Reason, Refusal, Result},
    store::EventStore,
    sys::{Claim, Memory, ptrace::Stopped},
    target::{Ending, Indexes, Maps, Target, Threads, let_threads_run, memory_room},
    types::{DetachReport, PatchSite, Phase, Run, ToggleReport, Wanted},
};

/// Interval of the checks whether the target still lives.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// Limit on names of matched functions in a report.
const SAMPLE: usize = 5;

/// The state of the control thread.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) target: Target,
    pub(crate) memory: Arc<Memory>,
    pub(crate) patcher: Patcher,
    pub(crate) loading: Loading,
    pub(crate) reading: Reading,
    /// Address of the table's mapping.
    pub(crate) table: TargetAddr,
    pub(crate) output: Arc<EventStore>,
    pub(crate) shared: Arc<Shared>,
    /// A process that xrayd started and has not let run yet.
    pub(crate) held: Option<Stopped>,
    /// A process that xrayd started, to be collected when it ends.
    pub(crate) child: Option<Child>,
    /// Keep other tracers away until the detach. The record in the table is dropped first.
    pub(crate) claim: Option<(TableClaim, Claim)>,
    /// True if only some calls are recorded.
    pub(crate) choosing: bool,
    pub(crate) governor: Governor,
    /// True once the process's control group had room for the rings. Set by `has_room_for`.
    pub(crate) has_room_for_rings: bool,
    /// Dropped last, after everything above.
    pub(crate) _ticket: Arc<Ticket>,
}

// === impl Controller ===

impl Controller {
    /// Serves the session until a detach or the end of the target. After a panic the control thread
    /// detaches from the process, and the session has failed. Commands that arrive meanwhile get no
    /// answer.
    pub(crate) fn run(mut self, commands: &Commands) {
        let _end = commands.liveness().until_end();
        commands.liveness().looks_for_requests();
        // After a panic the control thread does not continue its last operation. The cleanup uses
        // only the target's memory and the list of its sleds. Data behind locks is consistent
        // between statements.
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(commands)));
        if let Err(payload) = served {
            let message = format!("a bug in xrayd: {}", message_of(&*payload));
            self.output.fail(message);
            self.end_of_session("control");
        }
        self.reap_at_leisure();
    }

    fn serve(&mut self, commands: &Commands) {
        self.read_event_types();
        let mut seen = Instant::now();
        loop {
            let pause = self.loading.until_look().min(WATCH_EVERY);
            let pause = pause.min(self.governor.until_due());
            let command = commands.next(pause, self.target.pidfd());
            self.loading.receive();
            let now = Instant::now();
            match self.tend_claim() {
                Tenure::Held => {}
                Tenure::Gone => {
                    self.end_of_target(seen);
                    break;
                }
                Tenure::Lost(why) => {
                    self.end_of_tenure(&why);
                    break;
                }
            }
            seen = now;
            if self.output.failure().is_some() {
                self.end_of_session("drain");
                break;
            }
            match command {
                Ok(Command::Toggle { request, answer }) => {
                    // The client may have gone. The toggle stands all the same.
                    let _ = answer.send(self.toggle(*request));
                }
                Ok(Command::Release { from, answer }) => {
                    let _ = answer.send(self.release(from));
                }
                Ok(Command::Begin {
                    rules,
                    effect,
                    of,
                    answer,
                }) => {
                    let _ = answer.send(self.begin(rules, effect, &of));
                }
                Ok(Command::Look { answer }) => {
                    let _ = answer.send(self.look());
                }
                Ok(Command::Count { count, answer }) => {
                    let counted = self.patcher.front() == DispatchMode::Count;
                    let counting = count == Counting::On;
                    let is_given_up = answer.send(self.lead(counting, self.choosing)).is_err();
                    // The mode stays as it was.
                    if is_given_up && let Err(refusal) = self.lead(counted, self.choosing) {
                        tracing::warn!(
                            %refusal,
                            "the mode is unchanged, but calls are counted or recorded as in the \
                             other mode"
                        );
                    }
                }
                Ok(Command::Choose { choice, answer }) => {
                    let _ = answer.send(self.choose(choice.as_ref()));
                }
                Ok(Command::Economize { budget, answer }) => {
                    let _ = answer.send(self.economize(budget));
                }
                Ok(Command::NameTypes { answer }) => {
                    self.read_event_types();
                    let _ = answer.send(Ok(()));
                }
                Ok(Command::Resume { answer }) => {
                    let _ = answer.send(self.resume());
                }
                Ok(Command::Detach { answer }) => {
                    // The report waits for the next detach if this one was given up.
                    if let Err(SendError(report)) = answer.send(self.detach()) {
                        *lock(&self.shared.final_report) = Some((Instant::now(), report));
                    }
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    if let Err(error) = self.detach() {
                        tracing::error!(pid = self.target.pid().as_raw(), %error, "cannot detach");
                    }
                    break;
                }
            }
            self.tend_event_types();
            self.tend_budget();
            if self.loading.until_look().is_zero()
                && let Err(error) = self.look()
            {
                tracing::debug!(pid = self.target.pid().as_raw(), %error, "cannot look for libraries");
            }
        }
    }

    /// Renews the claim to the table, and checks that it still holds. The process may have ended,
    /// or may have replaced its program by `exec`.
    fn tend_claim(&mut self) -> Tenure {
        match &mut self.claim {
            _ if self.target.has_exited() => Tenure::Gone,
            Some((table, _)) => table.tend(),
            None => Tenure::Held,
        }
    }

    /// True if the process has ended, or if an `exec` has replaced the address space of the attach.
    fn has_no_memory(&self) -> bool {
        self.target.has_exited() || self.memory.read_u64(self.table).is_err()
    }

    /// Ends the session of a program that is gone. The program was last seen at `seen`. The session
    /// keeps what the program recorded up to its last event.
    fn end_of_target(&mut self, seen: Instant) {
        let _failed = self.finish_drain();
        self.output.close();
        self.claim = None;
        self.collect_child();
        // An ending process gives its memory back before it counts as ended. So missing memory
        // means an `exec` only if a thread still lives.
        let executed = self.target.live_thread().is_ok() && self.has_no_memory();
        if executed {
            // This is the only place that sets it, and it runs once.
            let _ = self.shared.executed.set(seen);
        }
        if !executed {
            let ending = self.ending();
            let _ = self.shared.ending.set(ending);
            // All events are retained by now, and the session does not count as over yet.
            self.output.triggers.ended(ending);
        }
        let report = self.totals(DetachReport {
            exited: true,
            ..DetachReport::default()
        });
        self.leave(Phase::Exited, Ok(report));
        let pid = self.target.pid().as_raw();
        match executed {
            true => tracing::info!(pid, "the process executed another program"),
            false => tracing::info!(pid, "the process has ended"),
        }
    }

    /// How the process ended. If xrayd started the process, the exit status is exact.
    fn ending(&self) -> Ending {
        let status = *lock(&self.shared.exit_status);
        status.map_or_else(|| self.target.ending(), Ending::from)
    }

    /// Ends the session after a panic of one of its threads, or after the loss of its rings. The
    /// control thread detaches from the program. The session keeps what the program recorded until
    /// a detach asks for the report.
    fn end_of_session(&mut self, thread: &'static str) {
        let let_go = catch_unwind(AssertUnwindSafe(|| self.let_go()));
        let report = let_go.unwrap_or_else(|payload| Err(self.abandon(&message_of(&*payload))));
        let pid = self.target.pid().as_raw();
        let failure = self.output.failure().unwrap_or_default();
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
    fn end_of_tenure(&mut self, why: &str) {
        let pid = self.target.pid();
        let failure = format!("{why}; this session has changed nothing more in the process");
        tracing::error!(%pid, failure, "another xrayd has taken over the session's process");
        self.output.fail(failure.clone());
        let report = self.leave_to_others(&failure);
        self.leave(Phase::Failed, report);
    }

    fn leave_to_others(&mut self, failure: &str) -> Result<DetachReport> {
        let drain = lock(&self.shared.drain).take();
        if let Some(Err(refusal)) = drain.map(DrainHandle::abandon) {
            tracing::warn!(%refusal, "the drain thread did not read the last events");
        }
        self.output.close();
        self.claim = None;
        self.resume()?;
        let message = format!("process {}: {failure}", self.target.pid());
        Err(Refusal::new(Reason::SessionFailed, message))
    }

    /// The last resort after a panic during the detach. Sleds may stay on. They record nothing any
    /// more.
    fn abandon(&mut self, message: &str) -> Refusal {
        let pid = self.target.pid();
        if let Err(error) = clear_live(&self.memory, self.table) {
            tracing::error!(%pid, %error, "cannot write to the table");
        }
        let _failed = self.finish_drain();
        self.output.close();
        self.claim = None;
        let message = format!(
            "process {pid}: because of a bug in xrayd, its sleds are still on ({message}); they \
             record nothing, and the next attach switches them off"
        );
        Refusal::new(Reason::SessionFailed, message)
    }

    /// Ends the session, and keeps `report` for a detach.
    fn leave(&self, phase: Phase, report: Result<DetachReport>) {
        *lock(&self.shared.final_report) = Some((Instant::now(), report));
        self.shared.phase.store(phase as u8, Ordering::Release);
    }

    fn collect_child(&mut self) {
        let Some(child) = &mut self.child else { return };
        match child.try_wait() {
            Ok(Some(status)) => {
                *lock(&self.shared.exit_status) = Some(status);
                self.child = None;
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot collect the exit status of a child process");
            }
        }
    }

    /// Collects a child that outlives its session on a thread of its own.
    fn reap_at_leisure(&mut self) {
        self.collect_child();
        let Some(mut child) = self.child.take() else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        let reaper = std::thread::Builder::new()
            .name("reaper".to_owned())
            .spawn(move || {
                if let Ok(status) = child.wait() {
                    *lock(&shared.exit_status) = Some(status);
                }
            });
        if let Err(error) = reaper {
            tracing::warn!(
                %error,
                "cannot start a thread that collects a child process; the child is not collected \
                 before the daemon ends"
            );
        }
    }

    fn begin(&mut self, rules: Rules, effect: RuleEffect, of: &Indexes) -> Result<()> {
        self.loading.take_rules(rules);
        lock(&self.shared.leases).extend(effect.leases);
        effect
            .on
            .into_iter()
            .try_for_each(|(capture, ids)| self.switch(&ids, Wanted::On(capture)).map(drop))?;
        self.arm_others(of);
        Ok(())
    }

    /// Records only the chosen calls from now on. `None`: all calls.
    fn choose(&mut self, choice: Option<&TrampolineFilter>) -> Result<()> {
        let was_counting = self.patcher.front() == DispatchMode::Count;
        if let Some(choice) = choice {
            self.write_choice(choice)?;
        }
        self.lead(was_counting, choice.is_some())
    }

    /// Writes the choice of calls for the trampolines.
    pub(super) fn write_choice(&self, choice: &TrampolineFilter) -> Result<()> {
        choice
            .write(&self.memory, &self.loading.layout)
            .map_err(|error| {
                Refusal::from_io(
                    self.target.pid(),
                    "write the filter of calls to its table",
                    &error,
                )
            })
    }

    /// Sets the front of all sleds. While calls are counted no exit is recorded, so functions are
    /// marked as if all were off.
    fn lead(&mut self, counting: bool, choosing: bool) -> Result<()> {
        self.choosing = choosing;
        let before = self.patcher.front();
        let front = match (counting, choosing) {
            (true, _) => DispatchMode::Count,
            (false, true) => DispatchMode::Filter,
            (false, false) => DispatchMode::None,
        };
        if before == front {
            return Ok(());
        }
        if front == DispatchMode::Filter {
            // Calls that were open when the filter was last in use are long over.
            self.renew_filters()?;
        }
        if front == DispatchMode::Count
            && let Some(drain) = self.shared.drain()
        {
            drain.begin_counts()?;
        }
        let set = self.lead_to(before, front);
        if before == DispatchMode::Filter {
            // A thread that is in the filter leaves it within the pause. Calls that waited there
            // count as left out.
            std::thread::sleep(SETTLE);
            return set.and(self.renew_filters());
        }
        set
    }

    pub(crate) fn renew_filters(&self) -> Result<()> {
        self.shared
            .drain()
            .map_or(Ok(()), |drain| drain.renew_filters())
    }

    fn lead_to(&mut self, before: DispatchMode, front: DispatchMode) -> Result<()> {
        let (switches, on) = (self.switches(), self.all_on());
        let mut others = self.loading.functions.sites(&on);
        others.retain(|site| !site.kind.is_entry());
        if before == DispatchMode::Count {
            switches.mark(&on);
            self.patch_as_wanted(&on)?;
        }
        self.patcher.set_front(&self.memory, front)?;
        if front == DispatchMode::Count {
            switches.mark(&on);
            self.patch(&others, Wanted::Off)?;
        }
        Ok(())
    }

    fn toggle(&mut self, request: ToggleRequest) -> Result<ToggleReport> {
        let ToggleRequest {
            patterns,
            later,
            mut ids,
            of,
            to,
            lease,
            run,
        } = request;
        // The selection includes libraries that were loaded just now. Switching off needs no look,
        // because the rule holds for libraries that are found later.
        if to != Wanted::Off || run == Run::Dry {
            self.look()?;
        }
        // Functions of libraries that were found after the request was matched may be on already,
        // so they are matched here.
        if let Some(later) = later {
            let mut others = self.loading.functions.loaded();
            others.retain(|loaded| !of.has(loaded));
            ids.extend(self.loading.functions.matching(&others, &later));
        }
        let functions = Arc::clone(&self.loading.functions);
        let mut report = self.report_on(&ids);
        let (changing, leased) = match (lease, to) {
            (Some(lease), Wanted::On(capture)) => self.acquire(&ids, lease, capture, run),
            _ => (self.shared.states.changing(ids.clone(), to), Vec::new()),
        };
        report.changed = u32::try_from(changing.len()).unwrap_or(u32::MAX);
        let started = Instant::now();
        if run == Run::Dry {
            let sites = functions.sites(&changing);
            report.sleds = sites.len() as u64;
            report.copied_bytes = self.patcher.private_pages().would_copy(&sites);
            if let Wanted::On(capture) = to {
                report.restaged = self.patcher.would_restage(&self.memory, &sites, capture);
            }
            let patcher = &self.patcher;
            report.copied_by_module = self
                .loading
                .by_module(&sites, |sites| patcher.private_pages().would_copy(sites));
            report.elapsed = started.elapsed();
            return Ok(report);
        }
        let switched = self.switch(&changing, to);
        if switched.is_err() {
            self.unlend(leased);
        }
        // Functions that could not be switched off must not be switched on in later libraries.
        if switched.is_ok() || to == Wanted::Off {
            match (lease, to) {
                (Some(lease), Wanted::On(capture)) => {
                    self.loading.acquire_rule(&patterns, lease, capture);
                }
                _ => {
                    lock(&self.shared.leases).end(ids);
                    self.loading.add_rule(&patterns, to);
                }
            }
        }
        let (patched, copied) = switched?;
        report.elapsed = started.elapsed();
        report.add(&patched, copied);
        Ok(report)
    }

    /// The report of a toggle before it is made.
    pub(super) fn report_on(&self, ids: &[FunctionId]) -> ToggleReport {
        let sample = ids.iter().take(SAMPLE);
        ToggleReport {
            matched: u32::try_from(ids.len()).unwrap_or(u32::MAX),
            sample: sample
                .filter_map(|&id| Some(self.loading.functions.name(id)?.1))
                .collect(),
            ..ToggleReport::default()
        }
    }

    /// Switches functions. Returns the result, and the bytes that became private to the target.
    ///
    /// # Errors
    /// As [`States::toggle`].
    pub(crate) fn switch(&mut self, ids: &[FunctionId], to: Wanted) -> Result<(PatchReport, u64)> {
        if ids.is_empty() {
            return Ok(Default::default());
        }
        self.no_rest_for(ids);
        let sites = self.sites(ids, to);
        if to != Wanted::Off {
            self.has_room_for(self.patcher.private_pages().would_copy(&sites))?;
            self.output.arm(true);
            if let Some(drain) = self.shared.drain() {
                drain.wake();
            }
        }
        let before = self.patcher.private_pages().copied_bytes();
        let shared = Arc::clone(&self.shared);
        let switches = self.switches();
        if to != Wanted::Off {
            switches.mark(&shared.states.off(ids));
        }
        // The part is either all functions or fewer, so an equal number means the same functions.
        let patch = |part: &[FunctionId], to| {
            let patched = match part.len() == ids.len() {
                true => self.patch(&sites, to),
                false => self.patch(&self.sites(part, to), to),
            };
            if to == Wanted::Off {
                switches.mark(part);
            }
            patched
        };
        let patched = shared
            .states
            .toggle(ids, to, patch, |report| report.foreign == 0);
        if shared.states.functions_on() == 0 {
            self.output.arm(false);
        }
        if patched.is_ok() && to != Wanted::Off {
            self.loading.staged(&sites);
        }
        if patched.as_ref().is_ok_and(|report| report.foreign > 0) {
            self.loading.suspect();
        }
        let after = self.patcher.private_pages().copied_bytes();
        if after != before {
            shared.copied.store(after, Ordering::Relaxed);
            let patcher = &self.patcher;
            self.loading
                .note_copies(|range| patcher.private_pages().copied_in(range));
        }
        Ok((patched?, after.saturating_sub(before)))
    }

    /// All functions that are switched on.
    pub(super) fn all_on(&self) -> Vec<FunctionId> {
        let on = |id: &FunctionId| self.shared.states.recorded(*id).is_some();
        let all = self.loading.functions.all();
        all.into_iter().filter(on).collect()
    }

    /// The record of times at which functions were off.
    pub(crate) fn switches(&self) -> Arc<Switches> {
        let drain = lock(&self.shared.drain);
        drain
            .as_ref()
            .map(DrainHandle::switches)
            .unwrap_or_default()
    }

    /// The sleds to switch for these functions, ordered by address. While calls are counted, only
    /// entry sleds are on.
    pub(crate) fn sites(&self, ids: &[FunctionId], to: Wanted) -> Vec<PatchSite> {
        let mut sites = self.loading.functions.sites(ids);
        if to != Wanted::Off && self.patcher.front() == DispatchMode::Count {
            sites.retain(|site| site.kind.is_entry());
        }
        sites
    }

    /// Checks the room in the process's control group. Pages of text that are written become
    /// private to the process, and its threads write their rings. Both could bring the OOM killer
    /// upon the process. Rings are counted once, since the group's usage contains what they hold
    /// afterwards.
    fn has_room_for(&mut self, text: u64) -> Result<()> {
        if text == 0 && self.has_room_for_rings {
            return Ok(());
        }
        let pid = self.target.pid();
        let rings = match self.has_room_for_rings {
            true => 0,
            false => {
                let threads = u32::try_from(Threads::of(pid).len()).unwrap_or(u32::MAX);
                bytes_of_threads(self.loading.layout.geometry, threads)
            }
        };
        match memory_room(pid) {
            Some(room) if room.bytes < text.saturating_add(rings) => {
                let message = format!(
                    "process {pid}: {text} bytes of its text would become private, its threads would write {rings} bytes of rings, \
                     and its control group {} has room for {} bytes",
                    room.group.display(),
                    room.bytes
                );
                Err(Refusal::new(Reason::NoMemory, message))
            }
            _ => {
                self.has_room_for_rings = true;
                Ok(())
            }
        }
    }

    pub(crate) fn patch(&mut self, sites: &[PatchSite], to: Wanted) -> Result<PatchReport> {
        let Self {
            patcher,
            memory,
            target,
            held,
            ..
        } = self;
        let run_state = match held {
            Some(_) => RunState::Halted,
            None => RunState::Running,
        };
        match patcher.switch(memory, target, run_state, sites, to) {
            Err(_) if self.target.has_exited() => Err(self.target.exited()),
            result => result,
        }
    }

    /// Has the drain read the rest and end.
    ///
    /// # Errors
    /// The drain hangs. The session has failed then.
    fn finish_drain(&self) -> Result<()> {
        let drain = lock(&self.shared.drain).take();
        let finished = drain.map_or(Ok(()), DrainHandle::finish);
        finished.map_err(|refusal| {
            tracing::warn!(%refusal, "the drain thread did not read the last events");
            let message = "xrayd did not read the rings: the process's memory does not answer";
            self.output.fail(message.to_owned());
            let message = format!("process {}: {message}", self.target.pid());
            Refusal::new(Reason::SessionFailed, message)
        })
    }

    fn resume(&mut self) -> Result<()> {
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        let pid = self.target.pid();
        held.release()
            .map(drop)
            .map_err(|error| Refusal::new(Reason::Io, format!("process {pid}: {error}")))
    }

    fn detach(&mut self) -> Result<DetachReport> {
        let report = self.let_go();
        self.shared
            .phase
            .store(Phase::Exited as u8, Ordering::Release);
        report
    }

    fn let_go(&mut self) -> Result<DetachReport> {
        self.shared
            .phase
            .store(Phase::Detaching as u8, Ordering::Release);
        if let Tenure::Lost(why) = self.tend_claim() {
            return self.leave_to_others(&why);
        }
        self.forget_budget();
        let sites = self.loading.sites();
        let result = self.switch_off_and_prove(&sites);
        // No more events come, and the memory still exists.
        if self.output.event_types.is_wanting() {
            self.read_event_types();
        }
        let finished = self.finish_drain();
        self.output.close();
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
        let patched = self.patch(sites, Wanted::Off);
        // A thread that has just taken a sled is in a trampoline.
        let_threads_run(self.target.pid());
        if let Some(Err(refusal)) = self.shared.drain().map(|drain| drain.flush()) {
            tracing::warn!(
                %refusal,
                "the drain thread did not read the last events before the detach"
            );
        }
        // This matters most if a sled could not be switched off: each thread that still takes it
        // stops recording at the end of its chunk.
        clear_live(&self.memory, self.table)
            .map_err(|error| Refusal::from_io(self.target.pid(), "write to the table", &error))?;
        let patched = patched?;
        if patched.foreign > 0 {
            tracing::warn!(
                pid = self.target.pid().as_raw(),
                sleds = patched.foreign,
                "left sleds alone, because another tracer or the program has changed them"
            );
        }
        let maps = maps_of(&self.target)?;
        let proof = self.patcher.prove(&self.memory, &maps, sites)?;
        Ok(DetachReport {
            sleds_off: proof.sleds_off,
            sleds_on: proof.sleds_on,
            text_bytes_compared: proof.compared,
            text_bytes_different: proof.different,
            ..DetachReport::default()
        })
    }

    fn totals(&self, report: DetachReport) -> DetachReport {
        let counters = self.output.counters();
        DetachReport {
            events: counters.events,
            lost: counters.lost,
            ..report
        }
    }
}

/// The current maps of the target.
pub(crate) fn maps_of(target: &Target) -> Result<Maps> {
    let pid = target.pid();
    let tid = target.live_thread()?;
    Maps::read(pid, tid).map_err(|error| Refusal::from_io(pid, "read its maps", &error))
}

// === impl ToggleReport ===

impl ToggleReport {
    pub(crate) fn add(&mut self, patched: &PatchReport, copied_bytes: u64) {
        self.sleds += patched.sleds;
        self.foreign += patched.foreign;
        self.restaged += patched.restaged;
        self.stopped = self.stopped.max(patched.stopped);
        self.copied_bytes += copied_bytes;
    }
}
