//! A recording in progress. A task of its own receives the bytes of a trace from the engine and
//! writes them to their place, so that no other work delays them.

use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tonic::Streaming;
use xrayd_proto::v1::{Selection, StreamTraceRequest, TraceChunk};

use crate::attachment::Undo;
use crate::client::Rpc;
use crate::failure::{self, Failure};
use crate::output::{text::printable, units};
use crate::trace_output::TraceOutput;

/// The longest wait for the end of the stream after the end of a lease. The engine ends the stream
/// when all events of the lease are sent, and it may be far behind.
const REST_PATIENCE: Duration = Duration::from_secs(60);
/// The longest wait if the engine could not be asked to end the lease.
const SHORT_PATIENCE: Duration = Duration::from_millis(200);

/// The progress of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) events: u64,
    pub(crate) lost: u64,
    /// Events among `lost` that this process did not receive in time.
    pub(crate) unreceived: u64,
    pub(crate) bytes: u64,
    /// Threads whose run times are not recorded, though they are wanted.
    pub(crate) threads_without_runs: u32,
    /// The reason why; empty without such threads.
    pub(crate) without_runs_because: String,
    /// True if events of kernel tracepoints are wanted, too.
    pub(crate) has_tracepoints: bool,
    /// Time for which threads waited for room in their full rings, all together.
    pub(crate) waited_ns: u64,
}

/// The data that still arrives when the recording ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// All events recorded by now, and the end of the stream.
    Ends,
    /// Only the data that is on its way, because the engine did not do what it was asked for.
    Unknown,
}

/// The reason why no more bytes arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The session ended, and the trace with its end mark.
    Finished,
    /// This process left the stream.
    Left,
    /// The connection broke.
    Broken,
}

/// What a recording contains.
#[derive(Debug)]
pub(crate) struct Contents {
    /// With a lease: its functions.
    pub(crate) selection: Selection,
    /// With a lease: the time that it covers.
    pub(crate) duration: Option<Duration>,
    /// Also when threads have a processor.
    pub(crate) run_times: bool,
    /// Also the events of these kernel tracepoints.
    pub(crate) kernel_tracepoints: Vec<String>,
    /// The time for which a thread waits for room in its full ring.
    pub(crate) wait: Option<Duration>,
}

/// The task that writes, and its channels.
#[derive(Debug)]
pub(crate) struct Recording {
    task: JoinHandle<anyhow::Result<(TraceOutput, StreamEnd)>>,
    leave: oneshot::Sender<()>,
    counts: watch::Receiver<Counts>,
}

// === impl Counts ===

impl Counts {
    /// A sentence about the threads whose run times are not recorded, if there are any.
    pub(crate) fn without_runs(&self) -> Option<String> {
        let threads = match self.threads_without_runs {
            0 => return None,
            threads => units::counted(threads.into(), "thread"),
        };
        let why = printable(&self.without_runs_because);
        Some(match self.has_tracepoints {
            true => format!(
                "the trace has no kernel events of {threads}, and not when they had a processor \
                 ({why})"
            ),
            false => format!(
                "the trace does not show when {threads} had a processor ({why}); record does not \
                 try with --no-sched"
            ),
        })
    }
}

// === impl Recording ===

