//! All events of a process, a file after the other. Each stream goes on where the one before ended,
//! as far as the daemon retains the events.

use std::io::Write as _;
use std::time::Duration;

use tokio::sync::watch;
use tonic::Status;
use xrayd_proto::v1::{SessionState, StatusRequest, StreamTraceRequest, TraceChunk};

use super::{Backoff, Order, Periods, is_over, is_stopped, reason_of};
use crate::daemon::Daemon;
use crate::losses::Loss;
use crate::mark::{Marker, StreamMark};
use crate::store::{Place, Recording, Unfinished};
use crate::utc;

/// How long the rest of a stream is read when its process is not traced any more.
const REST_TIME: Duration = Duration::from_secs(5);

/// The time between two looks whether a process that has executed another program is traced again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The reason why a stream has ended.
enum Ended {
    /// The process has ended.
    Process,
    /// The recorder was stopped.
    Stopped,
    /// Something failed, and may work later.
    Failed(String),
}

/// A time since when nothing is recorded, and why.
pub(super) type Gap = (Duration, String);

/// What the files have so far.
#[derive(Debug, Default)]
struct Recorded {
    /// The position up to which they have the stream. Empty: there is none.
    position: Vec<u8>,
    /// When the policy was to trace the process, if there was no recorder before.
    since: Option<Duration>,
    gap: Option<Gap>,
}

/// Records until the process ends or the recorder is stopped.
pub(super) async fn run(
    daemon: Daemon,
    place: &Place,
    periods: Periods,
    (since, before): (Duration, Option<Duration>),
    mut orders: watch::Receiver<Order>,
) {
    let mut backoff = Backoff::new();
    let mark = place.stream_mark();
    let mut recorded = Recorded {
        position: mark.map(|mark| mark.position()).unwrap_or_default(),
        since: before.is_none().then_some(since),
        gap: before.map(|before| (before, "no relay recorded".to_owned())),
    };
    loop {
        let had_gap = recorded.gap.is_some();
        let ended = record(&daemon, place, periods, &mut orders, &mut recorded).await;
        if had_gap && recorded.gap.is_none() {
            backoff = Backoff::new();
        }
        let why = match ended {
            Ended::Stopped => return,
            // Nothing is missing. The supervisor finds out, too.
            Ended::Process => match lives_again(&daemon, place.pid, &mut orders).await {
                true => "the process has executed another program".to_owned(),
                false => return,
            },
            Ended::Failed(why) => why,
        };
        recorded.gap.get_or_insert_with(|| (utc::now(), why));
        if backoff.wait(&mut orders).await {
            continue;
        }
        // If the relay ends, the next one notes the gap.
        if *orders.borrow() == Order::End
            && let Some((since, why)) = recorded.gap
        {
            place.note(&Loss::new(place.pid, (since, utc::now()), 0, why));
        }
        return;
    }
}

/// Writes the rest of the stream of a process that has ended, if an earlier recorder has left one.
/// The process was not recorded since `gap`, which is returned if it was not noted, and something
/// is missing.
pub(super) async fn rest(daemon: &Daemon, place: &Place, gap: Gap) -> Option<Gap> {
    let Some(mark) = place.stream_mark() else {
        return Some(gap);
    };
    // The stream of another process would not end.
    if !has_ended(daemon, place.pid).await {
        return Some(gap);
    }
    let mut recorded = Recorded {
        position: mark.position(),
        since: None,
        gap: Some(gap),
    };
    let one_file = Periods {
        every: Duration::ZERO,
        file_bytes: 0,
    };
    let (_go_on, mut orders) = watch::channel(Order::GoOn);
    match record(daemon, place, one_file, &mut orders, &mut recorded).await {
        Ended::Process | Ended::Stopped => recorded.gap,
        Ended::Failed(why) => recorded.gap.or_else(|| Some((utc::now(), why))),
    }
}

