//! One reader of a live stream: a bounded queue that the drains of one or more processes fill.
//! Events that find the queue full are lost to the reader, and counted. For a *lossless* reader,
//! threads wait for room in their full rings, and the drain waits while the reader is behind and
//! takes items.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::{Notify, mpsc};
use xray_trace::{
    container::{Block, ClosedBlock},
    model::{ClockAnchor, EventType, Origin, Thread, ThreadWait, Ticks},
};

use super::{archive::FunctionNumbers, position::Position, tables::TracedProcess};
use crate::{lock::lock, types::LeaseId};

/// The most items in the queue of one process; a block has about 20,000 events.
const CAPACITY: usize = 256;

/// The most times that capacity for a group of processes, and for a lossless reader.
const MOST_QUEUES: usize = 4;

/// The places that a drain leaves in the queue of a lossless reader. It stops reading
/// rings before that, but for a request, and reads them to the end when the recording ends.
const LEFT_FREE: usize = CAPACITY * (MOST_QUEUES - 1);

/// The time for which a lossless reader may take nothing, before rings are read
/// without regard to it.
pub(crate) const STALLED: Duration = Duration::from_secs(1);

/// The most bytes of events that are kept for a lossless reader, when its queue is
/// full. A recording ends with as much as is in all rings.
const MOST_KEPT_BYTES: u64 = 64 << 20;

/// The most descriptions that are kept for a reader that does not read.
const MAX_KEPT: usize = 1 << 17;

/// The process of a subscription that an item belongs to; 0 for the first process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(pub u32);

/// An item of a subscription.
#[derive(Debug, Clone)]
pub enum StreamItem {
    /// The process of later items of this source.
    Process(Arc<dyn TracedProcess>),
    /// Events of one thread.
    Block(PublishedBlock),
    /// The same, as they are retained.
    Retained(RetainedItem),
    /// The counter and the clocks at one moment.
    Anchor(ClockAnchor),
    /// The thread of later blocks.
    Thread(Thread),
    /// The origin of the process's session.
    Origin(Origin),
    /// A name of a type of typed events, or its new name.
    EventType(EventType),
    /// The lease of the subscription begins. Nothing from before belongs to the subscription.
    Begin(Ticks),
    /// The lease of the subscription is released. Nothing from after it belongs to the
    /// subscription.
    Until(Ticks),
    /// Nothing more comes from this source.
    Ended,
    /// The reader was too slow, and events were left out here.
    Lost {
        /// Their number.
        events: u64,
        /// The place behind them, if the stream can be resumed.
        position: Option<Position>,
    },
}

// === impl StreamItem ===

impl StreamItem {
    /// Reads a retained block: it becomes a block, or a loss if its events are damaged. Reads a
    /// file, and unpacks events.
    #[must_use]
    pub fn loaded(self) -> Self {
        match self {
            Self::Retained(retained) => retained.loaded(),
            item => item,
        }
    }

    /// True for the name of a thread or of a type of events.
    fn is_name(&self) -> bool {
        matches!(self, Self::Thread(_) | Self::EventType(_))
    }
}

/// A block of events. Cloning shares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedBlock {
    /// The events, and the facts about them that the thread decoder has.
    pub closed: Arc<ClosedBlock>,
    /// The number of user events among them. The block does not count them.
    pub user_events: u32,
    /// The waits of the thread in its full ring before these events, if there were any.
    pub wait: Option<ThreadWait>,
    /// The place behind the block in its session. `None` before it is published.
    pub position: Option<Position>,
}

/// A retained block. Its events may be in a file.
#[derive(Debug, Clone)]
pub struct RetainedItem {
    pub(super) block: Block,
    /// The number of its events of calls and user events.
    pub(super) events: u64,
    pub(super) wait: Option<ThreadWait>,
    /// The ids of its functions, for a block of an earlier daemon.
    pub(super) earlier: Option<Arc<FunctionNumbers>>,
    /// The place behind it.
    pub(super) position: Position,
}

/// The reader's end of a subscription.
#[derive(Debug)]
pub struct EventSubscription {
    items: mpsc::Receiver<(Source, StreamItem)>,
    side_queue: Arc<SideQueue>,
    /// Items that were taken from `side_queue.left`, and the number of items in the queue before
    /// them.
    left: VecDeque<(Source, StreamItem)>,
    behind: usize,
}

