//! Undoing the changes of a client that is gone. A client that is killed cannot do that, and a
//! process must not stay traced without a reader.

use std::{num::NonZeroU64, sync::Arc};

use tokio::runtime::Handle;
use xrayd_proto::v1::{self, undo::What};

use super::{
    authorise::{Authority, OperationKind},
    workers::{WorkerKind, Workers},
};
use crate::{
    Pid,
    audit::{AuditLog, Operation},
    process::{Outcomes, ProcessOrGroup, Registry, Toggle},
    refusal::{Reason, Refusal},
    target::Caller,
    types::LeaseId,
};

/// The change to undo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Undo {
    /// The attach.
    Attach,
    /// A lease.
    Lease(LeaseId),
}

/// A new attach whose client has not taken the answer yet. The attach is undone when this is
/// dropped before [`Self::answered`]. The daemon drops the call of a client that has left.
#[derive(Debug)]
pub(super) struct Unanswered {
    attach: Option<NewAttach>,
}

/// The data to undo an attach.
#[derive(Debug)]
struct NewAttach {
    registry: Registry,
    audit: AuditLog,
    workers: Workers,
    authority: Authority,
    pid: Pid,
    traced: ProcessOrGroup,
}

// === impl Undo ===

impl Undo {
    /// Undoes the change for a process whose target was `then` when the stream began.
    pub(super) fn undo(
        self,
        registry: &Registry,
        audit: &AuditLog,
        authority: &Authority,
        pid: Pid,
        then: &ProcessOrGroup,
    ) {
        let caller = authority.caller();
        let call = audit.call(caller, Operation::Undo).of(pid.as_u32());
        let call = call.with_rule(authority.used());
        let mut call = call.with(format!("{self:?}"));
        // The process may be followed since, or may have been detached from.
        let traced = match authority.traced(registry, pid, OperationKind::Release) {
            Ok(traced) => traced,
            Err(refusal) if refusal.reason == Reason::NotAttached => return call.decide(&Ok(())),
            Err(refusal) => {
                self.failed(caller, pid, &refusal);
                return call.decide::<()>(&Err(refusal));
            }
        };
        let mut undone: Outcomes<()> = match self {
            Self::Attach if !is_same(&traced, then) => Vec::new(),
            Self::Attach => {
                let reports = traced.end(registry).into_iter();
                reports
                    .map(|(pid, report)| (pid, report.map(drop)))
                    .collect()
            }
            Self::Lease(lease) => {
                let reports =
                    traced.toggle(registry, &Toggle::Release(lease), authority.may_release());
                let reports = reports.into_iter();
                reports
                    .map(|(pid, report)| (pid, report.map(drop)))
                    .collect()
            }
        };
        undone.retain(
            |(_, undone)| !matches!(undone, Err(refusal) if refusal.reason == Reason::NotAttached),
        );
        for (pid, undone) in &undone {
            if let Err(refusal) = undone {
                self.failed(caller, *pid, refusal);
            }
        }
        call.decide_each(&undone);
        // A process that was detached from meanwhile needs nothing.
        call.decide(&Ok(()));
    }

    fn failed(self, caller: Caller, pid: Pid, Refusal { reason, message }: &Refusal) {
        tracing::warn!(
            uid = caller.uid,
            caller = caller.pid,
            %pid,
            what = ?self,
            %reason,
            message,
            "the client is gone, and the daemon cannot undo its change"
        );
    }
}

impl TryFrom<v1::Undo> for Undo {
    type Error = Refusal;

    fn try_from(v1::Undo { what }: v1::Undo) -> Result<Self, Refusal> {
        let lease = match what {
            Some(What::Detach(true)) => return Ok(Self::Attach),
            Some(What::Detach(false)) | None => None,
            Some(What::Lease(number)) => NonZeroU64::new(number),
        };
        let lease = lease.ok_or_else(|| {
            let why = "the undo names neither a detach nor a lease";
            Refusal::new(Reason::Limit, why.to_owned())
        })?;
        Ok(Self::Lease(LeaseId::Client(lease)))
    }
}

// === impl Unanswered ===

impl Unanswered {
    /// Ties an attach to the answer of its call. Nothing is undone for a process that was attached
    /// before, or that has ended by now.
    pub(super) fn new(
        registry: &Registry,
        audit: AuditLog,
        workers: Workers,
        (authority, pid): (Authority, Pid),
        already: bool,
    ) -> Self {
        let attach = (!already)
            .then(|| authority.traced(registry, pid, OperationKind::Release).ok())
            .flatten()
            .map(|traced| NewAttach {
                registry: registry.clone(),
                audit,
                workers,
                authority,
                pid,
                traced,
            });
        Self { attach }
    }

    /// Notes that the client takes the answer.
    pub(super) fn answered(mut self) {
        self.attach = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let Some(attach) = self.attach.take() else {
            return;
        };
        // Without a runtime the daemon is ending, and detaches from all processes.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let NewAttach {
                registry,
                audit,
                workers,
                authority,
                pid,
                traced,
            } = attach;
            let uid = authority.caller().uid;
            let undo = move || Undo::Attach.undo(&registry, &audit, &authority, pid, &traced);
            // The panic hook has logged a panic.
            let _ = workers.run(WorkerKind::Release, uid, undo).await;
        });
    }
}

/// True if the process was attached all the time.
fn is_same(now: &ProcessOrGroup, then: &ProcessOrGroup) -> bool {
    match (now, then) {
        (ProcessOrGroup::Group(now), ProcessOrGroup::Group(then)) => Arc::ptr_eq(now, then),
        _ => {
            let then = then.sessions();
            let sessions = now.sessions();
            let mut sessions = sessions.iter();
            sessions.any(|now| then.iter().any(|then| Arc::ptr_eq(now, then)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_undo_without_a_detach_or_a_lease_is_refused() {
        let undo = |what| Undo::try_from(v1::Undo { what });
        assert_eq!(undo(Some(What::Detach(true))).unwrap(), Undo::Attach);
        let seven = LeaseId::Client(NonZeroU64::new(7).unwrap());
        assert_eq!(undo(Some(What::Lease(7))).unwrap(), Undo::Lease(seven));
        for nothing in [Some(What::Detach(false)), Some(What::Lease(0)), None] {
            assert_eq!(undo(nothing).unwrap_err().reason, Reason::Limit);
        }
    }
}
