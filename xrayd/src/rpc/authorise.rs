//! Authorisation. No other file decides what a caller may do.
//!
//! | caller | its own process | another user's process |
//! |---|---|---|
//! | root | everything | everything |
//! | a user | everything | nothing: not listed, and each call is refused with `permission` |
//! | one that is confined, or not in the daemon's namespaces | nothing | nothing |
//!
//! A process is a caller's own if the kernel lets the caller trace it. `target/access.rs` has the
//! rule. Each call checks it anew for the process as it is. For the process of a session it also
//! checks the state at the attach. Pid 0 stands for every attached process that the caller may
//! use. Without rules, only root and the daemon's user may restart the daemon. Only these two ever
//! have events of all kernel tracepoints.
//!
//! Rules of access (`access/`) add rights to this table: each verb of a rule allows some of the
//! operations, and `admin` allows the restart. A rule is compared with a process in the same way:
//! as it is, and as it was at the attach.
//!
//! A caller with the right `recordings` may also arm the triggers of policies
//! ([`Authority::acting_for`]).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use nix::unistd::geteuid;
use tonic::Request;
use xray_trace::container::Redaction;

use super::connection::Client;
use crate::{
    Pid,
    access::{AccessRules, Granted, Rules, Subject, Verb, Verbs},
    process::{
        AttachOptions, Follow, Group, MOST_IN_A_CALL, ProcessOrGroup, Registry, Session,
        in_parallel,
    },
    refusal::{Reason, Refusal},
    target::{Caller, Denial, ProcessFacts, Target, Yama, memory_owner},
    types::{LeaseId, Mode},
};

/// The processes that a request's pid stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Targets {
    /// This process.
    One(Pid),
    /// Every attached process that the caller may use.
    All,
    /// Every process in which the policy with this lease has functions on.
    OfPolicy(LeaseId),
}

/// The kind of an operation on processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperationKind {
    /// The operation reads what this right is about.
    Read(Verb),
    /// The operation attaches to processes, or changes what they record.
    Change(Verb),
    /// The operation restores them: a detach, or the end of a lease. Changes of the processes since
    /// the attach do not matter, so that none can stay traced by changing.
    Release,
}

/// What the caller of a request may do.
#[derive(Debug, Clone)]
pub(super) struct Authority {
    caller: Caller,
    groups: Arc<[u32]>,
    rules: Arc<Rules>,
    /// The policy that the caller acts for, by its lease.
    policy: Option<LeaseId>,
    /// The line of the latest rule that has allowed something. 0: none has.
    used: Arc<AtomicUsize>,
}

/// The reason why an operation is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    /// The process is the caller's own.
    Own,
    /// A policy traces the process, and the caller may read what policies record.
    Recordings,
    /// Rules of access allow it.
    Rules(Verbs),
}

/// The right that a mode needs.
pub(super) fn verb_of(mode: Mode) -> Verb {
    match mode {
        Mode::Count => Verb::Count,
        Mode::Profile => Verb::Profile,
        Mode::Flight | Mode::Stream => Verb::Trace,
    }
}

/// The authority of a request's caller, from its connection. Refuses requests without a connection,
/// and callers without any rights.
pub(super) fn authority<T>(
    request: &Request<T>,
    access: &AccessRules,
) -> Result<Authority, Refusal> {
    let client = request.extensions().get::<Client>();
    let unknown = || Refusal::new(Reason::Permission, "the caller's credentials are unknown");
    Authority::of(client.ok_or_else(unknown)?, access)
}

/// True for root and the daemon's user.
fn has_all_rights(caller: Caller) -> bool {
    caller.confinement().is_none() && (caller.uid == 0 || caller.uid == geteuid().as_raw())
}

/// Turns a denial of the rule into a refusal.
fn answer(pid: Pid, rule: Result<(), Denial>) -> Result<(), Refusal> {
    rule.map_err(|denial| denial.refusal(pid))
}

