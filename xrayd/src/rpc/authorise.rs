//! Who may do what; the only place that decides it.
//!
//! | caller | its own process | another user's process |
//! |---|---|---|
//! | root | everything | everything |
//! | a user | everything | nothing: not listed, and each call is refused with `permission` |
//! | one that is confined, or not in the daemon's namespaces | nothing | nothing |
//!
//! A process is a caller's own if the kernel lets the caller trace it: `target/access.rs` has the
//! rule. Each call asks it anew: about the process as it is, and about a session's process also as
//! it was at the attach. Pid 0 means every attached process that the caller may trace.

use std::sync::Arc;

use tonic::{Request, Status};

use super::convert::Toggle;
use crate::{
    Pid,
    process::{AttachOptions, Family, Registry, Session},
    refusal::{Reason, Refusal},
    store::Feed,
    target::Caller,
    target::{Credentials, Denial, Target, Yama},
    types::{DetachReport, Economy, Filter, LeaseId, Mode, ToggleReport},
};

/// What a request's pid means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Targets {
    /// This process.
    One(Pid),
    /// Every attached process that the caller may trace.
    All,
}

/// What is to be done to those who are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    /// To look at them, or to switch what they record.
    Use,
    /// To let them be as they were: a detach, or the end of a loan. What the processes have become
    /// since the attach does not matter, so that none can stay traced by that.
    Release,
}

/// What a process that is named means.
#[derive(Debug)]
pub(super) enum Traced {
    /// The first one of a family: everybody in it.
    Family(Arc<Family>),
    /// Another one: itself.
    Session(Arc<Session>),
}

/// What came of each process.
pub(super) type Outcomes<T> = Vec<(Pid, Result<T, Refusal>)>;

/// Who calls. The connection knows; a request from anywhere else is refused, and one of a caller
/// that gets nothing.
pub(super) fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().copied();
    let unknown = || Refusal::new(Reason::Permission, "the caller's credentials are not known");
    let caller = caller.ok_or_else(unknown)?;
    admits(caller)?;
    Ok(caller)
}

/// Whether a caller gets anything at all.
pub(super) fn admits(caller: Caller) -> Result<(), Refusal> {
    caller.confinement().map_or(Ok(()), |why| {
        let message = format!(
            "the daemon serves no process that the kernel may hold back from tracing: {why}"
        );
        Err(Refusal::new(Reason::Permission, message))
    })
}

/// Turns the rule's answer into the caller's.
fn answer(pid: Pid, rule: Result<(), Denial>) -> Result<(), Refusal> {
    rule.map_err(|denial| denial.refusal(pid))
}

/// Whether `caller` may trace a process as it is now.
fn check_live(caller: Caller, pid: Pid) -> Result<(), Refusal> {
    answer(pid, caller.check(pid))
}

/// Whether `caller` might trace a process as it was at its attach.
fn check_attached(caller: Caller, pid: Pid, was: &Credentials, yama: Yama) -> Result<(), Refusal> {
    // It may have ended, and then it comes from no process any more.
    answer(pid, caller.may_trace(was, yama, || false))
}

/// Checks a process by its pid, attached or not.
pub(super) fn process(registry: &Registry, caller: Caller, pid: Pid) -> Result<(), Refusal> {
    match (Target::open(pid), registry.get(pid)) {
        (Ok(_), _) => check_live(caller, pid),
        (Err(_), Some(session)) => check_session(caller, &session, Deed::Use),
        (Err(refusal), None) => Err(refusal),
    }
}

/// Looks at a process that need not be attached. The rule is asked before and after: the pid may
/// have been given to another process meanwhile, or the process may have become another user's.
pub(super) fn looking<T>(
    registry: &Registry,
    caller: Caller,
    pid: Pid,
    look: impl FnOnce() -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    process(registry, caller, pid)?;
    let seen = look()?;
    process(registry, caller, pid)?;
    Ok(seen)
}

/// Checks a process that is about to be attached to, and ties the attach to the very process that was checked.
pub(super) fn attaching(
    caller: Caller,
    pid: Pid,
    options: AttachOptions,
) -> Result<AttachOptions, Refusal> {
    let target = Target::open(pid)?;
    check_live(caller, pid)?;
    if target.has_exited() {
        return Err(target.exited());
    }
    let start_time = options.start_time.or(Some(target.start_time()));
    // It may become another user's by `exec` at any time; the engine asks again when that no longer matters.
    Ok(AttachOptions {
        start_time,
        caller: Some(caller),
        ..options
    })
}

