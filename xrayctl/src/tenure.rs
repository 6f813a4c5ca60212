//! A process for as long as a command needs it: attached, or, where somebody else has attached it, functions on loan. And letting it go again.

use std::hash::{BuildHasher as _, RandomState};

use anyhow::Context as _;
use xrayd_proto::v1::{
    self, AttachRequest, DetachReport, DetachRequest, StatusRequest, ToggleReport, undo::What,
};

use crate::client::Rpc;
use crate::failure;
use crate::output::Console;
use crate::toggle;

/// What was there before us, and what is to be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undo {
    /// Attached by us: detach.
    Detach,
    /// Attached by somebody else: what we switch on is on this loan.
    TakeBack(u64),
}

/// What was undone.
#[derive(Debug)]
pub(crate) enum Undone {
    Detached(Vec<DetachReport>),
    /// Functions are again what they were.
    TakenBack(Vec<ToggleReport>),
}

// === impl Undo ===

impl Undo {
    /// The loan to switch functions on with; 0 for good.
    pub(crate) fn loan(self) -> u64 {
        match self {
            Self::Detach => 0,
            Self::TakeBack(loan) => loan,
        }
    }
}

impl From<Undo> for v1::Undo {
    fn from(undo: Undo) -> Self {
        let what = match undo {
            Undo::Detach => What::Detach(true),
            Undo::TakeBack(loan) => What::Loan(loan),
        };
        Self { what: Some(what) }
    }
}

/// Why a process is not looked at any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Somebody asked, or what was wanted is there.
    Asked,
    /// The process ended, or was let go of.
    Process,
}

/// Has the process for as long as `work` needs it.
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
        // Of a process that has ended nothing is to be undone.
        (Ok((Ended::Process, done)), _) => Ok((Ended::Process, done)),
        (Ok(done), released) => released.map(|_| done),
        (Err(error), released) => {
            // What went wrong first is what counts.
            if let Err(second) = released {
                console.note(&format!("{second:#}"));
            }
            Err(error)
        }
    }
}

/// Attaches, unless somebody has before.
pub(crate) async fn attach(
    rpc: &mut Rpc,
    request: AttachRequest,
    console: &Console,
) -> anyhow::Result<Undo> {
    let pid = request.pid;
    if is_attached(rpc, pid).await {
        if request.follow() != v1::Follow::Unspecified {
            console.note(&format!(
                "process {pid} is attached already: what is followed from it is what was said then; `xrayctl attach {pid} --follow WHAT` says it anew"
            ));
        }
        return Ok(Undo::TakeBack(some_number()));
    }
    let response = rpc.attach(request).await;
    let response = response
        .map_err(|status| failure::from_status(&status))
        .with_context(|| format!("cannot attach to {pid}"))?;
    // Somebody may have been faster.
    match response.into_inner().report {
        Some(report) if report.already => Ok(Undo::TakeBack(some_number())),
        _ => Ok(Undo::Detach),
    }
}

/// A number that nobody else has.
fn some_number() -> u64 {
    RandomState::new().hash_one(std::process::id()).max(1)
}

/// Whether the process is attached already. If that cannot be told, attaching will say why.
async fn is_attached(rpc: &mut Rpc, pid: u32) -> bool {
    match rpc.get_status(StatusRequest { pid }).await {
        Ok(response) => {
            let processes = response.into_inner().processes;
            processes
                .iter()
                .any(|process| process.pid == pid && process.state == "tracing")
        }
        Err(_) => false,
    }
}

/// Lets the processes go, or as far as we had taken them.
pub(crate) async fn release(rpc: &mut Rpc, pid: u32, undo: Undo) -> anyhow::Result<Undone> {
    match undo {
        Undo::Detach => {
            let response = rpc.detach(DetachRequest { pid }).await;
            let response = response.map_err(|status| failure::from_status(&status));
            let reports = response.context("cannot detach")?.into_inner().reports;
            Ok(Undone::Detached(reports))
        }
        Undo::TakeBack(loan) => {
            let reports = toggle::take_back(rpc, pid, loan).await?;
            Ok(Undone::TakenBack(reports))
        }
    }
}