/// Calls `work` for each item of a call over processes. The results are in the items' order.
///
/// A process that hangs keeps root's call from no other user's process. A user's call covers the
/// user's own processes, one group after the other.
pub(super) fn for_each<T: Sync, R: Send>(
    caller: Caller,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    match caller.payer() {
        None => in_parallel(items, MOST_IN_A_CALL, work),
        Some(_) => items.iter().map(work).collect(),
    }
}

// === impl Authority ===

impl Authority {
    /// The authority of a client. Refuses clients without any rights.
    pub(super) fn of(client: &Client, access: &AccessRules) -> Result<Self, Refusal> {
        let Client { caller, groups } = client;
        let this = Self {
            caller: *caller,
            groups: Arc::clone(groups),
            rules: access.current(),
            policy: None,
            used: Arc::default(),
        };
        match caller.confinement() {
            None => Ok(this),
            Some(why) if why.is_sandbox() && this.has_rules() => Ok(this),
            Some(why) => {
                let message = format!(
                    "the daemon does not serve callers that the kernel may hinder from tracing: \
                     {why}"
                );
                Err(Refusal::new(Reason::Permission, message))
            }
        }
    }

    /// The line of the rule of access that has allowed the latest operation that needed one.
    pub(super) fn used(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.used)
    }

    /// The caller.
    pub(super) fn caller(&self) -> Caller {
        self.caller
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            user: self.caller.uid,
            groups: &self.groups,
            is_confined: self.caller.confinement().is_some(),
        }
    }

    /// True if there are rules of access for the caller.
    fn has_rules(&self) -> bool {
        self.rules.of(self.subject()).next().is_some()
    }

    /// True if rules give the caller this right for any processes.
    fn has_rules_with(&self, verb: Verb) -> bool {
        let mut rules = self.rules.of(self.subject());
        rules.any(|rule| rule.verbs.has(verb))
    }

    /// True if the caller may do what this right is about, which is not about processes.
    fn may(&self, verb: Verb) -> bool {
        has_all_rights(self.caller) || self.has_by_rule(verb)
    }

    /// Checks that the caller may restart the daemon, and see and reload the rules of access.
    pub(super) fn administration(&self) -> Result<(), Refusal> {
        if self.may(Verb::Admin) {
            return Ok(());
        }
        let message = "only root, the daemon's user and users with the right admin may do this";
        Err(Refusal::new(Reason::Permission, message))
    }

    /// Checks that the caller may change policies, which are for processes of all users.
    pub(super) fn policies(&self) -> Result<(), Refusal> {
        if self.may(Verb::Policy) {
            return Ok(());
        }
        let message =
            "only root, the daemon's user and users with the right policy may change policies";
        Err(Refusal::new(Reason::Permission, message))
    }

    /// Checks that the caller may see policies.
    pub(super) fn seeing_policies(&self) -> Result<(), Refusal> {
        if self.may(Verb::Policy) || self.may(Verb::Recordings) {
            return Ok(());
        }
        let message = "only root, the daemon's user and users with one of the rights policy and \
                       recordings may see policies";
        Err(Refusal::new(Reason::Permission, message))
    }

    /// True if the caller may read what policies record.
    pub(super) fn reads_recordings(&self) -> bool {
        self.has_by_rule(Verb::Recordings)
    }

    /// The same caller, to do what a policy says in the processes of the policy, and nothing else.
    /// The caller chooses neither what is done nor where.
    ///
    /// # Errors
    /// The caller may not read what policies record.
    pub(super) fn acting_for(self, policy: LeaseId) -> Result<Self, Refusal> {
        if !self.may(Verb::Recordings) {
            let message = "only root, the daemon's user and users with the right recordings may \
                           arm the triggers of policies";
            return Err(Refusal::new(Reason::Permission, message));
        }
        let policy = Some(policy);
        Ok(Self { policy, ..self })
    }

    /// True if a rule gives the caller this right, which is not about processes.
    fn has_by_rule(&self, verb: Verb) -> bool {
        let Granted { verbs, line } = self.rules.about_daemon(self.subject(), verb);
        if line > 0 {
            self.used.store(line, Ordering::Relaxed);
        }
        verbs.has(verb)
    }

    /// Checks that the caller may have the events of a kernel tracepoint in the threads of its
    /// processes. Tracepoints of system calls show what the process itself passes to the kernel. So
    /// the kernel allows them to all users, too. Others show addresses of the kernel and data of
    /// other users.
    pub(super) fn tracepoint(&self, name: &str) -> Result<(), Refusal> {
        let is_of_calls = ["syscalls:", "raw_syscalls:"]
            .iter()
            .any(|system| name.starts_with(system));
        if is_of_calls || has_all_rights(self.caller) {
            return Ok(());
        }
        let message = format!(
            "only root and the daemon's user may record {name}; other users may record syscalls:* \
             and raw_syscalls:*"
        );
        Err(Refusal::new(Reason::Permission, message))
    }

    /// The rights that rules give the caller to a process.
    fn granted(&self, facts: Option<&ProcessFacts>, verb: Verb) -> Granted {
        facts
            .map(|facts| self.rules.about_process(self.subject(), facts, verb))
            .unwrap_or_default()
    }

    /// Whether the caller has a right that is not about processes, with the reason, and the line of
    /// the first rule that gives it.
    pub(super) fn explain_daemon(&self, verb: Verb) -> (Result<&'static str, String>, usize) {
        let Granted { verbs, line } = self.rules.about_daemon(self.subject(), verb);
        let why = match (has_all_rights(self.caller), verbs.has(verb)) {
            // Root reads what policies record because it may trace all processes.
            (true, _) => Ok("the user is root or the daemon's"),
            (false, true) => Ok("a rule of access"),
            (false, false) => Err("no rule of access gives it to the user".to_owned()),
        };
        (why, line)
    }

    /// Whether the caller has a right to a process as it is now, with the reason, and the line of
    /// the first rule that gives it.
    pub(super) fn explain_process(
        &self,
        verb: Verb,
        pid: Pid,
    ) -> (Result<&'static str, String>, usize) {
        let facts = self.has_rules().then(|| ProcessFacts::of(pid, false));
        let Granted { line, .. } = self.granted(facts.flatten().as_ref(), verb);
        let why = match (Target::open(pid), self.right_to_live(pid, verb)) {
            (Err(refusal), _) | (_, Err(refusal)) => Err(refusal.message),
            (Ok(_), Ok(Right::Own)) => Ok("the kernel lets the user trace the process"),
            (Ok(_), Ok(Right::Recordings | Right::Rules(_))) => Ok("a rule of access"),
        };
        (why, line)
    }

    /// The right to an operation on a process that is not the caller's own.
    fn by_rules(
        &self,
        verb: Verb,
        facts: impl FnOnce() -> Option<ProcessFacts>,
        denied: Refusal,
    ) -> Result<Verbs, Refusal> {
        if !self.has_rules() {
            return Err(denied);
        }
        let Granted { verbs, line } = self.granted(facts().as_ref(), verb);
        if verbs.has(verb) {
            self.used.store(line, Ordering::Relaxed);
            return Ok(verbs);
        }
        let message = match verbs.iter().next() {
            None => format!(
                "{}; no rule of access allows it to this caller",
                denied.message
            ),
            Some(_) => format!(
                "{}; the rules of access allow this caller {verbs}, and not {verb}",
                denied.message
            ),
        };
        Err(Refusal::new(denied.reason, message))
    }

    /// The right to an operation on a process as it is now.
    fn right_to_live(&self, pid: Pid, verb: Verb) -> Result<Right, Refusal> {
        match answer(pid, self.caller.check(pid)) {
            Ok(()) => Ok(Right::Own),
            Err(denied) => {
                let verbs = self.by_rules(verb, || ProcessFacts::of(pid, false), denied)?;
                Ok(Right::Rules(verbs))
            }
        }
    }

    /// The right to an operation on a session.
    fn right_to(&self, session: &Session, kind: OperationKind) -> Result<Right, Refusal> {
        let pid = session.pid();
        let verb = match kind {
            OperationKind::Read(verb) | OperationKind::Change(verb) => verb,
            OperationKind::Release => Verb::Count,
        };
        if let Some(policy) = self.policy {
            // The end of a lease is never refused: a process may have left the policy meanwhile.
            let is_allowed = kind == OperationKind::Release || session.is_of_policy(policy);
            return is_allowed.then_some(Right::Recordings).ok_or_else(|| {
                let message = format!("the policy does not trace process {pid} any more");
                Refusal::new(Reason::Permission, message)
            });
        }
        let is_read = matches!(kind, OperationKind::Read(_));
        if is_read && self.reads_recordings() && is_recorded_by_policy(session) {
            return Ok(Right::Recordings);
        }
        let (is_over, is_release) = (session.ended().is_some(), kind == OperationKind::Release);
        let yama = match is_over && !is_release {
            true => self.caller.yama(),
            // The living process is checked below.
            false => Yama::Off,
        };
        // The process may have ended, and then it descends from no process.
        let rule = self.caller.may_trace(session.credentials(), yama, || false);
        let right = match answer(pid, rule) {
            Ok(()) => Right::Own,
            Err(denied) => {
                Right::Rules(self.by_rules(verb, || session.facts().cloned(), denied)?)
            }
        };
        if is_over || is_release {
            return Ok(right);
        }
        // A process that was the caller's own may be one of a rule by now, but not the reverse.
        match (right, self.right_to_live(pid, verb)?) {
            (Right::Rules(then), Right::Rules(now)) => {
                let both = then.intersection(now);
                both.has(verb).then_some(Right::Rules(both)).ok_or_else(|| {
                    let message = format!("process {pid} has changed since it was attached");
                    Refusal::new(Reason::Permission, message)
                })
            }
            (Right::Own, live) => Ok(live),
            (right, _) => Ok(right),
        }
    }

    /// Checks a session. For a release only the state at the attach counts, so no process can take
    /// that right away.
    pub(super) fn check_session(
        &self,
        session: &Session,
        kind: OperationKind,
    ) -> Result<(), Refusal> {
        self.right_to(session, kind).map(drop)
    }

    /// Checks all processes of a target.
    pub(super) fn check(
        &self,
        traced: &ProcessOrGroup,
        kind: OperationKind,
    ) -> Result<(), Refusal> {
        let sessions = traced.sessions();
        let mut sessions = sessions.iter();
        sessions.try_for_each(|session| self.check_session(session, kind))
    }

    /// Checks that the caller may change what the processes of a target record: in this mode, or in
    /// the one that each has, and with values if `captures`.
    pub(super) fn check_mode(
        &self,
        traced: &ProcessOrGroup,
        mode: Option<Mode>,
        captures: bool,
    ) -> Result<(), Refusal> {
        if !self.has_rules() {
            return Ok(());
        }
        for session in traced.sessions() {
            let mode = mode.unwrap_or_else(|| session.settings().mode);
            self.check_session(&session, OperationKind::Change(verb_of(mode)))?;
            if captures {
                self.check_session(&session, OperationKind::Change(Verb::Arguments))?;
            }
        }
        Ok(())
    }

    /// What is left out of the events of a session for this caller.
    ///
    /// # Errors
    /// The caller may not read them.
    pub(super) fn redaction(&self, session: &Session) -> Result<Redaction, Refusal> {
        if !self.has_rules() {
            return Ok(Redaction::NONE);
        }
        let right = self.right_to(session, OperationKind::Read(Verb::Trace))?;
        Ok(match right {
            Right::Own | Right::Recordings => Redaction::NONE,
            Right::Rules(verbs) => Redaction {
                values: !verbs.has(Verb::Arguments),
                data: !verbs.has(Verb::Events),
            },
        })
    }

    /// The same for a target. Rules give no rights to groups, so nothing is left out of these.
    pub(super) fn redaction_of(&self, traced: &ProcessOrGroup) -> Result<Redaction, Refusal> {
        match traced {
            ProcessOrGroup::Group(_) => Ok(Redaction::NONE),
            ProcessOrGroup::Session(session) => self.redaction(session),
        }
    }

    /// Checks that the caller may look at a process, attached or not.
    fn process(&self, registry: &Registry, pid: Pid) -> Result<(), Refusal> {
        match (Target::open(pid), registry.get(pid)) {
            (Ok(target), _) => {
                let right = self.right_to_live(pid, Verb::List)?;
                // The facts are of another process if this one has ended.
                match target.has_exited() && right != Right::Own {
                    true => Err(target.exited()),
                    false => Ok(()),
                }
            }
            (Err(_), Some(session)) => {
                self.check_session(&session, OperationKind::Read(Verb::List))
            }
            (Err(refusal), None) => Err(refusal),
        }
    }

    /// True if the caller may see a process in lists. Of other users' processes only the user is
    /// read, unless rules of access allow the caller to see some.
    pub(super) fn may_list(&self, target: &Target) -> bool {
        let pid = target.pid();
        let own = self.caller.is_privileged() || self.caller.uid == target.uid();
        match own {
            true if self.caller.check(pid).is_ok() => true,
            _ => {
                self.has_rules_with(Verb::List)
                    && self
                        .granted(ProcessFacts::of(pid, false).as_ref(), Verb::List)
                        .verbs
                        .has(Verb::List)
                    && !target.has_exited()
            }
        }
    }

    /// Looks at a process that need not be attached. The rule is checked before and after the look,
    /// because the pid may get another process meanwhile, or the process another user.
    pub(super) fn looking<T>(
        &self,
        registry: &Registry,
        pid: Pid,
        look: impl FnOnce() -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        self.process(registry, pid)?;
        let seen = look()?;
        self.process(registry, pid)?;
        Ok(seen)
    }

    /// Checks a process before an attach, and binds the attach to exactly this process.
    pub(super) fn attaching(
        &self,
        pid: Pid,
        options: AttachOptions,
    ) -> Result<AttachOptions, Refusal> {
        let target = Target::open(pid)?;
        let right = self.right_to_live(pid, verb_of(options.mode))?;
        let user = target.uid();
        let owner = memory_owner(pid);
        if target.has_exited() {
            return Err(target.exited());
        }
        let start_time = options.start_time.or(Some(target.start_time()));
        // The process may get another user by `exec` at any time. The engine checks again at a
        // point from which on that does not matter.
        if right == Right::Own {
            return Ok(AttachOptions {
                start_time,
                caller: Some(self.caller),
                ..options
            });
        }
        if options.follow != Follow::None {
            let message = format!(
                "process {pid} belongs to user {user}: rules of access do not cover processes that \
                 are followed"
            );
            return Err(Refusal::new(Reason::Permission, message));
        }
        Ok(AttachOptions {
            start_time,
            caller: Some(self.caller.acting_for(user)),
            owner: Some(owner.ok_or_else(|| target.exited())?),
            ..options
        })
    }

    /// True if the caller may restore a session: it may also do so if the process belongs to
    /// another user by now.
    pub(super) fn may_release(&self) -> impl Fn(&Session) -> bool {
        move |session| self.check_session(session, OperationKind::Release).is_ok()
    }

    /// The session of a process, for a caller that may use it.
    fn session(
        &self,
        registry: &Registry,
        pid: Pid,
        kind: OperationKind,
    ) -> Result<Arc<Session>, Refusal> {
        if let Some(session) = registry.get(pid) {
            self.check_session(&session, kind)?;
            return Ok(session);
        }
        // A caller may learn whether a process is attached only if it may see the process. So that
        // is checked first.
        self.process(registry, pid)?;
        Err(Refusal::new(
            Reason::NotAttached,
            format!("process {pid} is not attached"),
        ))
    }

    /// The target of an attached process, for a caller that may use it.
    pub(super) fn traced(
        &self,
        registry: &Registry,
        pid: Pid,
        kind: OperationKind,
    ) -> Result<ProcessOrGroup, Refusal> {
        match registry.group(pid) {
            Some(group) => match (self.check_group(&group, kind), group.root_session()) {
                (Ok(()), _) => Ok(ProcessOrGroup::Group(group)),
                // Rules cover the process alone.
                (Err(_), Some(session)) if self.has_rules() => {
                    self.check_session(&session, kind)?;
                    Ok(ProcessOrGroup::Session(session))
                }
                (Err(refused), _) => Err(refused),
            },
            None => self
                .session(registry, pid, kind)
                .map(ProcessOrGroup::Session),
        }
    }

    /// The targets of a request: groups ordered by first process, then sessions whose group is
    /// gone.
    pub(super) fn all_traced(
        &self,
        registry: &Registry,
        whom: Targets,
        kind: OperationKind,
    ) -> Result<Vec<ProcessOrGroup>, Refusal> {
        match whom {
            Targets::One(pid) => return Ok(vec![self.traced(registry, pid, kind)?]),
            Targets::OfPolicy(_) => {
                let sessions = self.sessions(registry, whom, kind)?.into_iter();
                return Ok(sessions.map(ProcessOrGroup::Session).collect());
            }
            Targets::All => {}
        }
        let mut groups = registry.groups();
        groups.retain(|group| self.check_group(group, kind).is_ok());
        let mut strays = self.sessions(registry, Targets::All, kind)?;
        strays.retain(|session| {
            let theirs = |group: &Arc<Group>| {
                let sessions = group.sessions();
                sessions.iter().any(|other| Arc::ptr_eq(other, session))
            };
            !groups.iter().any(theirs)
        });
        let groups = groups.into_iter().map(ProcessOrGroup::Group);
        Ok(groups
            .chain(strays.into_iter().map(ProcessOrGroup::Session))
            .collect())
    }

    /// All sessions of a request's targets, each once.
    ///
    /// # Errors
    /// As [`Self::all_traced`], or no process is attached.
    pub(super) fn everybody(
        &self,
        registry: &Registry,
        whom: Targets,
        kind: OperationKind,
    ) -> Result<Vec<Arc<Session>>, Refusal> {
        let traced = self.all_traced(registry, whom, kind)?;
        let sessions: Vec<_> = traced.iter().flat_map(ProcessOrGroup::sessions).collect();
        // A group whose first process has no sleds may have no members so far.
        if sessions.is_empty() && whom == Targets::All {
            return Err(Refusal::new(Reason::NotAttached, "no process is attached"));
        }
        Ok(sessions)
    }

    /// The sessions of a snapshot, with what is left out of each.
    ///
    /// # Errors
    /// As [`Self::everybody`].
    pub(super) fn readable(
        &self,
        registry: &Registry,
        whom: Targets,
    ) -> Result<Vec<(Arc<Session>, Redaction)>, Refusal> {
        let sessions = self.everybody(registry, whom, OperationKind::Read(Verb::Trace))?;
        let sessions = sessions.into_iter().filter_map(|session| {
            // A process that has changed meanwhile is left out.
            let redaction = self.redaction(&session).ok()?;
            Some((session, redaction))
        });
        Ok(sessions.collect())
    }

    /// Checks a group. To use it, a caller must be one that may trace the first process and all
    /// members. Rules of access give no rights to groups, because processes that they do not cover
    /// may join: by a rule, a caller uses one process. To release a group, the first process
    /// suffices. So no member can keep the group attached
    /// by becoming a process that the caller may not look at.
    fn check_group(&self, group: &Group, kind: OperationKind) -> Result<(), Refusal> {
        let rule = self
            .caller
            .may_trace(&group.credentials, Yama::Off, || false);
        let sessions = group.sessions();
        let mut members = sessions.iter();
        match answer(group.root(), rule) {
            Ok(()) if kind == OperationKind::Release => Ok(()),
            Ok(()) => members.try_for_each(|session| self.check_session(session, kind)),
            // What a policy follows, it records.
            Err(denied) if self.reads_recordings() && matches!(kind, OperationKind::Read(_)) => {
                let is_recorded = !sessions.is_empty()
                    && sessions
                        .iter()
                        .all(|session| is_recorded_by_policy(session));
                is_recorded.then_some(()).ok_or(denied)
            }
            Err(denied) => Err(denied),
        }
    }

    /// The sessions of a request, ordered by pid.
    pub(super) fn sessions(
        &self,
        registry: &Registry,
        whom: Targets,
        kind: OperationKind,
    ) -> Result<Vec<Arc<Session>>, Refusal> {
        let mut sessions = match whom {
            Targets::One(pid) => vec![self.session(registry, pid, kind)?],
            Targets::All => {
                let mut sessions = registry.sessions();
                sessions.retain(|session| self.check_session(session, kind).is_ok());
                sessions
            }
            Targets::OfPolicy(policy) => {
                let mut sessions = registry.sessions();
                // These are for a caller that acts for the policy alone.
                sessions
                    .retain(|session| self.policy == Some(policy) && session.is_of_policy(policy));
                sessions
            }
        };
        sessions.sort_by_key(|session| session.pid());
        Ok(sessions)
    }
}