/// Checks a session, in which a caller who may have the process let go may always do that.
pub(super) fn check_session(caller: Caller, session: &Session, deed: Deed) -> Result<(), Refusal> {
    let pid = session.pid();
    let is_over = session.ended().is_some();
    let yama = match deed {
        Deed::Use if is_over => caller.yama(),
        // A living process is asked about below.
        Deed::Use | Deed::Release => Yama::Off,
    };
    check_attached(caller, pid, session.credentials(), yama)?;
    match deed {
        Deed::Use if !is_over => check_live(caller, pid),
        Deed::Use | Deed::Release => Ok(()),
    }
}

/// The session of a process, for a caller who may use it.
pub(super) fn session(
    registry: &Registry,
    caller: Caller,
    pid: Pid,
    deed: Deed,
) -> Result<Arc<Session>, Refusal> {
    if let Some(session) = registry.get(pid) {
        check_session(caller, &session, deed)?;
        return Ok(session);
    }
    // Whether a process is attached is nobody's business but its owner's, so this is asked first.
    process(registry, caller, pid)?;
    Err(Refusal::new(
        Reason::NotAttached,
        format!("process {pid} is not attached"),
    ))
}

/// What a process that is attached means, for a caller who may use it.
pub(super) fn traced(
    registry: &Registry,
    caller: Caller,
    pid: Pid,
    deed: Deed,
) -> Result<Traced, Refusal> {
    match registry.family(pid) {
        Some(family) => {
            check_family(caller, &family, deed)?;
            Ok(Traced::Family(family))
        }
        None => session(registry, caller, pid, deed).map(Traced::Session),
    }
}

/// Everything that is meant: families by their roots, then processes of which the family is gone.
pub(super) fn all_traced(
    registry: &Registry,
    caller: Caller,
    whom: Targets,
    deed: Deed,
) -> Result<Vec<Traced>, Refusal> {
    if let Targets::One(pid) = whom {
        return Ok(vec![traced(registry, caller, pid, deed)?]);
    }
    let mut families = registry.families();
    families.retain(|family| may_see(caller, family) && check_family(caller, family, deed).is_ok());
    let mut strays = sessions(registry, caller, Targets::All, deed)?;
    strays.retain(|session| {
        let theirs = |family: &Arc<Family>| {
            let sessions = family.sessions();
            sessions.iter().any(|other| Arc::ptr_eq(other, session))
        };
        !families.iter().any(theirs)
    });
    let families = families.into_iter().map(Traced::Family);
    Ok(families
        .chain(strays.into_iter().map(Traced::Session))
        .collect())
}

/// Everybody in all that is meant, each once.
///
/// # Errors
/// As [`all_traced`]; nobody is attached.
pub(super) fn everybody(
    registry: &Registry,
    caller: Caller,
    whom: Targets,
) -> Result<Vec<Arc<Session>>, Refusal> {
    let traced = all_traced(registry, caller, whom, Deed::Use)?;
    let sessions: Vec<_> = traced.iter().flat_map(Traced::sessions).collect();
    // A family whose first process has no sleds may have nobody in it so far.
    if sessions.is_empty() && whom == Targets::All {
        return Err(Refusal::new(Reason::NotAttached, "no process is attached"));
    }
    Ok(sessions)
}

/// Whether the first process of a family is one that `caller` may trace. Other families are left
/// out without a line in the log.
fn may_see(caller: Caller, family: &Family) -> bool {
    let rule = caller.may_trace(family.credentials(), Yama::Off, || false);
    rule.is_ok()
}

/// A family is for a caller who may trace its first process and everybody in it. But a caller who
/// may trace the first one may always have it let go: none of its processes can keep it by becoming
/// one that its user may not look at.
fn check_family(caller: Caller, family: &Family, deed: Deed) -> Result<(), Refusal> {
    check_attached(caller, family.root(), family.credentials(), Yama::Off)?;
    if deed == Deed::Release {
        return Ok(());
    }
    let mut sessions = family.sessions().into_iter();
    sessions.try_for_each(|session| check_session(caller, &session, deed))
}

/// The sessions that are meant, in the order of their pids.
pub(super) fn sessions(
    registry: &Registry,
    caller: Caller,
    whom: Targets,
    deed: Deed,
) -> Result<Vec<Arc<Session>>, Refusal> {
    let mut sessions = match whom {
        Targets::One(pid) => vec![session(registry, caller, pid, deed)?],
        Targets::All => {
            let mut sessions = registry.sessions();
            // Sessions of other users are left out without a line in the log.
            let own = |session: &Session| {
                let rule = caller.may_trace(session.credentials(), Yama::Off, || false);
                rule.is_ok()
            };
            sessions.retain(|session| own(session) && check_session(caller, session, deed).is_ok());
            sessions
        }
    };
    sessions.sort_by_key(|session| session.pid());
    Ok(sessions)
}

// === impl Traced ===

