//! All events of a process, a file after the other.

use std::io::Write as _;
use std::time::Duration;

use tokio::sync::watch;
use tonic::Status;
use xrayd_proto::v1::{SessionState, StatusRequest, StreamTraceRequest, TraceChunk};

use super::{Backoff, Order, Periods, is_over, is_stopped};
use crate::daemon::Daemon;
use crate::losses::Loss;
use crate::store::{Place, Recording, Unfinished};
use crate::utc;

/// How long the rest of a stream is read when its process is not traced any more.
const REST_TIME: Duration = Duration::from_secs(5);

/// The reason why a stream has ended.
enum Ended {
    /// The process has ended.
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
        let had_gap = gap.is_some();
        let ended = record(&daemon, place, periods, &mut orders, &mut gap).await;
        if had_gap && gap.is_none() {
            backoff = Backoff::new();
        }
        let why = match ended {
            Ended::Stopped => return,
            // Nothing is missing. The supervisor finds out, too.
            Ended::Process => return is_stopped(&mut orders).await,
            Ended::Failed(why) => why,
        };
        gap.get_or_insert_with(|| (utc::now(), why));
        if backoff.wait(&mut orders).await {
            continue;
        }
        // If the relay ends, the next one notes the gap.
        if *orders.borrow() == Order::End
            && let Some((since, why)) = gap
        {
            place.note(&Loss::new(place.pid, (since, utc::now()), 0, why));
        }
        return;
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
        Err(status) if is_over(&status) => return of_session(daemon, place).await,
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
    // The wait must not begin anew with each chunk: chunks come as long as another client traces
    // the process.
    let mut stopped = std::pin::pin!(is_stopped_for_good(orders));
    let ended = loop {
        let chunk = tokio::select! {
            chunk = chunks.message() => chunk,
            () = &mut stopped => break Ended::Stopped,
        };
        match chunk {
            Ok(Some(chunk)) => {
                if let Err(why) = files.write(&chunk) {
                    break Ended::Failed(why);
                }
            }
            Ok(None) => break of_session(daemon, place).await,
            Err(status) if is_over(&status) => break of_session(daemon, place).await,
            Err(status) => break failed(&status),
        }
    };
    match files.finish() {
        Ok(()) => ended,
        Err(why) => Ended::Failed(why),
    }
}

/// Waits until the relay ends, or until a while after the end of the process, whose rest is read.
async fn is_stopped_for_good(orders: &mut watch::Receiver<Order>) {
    is_stopped(orders).await;
    if *orders.borrow() == Order::End {
        tokio::time::sleep(REST_TIME).await;
    }
}

/// Why a session has ended: its process has, or the daemon leaves it to the next one.
async fn of_session(daemon: &Daemon, place: &Place) -> Ended {
    let pid = place.pid;
    let status = daemon.rpc().get_status(StatusRequest { pid }).await;
    let has_ended = status.is_ok_and(|status| {
        let processes = status.into_inner().processes;
        processes
            .iter()
            .any(|process| process.pid == pid && process.state() == SessionState::Exited)
    });
    match has_ended {
        true => Ended::Process,
        false => Ended::Failed("the daemon was restarted, or has detached".to_owned()),
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
            self.current = Some(self.place.begin(Unfinished::Readable).map_err(cannot)?);
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
