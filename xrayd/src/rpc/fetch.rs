//! A bounded pipe from a writer on a blocking thread to a stream of chunks.
//!
//! At most [`CHUNK_BYTES`] × ([`CHUNKS`] + 2) bytes are in the pipe. A reader that keeps the writer
//! waiting for longer than [`Pace`] allows loses the stream. So no thread and no memory is held for
//! ever.

use std::{
    collections::HashMap,
    io::{self, ErrorKind, Write},
    sync::Arc,
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::mpsc::{self, error::SendTimeoutError},
    time::Instant,
};
use tonic::Status;
use xray_trace::container::Redaction;
use xrayd_proto::v1::TraceChunk;

use super::{convert, error};
use crate::{export::PendingSnapshot, process::Session, refusal::Refusal, types::Reach};

/// Bytes of one message.
pub(super) const CHUNK_BYTES: usize = 256 * 1024;

/// Messages that wait for the reader.
pub(super) const CHUNKS: usize = 4;

/// Time for which a reader may keep the writer waiting, in all its waits together.
pub(super) const READER_PATIENCE: Duration = Duration::from_secs(60);

/// Time that a reader regains for each message that it takes. So the slowest pace without an end is
/// one message of 256 KiB per second.
const EARNED: Duration = Duration::from_secs(1);

/// The time for which a reader may still keep the writer waiting.
#[derive(Debug)]
pub(super) struct Pace {
    left: Duration,
    /// The maximum of `left`.
    patience: Duration,
}

/// The reason why a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsent {
    /// The reader is gone.
    Gone,
    /// The reader is too slow.
    Late,
}

/// The writing end. For threads that may block, within a tokio runtime.
#[derive(Debug)]
pub(super) struct ChunkPipe {
    sender: mpsc::Sender<Result<TraceChunk, Status>>,
    runtime: Handle,
    /// Bytes that are written and not sent yet. Emptied when it has the size of a chunk.
    buffer: Vec<u8>,
    /// The fields of each chunk without its bytes.
    template: TraceChunk,
    pace: Pace,
}

/// Takes a snapshot of sessions, without what is left out of each, and sends it as an `.xtrace`
/// file. For threads that may block.
pub(super) fn send_shot(
    sessions: Vec<(Arc<Session>, Redaction)>,
    reach: Reach,
    sender: mpsc::Sender<Result<TraceChunk, Status>>,
) {
    let redactions: HashMap<u32, Redaction> = sessions
        .iter()
        .map(|(session, redaction)| (session.pid().as_u32(), *redaction))
        .collect();
    let sessions = sessions.into_iter().map(|(session, _)| session).collect();
    let snapshot = PendingSnapshot::take(sessions, reach);
    let statuses: Vec<_> = snapshot
        .sessions()
        .map(|session| session.status())
        .collect();
    let template = convert::retained(&statuses, snapshot.within());
    let mut pipe = ChunkPipe::new(sender, template);
    // A snapshot has a session of a process once.
    let redaction = |session: &Arc<Session>| {
        let redaction = redactions.get(&session.pid().as_u32()).copied();
        redaction.unwrap_or(Redaction::ALL)
    };
    let written = snapshot.write(&mut pipe, redaction);
    pipe.finish(written);
}

/// Sends messages, or why there are no more: a list that was cut is an error.
pub(super) async fn send_all<T: Send + 'static>(
    sender: mpsc::Sender<Result<T, Status>>,
    mut pace: Pace,
    messages: impl Iterator<Item = T>,
) {
    for message in messages {
        match pace.send(&sender, message).await {
            Ok(()) => {}
            Err(Unsent::Gone) => return,
            Err(Unsent::Late) => {
                let status = error::reader_too_slow(pace.patience);
                // The queue is full. The task waits until the reader takes it or leaves, and holds
                // no messages.
                tokio::spawn(async move { sender.send(Err(status)).await });
                return;
            }
        }
    }
}

fn refusal_in(error: &io::Error) -> Option<&Refusal> {
    error.get_ref()?.downcast_ref()
}

// === impl Pace ===

impl Pace {
    pub(super) fn new() -> Self {
        Self::with_patience(READER_PATIENCE)
    }

    fn with_patience(patience: Duration) -> Self {
        Self {
            left: patience,
            patience,
        }
    }

    /// Sends a message, unless the reader is gone or has used up its time.
    pub(super) async fn send<T>(
        &mut self,
        sender: &mpsc::Sender<Result<T, Status>>,
        message: T,
    ) -> Result<(), Unsent> {
        let began = Instant::now();
        let sent = sender.send_timeout(Ok(message), self.left).await;
        self.left = self.left.saturating_sub(began.elapsed());
        match sent {
            Ok(()) => self.left = self.patience.min(self.left + EARNED),
            Err(SendTimeoutError::Closed(_)) => return Err(Unsent::Gone),
            Err(SendTimeoutError::Timeout(_)) => return Err(Unsent::Late),
        }
        Ok(())
    }
}

// === impl ChunkPipe ===

impl ChunkPipe {
    /// A pipe whose chunks carry the totals of `template`. Works within a tokio runtime only.
    pub(super) fn new(
        sender: mpsc::Sender<Result<TraceChunk, Status>>,
        template: TraceChunk,
    ) -> Self {
        let buffer = Vec::with_capacity(CHUNK_BYTES);
        Self {
            sender,
            runtime: Handle::current(),
            buffer,
            template,
            pace: Pace::new(),
        }
    }

