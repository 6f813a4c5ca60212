//! Drives the two live streams: takes items out of a session's feed, works on them off the async threads, and hands
//! messages to the client.
//!
//! The client's pace is the pace of the loop. While it waits for the client, the feed fills up to its bound and then
//! drops and counts; the drain thread never waits for anybody.

use std::{future::poll_fn, io, pin::pin, sync::Arc, task::Poll};

use tokio::{sync::mpsc, task::spawn_blocking};
use tonic::Status;
use xrayd_proto::v1;

use super::{
    admission::Admitted,
    error,
    events::{EventBatcher, Names, Piece},
    fetch::CHUNK_BYTES,
    trace_stream::TraceStream,
};
use crate::refusal::Refusal;
use crate::session::{Feed, FeedItem, Published, Session};
use xray_trace::model::FunctionId;

/// Events that are decoded at once; bounds the memory of one stream.
const MAX_EVENTS: u64 = 128 * 1024;

/// Items that are taken at once.
const MAX_ITEMS: usize = 256;

/// Where messages go: a small bounded queue, then the connection's window.
pub(super) type Sender<T> = mpsc::Sender<Result<T, Status>>;

/// Turns items into messages, on a blocking thread.
pub(super) trait Encode: Send + 'static {
    type Message: Send + 'static;

    /// The messages before the first item.
    fn begin(&mut self) -> Vec<Self::Message>;

    /// The messages that these items make.
    fn encode(&mut self, items: Vec<FeedItem>) -> io::Result<Vec<Self::Message>>;

    /// Why no item came after the last one, if that is not the end of the session.
    fn failure(&self) -> Option<Refusal>;

    /// The messages after the last item.
    fn end(&mut self) -> io::Result<Vec<Self::Message>>;
}

/// Runs a stream until the session ends or the client leaves.
pub(super) async fn run<E: Encode>(
    mut feed: Feed,
    mut encoder: E,
    sender: Sender<E::Message>,
    _admitted: Admitted,
) {
    for message in encoder.begin() {
        if sender.send(Ok(message)).await.is_err() {
            return;
        }
    }
    loop {
        let items = tokio::select! {
            () = sender.closed() => return,
            items = gather(&mut feed) => items,
        };
        let ended = items.is_empty();
        if ended && let Some(refusal) = encoder.failure() {
            let _gone = sender.send(Err(refusal.into())).await;
            return;
        }
        let work = spawn_blocking(move || {
            let messages = if ended {
                encoder.end()
            } else {
                encoder.encode(items)
            };
            (encoder, messages)
        });
        // A panic was logged where it happened.
        let Ok((back, messages)) = work.await else {
            let _gone = sender.send(Err(error::bug())).await;
            return;
        };
        encoder = back;
        let messages = match messages {
            Ok(messages) => messages,
            Err(error) => {
                let status = Status::internal(format!("the stream broke off: {error}"));
                let _gone = sender.send(Err(status)).await;
                return;
            }
        };
        for message in messages {
            if sender.send(Ok(message)).await.is_err() {
                return;
            }
        }
        if ended {
            return;
        }
    }
}

/// Waits for an item and takes what else is there already; nothing when the session ended.
async fn gather(feed: &mut Feed) -> Vec<FeedItem> {
    let mut items = Vec::new();
    let mut events = 0;
    let mut next = feed.next().await;
    while let Some(item) = next.take() {
        if let FeedItem::Block(published) = &item {
            events += published.events();
        }
        items.push(item);
        if events < MAX_EVENTS && items.len() < MAX_ITEMS {
            next = now(feed.next()).await.flatten();
        }
    }
    items
}

/// What a future has at once; it is dropped if it has to wait.
async fn now<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// Decoded events, for StreamEvents.
#[derive(Debug)]
pub(super) struct EventMessages(pub(super) EventBatcher<SessionNames>);

/// Names by a session's tables.
#[derive(Debug)]
pub(super) struct SessionNames {
    session: Arc<Session>,
}

/// Bytes of a trace, for StreamTrace.
#[derive(Debug)]
pub(super) struct TraceMessages {
    session: Arc<Session>,
    stream: TraceStream,
}

// === impl EventMessages ===

impl Encode for EventMessages {
    type Message = v1::EventBatch;

    fn begin(&mut self) -> Vec<v1::EventBatch> {
        Vec::new()
    }

    fn encode(&mut self, items: Vec<FeedItem>) -> io::Result<Vec<v1::EventBatch>> {
        Ok(self
            .0
            .batches(items.into_iter().filter_map(piece).collect()))
    }

    fn failure(&self) -> Option<Refusal> {
        self.0.names().session.failure()
    }

