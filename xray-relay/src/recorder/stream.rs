//! All events of a process, a file after the other. Each stream goes on where the one before ended,
//! as far as the daemon retains the events.

use std::io::Write as _;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tonic::Status;
use xrayd_proto::v1::{SessionState, StatusRequest, StreamTraceRequest, TraceChunk};

use super::{Backoff, LastFile, Order, Periods, is_over, is_stopped, reason_of};
use crate::daemon::Daemon;
use crate::losses::Loss;
use crate::mark::{Marker, StreamMark};
use crate::store::{Place, Recording, Unfinished};
use crate::utc;

/// How long a stream is read on when the policy has let a process go that goes on.
const REST_TIME: Duration = Duration::from_secs(5);
/// A relay that waits so long for a chunk has got everything so far.
const CAUGHT_UP: Duration = Duration::from_millis(20);
/// The time between two looks whether a pid is traced again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The most bytes of a chunk. A shorter one is the last of its piece, and has a position.
const CHUNK_BYTES: usize = 256 << 10;

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

/// The rest of a stream.
#[derive(Debug)]
pub(super) struct Rest {
    /// What is missing.
    pub(super) gap: Option<Gap>,
    /// True if the process has ended.
    pub(super) is_over: bool,
}

/// What the files have so far.
#[derive(Debug, Default)]
struct Recorded {
    /// The position up to which they have the stream. Empty: there is none.
    position: Vec<u8>,
    /// The time at which a stream without a position begins. 0: now.
    since: Duration,
    gap: Option<Gap>,
    /// The file that is written. No other one is begun before it is whole.
    current: Option<Current>,
}

/// The file that is written.
#[derive(Debug)]
struct Current {
    file: Recording,
    /// Its bytes up to the position that was marked last. Nothing of it counts before that.
    whole: u64,
    /// Events before their end that the daemon dropped, because the relay was too slow.
    lost: u64,
    /// True if the file only describes the process, at the begin of a stream.
    is_empty: bool,
}

/// Records until the process ends or the recorder is stopped. True if the process has ended.
pub(super) async fn run(
    daemon: Daemon,
    place: &Place,
    periods: Periods,
    (since, before): (Duration, Option<Duration>),
    mut orders: watch::Receiver<Order>,
) -> bool {
    let mut backoff = Backoff::new();
    let mark = place.stream_mark();
    let is_left = mark.as_ref().is_some_and(|mark| mark.is_left);
    let before = before.filter(|_| !is_left);
    let mut recorded = Recorded {
        position: mark.map(|mark| mark.position()).unwrap_or_default(),
        since: before.map_or(since, |before| since.max(before)),
        gap: before.map(|before| (before, "no relay recorded".to_owned())),
        current: None,
    };
    loop {
        let position = recorded.position.clone();
        let ended = record(&daemon, place, periods, &mut orders, &mut recorded).await;
        if position != recorded.position {
            backoff = Backoff::new();
        }
        let ended_at = utc::now();
        let (is_over, why) = match ended {
            Ended::Stopped => (false, None),
            // The supervisor finds out, too.
            Ended::Process => match lives_again(&daemon, place.pid, &mut orders).await {
                true => (false, Some("another program has the pid by now".to_owned())),
                false => (true, None),
            },
            Ended::Failed(why) => (false, Some(why)),
        };
        if let Some(why) = why {
            recorded.gap.get_or_insert((ended_at, why));
            if backoff.wait(&mut orders).await {
                continue;
            }
        }
        // If the relay ends, the next one goes on.
        if *orders.borrow() == Order::End
            && let Some((since, why)) = recorded.gap
        {
            place.note(&Loss::new(place.pid, (since, utc::now()), 0, why));
        }
        return is_over;
    }
}