/// Records one stream.
async fn record(
    daemon: &Daemon,
    place: &Place,
    periods: Periods,
    orders: &mut watch::Receiver<Order>,
    recorded: &mut Recorded,
) -> Ended {
    let request = StreamTraceRequest {
        pid: place.pid,
        file_bytes: periods.file_bytes,
        file_ns: u64::try_from(periods.every.as_nanos()).unwrap_or(u64::MAX),
        resumable: true,
        after: recorded.position.clone(),
        since_ns: recorded.since.map_or(0, |since| {
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        }),
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
        Err(status) => {
            // The position may be damaged. The gap is noted then.
            if reason_of(&status) == Some("limit") {
                recorded.position.clear();
            }
            return failed(&status);
        }
    };
    let marker = match place.marker().and_then(|path| Marker::open(&path)) {
        Ok(marker) => marker,
        Err(error) => return Ended::Failed(format!("cannot mark the process: {error}")),
    };
    let mut files = Files {
        place,
        marker,
        recorded,
        current: None,
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
    match has_ended(daemon, place.pid).await {
        true => Ended::Process,
        false => Ended::Failed("the daemon was restarted, or has detached".to_owned()),
    }
}

/// True if the daemon has the session of a process that has ended, and no later one of the pid.
async fn has_ended(daemon: &Daemon, pid: u32) -> bool {
    let states = states(daemon, pid).await;
    !states.is_empty() && states.iter().all(|state| *state == SessionState::Exited)
}

/// The states of the sessions of a pid.
async fn states(daemon: &Daemon, pid: u32) -> Vec<SessionState> {
    let Ok(status) = daemon.rpc().get_status(StatusRequest { pid }).await else {
        return Vec::new();
    };
    let processes = status.into_inner().processes.into_iter();
    let its = processes.filter(|process| process.pid == pid);
    its.map(|process| process.state()).collect()
}

/// Waits until the pid of a process that has ended has a session again. False if the recorder is
/// stopped before.
async fn lives_again(daemon: &Daemon, pid: u32, orders: &mut watch::Receiver<Order>) -> bool {
    loop {
        tokio::select! {
            () = is_stopped(orders) => return false,
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
        if states(daemon, pid).await.contains(&SessionState::Tracing) {
            return true;
        }
    }
}

fn failed(status: &Status) -> Ended {
    Ended::Failed(format!("the daemon ended the stream: {}", status.message()))
}

/// The files of one stream.
struct Files<'a> {
    place: &'a Place,
    marker: Marker,
    recorded: &'a mut Recorded,
    current: Option<Current>,
}

/// The file that is written.
struct Current {
    file: Recording,
    /// Its bytes up to the position that was marked last. Nothing of it counts before that.
    whole: u64,
    /// Events before their end that the daemon dropped, because the relay was too slow.
    lost: u64,
}

impl Files<'_> {
    fn write(&mut self, chunk: &TraceChunk) -> Result<(), String> {
        let cannot = |error: std::io::Error| format!("cannot write a file: {error}");
        if chunk.begins_file {
            self.finish()?;
        }
        let mut current = match self.current.take() {
            Some(current) => current,
            None => Current {
                file: self.place.begin(Unfinished::Readable).map_err(cannot)?,
                whole: 0,
                lost: 0,
            },
        };
        let written = current.file.write_all(&chunk.data);
        let current = self.current.insert(current);
        written.map_err(cannot)?;
        if !chunk.position.is_empty() {
            let bytes = current.file.bytes();
            let mark = StreamMark::new(current.file.path(), bytes, &chunk.position);
            self.marker.write(&mark).map_err(cannot)?;
            self.recorded.position.clone_from(&chunk.position);
            (current.whole, current.lost) = (bytes, chunk.reader_lost);
            self.settle_gap(chunk.continues);
        }
        Ok(())
    }

    /// Notes the gap before the stream, if there is one.
    fn settle_gap(&mut self, continues: bool) {
        if let Some((since, why)) = self.recorded.gap.take()
            && !continues
        {
            let times = (since, utc::now());
            self.place.note(&Loss::new(self.place.pid, times, 0, why));
        }
    }

    /// Makes the current file whole. What comes after the last position is in the next file.
    fn finish(&mut self) -> Result<(), String> {
        let Some(Current {
            mut file,
            whole,
            lost,
        }) = self.current.take()
        else {
            return Ok(());
        };
        if lost > 0 {
            let times = (file.begun, utc::now());
            let why = "newer events took the place of what the relay had not taken";
            self.place
                .note(&Loss::new(self.place.pid, times, lost, why));
        }
        let finished = match whole {
            0 => {
                file.remove();
                Ok(())
            }
            whole => file.cut(whole).and_then(|()| file.finish()).map(drop),
        };
        finished.map_err(|error| format!("cannot finish a file: {error}"))
    }
}
