//! Holds a process as long as a command needs it: attached, or, if another client has attached it,
//! with functions on a lease.

use std::hash::{BuildHasher as _, RandomState};

use anyhow::Context as _;
use xrayd::Reason;
use xrayd_proto::v1::{
    self, AttachRequest, DetachReport, DetachRequest, SessionState, StatusRequest, ToggleReport,
    undo::What,
};

use crate::client::Rpc;
use crate::failure::{self, reason_in};
use crate::output::Console;
use crate::toggle;

/// The way to undo the changes of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undo {
    /// This command attached the process, and detaches it.
    Detach,
    /// Another client attached the process. This command enables functions on this lease, and ends
    /// it.
    Release(u64),
}

/// The result of an undo.
#[derive(Debug)]
pub(crate) enum Undone {
    Detached(Vec<DetachReport>),
    /// The functions of the lease are in their earlier state again.
    TakenBack(Vec<ToggleReport>),
}

// === impl Undo ===

impl Undo {
    /// The lease for enabling functions; 0 for none, so that they stay on.
    pub(crate) fn lease(self) -> u64 {
        match self {
            Self::Detach => 0,
            Self::Release(lease) => lease,
        }
    }
}

impl From<Undo> for v1::Undo {
    fn from(undo: Undo) -> Self {
        let what = match undo {
            Undo::Detach => What::Detach(true),
            Undo::Release(lease) => What::Lease(lease),
        };
        Self { what: Some(what) }
    }
}

/// The reason why a command is done with a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The user asked for the end, or the wanted result is there.
    Asked,
    /// The process ended, or was detached.
    Process,
}

/// Holds the process while `work` runs.
pub(crate) async fn during<T>(
    rpc: &mut Rpc,
    request: AttachRequest,
    console: &mut Console,
    work: impl AsyncFnOnce(&mut Rpc, Undo, &mut Console) -> anyhow::Result<(Ended, T)>,
) -> anyhow::Result<(Ended, T)> {
    let pid = request.pid;
    let undo = attach(rpc, request, console).await?;
    let done = work(rpc, undo, console).await;
    let released = release(rpc, pid, undo).await;
    match (done, released) {
        // A process that has ended needs no undo.
        (Ok((Ended::Process, done)), _) => Ok((Ended::Process, done)),
        (Ok(done), released) => released.map(|_| done),
        (Err(error), released) => {
            // The first error is the one to return.
            note_failure(released, console);
            Err(error)
        }
    }
}

/// Notes that an undo after an error has failed. The daemon undoes the changes of a stream that has
/// ended, too, and may be faster.
pub(crate) fn note_failure(undone: anyhow::Result<Undone>, console: &Console) {
    let Err(error) = undone else { return };
    if !matches!(reason_in(&error), Some(Reason::Busy | Reason::NotAttached)) {
        console.note(&format!("{error:#}"));
    }
}

/// Attaches the process, unless it is attached already.
pub(crate) async fn attach(
    rpc: &mut Rpc,
    request: AttachRequest,
    console: &Console,
) -> anyhow::Result<Undo> {
    let pid = request.pid;
    if is_attached(rpc, pid).await {
        if request.follow() != v1::Follow::Unspecified {
            console.note(&format!(
                "process {pid} is attached already, and its --follow setting stays; `xrayctl attach {pid} --follow WHAT` changes it"
            ));
        }
        return Ok(Undo::Release(some_number()));
    }
    let response = rpc.attach(request).await;
    let response = response
        .map_err(|status| failure::from_status(&status))
        .with_context(|| format!("cannot attach to {pid}"))?;
    // Another client may have attached it meanwhile.
    match response.into_inner().report {
        Some(report) if report.already => Ok(Undo::Release(some_number())),
        _ => Ok(Undo::Detach),
    }
}

/// A random number, so that no other client has the same.
fn some_number() -> u64 {
    RandomState::new().hash_one(std::process::id()).max(1)
}

/// True if the process is attached already. If its status cannot be read, the attach reports the
/// reason.
async fn is_attached(rpc: &mut Rpc, pid: u32) -> bool {
    match rpc.get_status(StatusRequest { pid }).await {
        Ok(response) => {
            let processes = response.into_inner().processes;
            processes
                .iter()
                .any(|process| process.pid == pid && process.state() == SessionState::Tracing)
        }
        Err(_) => false,
    }
}

/// Detaches the processes, or ends the lease.
pub(crate) async fn release(rpc: &mut Rpc, pid: u32, undo: Undo) -> anyhow::Result<Undone> {
    match undo {
        Undo::Detach => {
            let response = rpc
                .detach(DetachRequest {
                    pid,
                    leave_children: false,
                })
                .await;
            let response = response.map_err(|status| failure::from_status(&status));
            let reports = response.context("cannot detach")?.into_inner().reports;
            Ok(Undone::Detached(reports))
        }
        Undo::Release(lease) => {
            let reports = toggle::release(rpc, pid, lease).await?;
            Ok(Undone::TakenBack(reports))
        }
    }
}
