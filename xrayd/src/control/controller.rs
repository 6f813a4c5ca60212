//! What the thread `ctl-<pid>` does: everything that changes the target after attach, and the watch on its life.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::Child,
    sync::{Arc, atomic::Ordering, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};

use xray_trace::model::FunctionId;

use super::{
    event_types::Reading,
    handle::{Command, Commands, Counting, Shared, ToggleRequest},
    loading::Loading,
    rules::{Rules, Wishes},
};
use crate::{
    collect::{DrainHandle, Switches, bytes_of_threads},
    control::governor::Governor,
    inject::{Choice, Front, PatchReport, Patcher, SETTLE, Stance, TableClaim, Tenure, clear_live},
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

/// How often the target's life is checked.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// Names of what matched in a report.
const SAMPLE: usize = 5;

/// What the control thread owns.
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
    /// A process that we started and have not let go yet.
    pub(crate) held: Option<Stopped>,
    /// A process that we started: to be collected when it ends.
    pub(crate) child: Option<Child>,
    /// Keep other tracers away until the process is let go. The record in the table goes first.
    pub(crate) claim: Option<(TableClaim, Claim)>,
    /// Not all calls are recorded.
    pub(crate) choosing: bool,
    pub(crate) governor: Governor,
    /// When something was switched on first, there was room for what it writes. Set by
    /// `has_room_for`.
    pub(crate) has_room_for_rings: bool,
    /// Given back when everything above is gone.
    pub(crate) _ticket: Arc<Ticket>,
}

// === impl Controller ===

