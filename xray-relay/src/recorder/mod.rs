//! Recorders: what one policy has one process record, written to files. A policy's trigger has a
//! recorder of its own (`trigger`).
//!
//! | mode of the policy | files |
//! |---|---|
//! | `stream` | `stream`: all events, a file after the other |
//! | `profile` | `profile`: the sums of each period |
//! | `flight` | `snapshot`: the newest events of each period |

mod profile;
mod snapshot;
mod stream;
pub(crate) mod trigger;

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tonic::Status;
use xrayd_proto::REASON_KEY;
use xrayd_proto::v1::Mode;

use crate::daemon::Daemon;
use crate::losses::Loss;
use crate::store::Place;
use crate::utc;

/// How long a recorder tries to write its last file.
const LAST_TIME: Duration = Duration::from_secs(15);

/// The pauses after failures: the first one, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Whether a recorder goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    GoOn,
    /// The process is not traced any more, or otherwise than before.
    End,
    /// The relay ends, and the next one goes on.
    Pause,
}

/// When files end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Periods {
    /// The time that a file covers.
    pub(crate) every: Duration,
    /// The size after which the next file of a stream begins.
    pub(crate) file_bytes: u64,
}

/// Records until the process is not traced any more, or until it is stopped. The time of which
/// nothing is recorded is noted if no relay has recorded the process before.
pub(crate) async fn run(
    daemon: Daemon,
    place: Place,
    (mode, periods, unrecorded): (Mode, Periods, (Duration, Duration)),
    orders: watch::Receiver<Order>,
) {
    let before = place.begin_process().unwrap_or_else(|error| {
        tracing::error!(policy = place.policy, pid = place.pid, %error, "cannot mark a process");
        None
    });
    if before.is_none() {
        place.note_begin(unrecorded);
    }
    if mode != Mode::Stream {
        end_stream(&place, before);
    }
    let order = orders.clone();
    let is_over = match mode {
        Mode::Stream => stream::run(daemon, &place, periods, (unrecorded.0, before), orders).await,
        Mode::Profile => {
            profile::run(daemon, &place, periods, orders).await;
            true
        }
        Mode::Flight => {
            snapshot::run(daemon, &place, periods, before, orders).await;
            true
        }
        // It has no files.
        Mode::Count | Mode::Unspecified => true,
    };
    // The policy may trace a process again that goes on.
    if *order.borrow() != Order::Pause && (is_over || !place.leave_stream()) {
        place.end_process();
    }
}

/// Ends the stream of a process of which the policy records something else from now on.
fn end_stream(place: &Place, before: Option<Duration>) {
    let now = utc::now();
    match place.end_stream() {
        Ok(false) => {}
        Ok(true) => {
            let why = "the policy's mode was changed: the end of the stream may be missing";
            let times = (before.unwrap_or(now), now);
            place.note(&Loss::new(place.pid, times, 0, why));
        }
        Err(error) => {
            tracing::error!(policy = place.policy, pid = place.pid, %error, "cannot mark a process");
        }
    }
}

/// Notes what is missing of a process that an earlier relay has recorded, and that is not traced
/// any more. Writes the rest of its sums, or of its stream, if the daemon has it.
pub(crate) async fn finish(daemon: &Daemon, place: &Place) {
    let now = utc::now();
    let until = place.begin_process().ok().flatten().unwrap_or(now);
    let mut is_over = true;
    if !profile::rest(daemon, place).await {
        let why = "the process ended, or was traced no more, while no relay recorded";
        let rest = stream::rest(daemon, place, (until, why.to_owned())).await;
        if let Some((since, why)) = rest.gap {
            place.note(&Loss::new(place.pid, (since, now.max(since)), 0, why));
        }
        is_over = rest.is_over;
    }
    if is_over || !place.leave_stream() {
        place.end_process();
    }
}

/// The attempts to write the last file of a process.
#[derive(Debug)]
struct LastFile {
    begun: Instant,
    backoff: Backoff,
}

impl LastFile {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            backoff: Backoff::new(),
        }
    }

    /// Waits after a failure. False if there is no time left for another attempt.
    async fn again(&mut self, why: &str) -> bool {
        if self.begun.elapsed() >= LAST_TIME {
            return false;
        }
        tracing::debug!(why, "the last file failed, and is tried again");
        tokio::time::sleep(self.backoff.next()).await;
        true
    }
}

/// The pause before the next attempt. It grows with each failure.
#[derive(Debug)]
struct Backoff(Duration);

impl Backoff {
    fn new() -> Self {
        Self(FIRST_PAUSE)
    }

    /// The next pause.
    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (2 * pause).min(LONGEST_PAUSE);
        pause
    }

    /// Waits. False if the recorder is stopped meanwhile.
    async fn wait(&mut self, orders: &mut watch::Receiver<Order>) -> bool {
        let pause = self.next();
        tokio::select! {
            () = is_stopped(orders) => false,
            () = tokio::time::sleep(pause) => true,
        }
    }
}

/// Waits until the recorder is stopped.
async fn is_stopped(orders: &mut watch::Receiver<Order>) {
    // A supervisor that is gone has stopped it, too.
    let _ = orders.wait_for(|order| *order != Order::GoOn).await;
}

/// True if the daemon has no session of the process, or the caller no right to it any more.
fn is_over(status: &Status) -> bool {
    let over = [
        "not-attached",
        "no-such-process",
        "zombie",
        "permission",
        "mode",
    ];
    reason_of(status).is_some_and(|reason| over.contains(&reason))
}

/// The reason of a refusal.
fn reason_of(status: &Status) -> Option<&str> {
    status.metadata().get(REASON_KEY)?.to_str().ok()
}
