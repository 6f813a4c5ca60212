//! The processes in which a trigger is armed, and the functions that are leased for it. All of it
//! may block.

use std::{
    collections::HashSet,
    hash::{BuildHasher as _, RandomState},
    num::NonZeroU64,
    sync::Arc,
    time::Duration,
};

use xray_trace::{
    instr_map::{Rule, Selection},
    model::Ticks,
};
use xrayd_proto::v1;

use super::plan::{Plan, SnapshotPlan, Switching};
use crate::{
    audit::{AuditLog, Operation},
    control::Patterns,
    process::{MOST_IN_A_CALL, Registry, Session, Trigger, in_parallel},
    refusal::{Reason, Refusal},
    rpc::{
        authorise,
        authorise::{Deed, Outcomes, Targets, Traced},
        convert,
        convert::Toggle,
        described,
    },
    target::{Caller, Ending},
    triggers::{Condition, Matches},
    types::Capture,
    types::{LeaseId, Run},
};

/// The processes of a trigger.
#[derive(Debug)]
pub(crate) struct Watched {
    registry: Registry,
    audit: AuditLog,
    caller: Caller,
    whom: Targets,
    trigger: Trigger,
    /// The lease under which the functions of the conditions are on.
    loan: LeaseId,
    /// The selections of the conditions, compiled once and shared.
    selections: Vec<Arc<Patterns>>,
    /// True if functions with event sleds have to be on, too.
    events: bool,
    /// The processes with the lease.
    lent: Vec<Lent>,
    /// Keys of processes whose end was reported.
    told: HashSet<usize>,
}

/// A target with the lease.
#[derive(Debug)]
struct Lent {
    traced: Traced,
    /// True if all functions are on. Otherwise the rest is tried again.
    whole: bool,
}

// === impl Watched ===

