//! The loop of the two live streams: it takes items out of a subscription, encodes them off the
//! async threads, and sends messages to the client. What a message holds is in `events` and in
//! `trace_messages`.
//!
//! The loop runs at the client's pace. While it waits for the client, the subscription fills up to
//! its bound, and then drops and counts items, unless threads wait for the client. A stream that
//! can be resumed takes retained blocks then.

use std::{
    collections::BTreeMap, future::poll_fn, io, pin::pin, sync::Arc, task::Poll, time::Duration,
};

use tokio::sync::mpsc;
use tonic::Status;
use xray_trace::{
    instr_map::Selection,
    model::{ClockAnchor, FunctionId},
};
use xrayd_proto::v1;

use super::{
    admission::Admitted,
    error,
    events::{EventBatcher, Names, Piece},
    workers::{WorkerKind, Workers},
};
use crate::{
    refusal::Refusal,
    store::{EventSubscription, ResumedStream, Source, StreamItem, TracedProcess},
};

/// Events that are decoded at once. Bounds the memory of one stream.
const MAX_EVENTS: u64 = 128 * 1024;

/// Items that are taken at once.
const MAX_ITEMS: usize = 256;

/// Time for which a reader of a live stream may take no message. It loses events meanwhile, and
/// receives their number.
const STALLED: Duration = Duration::from_secs(600);

/// The destination of messages: a small bounded queue, then the connection's window.
pub(super) type Sender<T> = mpsc::Sender<Result<T, Status>>;

/// Where the items of a stream come from.
#[derive(Debug)]
pub(super) enum Items {
    /// A queue.
    Live(EventSubscription),
    /// Retained blocks, and a queue.
    Resumed(Box<ResumedStream>),
}

/// Encodes items as messages, on a blocking thread.
pub(super) trait Encode: Send + 'static {
    type Message: Send + 'static;

    /// The messages before the first item.
    fn begin(&mut self) -> Vec<Self::Message>;

    /// The time after which `encode` is called though there are no items. `None`: it is not.
    fn pause(&self) -> Option<Duration> {
        None
    }

    /// The messages for these items.
    fn encode(&mut self, items: Vec<(Source, StreamItem)>) -> io::Result<Vec<Self::Message>>;

    /// The refusal to send after the last item. `None` if the subscription ended with the session.
    fn failure(&mut self) -> Option<Refusal>;

    /// The messages after the last item.
    fn end(&mut self) -> io::Result<Vec<Self::Message>>;
}

/// The way in which a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// It ended with the session.
    Over,
    /// It ended before the session: the client left, or an error occurred.
    Early,
    /// The client has its answer, and undoes its changes by itself, unless it is killed before.
    Answered,
}

/// Runs a stream until the session ends or the client leaves.
pub(super) async fn run<E: Encode>(
    mut subscription: Items,
    mut encoder: E,
    sender: Sender<E::Message>,
    (workers, uid): (Workers, u32),
    _admitted: Admitted,
) -> Ending {
    for message in encoder.begin() {
        if deliver(&sender, message).await.is_err() {
            return Ending::Early;
        }
    }
    loop {
        let items = tokio::select! {
            () = sender.closed() => return Ending::Early,
            items = gather_within(&mut subscription, encoder.pause()) => items,
        };
        let ended = items.as_ref().is_some_and(Vec::is_empty);
        let items = items.unwrap_or_default();
        if ended && let Some(refusal) = encoder.failure() {
            let _gone = sender.send(Err(refusal.into())).await;
            return Ending::Early;
        }
        let work = workers.run(WorkerKind::Step, uid, move || {
            let messages = if ended {
                encoder.end()
            } else {
                let items = items.into_iter();
                let items = items.map(|(source, item)| (source, item.loaded()));
                encoder.encode(items.collect())
            };
            (encoder, messages)
        });
        // The panic hook has logged the panic.
        let Ok((back, messages)) = work.await else {
            let _gone = sender.send(Err(error::bug())).await;
            return Ending::Early;
        };
        encoder = back;
        let messages = match messages {
            Ok(messages) => messages,
            Err(error) => {
                let status = Status::internal(format!("the stream is incomplete: {error}"));
                let _gone = sender.send(Err(status)).await;
                return Ending::Early;
            }
        };
        for message in messages {
            if deliver(&sender, message).await.is_err() {
                return Ending::Early;
            }
            subscription.goes_on();
        }
        if ended {
            return Ending::Over;
        }
    }
}

