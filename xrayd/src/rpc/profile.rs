//! Answers with sums of calls. Kept sums are sent at once. Sums from now on are sent when the
//! client has ended its request stream.

use std::{io, sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::spawn_blocking};
use tonic::{Status, Streaming};
use xrayd_proto::v1::{FetchProfileRequest, SumsBegin, TraceChunk};

use super::{admission::Admitted, fetch::ChunkPipe, live::Ending, workers::Workers};
use crate::{
    Pid,
    process::{GroupProfiling, Outlook, ProcessOrGroup, Session, write_profile},
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
    UnderWay(Arc<GroupProfiling>, ProcessOrGroup),
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
        if from_now {
            let profiling = traced.profile()?;
            return Ok(Self::UnderWay(profiling, traced.clone()));
        }
        let sessions = traced.sessions();
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

    /// Waits until no further calls can be added. True if that is only because of the limit.
    async fn end(&self) -> bool {
        let Self::UnderWay(profiling, traced) = self else {
            return false;
        };
        loop {
            let (profiling, traced) = (Arc::clone(profiling), traced.clone());
            let outlook = spawn_blocking(move || profiling.look(traced.can_grow()));
            // The panic hook has logged a panic.
            match outlook.await.unwrap_or(Outlook::Over) {
                Outlook::Open => tokio::time::sleep(LOOK_EVERY).await,
                Outlook::Over => return false,
                Outlook::Full => return true,
            }
        }
    }

    /// What identifies the sums of each process.
    fn begins(&self) -> Vec<SumsBegin> {
        let Self::Made(made) = self else {
            return Vec::new();
        };
        let begins = made.iter().filter_map(|(session, sums)| {
            Some(SumsBegin {
                pid: session.pid().as_u32(),
                ticks: sums.since()?.0,
                taken_along: sums.taken_along(),
            })
        });
        begins.collect()
    }

    fn finish(self, out: &mut dyn io::Write) -> io::Result<()> {
        match self {
            Self::Made(made) => write_profile(&made, out),
            Self::UnderWay(profiling, _) => profiling.finish(out),
        }
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
    // Whether to answer, and whether the profile ends before the client wants it to.
    let (answers, ended_early) = tokio::select! {
        asked = wanted => (asked.is_ok(), false),
        ended_early = profiles.end() => (true, ended_early),
        () = sender.closed() => (false, false),
    };
    if !answers {
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
        let template = TraceChunk {
            ended_early,
            sums: profiles.begins(),
            ..TraceChunk::default()
        };
        let mut pipe = ChunkPipe::new(sender, template);
        let written = profiles.finish(&mut pipe);
        pipe.finish(written);
    });
    // The panic hook has logged a panic.
    let _ = written.await;
    Ending::Answered
}
