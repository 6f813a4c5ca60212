//! Answers with sums of calls. Kept sums are sent at once. Sums from now on are sent when the
//! client has ended its request stream.

use std::{io, sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::spawn_blocking};
use tonic::{Status, Streaming};
use xrayd_proto::v1::{FetchProfileRequest, TraceChunk};

use super::{admission::Admitted, fetch::ChunkPipe, live::Ending, workers::Workers};
use crate::{
    Pid,
    process::{ProcessOrGroup, Profiling, Session, write_profile},
    refusal::{Reason, Refusal},
    store::ProfileSums,
    target::Caller,
    types::Mode,
};

/// Interval of checks whether all processes have ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The sums for an answer.
#[derive(Debug)]
pub(super) enum Profiles {
    /// Sums that are being made.
    UnderWay(Vec<Profiling>),
    /// Finished sums.
    Made(Vec<(Arc<Session>, ProfileSums)>),
}

// === impl Profiles ===

impl Profiles {
    /// The sums of the processes in `traced`. `from_now` begins new ones.
    ///
    /// # Errors
    /// No sums are kept.
    pub(super) fn begin(
        traced: &ProcessOrGroup,
        pid: Pid,
        from_now: bool,
    ) -> Result<Self, Refusal> {
        let sessions = traced.sessions();
        if from_now {
            let living = sessions.iter().filter(|session| !session.has_exited());
            let profiles = living.map(Profiling::begin);
            return Ok(Self::UnderWay(profiles.collect::<Result<_, _>>()?));
        }
        let mut kept = Vec::new();
        for session in sessions {
            if let Some(sums) = session.kept_profile()? {
                kept.push((session, sums));
            }
        }
        if kept.is_empty() {
            let message = format!(
                "process {pid}: the daemon has no sums of its calls; use `xrayctl mode {}` first",
                Mode::Profile
            );
            return Err(Refusal::new(Reason::Mode, message));
        }
        Ok(Self::Made(kept))
    }

    /// Waits until all processes have ended.
    async fn end(&self) {
        let Self::UnderWay(profiles) = self else {
            return;
        };
        while profiles.iter().any(|one| one.session().is_living()) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn finish(self) -> Result<Vec<(Arc<Session>, ProfileSums)>, Refusal> {
        let profiles = match self {
            Self::Made(made) => return Ok(made),
            Self::UnderWay(profiles) => profiles.into_iter(),
        };
        profiles
            .map(|one| Ok((Arc::clone(one.session()), one.finish()?)))
            .collect()
    }
}

/// Waits until the client wants the answer, and sends it.
pub(super) async fn run(
    profiles: Profiles,
    mut requests: Streaming<FetchProfileRequest>,
    sender: mpsc::Sender<Result<TraceChunk, Status>>,
    (workers, caller): (Workers, Caller),
    _admitted: Admitted,
) -> Ending {
    let wanted = async {
        // Further messages mean nothing.
        while let Some(FetchProfileRequest { .. }) = requests.message().await? {}
        Ok::<(), Status>(())
    };
    let asked = tokio::select! {
        asked = wanted => asked.is_ok(),
        () = profiles.end() => true,
        () = sender.closed() => false,
    };
    if !asked {
        return Ending::Early;
    }
    let turn = match workers.snapshot(caller).await {
        Ok(turn) => turn,
        Err(refusal) => {
            let _gone = sender.send(Err(refusal.into())).await;
            return Ending::Early;
        }
    };
    let written = spawn_blocking(move || {
        let _turn = turn;
        let mut pipe = ChunkPipe::new(sender, TraceChunk::default());
        let written = match profiles.finish() {
            Ok(profiles) => write_profile(&profiles, &mut pipe),
            Err(refusal) => Err(io::Error::other(refusal)),
        };
        pipe.finish(written);
    });
    // The panic hook has logged a panic.
    let _ = written.await;
    Ending::Answered
}