/// What does not go through the queue.
#[derive(Debug, Default)]
struct SideQueue {
    /// Events that found the queue full. Written by `ProcessPublisher::send`, taken by
    /// `EventSubscription::next`.
    lost: AtomicU64,
    /// Kept items that the reader needs of processes from which nothing more comes. Written when a
    /// `ProcessPublisher` is dropped, taken by `EventSubscription::next`.
    left: Mutex<VecDeque<(Source, StreamItem)>>,
    /// Notified when `left` gets items.
    eventfd: Notify,
    /// Changes when the reader takes something. Written by `EventSubscription`.
    taken: AtomicU64,
    /// Bytes of the blocks in the queues `kept` of all processes, and in `left`.
    kept_bytes: AtomicU64,
}

/// The source of the drains' ends of a subscription. The subscription goes on while there is a
/// publisher or a drain's end.
#[derive(Debug, Clone)]
pub(crate) struct Publisher {
    /// The lease that the subscription is for, with which it ends.
    lease: Option<LeaseId>,
    /// The ticks for which threads wait for room in their full rings, so that the reader loses
    /// less; 0 for none.
    wait: u64,
    /// True if a full queue ends the subscription. The reader goes on with retained blocks.
    ends_when_full: bool,
    items: mpsc::Sender<(Source, StreamItem)>,
    side_queue: Arc<SideQueue>,
}

/// A drain's end of a subscription.
#[derive(Debug)]
pub(crate) struct ProcessPublisher {
    publisher: Publisher,
    source: Source,
    /// Descriptions that found the queue full. They go first when there is room. So do blocks, for
    /// a lossless reader.
    kept: VecDeque<StreamItem>,
    /// Since when the reader has been behind without taking anything, and what it had taken.
    stands_since: Option<(u64, Instant)>,
}

/// Both ends of a subscription for this many processes at the same time. Threads wait for `wait`
/// ticks at most, each time that they find their ring full.
pub(crate) fn subscription(
    processes: usize,
    lease: Option<LeaseId>,
    wait: u64,
) -> (Publisher, EventSubscription) {
    let queues = match wait {
        0 => processes.clamp(1, MOST_QUEUES),
        _ => MOST_QUEUES,
    };
    let (sender, receiver) = mpsc::channel(CAPACITY * queues);
    let side_queue = Arc::<SideQueue>::default();
    let publisher = Publisher {
        lease,
        wait,
        ends_when_full: false,
        items: sender,
        side_queue: Arc::clone(&side_queue),
    };
    let subscription = EventSubscription {
        items: receiver,
        side_queue,
        left: VecDeque::new(),
        behind: 0,
    };
    (publisher, subscription)
}

/// Both ends of a subscription that ends when its queue is full. The reader gets what is in the
/// queue. It is for one process.
pub(super) fn ending_subscription() -> (Publisher, EventSubscription) {
    let (publisher, subscription) = subscription(1, None, 0);
    let publisher = Publisher {
        ends_when_full: true,
        ..publisher
    };
    (publisher, subscription)
}

// === impl PublishedBlock ===

impl PublishedBlock {
    /// A closed block with this many user events.
    pub(crate) fn new(closed: ClosedBlock, user_events: u32) -> Self {
        Self {
            closed: Arc::new(closed),
            user_events,
            wait: None,
            position: None,
        }
    }

    /// A block without user events, of which nothing is known.
    #[cfg(test)]
    pub(crate) fn unpacked(block: xray_trace::container::Block) -> Self {
        Self::new(ClosedBlock::unpacked(block), 0)
    }

    /// The number of events: those of calls and user events.
    pub fn events(&self) -> u64 {
        u64::from(self.closed.block.calls) + u64::from(self.user_events)
    }
}

// === impl RetainedItem ===

