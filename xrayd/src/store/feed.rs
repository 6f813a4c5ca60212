//! One reader of a live stream: a bounded queue that the drains of one or more processes fill. A
//! drain never waits for it. Events that find the queue full are lost to the reader, and counted.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{Notify, mpsc};
use xray_trace::{
    container::ClosedBlock,
    model::{ClockAnchor, EventType, Origin, Thread, Ticks},
};

use crate::{lock::lock, store::TracedProcess, types::LeaseId};

/// The most items in the queue of one process; a block has about 20,000 events.
const CAPACITY: usize = 256;

/// The most times that capacity for a group of processes.
const MOST_QUEUES: usize = 4;

/// The most descriptions that are kept for a reader that does not read.
const MAX_KEPT: usize = 1 << 17;

/// The process of a feed that an item belongs to; 0 for the first process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(pub u32);

/// An item of a feed.
#[derive(Debug, Clone)]
pub enum FeedItem {
    /// The process of later items of this source.
    Process(Arc<dyn TracedProcess>),
    /// Events of one thread.
    Block(Published),
    /// The counter and the clocks at one moment.
    Anchor(ClockAnchor),
    /// The thread of later blocks.
    Thread(Thread),
    /// The origin of the process's session.
    Origin(Origin),
    /// A name of a type of typed events, or its new name.
    EventType(EventType),
    /// The lease of the feed begins. Nothing from before belongs to the feed.
    Begin(Ticks),
    /// The lease of the feed is released. Nothing from after it belongs to the feed.
    Until(Ticks),
    /// Nothing more comes from this source.
    Ended,
    /// The reader was too slow, and events were left out here.
    Lost {
        /// Their number.
        events: u64,
    },
}

// === impl FeedItem ===

impl FeedItem {
    /// True for the name of a thread or of a type of events.
    fn is_name(&self) -> bool {
        matches!(self, Self::Thread(_) | Self::EventType(_))
    }
}

/// A block of events. Cloning shares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The events, and the facts about them that the thread decoder has.
    pub closed: Arc<ClosedBlock>,
    /// The number of user events among them. The block does not count them.
    pub said: u32,
}

/// The reader's end of a feed.
#[derive(Debug)]
pub struct Feed {
    items: mpsc::Receiver<(Source, FeedItem)>,
    beside: Arc<Beside>,
    /// Items that were taken from `beside.left`, and the number of items in the queue before them.
    left: VecDeque<(Source, FeedItem)>,
    behind: usize,
}

/// What does not go through the queue.
#[derive(Debug, Default)]
struct Beside {
    /// Events that found the queue full. Written by `FeedSender::send`, taken by `Feed::next`.
    lost: AtomicU64,
    /// Kept items that the reader needs of processes from which nothing more comes. Written when a
    /// `FeedSender` is dropped, taken by `Feed::next`.
    left: Mutex<VecDeque<(Source, FeedItem)>>,
    /// Notified when `left` gets items.
    eventfd: Notify,
}

/// The source of the drains' ends of a feed. The feed goes on while there is a publisher or a
/// drain's end.
#[derive(Debug, Clone)]
pub(crate) struct Publisher {
    /// The lease that the feed is for, with which it ends.
    lease: Option<LeaseId>,
    items: mpsc::Sender<(Source, FeedItem)>,
    beside: Arc<Beside>,
}

/// A drain's end of a feed.
#[derive(Debug)]
pub(crate) struct FeedSender {
    inlet: Publisher,
    source: Source,
    /// Descriptions that found the queue full. They go first when there is room.
    kept: VecDeque<FeedItem>,
}

/// Both ends of a feed for this many processes at the same time.
pub(crate) fn feed(processes: usize, lease: Option<LeaseId>) -> (Publisher, Feed) {
    let (sender, receiver) = mpsc::channel(CAPACITY * processes.clamp(1, MOST_QUEUES));
    let beside = Arc::<Beside>::default();
    let inlet = Publisher {
        lease,
        items: sender,
        beside: Arc::clone(&beside),
    };
    let feed = Feed {
        items: receiver,
        beside,
        left: VecDeque::new(),
        behind: 0,
    };
    (inlet, feed)
}

// === impl Published ===

impl Published {
    /// A closed block with `said` user events.
    pub(crate) fn new(closed: ClosedBlock, said: u32) -> Self {
        Self {
            closed: Arc::new(closed),
            said,
        }
    }

    /// A block without user events, of which nothing is known.
    #[cfg(test)]
    pub(crate) fn unpacked(block: xray_trace::container::Block) -> Self {
        Self::new(ClosedBlock::unpacked(block), 0)
    }