/// True if a policy traces the process of a session.
fn is_recorded_by_policy(session: &Session) -> bool {
    session.is_by_policy() || !session.policy_leases().is_empty()
}

// === impl Targets ===

impl TryFrom<u32> for Targets {
    type Error = Refusal;

    fn try_from(pid: u32) -> Result<Self, Refusal> {
        if pid == 0 {
            Ok(Self::All)
        } else {
            one(pid).map(Self::One)
        }
    }
}

/// The process that a request names. Refuses 0.
pub(super) fn one(pid: u32) -> Result<Pid, Refusal> {
    Pid::try_from(pid)
        .map_err(|error| Refusal::new(Reason::NoSuchProcess, format!("no such process: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Confinement;

    #[test]
    fn pid_zero_means_all_and_a_pid_that_cannot_be_means_none() {
        assert_eq!(Targets::try_from(0), Ok(Targets::All));
        assert_eq!(
            Targets::try_from(7),
            Ok(Targets::One(Pid::try_from(7).unwrap()))
        );
        assert_eq!(
            Targets::try_from(u32::MAX).unwrap_err().reason,
            Reason::NoSuchProcess
        );
        assert_eq!(one(0).unwrap_err().reason, Reason::NoSuchProcess);
    }

    #[test]
    fn a_request_without_credentials_is_refused() {
        let access = AccessRules::none();
        let error = authority(&Request::new(()), &access).unwrap_err();
        assert_eq!(error.reason, Reason::Permission);
        let mut request = Request::new(());
        let client = |caller| Client::new(caller, Vec::new());
        request
            .extensions_mut()
            .insert(client(Caller::in_process(5, 1)));
        assert_eq!(authority(&request, &access).unwrap().caller().uid, 5);
        let confined = Caller::peer(5, 1, Err(Confinement::PidNamespace));
        request.extensions_mut().insert(client(confined));
        let error = authority(&request, &access).unwrap_err();
        assert_eq!(error.reason, Reason::Permission);
    }
}