impl RetainedItem {
    /// The number of its events of calls and user events.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    fn loaded(self) -> StreamItem {
        let Self {
            block,
            events,
            wait,
            earlier,
            position,
        } = self;
        let lost = StreamItem::Lost {
            events: events.saturating_add(block.lost),
            position: Some(position),
        };
        // Another program may change a file.
        if block.payload.load().is_err() {
            return lost;
        }
        let user_events = events.saturating_sub(u64::from(block.calls));
        let block = match &earlier {
            Some(numbers) => numbers.apply(block),
            None => Some(block),
        };
        let Some(block) = block else {
            return lost;
        };
        StreamItem::Block(PublishedBlock {
            closed: Arc::new(ClosedBlock::unpacked(block)),
            user_events: u32::try_from(user_events).unwrap_or(u32::MAX),
            wait,
            position: Some(position),
        })
    }
}

// === impl EventSubscription ===

impl EventSubscription {
    /// The next item and its process; `None` when all sources have ended and everything was read.
    /// The process means nothing for [`StreamItem::Lost`].
    pub async fn next(&mut self) -> Option<(Source, StreamItem)> {
        self.goes_on();
        loop {
            if let Some(lost) = self.take_lost() {
                return Some(lost);
            }
            self.take_left();
            if self.behind == 0
                && let Some(left) = self.pop_left()
            {
                return Some(left);
            }
            tokio::select! {
                biased;
                item = self.items.recv() => match item {
                    Some(item) => {
                        self.behind = self.behind.saturating_sub(1);
                        return Some(item);
                    }
                    None => {
                        self.take_left();
                        self.behind = 0;
                        return self.pop_left().or_else(|| self.take_lost());
                    }
                },
                () = self.side_queue.eventfd.notified() => {}
            }
        }
    }

    /// Notes that the reader takes what it gets.
    pub(crate) fn goes_on(&self) {
        self.side_queue.taken.fetch_add(1, Ordering::Relaxed);
    }

    fn take_lost(&self) -> Option<(Source, StreamItem)> {
        let events = self.side_queue.lost.swap(0, Ordering::Relaxed);
        let position = None;
        (events > 0).then(|| (Source::default(), StreamItem::Lost { events, position }))
    }

    fn pop_left(&mut self) -> Option<(Source, StreamItem)> {
        let left = self.left.pop_front()?;
        self.side_queue.let_go(&left.1);
        Some(left)
    }

    /// Takes the items in `left`. They come after everything that is in the queue now: their
    /// process puts nothing there any more.
    fn take_left(&mut self) {
        if self.left.is_empty() {
            self.left = std::mem::take(&mut *lock(&self.side_queue.left));
            if !self.left.is_empty() {
                self.behind = self.items.len();
            }
        }
    }
}

// === impl SideQueue ===

