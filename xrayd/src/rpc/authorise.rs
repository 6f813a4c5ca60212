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
//! trace. Only root and the daemon's user may restart the daemon, and have events of all kernel
//! tracepoints.

use std::sync::Arc;

use nix::unistd::geteuid;
use tonic::{Request, Status};

use crate::{
    Pid,
    process::{
        AttachOptions, Group, MOST_IN_A_CALL, ProcessOrGroup, Registry, Session, Toggle,
        in_parallel,
    },
    refusal::{Reason, Refusal},
    target::{Caller, Credentials, Denial, Target, Yama},
};

/// The processes that a request's pid stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Targets {
    /// This process.
    One(Pid),
    /// Every attached process that the caller may trace.
    All,
}

/// The kind of an operation on processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperationKind {
    /// The operation reads from them, or switches what they record.
    Use,
    /// The operation restores them: a detach, or the end of a lease. Changes of the processes since
    /// the attach do not matter, so that none can stay traced by changing.
    Release,
}

/// The caller of a request, from its connection. Refuses requests without a connection, and callers
/// without any rights.
pub(super) fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().copied();
    let unknown = || Refusal::new(Reason::Permission, "the caller's credentials are unknown");
    let caller = caller.ok_or_else(unknown)?;
    admits(caller)?;
    Ok(caller)
}

/// Refuses callers without any rights.
pub(super) fn admits(caller: Caller) -> Result<(), Refusal> {
    caller.confinement().map_or(Ok(()), |why| {
        let message = format!(
            "the daemon does not serve callers that the kernel may hinder from tracing: {why}"
        );
        Err(Refusal::new(Reason::Permission, message))
    })
}

/// Checks that `caller` may restart the daemon.
pub(super) fn restarting(caller: Caller) -> Result<(), Refusal> {
    if has_all_rights(caller) {
        return Ok(());
    }
    let message = "only root and the daemon's user may restart the daemon";
    Err(Refusal::new(Reason::Permission, message))
}

/// Checks that `caller` may see and change policies, which are for processes of all users.
pub(super) fn policies(caller: Caller) -> Result<(), Refusal> {
    if has_all_rights(caller) {
        return Ok(());
    }
    let message = "only root and the daemon's user may see and change policies";
    Err(Refusal::new(Reason::Permission, message))
}

/// Checks that `caller` may have the events of a kernel tracepoint in the threads of its processes.
/// Tracepoints of system calls show what the process itself passes to the kernel. So the kernel
/// allows them to all users, too. Others show addresses of the kernel and data of other users.
pub(super) fn tracepoint(caller: Caller, name: &str) -> Result<(), Refusal> {
    let is_of_calls = ["syscalls:", "raw_syscalls:"]
        .iter()
        .any(|system| name.starts_with(system));
    if is_of_calls || has_all_rights(caller) {
        return Ok(());
    }
    let message = format!(
        "only root and the daemon's user may record {name}; other users may record syscalls:* and \
         raw_syscalls:*"
    );
    Err(Refusal::new(Reason::Permission, message))
}

/// True for root and the daemon's user.
fn has_all_rights(caller: Caller) -> bool {
    caller.uid == 0 || caller.uid == geteuid().as_raw()
}

/// Turns a denial of the rule into a refusal.
fn answer(pid: Pid, rule: Result<(), Denial>) -> Result<(), Refusal> {
    rule.map_err(|denial| denial.refusal(pid))
}

/// Checks that `caller` may trace a process as it is now.
fn check_live(caller: Caller, pid: Pid) -> Result<(), Refusal> {
    answer(pid, caller.check(pid))
}

/// Checks that `caller` could trace a process as it was at its attach.
fn check_attached(caller: Caller, pid: Pid, was: &Credentials, yama: Yama) -> Result<(), Refusal> {
    // The process may have ended, and then it descends from no process.
    answer(pid, caller.may_trace(was, yama, || false))
}

/// Checks that a caller may look at a process, attached or not.
pub(super) fn process(registry: &Registry, caller: Caller, pid: Pid) -> Result<(), Refusal> {
    match (Target::open(pid), registry.get(pid)) {
        (Ok(_), _) => check_live(caller, pid),
        (Err(_), Some(session)) => check_session(caller, &session, OperationKind::Use),
        (Err(refusal), None) => Err(refusal),
    }
}

/// Looks at a process that need not be attached. The rule is checked before and after the look,
/// because the pid may get another process meanwhile, or the process another user.
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

/// Checks a process before an attach, and binds the attach to exactly this process.
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
    // The process may get another user by `exec` at any time. The engine checks again at a point
    // from which on that does not matter.
    Ok(AttachOptions {
        start_time,
        caller: Some(caller),
        ..options
    })
}

