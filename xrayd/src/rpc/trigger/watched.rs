//! The processes in which a trigger is armed, and the functions that are leased for it. All of it
//! may block.

use std::{
    collections::HashSet,
    hash::{BuildHasher as _, RandomState},
    num::NonZeroU64,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use xray_trace::{
    container::Redaction,
    instr_map::{Rule, Selection},
    model::Ticks,
};
use xrayd_proto::v1;

use super::{
    Missed,
    call_times::{CallTimes, CallToJudge},
    plan::{Plan, SnapshotPlan, Switching, Whose},
};
use crate::{
    access::Verb,
    audit::{AuditLog, Operation},
    control::Patterns,
    lock::lock,
    policies::Policies,
    process::{
        MOST_IN_A_CALL, Outcomes, ProcessOrGroup, Registry, Session, Toggle, Trigger, in_parallel,
    },
    refusal::{Reason, Refusal},
    rpc::{
        admission::Admission,
        authorise::{self, Authority, OperationKind, Targets},
        convert, described, policies,
        run_records::Unrecorded,
    },
    target::{Caller, Ending},
    triggers::{Condition, LongCalls, Match, Matches},
    types::Capture,
    types::{LeaseId, Run, ToggleTo},
};

/// What arming a trigger is: its conditions are answered with what a trace has, and its functions
/// are switched on.
const TRIGGERING: OperationKind = OperationKind::Change(Verb::Trace);
/// What a condition on the data of events reads.
const READING_DATA: OperationKind = OperationKind::Read(Verb::Events);

/// The processes of a trigger.
///
/// No lock is held while a process is waited for, since it may hang: a match is answered meanwhile.
#[derive(Debug)]
pub(crate) struct Watched {
    registry: Registry,
    audit: AuditLog,
    authority: Authority,
    whom: Targets,
    /// Locked before `lending` where both are locked.
    trigger: Mutex<Trigger>,
    /// The lease under which the functions of the conditions are on.
    lease: LeaseId,
    /// The selections of the conditions, compiled once and shared.
    selections: Vec<Arc<Patterns>>,
    /// True if functions with event sleds have to be on, too.
    events: bool,
    /// True if a condition compares the data of events.
    reads_data: bool,
    lending: Mutex<Lending>,
    /// Keys of processes whose end was reported.
    reported: Mutex<HashSet<usize>>,
    /// `None` if no condition needs them.
    call_times: Option<CallTimes>,
    /// For the trigger of a policy: the policies, and the trigger as the client named it. The
    /// policy must have it as long as it is armed.
    of_policy: Option<(Policies, v1::TriggerOfPolicy)>,
}

/// The processes with the lease.
#[derive(Debug, Default)]
struct Lending {
    leased: Vec<Leased>,
    /// True once the trigger has ended. A lease that begins meanwhile ends at once.
    is_over: bool,
}

/// A target with the lease.
#[derive(Debug)]
struct Leased {
    traced: ProcessOrGroup,
    /// True if all functions are on. Otherwise the rest is tried again.
    whole: bool,
}

// === impl Watched ===

impl Watched {
    fn caller(&self) -> Caller {
        self.authority.caller()
    }

    /// Arms the trigger in all processes of the plan.
    pub(crate) fn begin(
        registry: &Registry,
        audit: &AuditLog,
        authority: Authority,
        plan: &Plan,
        run_times: Arc<Admission>,
        of_policy: Option<(Policies, v1::TriggerOfPolicy)>,
    ) -> Result<(Self, Matches, LongCalls), Refusal> {
        let (trigger, hits, long_calls) = Trigger::new(plan.conditions.clone(), plan.limit)?;
        let selections = plan.conditions.iter().filter_map(Condition::selection);
        let caller = authority.caller();
        let compile = |selection| registry.compile(caller.payer(), selection);
        let number = RandomState::new().hash_one(caller.pid);
        let watched = Self {
            registry: registry.clone(),
            audit: audit.clone(),
            authority,
            whom: plan.whom,
            trigger: Mutex::new(trigger),
            lease: LeaseId::Client(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN)),
            selections: selections.map(compile).collect::<Result<_, _>>()?,
            events: plan
                .conditions
                .iter()
                .any(|condition| matches!(condition, Condition::Event(_))),
            reads_data: plan.conditions.iter().any(Condition::reads_data),
            lending: Mutex::default(),
            reported: Mutex::default(),
            call_times: CallTimes::new(&plan.conditions, run_times, caller.uid),
            of_policy,
        };
        let armed = watched.arm();
        let is_armed = watched.trigger().sessions().next().is_some();
        let armed = match armed {
            // The others are watched. The trigger is armed in this one once it goes on.
            Err(refusal) if refusal.reason == Reason::Busy && is_armed => Ok(()),
            Ok(()) if !is_armed && !watched.waits_for_processes() => {
                let message = "no living process is attached";
                Err(Refusal::new(Reason::NotAttached, message))
            }
            armed => armed,
        };
        match armed {
            Ok(()) => Ok((watched, hits, long_calls)),
            Err(refusal) => {
                watched.end();
                Err(refusal)
            }
        }
    }

    /// True once the trigger has ended.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.lending).is_over
    }

    /// False for the trigger of a policy that has it no more.
    pub(super) fn is_wanted(&self) -> bool {
        let of_policy = self.of_policy.as_ref();
        of_policy.is_none_or(|(policies, wanted)| policies::has_trigger(policies, wanted))
    }

    /// True if processes may come as long as the trigger is armed, and there may be none now.
    pub(super) fn waits_for_processes(&self) -> bool {
        matches!(self.whom, Targets::OfPolicy(_))
    }

    /// The trigger, locked.
    pub(super) fn trigger(&self) -> MutexGuard<'_, Trigger> {
        lock(&self.trigger)
    }

    /// Arms the trigger in new processes, and forgets processes that are gone.
    pub(super) fn look(&self) {
        match self.arm() {
            Ok(()) => {}
            // The process ended, or was detached from. The caller of this notices that.
            Err(refusal) if refusal.reason == Reason::NotAttached => {}
            Err(refusal) => {
                let Refusal { reason, message } = refusal;
                tracing::debug!(
                    uid = self.caller().uid,
                    %reason,
                    message,
                    "cannot arm a trigger in a new process"
                );
            }
        }
        let mut trigger = self.trigger();
        trigger.tidy();
        let known: HashSet<usize> = trigger.sessions().map(|(key, _)| key).collect();
        drop(trigger);
        lock(&self.reported).retain(|key| known.contains(key));
    }

    /// Records the switches of the threads that are not recorded yet, in all processes, if a
    /// condition needs them.
    pub(super) fn record_all_runs(&self) {
        let Some(call_times) = &self.call_times else {
            return;
        };
        let sessions: Vec<_> = self.trigger().sessions().collect();
        let sessions = sessions.into_iter().map(|(_, session)| session);
        let living: Vec<_> = sessions.filter(|session| session.is_living()).collect();
        call_times.keep_failures_of(&living.iter().map(|session| session.pid()).collect());
        living.iter().for_each(|session| call_times.begin(session));
    }

    /// Records the switches of the threads of a process that are not recorded yet, if a condition
    /// needs them.
    fn record_runs(&self, session: &Session) {
        if let Some(call_times) = &self.call_times {
            call_times.begin(session);
        }
    }

    /// Reads the records of switches, if it is time. Returns the time until the next call. `None`
    /// if no condition needs them.
    pub(super) fn read_runs(&self) -> Option<Duration> {
        self.call_times.as_ref().map(CallTimes::read)
    }

    /// True if [`Self::read_runs`] has to be called.
    pub(super) fn reads_runs(&self) -> bool {
        self.call_times.is_some()
    }

    /// Judges calls that took long enough.
    pub(super) fn judge(&self, calls: Vec<Match>) {
        let Some(call_times) = &self.call_times else {
            return;
        };
        let trigger = self.trigger();
        let calls = calls.into_iter().map(|call| {
            let session = trigger.session(call.place.key);
            let thread = session.zip(trigger.tid(call.place));
            CallToJudge { call, thread }
        });
        let (limiter, calls) = (trigger.limiter(), calls.collect());
        drop(trigger);
        call_times.judge(&limiter, calls);
    }

    /// Long calls since the last call of this that could not be judged, and, for a policy, matches
    /// that the limit did not allow.
    pub(super) fn take_missed(&self) -> Missed {
        let trigger = self.trigger();
        Missed {
            skipped: match self.waits_for_processes() {
                true => trigger.take_skipped(),
                false => 0,
            },
            unjudged: trigger.take_unjudged(),
        }
    }

    /// The threads whose switches cannot be recorded now.
    pub(super) fn unrecorded(&self) -> Unrecorded {
        let call_times = self.call_times.as_ref();
        call_times.map_or_else(Unrecorded::default, CallTimes::unrecorded)
    }

    /// Arms the trigger in all processes of the plan in which it is not armed yet. A process that
    /// cannot be watched is no reason to stop watching others.
    ///
    /// # Errors
    /// The refusal for one of the processes: not `busy`, if there is another.
    fn arm(&self) -> Result<(), Refusal> {
        let all = self
            .authority
            .all_traced(&self.registry, self.whom, TRIGGERING);
        self.drop_gone(all.as_deref().unwrap_or_default());
        if self.waits_for_processes() {
            let traced = all.iter().flatten();
            let sessions: Vec<_> = traced.flat_map(ProcessOrGroup::sessions).collect();
            self.trigger().disarm_others(&sessions);
        }
        let mut new = all?;
        new.retain(|traced| is_living(traced) && !self.is_armed_in(traced));
        let arm = |traced: &ProcessOrGroup| self.arm_in(traced);
        // The processes of a policy belong to many users. One that hangs must not hold up the
        // others.
        let armed = match self.waits_for_processes() {
            true => in_parallel(&new, MOST_IN_A_CALL, arm),
            false => authorise::for_each(self.caller(), &new, arm),
        };
        armed.into_iter().fold(Ok(()), worse)
    }

    /// True if all functions of the conditions are on in a target, and the trigger is armed in all
    /// its processes.
    fn is_armed_in(&self, traced: &ProcessOrGroup) -> bool {
        let trigger = self.trigger();
        let mut sessions = traced.sessions().into_iter();
        self.has_leased(traced)
            && sessions.all(|session| trigger.has(&session) || !session.is_living())
    }

    /// Leases the functions of the conditions in a target, and arms the trigger there.
    fn arm_in(&self, traced: &ProcessOrGroup) -> Result<(), Refusal> {
        if !self.has_leased(traced) {
            if self.reads_data {
                self.authority.check(traced, READING_DATA)?;
            }
            self.acquire_once(traced)?;
        }
        let mut failed = Ok(());
        for session in traced.sessions() {
            self.record_runs(&session);
            let armed = match self.arm_session(&session) {
                Ok(true) => Trigger::read_all(&session),
                armed => armed.map(drop),
            };
            failed = worse(failed, armed);
        }
        failed
    }

    /// Ends the lease in targets that are not there any more.
    fn drop_gone(&self, there: &[ProcessOrGroup]) {
        let mut lending = lock(&self.lending);
        let leased = std::mem::take(&mut lending.leased).into_iter();
        let (leased, gone) =
            leased.partition(|known| there.iter().any(|other| other.is(&known.traced)));
        lending.leased = leased;
        drop(lending);
        self.release(&gone);
    }

    /// True if all functions of the conditions are on in a target.
    fn has_leased(&self, traced: &ProcessOrGroup) -> bool {
        let lending = lock(&self.lending);
        let mut leased = lending.leased.iter();
        leased.any(|known| known.whole && known.traced.is(traced))
    }

    /// Leases the functions of the conditions, and notes that. Does nothing once the trigger has
    /// ended.
    fn acquire_once(&self, traced: &ProcessOrGroup) -> Result<(), Refusal> {
        if lock(&self.lending).is_over {
            return Ok(());
        }
        let done = self.acquire(traced);
        let whole = done.is_ok();
        let traced = traced.clone();
        let mut lending = lock(&self.lending);
        if lending.is_over {
            drop(lending);
            self.release(&[Leased { traced, whole }]);
            return done;
        }
        let mut leased = lending.leased.iter_mut();
        match leased.find(|known| known.traced.is(&traced)) {
            Some(known) => known.whole = whole,
            None => lending.leased.push(Leased { traced, whole }),
        }
        done
    }

    /// Arms the trigger in a process that lives, unless that was done. True if the drain has to
    /// read all rings for it.
    fn arm_session(&self, session: &Arc<Session>) -> Result<bool, Refusal> {
        let mut trigger = self.trigger();
        if !session.is_living() || lock(&self.lending).is_over {
            return Ok(false);
        }
        trigger.arm(session)
    }

    /// Leases the functions of the conditions while the trigger is armed.
    fn acquire(&self, traced: &ProcessOrGroup) -> Result<(), Refusal> {
        let saying = self.events.then(|| saying(traced)).flatten();
        let saying =
            saying.map(|selection| self.registry.compile(self.caller().payer(), &selection));
        let saying = saying.transpose()?;
        for selection in self.selections.iter().chain(&saying) {
            let to = ToggleTo::leased(self.lease, Capture::NONE);
            let toggle = Toggle::Functions(Arc::clone(selection), to, Run::Real);
            for (_, report) in traced.toggle(&self.registry, &toggle, self.authority.may_release())
            {
                match report {
                    Ok(_) => {}
                    Err(Refusal {
                        reason: Reason::TargetExited | Reason::NotAttached,
                        ..
                    }) => {}
                    Err(refusal) => return Err(refusal),
                }
            }
        }
        Ok(())
    }

    /// Processes that have ended since the last call, and how.
    pub(super) fn take_endings(&self) -> Vec<(u32, Ending)> {
        let (trigger, mut reported) = (self.trigger(), lock(&self.reported));
        let ended = trigger.sessions().filter_map(|(key, session)| {
            let ending = session.ending()?;
            reported
                .insert(key)
                .then(|| (session.pid().as_u32(), ending))
        });
        ended.collect()
    }

    /// Switches functions permanently in all processes of the plan.
    pub(super) fn switch(&self, switching: &Switching) -> Vec<v1::ToggleReport> {
        let caller = self.caller();
        let call = self.audit.call(caller, Operation::TriggerSwitch);
        let call = call.with_rule(self.authority.used());
        let mut call = call.with(described::value(switching));
        let allowed = self
            .authority
            .all_traced(&self.registry, self.whom, TRIGGERING)
            .and_then(|traced| Ok((traced, switching.toggle(&self.registry, caller)?)));
        if allowed.is_err() {
            call.decide(&allowed);
        }
        let Ok((mut traced, toggle)) = allowed else {
            return Vec::new();
        };
        traced.retain(is_living);
        let reports = authorise::for_each(caller, &traced, |traced| {
            traced.toggle(&self.registry, &toggle, self.authority.may_release())
        });
        let reports: Outcomes<_> = reports.into_iter().flatten().collect();
        call.decide_each(&reports);
        let reports = reports.into_iter().map(|(pid, report)| match report {
            Ok(report) => convert::toggle_report(pid, report),
            Err(refusal) => convert::toggle_refused(pid, refusal),
        });
        reports.collect()
    }

    /// The begin and the end of a snapshot about the time from `begun` to `at`, and the time until
    /// that end.
    pub(super) fn frame(
        &self,
        plan: SnapshotPlan,
        begun: Ticks,
        at: Ticks,
    ) -> (Ticks, Ticks, Duration) {
        let trigger = self.trigger();
        let since = plan.before.map_or(Ticks(0), |before| {
            let before = at.0.saturating_sub(trigger.ticks_in(before));
            Ticks(before.min(begun.0))
        });
        let until = Ticks(at.0.saturating_add(trigger.ticks_in(plan.after)));
        (since, until, trigger.time_until(until).min(plan.after))
    }

    /// The processes of a snapshot. `matching` is the number of the one that met the condition.
    pub(super) fn whom(
        &self,
        whose: Whose,
        matching: usize,
    ) -> Result<Vec<(Arc<Session>, Redaction)>, Refusal> {
        let sessions = match whose {
            Whose::All => self.authority.readable(&self.registry, Targets::All),
            Whose::Targets => self.authority.readable(&self.registry, self.whom),
            Whose::Matching => self.matching(matching).map(|session| vec![session]),
        };
        let call = self.audit.call(self.caller(), Operation::TriggerSnapshot);
        let mut call = call.with_rule(self.authority.used());
        match &sessions {
            Ok(sessions) => {
                let granted = sessions.iter().map(|(session, _)| (session.pid(), Ok(())));
                call.decide_each(&granted.collect::<Vec<_>>());
            }
            Err(_) => call.decide(&sessions),
        }
        sessions
    }

    /// The process with this number.
    fn matching(&self, number: usize) -> Result<(Arc<Session>, Redaction), Refusal> {
        let session = self.trigger().session(number).ok_or_else(|| {
            let message = "the daemon has detached from the process meanwhile";
            Refusal::new(Reason::NotAttached, message)
        })?;
        let redaction = self.authority.redaction(&session)?;
        Ok((session, redaction))
    }

    /// Disarms the trigger, and ends its lease. A look that is under way undoes what it did.
    pub(super) fn end(&self) {
        let leased = self.close();
        if let Some(call_times) = &self.call_times {
            call_times.end();
        }
        self.release(&leased);
    }

    /// Disarms the trigger. Returns the targets whose lease has to be ended.
    fn close(&self) -> Vec<Leased> {
        let mut lending = lock(&self.lending);
        lending.is_over = true;
        let leased = std::mem::take(&mut lending.leased);
        drop(lending);
        self.trigger().disarm();
        leased
    }

    fn release(&self, leased: &[Leased]) {
        release(&self.registry, &self.authority, self.lease, leased);
    }
}