impl Traced {
    /// Does to the functions of all what was asked for.
    pub(super) fn toggle(
        &self,
        registry: &Registry,
        caller: Caller,
        toggle: &Toggle,
    ) -> Outcomes<ToggleReport> {
        match self {
            Self::Family(family) => match toggle {
                Toggle::ForGood(selection, to, run) => family.toggle(selection, *to, *run),
                Toggle::Lend(selection, to, capture, run) => {
                    family.lend(selection, *to, *capture, *run)
                }
                Toggle::TakeBack(from) => family.take_back(*from),
            },
            Self::Session(session) => {
                if let Toggle::TakeBack(from) = toggle
                    && let Some(family) = registry.family_of(session)
                {
                    // A lease that ends is undone also in a process that has become another user's
                    // since.
                    let may = |other: &Session| check_session(caller, other, Deed::Release).is_ok();
                    return family.take_back_of(session, *from, may);
                }
                let report = match toggle {
                    Toggle::ForGood(selection, to, run) => session.toggle(selection, *to, *run),
                    Toggle::Lend(selection, to, capture, run) => {
                        session.lend(selection, *to, *capture, *run)
                    }
                    Toggle::TakeBack(from) => session.take_back(*from),
                };
                vec![(session.pid(), report)]
            }
        }
    }

    /// As [`Registry::end_family`].
    pub(super) fn end(&self, registry: &Registry) -> Outcomes<DetachReport> {
        match self {
            Self::Family(family) => registry.end_family(family),
            Self::Session(session) => vec![(session.pid(), registry.end(session))],
        }
    }

    /// A live feed of everything from now on, or until the loan is over that it is for.
    pub(super) fn subscribe(&self, loan: Option<LeaseId>) -> Feed {
        match self {
            Self::Family(family) => family.subscribe(loan),
            Self::Session(session) => session.subscribe(loan),
        }
    }

    /// Who is traced, and was.
    pub(super) fn sessions(&self) -> Vec<Arc<Session>> {
        match self {
            Self::Family(family) => family.sessions(),
            Self::Session(session) => vec![Arc::clone(session)],
        }
    }

    /// The process whose ids of functions are those of all.
    pub(super) fn first(&self) -> Option<Arc<Session>> {
        match self {
            Self::Family(family) => family
                .root_session()
                .or_else(|| family.sessions().into_iter().next()),
            Self::Session(session) => Some(Arc::clone(session)),
        }
    }

    /// Whether that is the same family, or the same session.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Family(one), Self::Family(other)) => Arc::ptr_eq(one, other),
            (Self::Session(one), Self::Session(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// From now on these are recorded and kept, of all; says what it was before. Without a filter, what it is.
    ///
    /// # Errors
    /// A filter that means nothing.
    pub(super) fn set_filter(&self, filter: Option<&Filter>) -> Result<Outcomes<Filter>, Refusal> {
        let Some(filter) = filter else {
            let sessions = self.sessions().into_iter();
            return Ok(sessions
                .map(|session| (session.pid(), Ok(session.filter())))
                .collect());
        };
        match self {
            Self::Family(family) => family.set_filter(filter),
            Self::Session(session) => Ok(vec![(session.pid(), session.set_filter(filter))]),
        }
    }

    /// From now on tracing may cost each so much; says how much it was. Without an economy, how much it is.
    ///
    /// # Errors
    /// A value out of range.
    pub(super) fn set_economy(
        &self,
        economy: Option<Economy>,
    ) -> Result<Outcomes<Economy>, Refusal> {
        let Some(economy) = economy else {
            let sessions = self.sessions().into_iter();
            return Ok(sessions
                .map(|session| (session.pid(), Ok(session.economy())))
                .collect());
        };
        match self {
            Self::Family(family) => family.set_economy(economy),
            Self::Session(session) => Ok(vec![(session.pid(), session.set_economy(economy))]),
        }
    }

    /// From now on events of all are kept so; says what it was before.
    pub(super) fn set_mode(&self, mode: Mode) -> Outcomes<Mode> {
        match self {
            Self::Family(family) => family.set_mode(mode),
            Self::Session(session) => vec![(session.pid(), session.set_mode(mode))],
        }
    }
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

/// The process that a request names; 0 names none.
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
        let error = super::caller(&Request::new(())).unwrap_err();
        assert_eq!(error.code(), tonic::Code::PermissionDenied);
        let mut request = Request::new(());
        request.extensions_mut().insert(Caller::in_process(5, 1));
        assert_eq!(super::caller(&request).unwrap().uid, 5);
        let confined = Caller::peer(5, 1, Err(Confinement::PidNamespace));
        request.extensions_mut().insert(confined);
        let error = super::caller(&request).unwrap_err();
        assert_eq!(error.code(), tonic::Code::PermissionDenied);
    }
}
