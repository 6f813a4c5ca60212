//! One reader of a live stream: a bounded queue that the drains of one process or of several fill and never wait for.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{Notify, mpsc};
use xray_trace::{
    container::Block,
    model::{ClockAnchor, EventType, Origin, Thread, Ticks},
};

use crate::{lock::lock, store::TracedProcess, types::LeaseId};

/// Items in the queue of one reader at most; a block has some 20,000 events.
const CAPACITY: usize = 256;

/// And as many times more for a family of processes.
const MOST_QUEUES: usize = 4;

/// Descriptions kept at most for a reader that does not read.
const MAX_KEPT: usize = 1 << 17;

/// Which of the processes of a feed an item is of: 0 for the first one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(pub u32);

/// What a reader gets.
#[derive(Debug, Clone)]
pub enum FeedItem {
    /// The process that later items of this source are of.
    Process(Arc<dyn TracedProcess>),
    /// Events of one thread.
    Block(Published),
    /// Counter and clocks at one moment.
    Anchor(ClockAnchor),
    /// A thread that later blocks belong to.
    Thread(Thread),
    /// How the process came to be traced.
    Origin(Origin),
    /// A name of a type of typed events, or its new name.
    EventType(EventType),
    /// The loan that the feed is for begins: what was before is none of it.
    Begin(Ticks),
    /// The loan is taken back: what is later is none of it.
    Until(Ticks),
    /// Nothing more comes from this source.
    Ended,
    /// The reader was too slow: so many events went past it here.
    Lost {
        /// How many.
        events: u64,
    },
}

/// A block of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The events.
    pub block: Block,
    /// How many of them are the program's own, which the block does not count.
    pub said: u32,
}

/// The reader's end.
#[derive(Debug)]
pub struct Feed {
    items: mpsc::Receiver<(Source, FeedItem)>,
    beside: Arc<Beside>,
    /// What was taken from `beside.left`, and how many items stand in the queue before it.
    left: VecDeque<(Source, FeedItem)>,
    behind: usize,
}

/// What goes past a full queue.
#[derive(Debug, Default)]
struct Beside {
    /// Events that found the queue full. Written by `FeedSender::send`, taken by `Feed::next`.
    lost: AtomicU64,
    /// What processes had kept for the reader when nothing more came from them, and must be told. Written as a `FeedSender` is dropped,
    /// taken by `Feed::next`.
    left: Mutex<VecDeque<(Source, FeedItem)>>,
    /// Rung when something was left.
    bell: Notify,
}

/// Where the drains' ends of a feed come from. The feed goes on while there is one of these or of those.
#[derive(Debug, Clone)]
pub(crate) struct Publisher {
    /// The loan that the feed is for, with which it ends.
    loan: Option<LeaseId>,
    items: mpsc::Sender<(Source, FeedItem)>,
    beside: Arc<Beside>,
}

/// A drain's end.
#[derive(Debug)]
pub(crate) struct FeedSender {
    inlet: Publisher,
    source: Source,
    /// Descriptions that found the queue full; they go first when there is room.
    kept: VecDeque<FeedItem>,
}

/// Both ends of a feed for so many processes at the same time.
pub(crate) fn feed(processes: usize, loan: Option<LeaseId>) -> (Publisher, Feed) {
    let (sender, receiver) = mpsc::channel(CAPACITY * processes.clamp(1, MOST_QUEUES));
    let beside = Arc::<Beside>::default();
    let inlet = Publisher {
        loan,
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
    /// How many events there are, whoever made them.
    pub fn events(&self) -> u64 {
        u64::from(self.block.calls) + u64::from(self.said)
    }
}

// === impl Feed ===

impl Feed {
    /// The next item and the process that it is of, which means nothing for [`FeedItem::Lost`]; `None` when everything is over and was
    /// read.
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
                () = self.beside.bell.notified() => {}
            }
        }
    }

    fn take_lost(&self) -> Option<(Source, FeedItem)> {
        let events = self.beside.lost.swap(0, Ordering::Relaxed);
        (events > 0).then(|| (Source::default(), FeedItem::Lost { events }))
    }

    /// What was left comes behind everything that is in the queue now: its process put nothing there since.
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

    /// Whether the feed is for that loan.
    pub(crate) fn is_for(&self, loan: LeaseId) -> bool {
        self.loan == Some(loan)
    }

    /// True once nobody reads any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.items.is_closed()
    }
}

// === impl FeedSender ===

impl FeedSender {
    /// Whether the feed is for that loan.
    pub(crate) fn is_for(&self, loan: LeaseId) -> bool {
        self.inlet.is_for(loan)
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
                let events = published.events().saturating_add(published.block.lost);
                self.inlet.beside.lost.fetch_add(events, Ordering::Relaxed);
            }
            FeedItem::Lost { events } => {
                self.inlet.beside.lost.fetch_add(events, Ordering::Relaxed);
            }
            // Clocks: the newest will do. Threads: all are needed to name what follows.
            anchor @ FeedItem::Anchor(_) => {
                self.kept
                    .retain(|item| !matches!(item, FeedItem::Anchor(_)));
                self.kept.push_back(anchor);
            }
            // When there are too many, the oldest may have ended long ago; its events then have a number and no name.
            named @ (FeedItem::Thread(_) | FeedItem::EventType(_)) => {
                if self.kept.len() >= MAX_KEPT {
                    self.kept.remove(1);
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
    /// Leaves what the reader must know of a process that it knows: its end above all. Nothing more comes of threads that were kept.
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
        self.inlet.beside.bell.notify_one();
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
        model::{CallKind, FunctionId, ThreadId},
    };

    use super::*;

    fn call() -> FeedItem {
        let mut encoder = BlockEncoder::new(ThreadId(0));
        encoder.push_call(Ticks(0), FunctionId(0), CallKind::Enter, None);
        let block = encoder.finish().unwrap();
        FeedItem::Block(Published { block, said: 0 })
    }

    /// Others go on, so the queue does not end with it.
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

    /// Who has read everything waits, and is woken by what was left since.
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
                process: xray_trace::model::ProcessId(0),
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