impl Watched {
    /// Arms the trigger in all processes of the plan.
    pub(crate) fn begin(
        registry: &Registry,
        audit: &AuditLog,
        caller: Caller,
        plan: &Plan,
    ) -> Result<(Self, Matches), Refusal> {
        let (trigger, hits) = Trigger::new(plan.conditions.clone(), plan.limit)?;
        let selections = plan.conditions.iter().filter_map(Condition::selection);
        let compile = |selection| registry.compile(caller.payer(), selection);
        let number = RandomState::new().hash_one(caller.pid);
        let mut watched = Self {
            registry: registry.clone(),
            audit: audit.clone(),
            caller,
            whom: plan.whom,
            trigger,
            loan: LeaseId(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN)),
            selections: selections.map(compile).collect::<Result<_, _>>()?,
            events: plan
                .conditions
                .iter()
                .any(|condition| matches!(condition, Condition::Event(_))),
            lent: Vec::new(),
            told: HashSet::new(),
        };
        match watched.arm() {
            Ok(()) if watched.trigger.sessions().next().is_some() => Ok((watched, hits)),
            Ok(()) => {
                watched.end();
                let message = "no process that lives is attached";
                Err(Refusal::new(Reason::NotAttached, message))
            }
            Err(refusal) => {
                watched.end();
                Err(refusal)
            }
        }
    }

    pub(super) fn trigger(&self) -> &Trigger {
        &self.trigger
    }

    /// Arms the trigger in new processes, and forgets processes that are gone.
    pub(super) fn look(&mut self) {
        match self.arm() {
            Ok(()) => {}
            // The process ended, or was detached from. The caller of this notices that.
            Err(refusal) if refusal.reason == Reason::NotAttached => {}
            Err(refusal) => {
                let Refusal { reason, message } = refusal;
                tracing::debug!(uid = self.caller.uid, %reason, message, "a trigger is not armed in somebody new");
            }
        }
        self.trigger.tidy();
        let known: HashSet<usize> = self.trigger.sessions().map(|(key, _)| key).collect();
        self.told.retain(|key| known.contains(key));
    }

    fn arm(&mut self) -> Result<(), Refusal> {
        let (caller, whom) = (self.caller, self.whom);
        let all = authorise::all_traced(&self.registry, caller, whom, Deed::Use);
        // Targets that are gone are dropped.
        let there = all.as_deref().unwrap_or_default();
        let lent = std::mem::take(&mut self.lent).into_iter();
        let (lent, gone) =
            lent.partition(|known| there.iter().any(|other| other.is(&known.traced)));
        self.lent = lent;
        self.take_back(&gone);
        let mut failed = Ok(());
        for traced in all? {
            let mut living = traced.sessions();
            living.retain(|session| session.is_living());
            if living.is_empty() {
                continue;
            }
            if let Err(refusal) = self.lend_once(traced) {
                failed = Err(refusal);
                continue;
            }
            living.retain(|session| !self.trigger.has(session));
            for session in &living {
                // A process that cannot be watched is no reason to stop watching the others.
                if let Err(refusal) = self.trigger.arm(session) {
                    failed = Err(refusal);
                }
            }
        }
        failed
    }

    /// Leases the functions of the conditions, unless that was done.
    fn lend_once(&mut self, traced: Traced) -> Result<(), Refusal> {
        let known = self.lent.iter().position(|known| known.traced.is(&traced));
        if known.is_some_and(|at| self.lent[at].whole) {
            return Ok(());
        }
        let done = self.lend(&traced);
        let whole = done.is_ok();
        match known {
            Some(at) => self.lent[at].whole = whole,
            None => self.lent.push(Lent { traced, whole }),
        }
        done
    }

    /// Leases the functions of the conditions while the trigger is armed.
    fn lend(&self, traced: &Traced) -> Result<(), Refusal> {
        let saying = self.events.then(|| saying(traced)).flatten();
        let saying = saying.map(|selection| self.registry.compile(self.caller.payer(), &selection));
        let saying = saying.transpose()?;
        for selection in self.selections.iter().chain(&saying) {
            let lend = Toggle::Lend(Arc::clone(selection), self.loan, Capture::NONE, Run::Real);
            for (_, report) in traced.toggle(&self.registry, self.caller, &lend) {
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
    pub(super) fn take_endings(&mut self) -> Vec<(u32, Ending)> {
        let Self { trigger, told, .. } = self;
        let ended = trigger.sessions().filter_map(|(key, session)| {
            let ending = session.ending()?;
            told.insert(key).then(|| (session.pid().as_u32(), ending))
        });
        ended.collect()
    }

    /// Switches functions permanently in all processes of the plan.
    pub(super) fn switch(&mut self, switching: &Switching) -> Vec<v1::ToggleReport> {
        let (caller, whom) = (self.caller, self.whom);
        let call = self.audit.call(caller, Operation::TriggerSwitch);
        let mut call = call.with(described::setting(switching));
        let allowed = authorise::all_traced(&self.registry, caller, whom, Deed::Use)
            .and_then(|traced| Ok((traced, switching.toggle(&self.registry, caller)?)));
        if allowed.is_err() {
            call.decide(&allowed);
        }
        let Ok((traced, toggle)) = allowed else {
            return Vec::new();
        };
        let reports = traced.into_iter().flat_map(|traced| {
            let living = traced.sessions().iter().any(|session| session.is_living());
            match living {
                true => traced.toggle(&self.registry, caller, &toggle),
                false => Vec::new(),
            }
        });
        let reports: Outcomes<_> = reports.collect();
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
        let trigger = &self.trigger;
        let since = plan.before.map_or(Ticks(0), |before| {
            let before = at.0.saturating_sub(trigger.ticks_in(before));
            Ticks(before.min(begun.0))
        });
        let until = Ticks(at.0.saturating_add(trigger.ticks_in(plan.after)));
        (since, until, trigger.time_until(until).min(plan.after))
    }

    /// The processes of a snapshot.
    pub(super) fn whom(&self, all: bool) -> Result<Vec<Arc<Session>>, Refusal> {
        let whom = if all { Targets::All } else { self.whom };
        let sessions = authorise::everybody(&self.registry, self.caller, whom);
        let mut call = self.audit.call(self.caller, Operation::TriggerSnapshot);
        match &sessions {
            Ok(sessions) => {
                let granted = sessions.iter().map(|session| (session.pid(), Ok(())));
                call.decide_each(&granted.collect::<Vec<_>>());
            }
            Err(_) => call.decide(&sessions),
        }
        sessions
    }

    /// Disarms the trigger, and ends its lease.
    pub(super) fn end(&mut self) {
        self.trigger.disarm();
        let lent = std::mem::take(&mut self.lent);
        self.take_back(&lent);
    }

    fn take_back(&self, lent: &[Lent]) {
        take_back(&self.registry, self.caller, self.loan, lent);
    }
}

impl Drop for Watched {
    /// Also covers a client that has gone before the trigger was armed everywhere. Does not wait,
    /// because a thread that serves all clients may drop it.
    fn drop(&mut self) {
        self.trigger.disarm();
        let lent = std::mem::take(&mut self.lent);
        if lent.is_empty() {
            return;
        }
        let (registry, caller, loan) = (self.registry.clone(), self.caller, self.loan);
        let end = move || take_back(&registry, caller, loan, &lent);
        let thread = std::thread::Builder::new().name("release".to_owned());
        if let Err(error) = thread.spawn(end) {
            tracing::error!(%error, "no thread to end the lease of a trigger");
        }
    }
}

/// Ends the lease of a trigger in these processes.
fn take_back(registry: &Registry, caller: Caller, loan: LeaseId, lent: &[Lent]) {
    let release = |lent: &Lent| {
        let back = Toggle::TakeBack(loan);
        for (pid, report) in lent.traced.toggle(registry, caller, &back) {
            let gone = |reason| matches!(reason, Reason::TargetExited | Reason::NotAttached);
            if let Err(Refusal { reason, message }) = report
                && !gone(reason)
            {
                tracing::warn!(uid = caller.uid, caller = caller.pid, %pid, %reason, message, "what was on for a trigger stays on");
            }
        }
    };
    match caller.payer() {
        // A process that hangs keeps no other user's process on.
        None => drop(in_parallel(lent, MOST_IN_A_CALL, release)),
        Some(_) => lent.iter().for_each(release),
    }
}

/// The functions with event sleds.
fn saying(traced: &Traced) -> Option<Selection> {
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