/// Sends a message. A reader that takes no message for [`STALLED`] counts as gone.
async fn deliver<T>(sender: &Sender<T>, message: T) -> Result<(), ()> {
    let sent = sender.send_timeout(Ok(message), STALLED);
    sent.await.map_err(drop)
}

/// The items of [`gather`]; `None` if none has come within that time.
async fn gather_within(
    subscription: &mut Items,
    pause: Option<Duration>,
) -> Option<Vec<(Source, StreamItem)>> {
    let gathered = gather(subscription);
    match pause {
        None => Some(gathered.await),
        // It waits for the first item alone. So no item is dropped with it.
        Some(pause) => tokio::time::timeout(pause, gathered).await.ok(),
    }
}

/// Waits for an item, and takes further items that are there. Empty when the subscription has
/// ended.
async fn gather(subscription: &mut Items) -> Vec<(Source, StreamItem)> {
    let mut items = Vec::new();
    let mut events = 0;
    let mut next = subscription.next().await;
    while let Some(item) = next.take() {
        events += match &item.1 {
            StreamItem::Block(published) => published.events(),
            StreamItem::Retained(retained) => retained.events(),
            _ => 0,
        };
        items.push(item);
        if events < MAX_EVENTS && items.len() < MAX_ITEMS {
            next = now(subscription.next()).await.flatten();
        }
    }
    items
}

/// The output of a future that is ready. A future that has to wait is dropped.
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

/// The processes of a stream.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    pub(super) here: BTreeMap<Source, Arc<dyn TracedProcess>>,
    /// Number of processes so far.
    seen: usize,
    /// The failure of a process that has been removed.
    failure: Option<Refusal>,
}

/// Encodes decoded events, for StreamEvents.
#[derive(Debug)]
pub(super) struct EventMessages {
    batcher: EventBatcher<Sessions>,
    /// The wanted functions. `None`: all events.
    wanted: Option<Selection>,
}

// === impl Items ===

impl Items {
    /// The next item; `None` after the last one.
    async fn next(&mut self) -> Option<(Source, StreamItem)> {
        match self {
            Self::Live(subscription) => subscription.next().await,
            Self::Resumed(stream) => stream.next().await,
        }
    }

    /// Notes that the reader takes what it gets. Nothing waits for the reader of a resumed stream.
    fn goes_on(&self) {
        if let Self::Live(subscription) = self {
            subscription.goes_on();
        }
    }
}

// === impl Sessions ===

impl Sessions {
    pub(super) fn insert(&mut self, source: Source, session: Arc<dyn TracedProcess>) {
        self.here.insert(source, session);
        self.seen += 1;
    }

    pub(super) fn remove(&mut self, source: Source) {
        let gone = self.here.remove(&source);
        if let Some(failure) = gone.and_then(|session| session.failure()) {
            self.failure = Some(failure);
        }
    }

    /// The failure to report after the last item. Only a process that is alone in its stream
    /// reports one. In a group, the events of the other processes are the answer.
    pub(super) fn failure(&self) -> Option<Refusal> {
        if self.seen > 1 {
            return None;
        }
        let here = self.here.values();
        let failed = here.filter_map(|session| session.failure()).next();
        failed.or_else(|| self.failure.clone())
    }
}

impl Names for Sessions {
    fn function(&self, source: Source, id: FunctionId) -> Option<v1::FunctionName> {
        let session = self.here.get(&source)?;
        let function = session.tables().function(id)?;
        let module = session.module_path(function.module);
        Some(v1::FunctionName {
            id: id.0,
            name: function.name,
            module,
            pid: session.pid().as_u32(),
        })
    }
}