    /// The number of events: those of calls and user events.
    pub fn events(&self) -> u64 {
        u64::from(self.closed.block.calls) + u64::from(self.said)
    }
}

// === impl Feed ===

impl Feed {
    /// The next item and its process; `None` when all sources have ended and everything was read.
    /// The process means nothing for [`FeedItem::Lost`].
    pub async fn next(&mut self) -> Option<(Source, FeedItem)> {
        loop {
            if let Some(lost) = self.take_lost() {
                return Some(lost);
            }
            self.take_left();
            if self.behind == 0
                && let Some(left) = self.left.pop_front()
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
                        return self.left.pop_front().or_else(|| self.take_lost());
                    }
                },
                () = self.beside.eventfd.notified() => {}
            }
        }
    }

    fn take_lost(&self) -> Option<(Source, FeedItem)> {
        let events = self.beside.lost.swap(0, Ordering::Relaxed);
        (events > 0).then(|| (Source::default(), FeedItem::Lost { events }))
    }

    /// Takes the items in `left`. They come after everything that is in the queue now: their
    /// process puts nothing there any more.
    fn take_left(&mut self) {
        if self.left.is_empty() {
            self.left = std::mem::take(&mut *lock(&self.beside.left));
            if !self.left.is_empty() {
                self.behind = self.items.len();
            }
        }
    }
}

// === impl Publisher ===

impl Publisher {
    /// The end for the drain of one process.
    pub(crate) fn sender(&self, source: Source) -> FeedSender {
        FeedSender {
            inlet: self.clone(),
            source,
            kept: VecDeque::new(),
        }
    }

    /// True if the feed is for this lease.
    pub(crate) fn is_for(&self, lease: LeaseId) -> bool {
        self.lease == Some(lease)
    }

    /// True once the reader has gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.items.is_closed()
    }
}

// === impl FeedSender ===

impl FeedSender {
    /// True if the feed is for this lease.
    pub(crate) fn is_for(&self, lease: LeaseId) -> bool {
        self.inlet.is_for(lease)
    }

    /// Offers an item; false if the reader has gone.
    pub(crate) fn send(&mut self, item: FeedItem) -> bool {
        while let Some(first) = self.kept.front().cloned() {
            match self.inlet.items.try_send((self.source, first)) {
                Ok(()) => drop(self.kept.pop_front()),
                Err(mpsc::error::TrySendError::Full(_)) => return self.overflow(item),
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
            }
        }
        match self.inlet.items.try_send((self.source, item)) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full((_, item))) => self.overflow(item),
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }

    fn overflow(&mut self, item: FeedItem) -> bool {
        match item {
            FeedItem::Block(published) => {
                let events = published
                    .events()
                    .saturating_add(published.closed.block.lost);
                self.inlet.beside.lost.fetch_add(events, Ordering::Relaxed);
            }
            FeedItem::Lost { events } => {
                self.inlet.beside.lost.fetch_add(events, Ordering::Relaxed);
            }
            // The newest anchor is enough. All threads are needed to name later events.
            anchor @ FeedItem::Anchor(_) => {
                self.kept
                    .retain(|item| !matches!(item, FeedItem::Anchor(_)));
                self.kept.push_back(anchor);
            }
            // When there are too many, the oldest may have ended long ago. Its events then have a
            // number and no name.
            named @ (FeedItem::Thread(_) | FeedItem::EventType(_)) => {
                if self.kept.len() >= MAX_KEPT
                    && let Some(oldest) = self.kept.iter().position(FeedItem::is_name)
                {
                    self.kept.remove(oldest);
                }
                self.kept.push_back(named);
            }
            once @ (FeedItem::Process(_)
            | FeedItem::Origin(_)
            | FeedItem::Begin(_)
            | FeedItem::Until(_)
            | FeedItem::Ended) => self.kept.push_back(once),
        }
        true
    }
}

impl Drop for FeedSender {
    /// Leaves the kept items that the reader needs, above all the end of the process. A reader that
    /// has not received the process itself needs none. Kept threads have no later events.
    fn drop(&mut self) {
        let process = |item: &FeedItem| matches!(item, FeedItem::Process(_));
        if self.kept.is_empty() || self.kept.iter().any(process) || self.inlet.is_closed() {
            return;
        }
        let mut left = lock(&self.inlet.beside.left);
        for item in self.kept.drain(..) {
            let told = match item {
                FeedItem::Ended | FeedItem::Origin(_) | FeedItem::Until(_) => true,
                FeedItem::EventType(_) | FeedItem::Anchor(_) => left.len() < MAX_KEPT,
                FeedItem::Process(_)
                | FeedItem::Block(_)
                | FeedItem::Thread(_)
                | FeedItem::Begin(_)
                | FeedItem::Lost { .. } => false,
            };
            if told {
                left.push_back((self.source, item));
            }
        }
        drop(left);
        self.inlet.beside.eventfd.notify_one();
    }
}

