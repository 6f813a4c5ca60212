//! The newest events of a process in mode flight: a snapshot for each period.

use std::io::Write as _;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use xrayd_proto::v1::FetchTraceRequest;

use super::{Backoff, LastFile, Order, Periods, is_over, is_stopped};
use crate::daemon::Daemon;
use crate::losses::Loss;
use crate::store::{Place, Unfinished};
use crate::utc;

/// Takes snapshots until the process is not traced any more, or the recorder is stopped, and one
/// more then.
pub(super) async fn run(
    daemon: Daemon,
    place: &Place,
    periods: Periods,
    before: Option<Duration>,
    mut orders: watch::Receiver<Order>,
) {
    let mut backoff = Backoff::new();
    // The rings may hold what no relay has read.
    let earlier = before.map_or(Duration::ZERO, |before| utc::now().saturating_sub(before));
    let (mut since, mut covered) = (Instant::now(), utc::now().saturating_sub(earlier));
    let mut earlier = Some(earlier);
    loop {
        let is_last = tokio::select! {
            () = is_stopped(&mut orders) => true,
            () = tokio::time::sleep_until(since + periods.every) => false,
        };
        // Each begins where the one before ends.
        let now = Instant::now();
        let last = earlier.unwrap_or_default();
        let mut last_file = LastFile::new();
        let taken = loop {
            match take(&daemon, place, since.elapsed() + last).await {
                Err(why) if is_last && last_file.again(&why).await => {}
                taken => break taken,
            }
        };
        let why = match taken {
            Ok(true) => {
                earlier = None;
                (since, covered) = (now, utc::now());
                backoff = Backoff::new();
                match is_last {
                    true => return,
                    false => continue,
                }
            }
            Ok(false) => "the daemon has no session of the process any more".to_owned(),
            Err(why) => why,
        };
        // The next one covers this time, too. A daemon that starts has no session at first.
        if !is_last {
            tracing::debug!(
                pid = place.pid,
                why,
                "a snapshot failed, and is tried again"
            );
            // If the recorder is stopped meanwhile, this is the last attempt.
            backoff.wait(&mut orders).await;
            continue;
        }
        place.note(&Loss::new(place.pid, (covered, utc::now()), 0, why));
        return;
    }
}

/// Writes a snapshot of the latest time. False if the daemon has no session of the process.
async fn take(daemon: &Daemon, place: &Place, last: Duration) -> Result<bool, String> {
    let request = FetchTraceRequest {
        pid: place.pid,
        last_ns: u64::try_from(last.as_nanos()).unwrap_or(u64::MAX).max(1),
    };
    let _place = daemon.place().await;
    let mut chunks = match daemon.rpc().fetch_trace(request).await {
        Ok(begun) => begun.into_inner(),
        Err(status) if is_over(&status) => return Ok(false),
        Err(status) => return Err(status.message().to_owned()),
    };
    let mut file = place
        .begin(Unfinished::Useless)
        .map_err(|error| error.to_string())?;
    loop {
        match chunks.message().await {
            Ok(Some(chunk)) => file
                .write_all(&chunk.data)
                .map_err(|error| error.to_string())?,
            Ok(None) => break,
            Err(status) => return Err(status.message().to_owned()),
        }
    }
    file.finish().map_err(|error| error.to_string())?;
    Ok(true)
}
