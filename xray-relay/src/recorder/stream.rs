//! All events of a process, a file after the other.

use std::io::Write as _;
use std::time::Duration;

use tokio::sync::watch;
use tonic::Status;
use xrayd_proto::v1::{StreamTraceRequest, TraceChunk};

use super::{Backoff, Order, Periods, is_over, is_stopped};
use crate::daemon::Daemon;
use crate::losses::Loss;
use crate::store::{Place, Recording};
use crate::utc;

/// The reason why a stream has ended.
enum Ended {
    /// The process has ended, or is not traced any more.
    Process,
    /// The recorder was stopped.
    Stopped,
    /// Something failed, and may work later.
    Failed(String),
}

/// Records until the process ends or the recorder is stopped.
pub(super) async fn run(
    daemon: Daemon,
    place: &Place,
    periods: Periods,
    before: Option<Duration>,
    mut orders: watch::Receiver<Order>,
) {
    let mut backoff = Backoff::new();
    // The time since when nothing is recorded, and why.
    let mut gap = before.map(|before| (before, "no relay recorded".to_owned()));
    loop {
        let ended = record(&daemon, place, periods, &mut orders, &mut gap).await;
        match ended {
            Ended::Process | Ended::Stopped => break,
            Ended::Failed(why) => {
                gap.get_or_insert_with(|| (utc::now(), why));
                if !backoff.wait(&mut orders).await {
                    break;
                }
            }
        }
    }
    if let Some((since, why)) = gap {
        place.note(&Loss::new(place.pid, (since, utc::now()), 0, why));
    }
}

/// Records one stream. A gap ends when the stream begins.
async fn record(
    daemon: &Daemon,
    place: &Place,
    periods: Periods,
    orders: &mut watch::Receiver<Order>,
    gap: &mut Option<(Duration, String)>,
) -> Ended {
    let request = StreamTraceRequest {
        pid: place.pid,
        file_bytes: periods.file_bytes,
        file_ns: u64::try_from(periods.every.as_nanos()).unwrap_or(u64::MAX),
        ..StreamTraceRequest::default()
    };
    let mut rpc = daemon.rpc();
    let begun = tokio::select! {
        () = is_stopped(orders) => return Ended::Stopped,
        begun = rpc.stream_trace(request) => begun,
    };
    let mut chunks = match begun {
        Ok(begun) => begun.into_inner(),
        Err(status) if is_over(&status) => return Ended::Process,
        Err(status) => return failed(&status),
    };
    if let Some((since, why)) = gap.take() {
        place.note(&Loss::new(place.pid, (since, utc::now()), 0, why));
    }
    let mut files = Files {
        place,
        current: None,
        lost: 0,
    };
    let ended = loop {
        let chunk = tokio::select! {
            () = is_stopped(orders) => break Ended::Stopped,
            chunk = chunks.message() => chunk,
        };
        match chunk {
            Ok(Some(chunk)) => {
                if let Err(why) = files.write(&chunk) {
                    break Ended::Failed(why);
                }
            }
            Ok(None) => break Ended::Process,
            Err(status) if is_over(&status) => break Ended::Process,
            Err(status) => break failed(&status),
        }
    };
    match files.finish() {
        Ok(()) => ended,
        Err(why) => Ended::Failed(why),
    }
}

fn failed(status: &Status) -> Ended {
    Ended::Failed(format!("the daemon ended the stream: {}", status.message()))
}

/// The files of one stream.
struct Files<'a> {
    place: &'a Place,
    current: Option<Recording>,
    /// Events of the current file that the daemon dropped because the relay was too slow.
    lost: u64,
}

impl Files<'_> {
    fn write(&mut self, chunk: &TraceChunk) -> Result<(), String> {
        let cannot = |error: std::io::Error| format!("cannot write a file: {error}");
        if chunk.begins_file {
            self.finish()?;
        }
        self.lost = chunk.reader_lost;
        if self.current.is_none() {
            self.current = Some(self.place.begin().map_err(cannot)?);
        }
        match &mut self.current {
            Some(file) => file.write_all(&chunk.data).map_err(cannot),
            None => Ok(()),
        }
    }

    /// Makes the current file whole.
    fn finish(&mut self) -> Result<(), String> {
        let Some(file) = self.current.take() else {
            return Ok(());
        };
        if self.lost > 0 {
            let times = (file.begun, utc::now());
            let why = "the relay took the events too slowly";
            self.place
                .note(&Loss::new(self.place.pid, times, self.lost, why));
        }
        self.lost = 0;
        file.finish()
            .map(drop)
            .map_err(|error| format!("cannot finish a file: {error}"))
    }
}
