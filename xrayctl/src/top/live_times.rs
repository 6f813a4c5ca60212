//! Receives a live trace with run times for as long as top shows for how long functions had a
//! processor.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use nix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use xray_trace::container::Reader;
use xrayd_proto::v1::{StreamTraceRequest, TraceChunk};

use super::function_times::{FunctionTimes, IntervalTimes};
use crate::attachment::Undo;
use crate::client::Rpc;
use crate::failure;
use crate::output::{text, units};

/// The time after which all events of a moment have arrived. The daemon sends blocks that are 0.1 s
/// old.
pub(crate) const ARRIVAL: Duration = Duration::from_millis(400);
/// Bytes of blocks that are read before the end of their interval.
const MANY: usize = 16 << 20;
/// Chunks that wait for their turn.
const CHUNKS: usize = 16;

/// The trace and its reader. Both end when this is dropped.
#[derive(Debug)]
pub(crate) struct LiveTimes {
    received: Arc<Mutex<Received>>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Received {
    times: FunctionTimes,
    /// The number of threads of which nothing is known, and the reason for the first of them.
    without_runs: (u32, String),
    /// Why nothing more comes.
    ended: Option<String>,
}

// === impl LiveTimes ===

impl LiveTimes {
    /// Begins to receive. When this returns, the run times are recorded.
    pub(crate) async fn begin(rpc: &mut Rpc, pid: u32, undo: Undo) -> anyhow::Result<Self> {
        let request = StreamTraceRequest {
            pid,
            undo: Some(undo.into()),
            run_times: true,
            prompt_run_times: true,
            ..StreamTraceRequest::default()
        };
        let response = rpc.stream_trace(request).await;
        let response = response.map_err(|status| failure::from_status(&status));
        let mut chunks = response.context("cannot stream the trace")?.into_inner();
        let received = Arc::new(Mutex::new(Received::default()));
        let (sender, receiver) = mpsc::channel(CHUNKS);
        let counts = Arc::clone(&received);
        let task = tokio::spawn(async move {
            let why = loop {
                let TraceChunk {
                    data,
                    threads_without_runs,
                    without_runs_because,
                    ..
                } = match chunks.message().await {
                    Ok(Some(chunk)) => chunk,
                    Ok(None) => break "the stream of events has ended".to_owned(),
                    Err(status) => break format!("{:#}", failure::from_status(&status)),
                };
                lock(&counts).without_runs = (threads_without_runs, without_runs_because);
                if sender.send(data).await.is_err() {
                    break "the stream of events cannot be read".to_owned();
                }
            };
            lock(&counts).ended = Some(why);
        });
        let times = Arc::clone(&received);
        std::thread::spawn(move || read(receiver, &times));
        Ok(Self { received, task })
    }

    /// True if the kernel's switches up to this moment have arrived.
    pub(crate) fn is_known(&self, until_ns: u64) -> bool {
        lock(&self.received).times.is_known(until_ns)
    }

    /// As [`FunctionTimes::plan_end`].
    pub(crate) fn plan_end(&self, at_ns: u64) {
        lock(&self.received).times.plan_end(at_ns);
    }

    /// As [`FunctionTimes::end_interval`].
    pub(crate) fn end_interval(&self, at_ns: u64) -> IntervalTimes {
        lock(&self.received).times.end_interval(at_ns)
    }

    /// What is missing, as sentences.
    pub(crate) fn notes(&self) -> Vec<String> {
        let received = lock(&self.received);
        let (threads, because) = &received.without_runs;
        let unknown = (*threads > 0).then(|| {
            let threads = units::counted(u64::from(*threads), "thread");
            let because = text::printable(because);
            format!("it is not known when {threads} had a processor ({because})")
        });
        let ended = received.ended.as_ref();
        let ended = ended.map(|why| format!("times with a processor end here: {why}"));
        unknown.into_iter().chain(ended).collect()
    }
}

impl Drop for LiveTimes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn monotonic_now() -> io::Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(u64::try_from(Duration::from(now).as_nanos()).unwrap_or(u64::MAX))
}

fn lock(received: &Mutex<Received>) -> MutexGuard<'_, Received> {
    received.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the trace to its end.
fn read(chunks: mpsc::Receiver<Vec<u8>>, received: &Mutex<Received>) {
    let bytes = Chunks {
        chunks,
        current: Vec::new(),
        at: 0,
    };
    let Ok(mut reader) = Reader::new(bytes) else {
        return;
    };
    while let Ok(Some(item)) = reader.next_item() {
        let times = &mut lock(received).times;
        times.take(item);
        if times.waiting() > MANY
            && let Ok(now) = monotonic_now()
        {
            let lag = u64::try_from(ARRIVAL.as_nanos()).unwrap_or(u64::MAX);
            times.read_ahead(now.saturating_sub(lag));
        }
    }
}

/// The bytes of a stream of chunks.
struct Chunks {
    chunks: mpsc::Receiver<Vec<u8>>,
    current: Vec<u8>,
    /// The bytes of the current chunk that were read.
    at: usize,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.current.len() {
            match self.chunks.blocking_recv() {
                Some(chunk) => (self.current, self.at) = (chunk, 0),
                None => return Ok(0),
            }
        }
        let rest = self.current.get(self.at..).unwrap_or_default();
        let read = rest.len().min(buffer.len());
        let (from, to) = (rest.get(..read), buffer.get_mut(..read));
        if let (Some(from), Some(to)) = (from, to) {
            to.copy_from_slice(from);
        }
        self.at += read;
        Ok(read)
    }
}