/// Writes the rest of the stream of a process that has ended, if an earlier recorder has left one.
/// The process was not recorded since `gap`.
pub(super) async fn rest(daemon: &Daemon, place: &Place, gap: Gap) -> Rest {
    let mark = place.stream_mark();
    let is_left = mark.as_ref().is_some_and(|mark| mark.is_left);
    let mut recorded = Recorded {
        position: mark.map(|mark| mark.position()).unwrap_or_default(),
        gap: Some(gap).filter(|_| !is_left),
        ..Recorded::default()
    };
    let one_file = Periods {
        every: Duration::ZERO,
        file_bytes: 0,
    };
    let (_go_on, mut orders) = watch::channel(Order::GoOn);
    let mut last_file = LastFile::new();
    let mut is_over = recorded.position.is_empty();
    while !recorded.position.is_empty() {
        let ended = match has_ended(daemon, place.pid).await {
            // The stream of a process that lives would not end.
            Ok(false) => break,
            Ok(true) => record(daemon, place, one_file, &mut orders, &mut recorded).await,
            Err(why) => Ended::Failed(why),
        };
        let Ended::Failed(why) = ended else {
            is_over = true;
            break;
        };
        recorded
            .gap
            .get_or_insert_with(|| (utc::now(), why.clone()));
        if !last_file.again(&why).await {
            is_over = true;
            break;
        }
    }
    Rest {
        gap: recorded.gap,
        is_over,
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
    let marker = match place.marker().and_then(|path| Marker::open(&path)) {
        Ok(marker) => marker,
        Err(error) => return Ended::Failed(format!("cannot mark the process: {error}")),
    };
    let mut files = Files {
        place,
        marker,
        recorded,
        begins_stream: true,
    };
    if let Err(why) = files.finish() {
        return Ended::Failed(why);
    }
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let request = StreamTraceRequest {
        pid: place.pid,
        file_bytes: periods.file_bytes,
        file_ns: ns(periods.every),
        resumable: true,
        after: files.recorded.position.clone(),
        since_ns: ns(files.recorded.since),
        ..StreamTraceRequest::default()
    };
    let mut rpc = daemon.rpc();
    let begin = async {
        let _place = daemon.place().await;
        rpc.stream_trace(request).await
    };
    let begun = tokio::select! {
        () = is_stopped(orders) => return Ended::Stopped,
        begun = begin => begun,
    };
    let mut chunks = match begun {
        Ok(begun) => begun.into_inner(),
        Err(status) if is_over(&status) => return of_session(daemon, place).await,
        Err(status) => {
            // The position may be damaged. The gap is noted then.
            if reason_of(&status) == Some("limit") {
                files.recorded.position.clear();
                files.recorded.since = Duration::ZERO;
            }
            return failed(&status);
        }
    };
    // The wait must not begin anew with each chunk: chunks come as long as another client traces
    // the process.
    let mut stopped = std::pin::pin!(is_stopped_for_good(daemon, place.pid, orders));
    let mut caught_up = None;
    let ended = loop {
        let waits = Instant::now();
        let chunk = tokio::select! {
            chunk = chunks.message() => chunk,
            order = &mut stopped => {
                let is_behind = caught_up.is_none_or(|at: Instant| at.elapsed() >= REST_TIME);
                if order == Order::End && is_behind && waits.elapsed() < CAUGHT_UP {
                    files.note_end();
                }
                break Ended::Stopped;
            }
        };
        if waits.elapsed() >= CAUGHT_UP {
            caught_up = Some(Instant::now());
        }
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
    if let Ended::Failed(why) = &ended {
        let (policy, pid) = (&place.policy, place.pid);
        tracing::warn!(policy, pid, why, "a stream ended, and is begun again");
    }
    // The rest of a process has no periods.
    if matches!(ended, Ended::Failed(_)) || periods.every.is_zero() {
        files.discard_empty();
    }
    match files.finish() {
        Ok(()) => ended,
        Err(why) => Ended::Failed(why),
    }
}

/// Waits until the relay ends, or until a while after the policy has let the process go. If the
/// process has ended, the stream ends by itself. Returns the order.
async fn is_stopped_for_good(
    daemon: &Daemon,
    pid: u32,
    orders: &mut watch::Receiver<Order>,
) -> Order {
    is_stopped(orders).await;
    loop {
        let order = *orders.borrow();
        if order == Order::Pause {
            return order;
        }
        tokio::time::sleep(REST_TIME).await;
        if has_ended(daemon, pid).await == Ok(false) {
            return order;
        }
    }
}

/// Why a session has ended: its process has, or the daemon leaves it to the next one.
async fn of_session(daemon: &Daemon, place: &Place) -> Ended {
    match has_ended(daemon, place.pid).await {
        Ok(true) => Ended::Process,
        Ok(false) => Ended::Failed("the daemon has no session of the process".to_owned()),
        Err(why) => Ended::Failed(why),
    }
}

/// True if the daemon has the session of a process that has ended, and no later one of the pid.
async fn has_ended(daemon: &Daemon, pid: u32) -> Result<bool, String> {
    let states = states(daemon, pid).await?;
    Ok(!states.is_empty() && states.iter().all(|state| *state == SessionState::Exited))
}

/// The states of the sessions of a pid.
async fn states(daemon: &Daemon, pid: u32) -> Result<Vec<SessionState>, String> {
    let _place = daemon.place().await;
    let status = match daemon.rpc().get_status(StatusRequest { pid }).await {
        Ok(status) => status.into_inner(),
        Err(status) if is_over(&status) => return Ok(Vec::new()),
        Err(status) => return Err(format!("the daemon does not answer: {}", status.message())),
    };
    let processes = status.processes.into_iter();
    let its = processes.filter(|process| process.pid == pid);
    Ok(its.map(|process| process.state()).collect())
}

/// Waits until the pid of a process that has ended has a session again. False if the recorder is
/// stopped before.
async fn lives_again(daemon: &Daemon, pid: u32, orders: &mut watch::Receiver<Order>) -> bool {
    loop {
        tokio::select! {
            () = is_stopped(orders) => return false,
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
        let states = states(daemon, pid).await;
        if states.is_ok_and(|states| states.contains(&SessionState::Tracing)) {
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
    /// True before the first file.
    begins_stream: bool,
}

impl Files<'_> {
    fn write(&mut self, chunk: &TraceChunk) -> Result<(), String> {
        let cannot = |error: std::io::Error| format!("cannot write a file: {error}");
        if chunk.begins_file {
            self.finish()?;
        }
        let recorded = &mut *self.recorded;
        let mut current = match recorded.current.take() {
            Some(current) => current,
            None => Current {
                file: self.place.begin(Unfinished::Readable).map_err(cannot)?,
                whole: 0,
                lost: 0,
                is_empty: std::mem::take(&mut self.begins_stream),
            },
        };
        let written = current.file.write_all(&chunk.data);
        let current = recorded.current.insert(current);
        written.map_err(cannot)?;
        if chunk.position.is_empty() {
            return match chunk.data.len() {
                CHUNK_BYTES.. => Ok(()),
                _ => Err("the daemon gives no positions: it is older than the relay".to_owned()),
            };
        }
        let bytes = current.file.bytes();
        let mark = StreamMark::new(current.file.path(), bytes, &chunk.position);
        self.marker.write(&mark).map_err(cannot)?;
        let has_moved = current.whole > 0 && chunk.position != recorded.position;
        current.is_empty &= !has_moved;
        recorded.position.clone_from(&chunk.position);
        (current.whole, current.lost) = (bytes, chunk.reader_lost);
        if let Some((since, why)) = recorded.gap.take()
            && !chunk.continues
        {
            let times = (since, utc::now());
            self.place.note(&Loss::new(self.place.pid, times, 0, why));
        }
        Ok(())
    }

    /// Notes that the recorder had to end before it had everything.
    fn note_end(&self) {
        let now = utc::now();
        let times = (now.saturating_sub(REST_TIME), now);
        let why = "the policy let the process go, and the relay was behind: the latest is missing";
        self.place.note(&Loss::new(self.place.pid, times, 0, why));
    }

    /// Has the current file removed if it only describes the process.
    fn discard_empty(&mut self) {
        if let Some(current) = &mut self.recorded.current
            && current.is_empty
        {
            current.whole = 0;
        }
    }

    /// Makes the current file whole. What comes after the last position is in the next file. On an
    /// error, it can be tried again.
    fn finish(&mut self) -> Result<(), String> {
        let Some(current) = &mut self.recorded.current else {
            return Ok(());
        };
        current
            .file
            .finish_at(current.whole)
            .map_err(|error| format!("cannot finish a file: {error}"))?;
        let times = (current.file.begun, utc::now());
        if current.lost > 0 && current.whole > 0 {
            let why = "newer events took the place of what the relay had not taken";
            self.place
                .note(&Loss::new(self.place.pid, times, current.lost, why));
        }
        self.recorded.current = None;
        Ok(())
    }
}