impl Recording {
    /// Begins to record: from now on, all events of the process go to the output. With a lease,
    /// only events of `selection` do, for `duration` if that is set. If this process is killed, a
    /// daemon does `undo`. The trace can be read even then, because it has its header when this
    /// returns.
    pub(crate) async fn begin(
        rpc: &mut Rpc,
        pid: u32,
        undo: Undo,
        contents: Contents,
        mut output: TraceOutput,
    ) -> anyhow::Result<Self> {
        let Contents {
            selection,
            duration,
            run_times,
            kernel_tracepoints,
            wait,
        } = contents;
        let ns = |time: Option<Duration>| {
            time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        let request = StreamTraceRequest {
            pid,
            undo: Some(undo.into()),
            selection: Some(selection),
            duration_ns: ns(duration),
            run_times,
            kernel_tracepoints: kernel_tracepoints.clone(),
            wait_ns: ns(wait),
            prompt_run_times: false,
            file_bytes: 0,
            file_ns: 0,
            resumable: false,
            after: Vec::new(),
            since_ns: 0,
        };
        let response = rpc.stream_trace(request).await;
        let response = response.map_err(|status| failure::from_status(&status));
        let mut chunks = response.context("cannot stream the trace")?.into_inner();
        output.begin()?;
        let (leave, left) = oneshot::channel();
        let (publish, counts) = watch::channel(Counts {
            has_tracepoints: !kernel_tracepoints.is_empty(),
            ..Counts::default()
        });
        let begun = write_next(&mut chunks, &mut output, &publish).await?;
        let task = tokio::spawn(async move {
            match begun {
                Some(end) => Ok((output, end)),
                None => write(chunks, output, left, publish).await,
            }
        });
        Ok(Self {
            task,
            leave,
            counts,
        })
    }

    /// The progress so far.
    pub(crate) fn counts(&self) -> Counts {
        self.counts.borrow().clone()
    }

    /// The progress, which can be read when this is finished, too.
    pub(crate) fn watch(&self) -> watch::Receiver<Counts> {
        self.counts.clone()
    }

    /// Waits until no more bytes arrive.
    pub(crate) async fn ended(&mut self) {
        // The task holds the other end as long as it runs.
        while self.counts.changed().await.is_ok() {}
    }

    /// Waits until the task has written the whole stream.
    pub(crate) async fn finish(self) -> anyhow::Result<(TraceOutput, StreamEnd)> {
        self.task
            .await
            .context("the task that writes the trace failed")?
    }

    /// Waits some time for the data that still arrives. Leaves the stream if it goes on after that.
    pub(crate) async fn leave(mut self, rest: Rest) -> anyhow::Result<(TraceOutput, StreamEnd)> {
        let patience = match rest {
            Rest::Ends => REST_PATIENCE,
            Rest::Unknown => SHORT_PATIENCE,
        };
        // A stream that does not end in time is left.
        let _ = tokio::time::timeout(patience, self.ended()).await;
        // A task that has ended by itself has nothing to leave.
        let _ = self.leave.send(());
        self.task
            .await
            .context("the task that writes the trace failed")?
    }
}

/// Writes chunks until the stream ends or this process leaves it.
async fn write(
    mut chunks: Streaming<TraceChunk>,
    mut output: TraceOutput,
    mut left: oneshot::Receiver<()>,
    publish: watch::Sender<Counts>,
) -> anyhow::Result<(TraceOutput, StreamEnd)> {
    loop {
        let end = tokio::select! {
            end = write_next(&mut chunks, &mut output, &publish) => end?,
            _ = &mut left => Some(StreamEnd::Left),
        };
        if let Some(end) = end {
            return Ok((output, end));
        }
    }
}

/// Writes the next chunk. Returns the reason if no chunk arrives. Can be dropped while it waits for
/// one.
async fn write_next(
    chunks: &mut Streaming<TraceChunk>,
    output: &mut TraceOutput,
    publish: &watch::Sender<Counts>,
) -> anyhow::Result<Option<StreamEnd>> {
    let TraceChunk {
        data,
        events,
        lost,
        reader_lost,
        copied_within_ns: _,
        entries,
        indexed,
        threads_without_runs,
        without_runs_because,
        waited_ns,
        ended_early: _,
        begins_file: _,
        sums: _,
        position: _,
        continues: _,
    } = match chunks.message().await {
        Ok(Some(chunk)) => chunk,
        Ok(None) => return Ok(Some(StreamEnd::Finished)),
        Err(status) => {
            let error = failure::from_status(&status);
            return match error.downcast_ref() {
                Some(Failure::Unreachable(_)) => Ok(Some(StreamEnd::Broken)),
                _ => Err(error.context("cannot stream the trace")),
            };
        }
    };
    tokio::task::block_in_place(|| output.write(&data))?;
    output.set_indexed(indexed.then_some(entries));
    publish.send_modify(|counts| {
        counts.events = events;
        counts.lost = lost.saturating_add(reader_lost);
        counts.unreceived = reader_lost;
        counts.bytes += data.len() as u64;
        counts.threads_without_runs = threads_without_runs;
        counts.without_runs_because = without_runs_because;
        counts.waited_ns = waited_ns;
    });
    Ok(None)
}