/// Checks a session. For a release only the state at the attach counts, so the caller keeps that
/// right.
pub(super) fn check_session(
    caller: Caller,
    session: &Session,
    kind: OperationKind,
) -> Result<(), Refusal> {
    let pid = session.pid();
    let is_over = session.ended().is_some();
    let yama = match kind {
        OperationKind::Use if is_over => caller.yama(),
        // The living process is checked below.
        OperationKind::Use | OperationKind::Release => Yama::Off,
    };
    check_attached(caller, pid, session.credentials(), yama)?;
    match kind {
        OperationKind::Use if !is_over => check_live(caller, pid),
        OperationKind::Use | OperationKind::Release => Ok(()),
    }
}

/// Whether a caller may restore a process: it may also do so if the process belongs to another user
/// by now.
pub(super) fn may_release(caller: Caller) -> impl Fn(&Session) -> bool {
    move |session| check_session(caller, session, OperationKind::Release).is_ok()
}

/// The session of a process, for a caller that may use it.
pub(super) fn session(
    registry: &Registry,
    caller: Caller,
    pid: Pid,
    kind: OperationKind,
) -> Result<Arc<Session>, Refusal> {
    if let Some(session) = registry.get(pid) {
        check_session(caller, &session, kind)?;
        return Ok(session);
    }
    // A caller may learn whether a process is attached only if it may trace the process. So that is
    // checked first.
    process(registry, caller, pid)?;
    Err(Refusal::new(
        Reason::NotAttached,
        format!("process {pid} is not attached"),
    ))
}

/// The target of an attached process, for a caller that may use it.
pub(super) fn traced(
    registry: &Registry,
    caller: Caller,
    pid: Pid,
    kind: OperationKind,
) -> Result<ProcessOrGroup, Refusal> {
    match registry.group(pid) {
        Some(group) => {
            check_group(caller, &group, kind)?;
            Ok(ProcessOrGroup::Group(group))
        }
        None => session(registry, caller, pid, kind).map(ProcessOrGroup::Session),
    }
}

/// The targets of a request: groups ordered by first process, then sessions whose group is gone.
pub(super) fn all_traced(
    registry: &Registry,
    caller: Caller,
    whom: Targets,
    kind: OperationKind,
) -> Result<Vec<ProcessOrGroup>, Refusal> {
    if let Targets::One(pid) = whom {
        return Ok(vec![traced(registry, caller, pid, kind)?]);
    }
    let mut groups = registry.groups();
    groups.retain(|group| may_see(caller, group) && check_group(caller, group, kind).is_ok());
    let mut strays = sessions(registry, caller, Targets::All, kind)?;
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
/// As [`all_traced`], or no process is attached.
pub(super) fn everybody(
    registry: &Registry,
    caller: Caller,
    whom: Targets,
) -> Result<Vec<Arc<Session>>, Refusal> {
    let traced = all_traced(registry, caller, whom, OperationKind::Use)?;
    let sessions: Vec<_> = traced.iter().flat_map(ProcessOrGroup::sessions).collect();
    // A group whose first process has no sleds may have no members so far.
    if sessions.is_empty() && whom == Targets::All {
        return Err(Refusal::new(Reason::NotAttached, "no process is attached"));
    }
    Ok(sessions)
}

/// True if `caller` may trace the first process of a group. Other groups are left out without a log
/// line.
fn may_see(caller: Caller, group: &Group) -> bool {
    let rule = caller.may_trace(&group.credentials, Yama::Off, || false);
    rule.is_ok()
}

/// Checks a group. To use it, a caller must be one that may trace the first process and all
/// members. To release it, the first process suffices. So no member can keep the group attached by
/// becoming a process that the caller may not look at.
fn check_group(caller: Caller, group: &Group, kind: OperationKind) -> Result<(), Refusal> {
    check_attached(caller, group.root(), &group.credentials, Yama::Off)?;
    if kind == OperationKind::Release {
        return Ok(());
    }
    let mut sessions = group.sessions().into_iter();
    sessions.try_for_each(|session| check_session(caller, &session, kind))
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

/// The sessions of a request, ordered by pid.
pub(super) fn sessions(
    registry: &Registry,
    caller: Caller,
    whom: Targets,
    kind: OperationKind,
) -> Result<Vec<Arc<Session>>, Refusal> {
    let mut sessions = match whom {
        Targets::One(pid) => vec![session(registry, caller, pid, kind)?],
        Targets::All => {
            let mut sessions = registry.sessions();
            // Sessions of other users are left out without a log line.
            let own = |session: &Session| {
                let rule = caller.may_trace(session.credentials(), Yama::Off, || false);
                rule.is_ok()
            };
            sessions.retain(|session| own(session) && check_session(caller, session, kind).is_ok());
            sessions
        }
    };
    sessions.sort_by_key(|session| session.pid());
    Ok(sessions)
}

// === impl OperationKind ===

impl OperationKind {
    /// The kind of a request to switch functions.
    pub(super) fn of(toggle: &Toggle) -> Self {
        match toggle {
            Toggle::Functions(..) => Self::Use,
            Toggle::Release(_) => Self::Release,
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