impl Controller {
    /// Serves the session until it is detached or its target has ended. After a panic the process
    /// is let go, and the session has failed. A command that comes meanwhile finds nobody.
    pub(crate) fn run(mut self, commands: &Commands) {
        // What a panic left half done is not gone on with. It is undone by what the target's memory
        // and the list of its sleds say, and locks are whole between statements.
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
            self.loading.hear();
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
                    // Whoever asked may have gone; the toggle stands all the same.
                    let _ = answer.send(self.toggle(*request));
                }
                Ok(Command::TakeBack { from, answer }) => {
                    let _ = answer.send(self.take_back(from));
                }
                Ok(Command::Begin {
                    rules,
                    wishes,
                    of,
                    answer,
                }) => {
                    let _ = answer.send(self.begin(rules, wishes, &of));
                }
                Ok(Command::Look { answer }) => {
                    let _ = answer.send(self.look());
                }
                Ok(Command::Count { count, answer }) => {
                    let counting = count == Counting::On;
                    let _ = answer.send(self.lead(counting, self.choosing));
                }
                Ok(Command::Choose { choice, answer }) => {
                    let _ = answer.send(self.choose(choice.as_ref()));
                }
                Ok(Command::Economize { economy, answer }) => {
                    let _ = answer.send(self.economize(economy));
                }
                Ok(Command::NameTypes { answer }) => {
                    self.read_event_types();
                    let _ = answer.send(Ok(()));
                }
                Ok(Command::Resume { answer }) => {
                    let _ = answer.send(self.resume());
                }
                Ok(Command::Detach { answer }) => {
                    let _ = answer.send(self.detach());
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    if let Err(error) = self.detach() {
                        tracing::error!(pid = self.target.pid().as_raw(), %error, "detach failed");
                    }
                    break;
                }
            }
            self.tend_event_types();
            self.tend_economy();
            if self.loading.until_look().is_zero()
                && let Err(error) = self.look()
            {
                tracing::debug!(pid = self.target.pid().as_raw(), %error, "cannot look for libraries");
            }
        }
    }

    /// Renews the claim to the table, and looks whether it still holds. The process may have ended,
    /// or have become another program by `exec`.
    fn tend_claim(&mut self) -> Tenure {
        match &mut self.claim {
            _ if self.target.has_exited() => Tenure::Gone,
            Some((table, _)) => table.tend(),
            None => Tenure::Held,
        }
    }

    /// True if the process has ended or the address space that was attached to is gone with an `exec`.
    fn has_no_memory(&self) -> bool {
        self.target.has_exited() || self.memory.read_u64(self.table).is_err()
    }

    /// The program is no more, which at `seen` it was: keep what it recorded up to its last event.
    fn end_of_target(&mut self, seen: Instant) {
        let drain = lock(&self.shared.drain).take();
        if let Some(drain) = drain {
            drain.finish();
        }
        self.output.close();
        self.claim = None;
        self.collect_child();
        // A process that ends gives its memory back before it has ended.
        let executed = self.target.live_thread().is_ok() && self.has_no_memory();
        if executed {
            // It is set once, here.
            let _ = self.shared.executed.set(seen);
        }
        if !executed {
            let ending = self.ending();
            let _ = self.shared.ending.set(ending);
            // Everything is retained that there is, and it does not count as over yet.
            self.output.triggers.ended(ending);
        }
        let report = self.totals(DetachReport {
            exited: true,
            ..DetachReport::default()
        });
        self.leave(Phase::Exited, Ok(report));
        let pid = self.target.pid().as_raw();
        match executed {
            true => tracing::info!(pid, "target became another program"),
            false => tracing::info!(pid, "target exited"),
        }
    }

    /// Of a process that was started by us, its parent knows.
    fn ending(&self) -> Ending {
        let status = *lock(&self.shared.exit_status);
        status.map_or_else(|| self.target.ending(), Ending::from)
    }

    /// A thread of the session panicked, or its rings are gone: lets the program go, and keeps what
    /// it recorded until a detach asks what happened.
    fn end_of_session(&mut self, thread: &'static str) {
        let let_go = catch_unwind(AssertUnwindSafe(|| self.let_go()));
        let report = let_go.unwrap_or_else(|payload| Err(self.abandon(&message_of(&*payload))));
        let pid = self.target.pid().as_raw();
        let failure = self.output.failure().unwrap_or_default();
        match &report {
            Ok(_) => tracing::error!(pid, thread, failure, "the session has failed"),
            Err(error) => {
                tracing::error!(pid, thread, failure, %error, "the session has failed, and its process could not be let go");
            }
        }
        self.leave(Phase::Failed, report);
    }

    /// Another xrayd has taken the process over, as it may once this one has not renewed its claim
    /// for some time. Sleds, table and rings are that one's: nothing of them is touched any more.
    fn end_of_tenure(&mut self, why: &str) {
        let pid = self.target.pid();
        let failure = format!("{why}; this session left everything in the process as it was");
        tracing::error!(%pid, failure, "the session has lost its process");
        self.output.fail(failure.clone());
        let report = self.leave_to_others(&failure);
        self.leave(Phase::Failed, report);
    }

    fn leave_to_others(&mut self, failure: &str) -> Result<DetachReport> {
        let drain = lock(&self.shared.drain).take();
        if let Some(drain) = drain {
            drain.abandon();
        }
        self.output.close();
        self.claim = None;
        self.resume()?;
        let message = format!("process {}: {failure}", self.target.pid());
        Err(Refusal::new(Reason::SessionFailed, message))
    }

    /// Letting the program go panicked as well. Sleds may be on; nothing is recorded by them any
    /// more.
    fn abandon(&mut self, message: &str) -> Refusal {
        let pid = self.target.pid();
        if let Err(error) = clear_live(&self.memory, self.table) {
            tracing::error!(%pid, %error, "cannot write to the table");
        }
        let drain = lock(&self.shared.drain).take();
        if let Some(drain) = drain {
            drain.finish();
        }
        self.output.close();
        self.claim = None;
        let message = format!(
            "process {pid}: a bug in xrayd kept its sleds from being switched off ({message}); they record nothing, and the next attach switches them off"
        );
        Refusal::new(Reason::SessionFailed, message)
    }

    /// The session is over and stays to be looked at; a detach will be told `report`.
    fn leave(&self, phase: Phase, report: Result<DetachReport>) {
        *lock(&self.shared.epitaph) = Some((Instant::now(), report));
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
            Err(error) => tracing::warn!(%error, "cannot collect a child"),
        }
    }

    /// A child that outlives its session is collected by a thread that waits for nothing else.
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
            tracing::warn!(%error, "a child will not be collected before the daemon ends");
        }
    }

    fn begin(&mut self, rules: Rules, wishes: Wishes, of: &Indexes) -> Result<()> {
        self.loading.take_rules(rules);
        lock(&self.shared.loans).extend(wishes.loans);
        wishes
            .on
            .into_iter()
            .try_for_each(|(capture, ids)| self.switch(&ids, Wanted::On(capture)).map(drop))?;
        self.arm_others(of);
        Ok(())
    }

    /// From now on these calls are recorded, or all.
    fn choose(&mut self, choice: Option<&Choice>) -> Result<()> {
        let was_counting = self.patcher.front() == Front::Count;
        if let Some(choice) = choice {
            self.write_choice(choice)?;
        }
        self.lead(was_counting, choice.is_some())
    }

    /// Tells the trampolines.
    pub(super) fn write_choice(&self, choice: &Choice) -> Result<()> {
        choice
            .write(&self.memory, &self.loading.layout)
            .map_err(|error| {
                Refusal::from_io(self.target.pid(), "write which calls are recorded", &error)
            })
    }

    /// Leads all sleds to where they are to go. While calls are counted no exit is seen, as if all functions were off.
    fn lead(&mut self, counting: bool, choosing: bool) -> Result<()> {
        self.choosing = choosing;
        let before = self.patcher.front();
        let front = match (counting, choosing) {
            (true, _) => Front::Count,
            (false, true) => Front::Filter,
            (false, false) => Front::None,
        };
        if before == front {
            return Ok(());
        }
        if front == Front::Filter {
            // What was open when calls were last chosen is long over.
            self.renew_filters();
        }
        if front == Front::Count
            && let Some(drain) = &*lock(&self.shared.drain)
        {
            drain.begin_counts();
        }
        let set = self.lead_to(before, front);
        if before == Front::Filter {
            // Whoever is in the filter is out of it after the pause; what waits there was left out.
            std::thread::sleep(SETTLE);
            self.renew_filters();
        }
        set
    }

    pub(crate) fn renew_filters(&self) {
        if let Some(drain) = &*lock(&self.shared.drain) {
            drain.renew_filters();
        }
    }

    fn lead_to(&mut self, before: Front, front: Front) -> Result<()> {
        let (switches, on) = (self.switches(), self.all_on());
        let mut others = self.loading.functions.sites(&on);
        others.retain(|site| !site.kind.is_entry());
        if before == Front::Count {
            switches.mark(&on);
            self.patch_as_wanted(&on)?;
        }
        self.patcher.set_front(&self.memory, front)?;
        if front == Front::Count {
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
            loan,
            run,
        } = request;
        // What has just been loaded is meant as well. What goes off needs no look: the rule holds for what is found later.
        if to != Wanted::Off || run == Run::Dry {
            self.look()?;
        }
        // But what was found since it was matched is on already.
        if let Some(later) = later {
            let mut others = self.loading.functions.loaded();
            others.retain(|loaded| !of.has(loaded));
            ids.extend(self.loading.functions.matching(&others, &later));
        }
        let functions = Arc::clone(&self.loading.functions);
        let mut report = self.report_on(&ids);
        let (changing, lent) = match (loan, to) {
            (Some(loan), Wanted::On(capture)) => self.lend(&ids, loan, capture, run),
            _ => (self.shared.states.changing(ids.clone(), to), Vec::new()),
        };
        report.changed = u32::try_from(changing.len()).unwrap_or(u32::MAX);
        let started = Instant::now();
        if run == Run::Dry {
            let sites = functions.sites(&changing);
            report.sleds = sites.len() as u64;
            report.copied_bytes = self.patcher.would_copy(&sites);
            if let Wanted::On(capture) = to {
                report.restaged = self.patcher.would_restage(&self.memory, &sites, capture);
            }
            let patcher = &self.patcher;
            report.copied_by_module = self
                .loading
                .by_module(&sites, |sites| patcher.would_copy(sites));
            report.elapsed = started.elapsed();
            return Ok(report);
        }
        let switched = self.switch(&changing, to);
        if switched.is_err() {
            self.unlend(lent);
        }
        // What could not be switched off is not to be switched on elsewhere either.
        if switched.is_ok() || to == Wanted::Off {
            match (loan, to) {
                (Some(loan), Wanted::On(capture)) => {
                    self.loading.lend_rule(&patterns, loan, capture);
                }
                _ => {
                    lock(&self.shared.loans).end(ids);
                    self.loading.add_rule(&patterns, to);
                }
            }
        }
        let (patched, copied) = switched?;
        report.elapsed = started.elapsed();
        report.add(&patched, copied);
        Ok(report)
    }

    /// What is told of a switch before it is made.
    pub(super) fn report_on(&self, ids: &[FunctionId]) -> ToggleReport {
        let sample = ids.iter().take(SAMPLE);
        ToggleReport {
            matched: u32::try_from(ids.len()).unwrap_or(u32::MAX),
            sample: sample
                .filter_map(|&id| Some(self.loading.functions.describe(id)?.name))
                .collect(),
            ..ToggleReport::default()
        }
    }

    /// Switches functions, and returns with what was done the memory that it made private.
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
            self.has_room_for(self.patcher.would_copy(&sites))?;
            self.output.arm(true);
            if let Some(drain) = &*lock(&self.shared.drain) {
                drain.wake();
            }
        }
        let before = self.patcher.copied_bytes();
        let shared = Arc::clone(&self.shared);
        let switches = self.switches();
        if to != Wanted::Off {
            switches.mark(&shared.states.off(ids));
        }
        // All of them, or a part: of the same number are the same.
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
        let after = self.patcher.copied_bytes();
        if after != before {
            shared.copied.store(after, Ordering::Relaxed);
            let patcher = &self.patcher;
            self.loading.note_copies(|range| patcher.copied_in(range));
        }
        Ok((patched?, after.saturating_sub(before)))
    }

    /// All functions that are switched on.
    pub(super) fn all_on(&self) -> Vec<FunctionId> {
        let on = |id: &FunctionId| self.shared.states.recorded(*id).is_some();
        let all = self.loading.functions.all();
        all.into_iter().filter(on).collect()
    }

    /// Where it is noted when functions were off.
    pub(crate) fn switches(&self) -> Arc<Switches> {
        let drain = lock(&self.shared.drain);
        drain
            .as_ref()
            .map(DrainHandle::switches)
            .unwrap_or_default()
    }

    /// The sleds of functions that are to be switched, ordered by address: while calls are counted, an entry is all that is on of a function.
    pub(crate) fn sites(&self, ids: &[FunctionId], to: Wanted) -> Vec<PatchSite> {
        let mut sites = self.loading.functions.sites(ids);
        if to != Wanted::Off && self.patcher.front() == Front::Count {
            sites.retain(|site| site.kind.is_entry());
        }
        sites
    }

    /// Checks the room in its control group. Pages of text that are written become private to the
    /// process, and its threads write their rings: both could bring the OOM killer upon it. Rings
    /// are counted once, since the group's usage contains what they hold afterwards.
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
        let stance = match held {
            Some(_) => Stance::Stands,
            None => Stance::Runs,
        };
        match patcher.switch(memory, target, stance, sites, to) {
            Err(_) if self.target.has_exited() => Err(self.target.exited()),
            result => result,
        }
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
        self.forget_economy();
        let sites = self.loading.sites();
        let result = self.switch_off_and_prove(&sites);
        // No event will come any more, and the memory is still there.
        if self.output.event_types.is_wanting() {
            self.read_event_types();
        }
        let drain = lock(&self.shared.drain).take();
        if let Some(drain) = drain {
            drain.finish();
        }
        self.output.close();
        self.claim = None;
        let resumed = self.resume();
        match result {
            Err(_) if self.has_no_memory() => Ok(self.totals(DetachReport {
                exited: true,
                ..DetachReport::default()
            })),
            Err(refusal) => Err(refusal),
            Ok(report) => resumed.map(|()| self.totals(report)),
        }
    }

    fn switch_off_and_prove(&mut self, sites: &[PatchSite]) -> Result<DetachReport> {
        let patched = self.patch(sites, Wanted::Off);
        // A thread that took a sled just now is in a trampoline.
        let_threads_run(self.target.pid());
        if let Some(drain) = &*lock(&self.shared.drain) {
            drain.flush();
        }
        // Above all where a sled could not be switched off: each thread that still takes it stops recording at the end
        // of its chunk.
        clear_live(&self.memory, self.table)
            .map_err(|error| Refusal::from_io(self.target.pid(), "write to the table", &error))?;
        let patched = patched?;
        if patched.foreign > 0 {
            tracing::warn!(
                pid = self.target.pid().as_raw(),
                sleds = patched.foreign,
                "sleds left to somebody else"
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

/// Its maps now.
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