    /// Sends the remaining bytes, or the reason why the trace ends.
    pub(super) fn finish(mut self, written: io::Result<()>) {
        let refusal = written.as_ref().err().and_then(refusal_in).cloned();
        // A refusal concerns processes that are not in the trace. The trace is whole.
        let written = match (written, &refusal) {
            (Err(error), None) => Err(error),
            (Ok(()) | Err(_), _) => self.send(),
        };
        let written = written.and_then(|()| refusal.map_or(Ok(()), |it| Err(io::Error::other(it))));
        match written {
            Ok(()) => {}
            // The reader is gone.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(error) => {
                let status = if error.kind() == ErrorKind::TimedOut {
                    error::reader_too_slow(self.pace.patience)
                } else if let Some(refusal) = refusal_in(&error) {
                    refusal.clone().into()
                } else {
                    Status::internal(format!("the trace is incomplete: {error}"))
                };
                // The pipe may be full. A task waits until the reader takes a message or leaves, so
                // that the thread does not have to.
                let sender = self.sender;
                self.runtime
                    .spawn(async move { sender.send(Err(status)).await });
            }
        }
    }

    fn send(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let data = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES));
        let chunk = TraceChunk {
            data,
            ..self.template.clone()
        };
        let sent = self.runtime.block_on(self.pace.send(&self.sender, chunk));
        sent.map_err(|unsent| match unsent {
            Unsent::Gone => ErrorKind::BrokenPipe.into(),
            Unsent::Late => ErrorKind::TimedOut.into(),
        })
    }
}

impl Write for ChunkPipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK_BYTES - self.buffer.len();
        let taken = bytes.len().min(room);
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == CHUNK_BYTES {
            self.send()?;
        }
        Ok(taken)
    }

    /// Does nothing. A chunk is sent when it is full, and the rest at the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn bytes_arrive_in_order_and_in_bounded_chunks() {
        let (sender, mut receiver) = mpsc::channel(CHUNKS);
        let template = TraceChunk {
            events: 7,
            ..TraceChunk::default()
        };
        let expected: Vec<u8> = (0..=250).cycle().take(3 * CHUNK_BYTES + 17).collect();
        let bytes = expected.clone();
        let writer = tokio::task::spawn_blocking(move || {
            let mut pipe = ChunkPipe::new(sender, template);
            let written = pipe.write_all(&bytes);
            pipe.finish(written);
        });
        let mut found = Vec::new();
        while let Some(chunk) = receiver.recv().await {
            let chunk = chunk.unwrap();
            assert!(chunk.data.len() <= CHUNK_BYTES);
            assert_eq!(chunk.events, 7);
            found.extend(chunk.data);
        }
        assert_eq!(found, expected);
        writer.await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reader_that_left_ends_the_writer() {
        let (sender, receiver) = mpsc::channel(CHUNKS);
        drop(receiver);
        let result = tokio::task::spawn_blocking(move || {
            let mut pipe = ChunkPipe::new(sender, TraceChunk::default());
            let written = pipe.write_all(&vec![0; 10 * CHUNK_BYTES]);
            let kind = written.as_ref().map_err(io::Error::kind).err();
            pipe.finish(written);
            kind
        });
        assert_eq!(result.await.unwrap(), Some(ErrorKind::BrokenPipe));
    }

    #[tokio::test]
    async fn a_list_whose_reader_takes_nothing_ends_with_an_error() {
        let (sender, mut receiver) = mpsc::channel(2);
        let pace = Pace::with_patience(Duration::from_millis(20));
        send_all(sender, pace, 0..100).await;
        assert_eq!(receiver.recv().await.unwrap().unwrap(), 0);
        assert_eq!(receiver.recv().await.unwrap().unwrap(), 1);
        let status = receiver.recv().await.unwrap().unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        assert!(receiver.recv().await.is_none());

        let (sender, mut receiver) = mpsc::channel(100);
        send_all(sender, Pace::new(), 0..100).await;
        for number in 0..100 {
            assert_eq!(receiver.recv().await.unwrap().unwrap(), number);
        }
        assert!(receiver.recv().await.is_none());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stalled_reader_loses_the_stream_with_a_reason() {
        let (sender, mut receiver) = mpsc::channel(1);
        let result = tokio::task::spawn_blocking(move || {
            let mut pipe = ChunkPipe::new(sender, TraceChunk::default());
            pipe.pace = Pace::with_patience(Duration::from_millis(20));
            let written = pipe.write_all(&vec![0; 3 * CHUNK_BYTES]);
            let kind = written.as_ref().map_err(io::Error::kind).err();
            pipe.finish(written);
            kind
        });
        assert_eq!(result.await.unwrap(), Some(ErrorKind::TimedOut));
        assert!(receiver.recv().await.unwrap().is_ok());
        let status = receiver.recv().await.unwrap().unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        assert!(receiver.recv().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_trickles_loses_the_stream_and_one_that_keeps_pace_does_not() {
        for (pause, is_late) in [(EARNED * 2, true), (EARNED / 2, false)] {
            let (sender, mut receiver) = mpsc::channel(1);
            let reader = tokio::spawn(async move {
                while receiver.recv().await.is_some() {
                    tokio::time::sleep(pause).await;
                }
            });
            let mut pace = Pace::new();
            let mut sent = 0;
            let unsent = loop {
                match pace.send(&sender, ()).await {
                    Ok(()) if sent < 1000 => sent += 1,
                    other => break other.err(),
                }
            };
            drop(sender);
            reader.await.unwrap();
            assert_eq!(unsent, is_late.then_some(Unsent::Late), "{pause:?}: {sent}");
        }
    }
}