impl SideQueue {
    /// Notes that an item is kept no more.
    fn let_go(&self, item: &StreamItem) {
        if let StreamItem::Block(published) = item {
            let bytes = published.closed.block.encoded_len() as u64;
            self.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

// === impl Publisher ===

impl Publisher {
    /// The end for the drain of one process.
    pub(crate) fn sender(&self, source: Source) -> ProcessPublisher {
        ProcessPublisher {
            publisher: self.clone(),
            source,
            kept: VecDeque::new(),
            stands_since: None,
        }
    }

    /// True if the subscription is for this lease.
    pub(crate) fn is_for(&self, lease: LeaseId) -> bool {
        self.lease == Some(lease)
    }

    /// True once the reader has gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.items.is_closed()
    }
}

// === impl ProcessPublisher ===

impl ProcessPublisher {
    /// True if the subscription is for this lease.
    pub(crate) fn is_for(&self, lease: LeaseId) -> bool {
        self.publisher.is_for(lease)
    }

    /// The ticks for which threads wait for room, so that the reader loses less.
    pub(super) fn wait(&self) -> u64 {
        match self.publisher.is_closed() {
            true => 0,
            false => self.publisher.wait,
        }
    }

    /// True if threads wait for the reader, its queue is full but for the places that are left for
    /// the end, and the reader has taken something within [`STALLED`].
    pub(super) fn is_behind(&mut self) -> bool {
        if self.wait() == 0 || self.publisher.items.capacity() > LEFT_FREE {
            self.stands_since = None;
            return false;
        }
        let taken = self.publisher.side_queue.taken.load(Ordering::Relaxed);
        match self.stands_since {
            Some((before, since)) if before == taken => since.elapsed() < STALLED,
            _ => {
                self.stands_since = Some((taken, Instant::now()));
                true
            }
        }
    }

    /// Offers an item; false if the reader has gone.
    pub(crate) fn send(&mut self, item: StreamItem) -> bool {
        while let Some(first) = self.kept.front().cloned() {
            match self.publisher.items.try_send((self.source, first)) {
                Ok(()) => {
                    if let Some(sent) = self.kept.pop_front() {
                        self.publisher.side_queue.let_go(&sent);
                    }
                }
                Err(mpsc::error::TrySendError::Full(_)) => return self.overflow(item),
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
            }
        }
        match self.publisher.items.try_send((self.source, item)) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full((_, item))) => self.overflow(item),
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }

    fn overflow(&mut self, item: StreamItem) -> bool {
        if self.publisher.ends_when_full {
            return false;
        }
        let SideQueue {
            lost, kept_bytes, ..
        } = &*self.publisher.side_queue;
        match item {
            StreamItem::Block(published) => {
                let bytes = published.closed.block.encoded_len() as u64;
                if self.publisher.wait > 0
                    && kept_bytes.fetch_add(bytes, Ordering::Relaxed) < MOST_KEPT_BYTES
                {
                    self.kept.push_back(StreamItem::Block(published));
                    return true;
                }
                if self.publisher.wait > 0 {
                    kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
                }
                let events = published
                    .events()
                    .saturating_add(published.closed.block.lost);
                lost.fetch_add(events, Ordering::Relaxed);
            }
            StreamItem::Lost { events, .. } => {
                lost.fetch_add(events, Ordering::Relaxed);
            }
            // Only a reader without a queue has these.
            StreamItem::Retained(_) => {}
            // The newest anchor is enough. All threads are needed to name later events.
            anchor @ StreamItem::Anchor(_) => {
                self.kept
                    .retain(|item| !matches!(item, StreamItem::Anchor(_)));
                self.kept.push_back(anchor);
            }
            // When there are too many, the oldest may have ended long ago. Its events then have a
            // number and no name.
            named @ (StreamItem::Thread(_) | StreamItem::EventType(_)) => {
                if self.kept.len() >= MAX_KEPT
                    && let Some(oldest) = self.kept.iter().position(StreamItem::is_name)
                {
                    self.kept.remove(oldest);
                }
                self.kept.push_back(named);
            }
            once @ (StreamItem::Process(_)
            | StreamItem::Origin(_)
            | StreamItem::Begin(_)
            | StreamItem::Until(_)
            | StreamItem::Ended) => self.kept.push_back(once),
        }
        true
    }
}

impl Drop for ProcessPublisher {
    /// Leaves the kept items that the reader needs, above all the end of the process. A reader that
    /// has not received the process itself needs none. Kept threads have later events only for a
    /// lossless reader, which needs the kept blocks as well.
    fn drop(&mut self) {
        let process = |item: &StreamItem| matches!(item, StreamItem::Process(_));
        if self.kept.is_empty() || self.kept.iter().any(process) || self.publisher.is_closed() {
            return;
        }
        let mut left = lock(&self.publisher.side_queue.left);
        let keeps_all = self.publisher.wait > 0;
        for item in self.kept.drain(..) {
            let reported = match item {
                _ if keeps_all => true,
                StreamItem::Ended | StreamItem::Origin(_) | StreamItem::Until(_) => true,
                StreamItem::EventType(_) | StreamItem::Anchor(_) => left.len() < MAX_KEPT,
                StreamItem::Process(_)
                | StreamItem::Block(_)
                | StreamItem::Retained(_)
                | StreamItem::Thread(_)
                | StreamItem::Begin(_)
                | StreamItem::Lost { .. } => false,
            };
            if reported {
                left.push_back((self.source, item));
            }
        }
        drop(left);
        self.publisher.side_queue.eventfd.notify_one();
    }
}

/// A subscription from which nothing comes.
#[cfg(test)]
pub(crate) fn closed_subscription() -> EventSubscription {
    subscription(1, None, 0).1
}

#[cfg(test)]
mod tests {
    use xray_trace::{
        container::BlockEncoder,
        model::{CallKind, FunctionId, ProcessId, ThreadId},
    };

    use super::*;

