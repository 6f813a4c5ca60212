//! One reader of a live stream: a bounded queue that the drains of one process or of several fill and never wait for.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::mpsc;
use xray_trace::{
    container::Block,
    model::{ClockAnchor, EventType, Origin, Thread},
};

use super::Session;

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
    Process(Arc<Session>),
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
    lost: Arc<AtomicU64>,
}

/// Where the drains' ends of a feed come from. The feed goes on while there is one of these or of those.
#[derive(Debug, Clone)]
pub(crate) struct FeedInlet {
    items: mpsc::Sender<(Source, FeedItem)>,
    /// Events that found the queue full. Written by `FeedSender::send`, taken by `Feed::next`.
    lost: Arc<AtomicU64>,
}

/// A drain's end.
#[derive(Debug)]
pub(crate) struct FeedSender {
    inlet: FeedInlet,
    source: Source,
    /// Descriptions that found the queue full; they go first when there is room.
    kept: VecDeque<FeedItem>,
}

/// Both ends of a feed for so many processes at the same time.
pub(crate) fn feed(processes: usize) -> (FeedInlet, Feed) {
    let (sender, receiver) = mpsc::channel(CAPACITY * processes.clamp(1, MOST_QUEUES));
    let lost = Arc::new(AtomicU64::new(0));
    let inlet = FeedInlet {
        items: sender,
        lost: Arc::clone(&lost),
    };
    let feed = Feed {
        items: receiver,
        lost,
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
        if let Some(lost) = self.take_lost() {
            return Some(lost);
        }
        match self.items.recv().await {
            Some(item) => Some(item),
            None => self.take_lost(),
        }
    }

    fn take_lost(&self) -> Option<(Source, FeedItem)> {
        let events = self.lost.swap(0, Ordering::Relaxed);
        (events > 0).then(|| (Source::default(), FeedItem::Lost { events }))
    }
}

// === impl FeedInlet ===

impl FeedInlet {
    /// The end for the drain of one process.
    pub(crate) fn sender(&self, source: Source) -> FeedSender {
        FeedSender {
            inlet: self.clone(),
            source,
            kept: VecDeque::new(),
        }
    }

    /// True once nobody reads any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.items.is_closed()
    }
}

// === impl FeedSender ===

impl FeedSender {
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
                self.inlet.lost.fetch_add(events, Ordering::Relaxed);
            }
            FeedItem::Lost { events } => {
                self.inlet.lost.fetch_add(events, Ordering::Relaxed);
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
            once @ (FeedItem::Process(_) | FeedItem::Origin(_) | FeedItem::Ended) => {
                self.kept.push_back(once)
            }
        }
        true
    }
}

/// A feed from which nothing comes.
#[cfg(test)]
pub(crate) fn closed_feed() -> Feed {
    feed(1).1
}