// === impl EventMessages ===

impl EventMessages {
    /// Encodes the events of the functions that `wanted` matches in each process, or all events.
    pub(super) fn new(wanted: Option<Selection>, anchors: Vec<ClockAnchor>) -> Self {
        Self {
            batcher: EventBatcher::new(Sessions::default(), anchors),
            wanted,
        }
    }

    fn piece(&mut self, source: Source, item: StreamItem) -> Piece {
        match item {
            StreamItem::Process(session) => {
                let pid = session.pid().as_u32();
                // An invalid selection was refused before.
                let wanted = self.wanted.as_ref().map(|selection| {
                    let rows = session.functions(Some(selection)).unwrap_or_default();
                    rows.into_iter().map(|row| row.id).collect()
                });
                self.batcher.names().insert(source, session);
                Piece::Process { pid, wanted }
            }
            StreamItem::Block(published) => Piece::Block(published.closed.block.clone()),
            StreamItem::Anchor(anchor) => Piece::Anchor(anchor),
            StreamItem::Thread(thread) => Piece::Thread(thread),
            // `run` has read retained blocks.
            StreamItem::Retained(_)
            | StreamItem::Origin(_)
            | StreamItem::Begin(_)
            | StreamItem::Until(_) => Piece::Nothing,
            StreamItem::EventType(event_type) => Piece::EventType(event_type),
            StreamItem::Ended => Piece::Ended,
            StreamItem::Lost { events, .. } => Piece::ReaderLost(events),
        }
    }
}

impl Encode for EventMessages {
    type Message = v1::EventBatch;

    fn begin(&mut self) -> Vec<v1::EventBatch> {
        Vec::new()
    }

    fn encode(&mut self, items: Vec<(Source, StreamItem)>) -> io::Result<Vec<v1::EventBatch>> {
        let items = items.into_iter();
        let pieces: Vec<_> = items
            .map(|(source, item)| (source, self.piece(source, item)))
            .collect();
        let ended = pieces
            .iter()
            .filter(|(_, piece)| matches!(piece, Piece::Ended));
        let ended: Vec<Source> = ended.map(|(source, _)| *source).collect();
        let batches = self.batcher.batches(pieces);
        for source in ended {
            self.batcher.names().remove(source);
        }
        Ok(batches)
    }

    fn failure(&mut self) -> Option<Refusal> {
        self.batcher.names().failure()
    }

    fn end(&mut self) -> io::Result<Vec<v1::EventBatch>> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{refusal::Reason, rpc::admission::Admission, store::closed_subscription};

    /// Ends with `0`, or as a session that has failed.
    #[derive(Debug)]
    struct Ending(Option<Refusal>);

    impl Encode for Ending {
        type Message = u32;

        fn begin(&mut self) -> Vec<u32> {
            Vec::new()
        }

        fn encode(&mut self, _: Vec<(Source, StreamItem)>) -> io::Result<Vec<u32>> {
            Ok(Vec::new())
        }

        fn failure(&mut self) -> Option<Refusal> {
            self.0.clone()
        }

        fn end(&mut self) -> io::Result<Vec<u32>> {
            Ok(vec![0])
        }
    }

    /// The last message of a stream without events.
    async fn last(encoder: Ending) -> Option<Result<u32, Status>> {
        let subscription = closed_subscription();
        let admitted = Admission::new(1).admit(0).unwrap();
        let (sender, mut receiver) = mpsc::channel(1);
        let items = Items::Live(subscription);
        run(items, encoder, sender, (Workers::new(), 0), admitted).await;
        receiver.recv().await
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_gone_in_the_end() {
        let (sender, _receiver) = mpsc::channel(1);
        assert_eq!(deliver(&sender, 1).await, Ok(()));
        let second = tokio::time::timeout(2 * STALLED, deliver(&sender, 2));
        assert_eq!(second.await, Ok(Err(())));
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