impl Drop for Watched {
    /// Also covers a client that has gone before the trigger was armed everywhere. Does not wait,
    /// because a thread that serves all clients may drop it.
    fn drop(&mut self) {
        let leased = self.close();
        if leased.is_empty() {
            return;
        }
        let (registry, lease) = (self.registry.clone(), self.lease);
        let authority = self.authority.clone();
        let end = move || release(&registry, &authority, lease, &leased);
        let thread = std::thread::Builder::new().name("release".to_owned());
        if let Err(error) = thread.spawn(end) {
            tracing::error!(%error, "cannot start a thread that ends the lease of a trigger");
        }
    }
}

/// The first refusal that is not `busy`, if there is one.
fn worse(one: Result<(), Refusal>, other: Result<(), Refusal>) -> Result<(), Refusal> {
    match &one {
        Err(refusal) if refusal.reason != Reason::Busy || other.is_ok() => one,
        _ => other,
    }
}

fn is_living(traced: &ProcessOrGroup) -> bool {
    traced.sessions().iter().any(|session| session.is_living())
}

/// Ends the lease of a trigger in these processes.
fn release(registry: &Registry, authority: &Authority, lease: LeaseId, leased: &[Leased]) {
    let caller = authority.caller();
    authorise::for_each(caller, leased, |leased| {
        let back = Toggle::Release(lease);
        for (pid, report) in leased
            .traced
            .toggle(registry, &back, authority.may_release())
        {
            let gone = |reason| matches!(reason, Reason::TargetExited | Reason::NotAttached);
            if let Err(Refusal { reason, message }) = report
                && !gone(reason)
            {
                tracing::warn!(
                    uid = caller.uid,
                    caller = caller.pid,
                    %pid,
                    %reason,
                    message,
                    "cannot end the lease of a trigger: its functions stay on"
                );
            }
        }
    });
}

/// The functions with event sleds.
fn saying(traced: &ProcessOrGroup) -> Option<Selection> {
    // Ids are those of the first process.
    let first = traced.first()?;
    let rows = first.functions(None).unwrap_or_default();
    let saying = rows.iter().filter(|row| row.event_sleds > 0);
    let include: Vec<Rule> = saying.map(|row| Rule::Id(row.id.0)).collect();
    (!include.is_empty()).then(|| Selection {
        include,
        exclude: Vec::new(),
    })
}