/// A feed from which nothing comes.
#[cfg(test)]
pub(crate) fn closed_feed() -> Feed {
    feed(1, None).1
}

#[cfg(test)]
mod tests {
    use xray_trace::{
        container::BlockEncoder,
        model::{CallKind, FunctionId, ProcessId, ThreadId},
    };

    use super::*;

    fn call() -> FeedItem {
        let mut encoder = BlockEncoder::new(ThreadId(0));
        encoder.push_call(Ticks(0), FunctionId(0), CallKind::Enter, None);
        let block = encoder.finish().unwrap();
        FeedItem::Block(Published::unpacked(block))
    }

    /// Another process goes on, so the queue does not end.
    #[tokio::test]
    async fn the_end_of_a_process_is_told_also_if_the_queue_is_full() {
        let (inlet, mut feed) = feed(1, None);
        let mut one = inlet.sender(Source(1));
        let mut other = inlet.sender(Source(2));
        for _ in 0..2 * CAPACITY {
            one.send(call());
        }
        one.send(FeedItem::Ended);
        drop(one);
        let (mut seen, mut lost) = (0, 0);
        loop {
            match feed.next().await.unwrap() {
                (Source(1), FeedItem::Block(_)) => seen += 1,
                (_, FeedItem::Lost { events }) => lost += events,
                (Source(1), FeedItem::Ended) => break,
                item => panic!("{item:?}"),
            }
        }
        assert_eq!((seen, lost), (CAPACITY, CAPACITY as u64));
        other.send(FeedItem::Ended);
        drop(other);
        let last = feed.next().await.unwrap();
        assert!(matches!(last, (Source(2), FeedItem::Ended)), "{last:?}");
        drop(inlet);
        assert!(feed.next().await.is_none());
    }

    /// A reader that has read everything waits. An item that is left wakes it.
    #[tokio::test]
    async fn who_waits_is_told_what_was_left() {
        let (inlet, mut feed) = feed(1, None);
        let mut one = inlet.sender(Source(1));
        for _ in 0..CAPACITY {
            one.send(call());
        }
        one.send(FeedItem::Ended);
        for _ in 0..CAPACITY {
            feed.next().await.unwrap();
        }
        let reader = tokio::spawn(async move { feed.next().await });
        tokio::task::yield_now().await;
        drop(one);
        let last = reader.await.unwrap().unwrap();
        assert!(matches!(last, (Source(1), FeedItem::Ended)), "{last:?}");
        drop(inlet);
    }

    /// Names give way to newer names, and nothing else does: without its begin and its end, a
    /// recording would hold the events of others.
    #[tokio::test]
    async fn names_that_are_too_many_leave_the_begin_of_a_recording() {
        let (inlet, mut feed) = feed(1, None);
        let mut sender = inlet.sender(Source(1));
        for _ in 0..CAPACITY {
            sender.send(call());
        }
        let begins = [1, 2].map(|ticks| FeedItem::Begin(Ticks(ticks)));
        for begin in begins.into_iter().chain([FeedItem::Until(Ticks(3))]) {
            sender.send(begin);
        }
        for id in 0..2 * MAX_KEPT {
            sender.send(FeedItem::EventType(EventType {
                process: ProcessId(0),
                number: u16::try_from(id % 1000).unwrap(),
                name: String::new(),
            }));
        }
        assert!(sender.kept.len() <= MAX_KEPT);
        for _ in 0..CAPACITY {
            feed.next().await.unwrap();
        }
        sender.send(FeedItem::Ended);
        let mut bounds = Vec::new();
        for _ in 0..3 {
            match feed.next().await.unwrap() {
                (_, FeedItem::Begin(ticks) | FeedItem::Until(ticks)) => bounds.push(ticks.0),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(bounds, [1, 2, 3]);
    }

    #[tokio::test]
    async fn what_is_left_for_a_reader_who_does_not_read_is_bounded() {
        let (inlet, feed) = feed(1, None);
        let mut first = inlet.sender(Source(0));
        for _ in 0..CAPACITY {
            first.send(call());
        }
        let thread = |id| {
            FeedItem::Thread(Thread {
                id: ThreadId(id),
                process: ProcessId(0),
                tid: 1,
                name: String::new(),
            })
        };
        for source in 1..1000 {
            let mut sender = inlet.sender(Source(source));
            for id in 0..100 {
                sender.send(thread(id));
            }
            sender.send(FeedItem::Ended);
        }
        assert_eq!(lock(&feed.beside.left).len(), 999);
    }
}