    fn call() -> StreamItem {
        let mut encoder = BlockEncoder::new(ThreadId(0));
        encoder.push_call(Ticks(0), FunctionId(0), CallKind::Enter, None);
        let block = encoder.finish().unwrap();
        StreamItem::Block(PublishedBlock::unpacked(block))
    }

    /// Another process goes on, so the queue does not end.
    #[tokio::test]
    async fn the_end_of_a_process_is_reported_also_if_the_queue_is_full() {
        let (publisher, mut subscription) = subscription(1, None, 0);
        let mut one = publisher.sender(Source(1));
        let mut other = publisher.sender(Source(2));
        for _ in 0..2 * CAPACITY {
            one.send(call());
        }
        one.send(StreamItem::Ended);
        drop(one);
        let (mut seen, mut lost) = (0, 0);
        loop {
            match subscription.next().await.unwrap() {
                (Source(1), StreamItem::Block(_)) => seen += 1,
                (_, StreamItem::Lost { events, .. }) => lost += events,
                (Source(1), StreamItem::Ended) => break,
                item => panic!("{item:?}"),
            }
        }
        assert_eq!((seen, lost), (CAPACITY, CAPACITY as u64));
        other.send(StreamItem::Ended);
        drop(other);
        let last = subscription.next().await.unwrap();
        assert!(matches!(last, (Source(2), StreamItem::Ended)), "{last:?}");
        drop(publisher);
        assert!(subscription.next().await.is_none());
    }

    /// A reader that has read everything waits. An item that is left wakes it.
    #[tokio::test]
    async fn a_waiting_reader_gets_what_was_left() {
        let (publisher, mut subscription) = subscription(1, None, 0);
        let mut one = publisher.sender(Source(1));
        for _ in 0..CAPACITY {
            one.send(call());
        }
        one.send(StreamItem::Ended);
        for _ in 0..CAPACITY {
            subscription.next().await.unwrap();
        }
        let reader = tokio::spawn(async move { subscription.next().await });
        tokio::task::yield_now().await;
        drop(one);
        let last = reader.await.unwrap().unwrap();
        assert!(matches!(last, (Source(1), StreamItem::Ended)), "{last:?}");
        drop(publisher);
    }

    /// Names give way to newer names, and nothing else does: without its begin and its end, a
    /// recording would hold the events of others.
    #[tokio::test]
    async fn names_that_are_too_many_leave_the_begin_of_a_recording() {
        let (publisher, mut subscription) = subscription(1, None, 0);
        let mut sender = publisher.sender(Source(1));
        for _ in 0..CAPACITY {
            sender.send(call());
        }
        let begins = [1, 2].map(|ticks| StreamItem::Begin(Ticks(ticks)));
        for begin in begins.into_iter().chain([StreamItem::Until(Ticks(3))]) {
            sender.send(begin);
        }
        for id in 0..2 * MAX_KEPT {
            sender.send(StreamItem::EventType(EventType {
                process: ProcessId(0),
                number: u16::try_from(id % 1000).unwrap(),
                name: String::new(),
            }));
        }
        assert!(sender.kept.len() <= MAX_KEPT);
        for _ in 0..CAPACITY {
            subscription.next().await.unwrap();
        }
        sender.send(StreamItem::Ended);
        let mut bounds = Vec::new();
        for _ in 0..3 {
            match subscription.next().await.unwrap() {
                (_, StreamItem::Begin(ticks) | StreamItem::Until(ticks)) => bounds.push(ticks.0),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(bounds, [1, 2, 3]);
    }

    #[tokio::test]
    async fn the_memory_for_a_stalled_reader_is_bounded() {
        let (publisher, subscription) = subscription(1, None, 0);
        let mut first = publisher.sender(Source(0));
        for _ in 0..CAPACITY {
            first.send(call());
        }
        let thread = |id| {
            StreamItem::Thread(Thread {
                id: ThreadId(id),
                process: ProcessId(0),
                tid: 1,
                name: String::new(),
            })
        };
        for source in 1..1000 {
            let mut sender = publisher.sender(Source(source));
            for id in 0..100 {
                sender.send(thread(id));
            }
            sender.send(StreamItem::Ended);
        }
        assert_eq!(lock(&subscription.side_queue.left).len(), 999);
    }
}