    fn end(&mut self) -> io::Result<Vec<v1::EventBatch>> {
        Ok(Vec::new())
    }
}

fn piece(item: FeedItem) -> Option<Piece> {
    Some(match item {
        FeedItem::Block(published) => Piece::Block(published.block),
        FeedItem::Anchor(anchor) => Piece::Anchor(anchor),
        FeedItem::Thread(thread) => Piece::Thread(thread),
        FeedItem::Lost { events } => Piece::ReaderLost(events),
    })
}

// === impl SessionNames ===

impl SessionNames {
    pub(super) fn new(session: Arc<Session>) -> Self {
        Self { session }
    }
}

impl Names for SessionNames {
    fn function(&self, id: FunctionId) -> Option<v1::FunctionName> {
        let function = self.session.function(id)?;
        let module = self.session.module_path(function.module);
        Some(v1::FunctionName {
            id: id.0,
            name: function.name,
            module,
        })
    }
}

// === impl TraceMessages ===

impl TraceMessages {
    pub(super) fn new(session: Arc<Session>) -> io::Result<Self> {
        let stream = TraceStream::new(&session.process(), &session.modules(), &session.anchors())?;
        Ok(Self { session, stream })
    }

    /// What was written, in messages of bounded size.
    fn chunks(&mut self) -> Vec<v1::TraceChunk> {
        let bytes = self.stream.take();
        let totals = self.stream.totals();
        let reader_lost = self.stream.reader_lost_total();
        let chunk = |data: Vec<u8>| v1::TraceChunk {
            data,
            events: totals.calls,
            lost: totals.lost.saturating_sub(reader_lost),
            reader_lost,
        };
        if bytes.len() <= CHUNK_BYTES {
            return if bytes.is_empty() {
                Vec::new()
            } else {
                vec![chunk(bytes)]
            };
        }
        bytes
            .chunks(CHUNK_BYTES)
            .map(|part| chunk(part.to_vec()))
            .collect()
    }
}

impl Encode for TraceMessages {
    type Message = v1::TraceChunk;

    fn begin(&mut self) -> Vec<v1::TraceChunk> {
        self.chunks()
    }

    fn encode(&mut self, items: Vec<FeedItem>) -> io::Result<Vec<v1::TraceChunk>> {
        let Self { session, stream } = self;
        for item in items {
            match item {
                FeedItem::Block(Published { block, .. }) => {
                    stream.block(&block, |id| session.function(id), || session.modules())?;
                }
                FeedItem::Anchor(anchor) => stream.anchor(&anchor)?,
                FeedItem::Thread(thread) => stream.thread(&thread)?,
                FeedItem::Lost { events } => stream.reader_lost(events)?,
            }
        }
        Ok(self.chunks())
    }

    fn failure(&self) -> Option<Refusal> {
        self.session.failure()
    }

    fn end(&mut self) -> io::Result<Vec<v1::TraceChunk>> {
        self.stream.end()?;
        Ok(self.chunks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{refusal::Reason, rpc::admission::Admission, session::Output};
    use xray_trace::model::ProcessId;

    /// Ends with `0`, or as a session that has failed.
    #[derive(Debug)]
    struct Ending(Option<Refusal>);

    impl Encode for Ending {
        type Message = u32;

        fn begin(&mut self) -> Vec<u32> {
            Vec::new()
        }

        fn encode(&mut self, _: Vec<FeedItem>) -> io::Result<Vec<u32>> {
            Ok(Vec::new())
        }

        fn failure(&self) -> Option<Refusal> {
            self.0.clone()
        }

        fn end(&mut self) -> io::Result<Vec<u32>> {
            Ok(vec![0])
        }
    }

    /// What a reader of a stream without events gets last.
    async fn last(encoder: Ending) -> Option<Result<u32, Status>> {
        let output = Output::new(ProcessId(0), 0, 0);
        let feed = output.subscribe();
        output.close();
        let admitted = Admission::new(1).admit(0).unwrap();
        let (sender, mut receiver) = mpsc::channel(1);
        run(feed, encoder, sender, admitted).await;
        receiver.recv().await
    }

    #[tokio::test]
    async fn a_stream_of_a_session_that_failed_ends_with_what_happened() {
        assert_eq!(last(Ending(None)).await.unwrap().unwrap(), 0);
        let refusal = Refusal::new(Reason::SessionFailed, "a bug");
        let status = last(Ending(Some(refusal))).await.unwrap().unwrap_err();
        assert_eq!(error::reason_of(&status), Some(Reason::SessionFailed));
        assert_eq!(status.message(), "a bug");
    }
}
