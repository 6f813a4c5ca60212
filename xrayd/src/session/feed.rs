//! One reader of the live stream: a bounded queue that the drain fills and never waits for.

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
    model::{ClockAnchor, Thread},
};

/// Items in the queue of one reader at most; a block has some 20,000 events.
const CAPACITY: usize = 256;

/// Descriptions kept at most for a reader that does not read.
const MAX_KEPT: usize = 1 << 17;

/// What a reader gets.
#[derive(Debug, Clone)]
pub enum FeedItem {
    /// Events of one thread.
    Block(Published),
    /// Counter and clocks at one moment.
    Anchor(ClockAnchor),
    /// A thread that later blocks belong to.
    Thread(Thread),
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
    items: mpsc::Receiver<FeedItem>,
    lost: Arc<AtomicU64>,
}

/// The drain's end.
#[derive(Debug)]
pub(crate) struct FeedSender {
    items: mpsc::Sender<FeedItem>,
    /// Events that found the queue full. Written by `send`, taken by `Feed::next`.
    lost: Arc<AtomicU64>,
    /// Threads and anchors that found the queue full; they go first when there is room.
    kept: VecDeque<FeedItem>,
}

/// Both ends.
pub(crate) fn feed() -> (FeedSender, Feed) {
    let (sender, receiver) = mpsc::channel(CAPACITY);
    let lost = Arc::new(AtomicU64::new(0));
    (
        FeedSender {
            items: sender,
            lost: Arc::clone(&lost),
            kept: VecDeque::new(),
        },
        Feed {
            items: receiver,
            lost,
        },
    )
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
    /// The next item; `None` when the session is over and everything was read.
    pub async fn next(&mut self) -> Option<FeedItem> {
        let events = self.lost.swap(0, Ordering::Relaxed);
        if events > 0 {
            return Some(FeedItem::Lost { events });
        }
        match self.items.recv().await {
            Some(item) => Some(item),
            None => {
                let events = self.lost.swap(0, Ordering::Relaxed);
                (events > 0).then_some(FeedItem::Lost { events })
            }
        }
    }
}

// === impl FeedSender ===

impl FeedSender {
    /// Offers an item; false if the reader has gone.
    pub(crate) fn send(&mut self, item: FeedItem) -> bool {
        while let Some(first) = self.kept.front().cloned() {
            match self.items.try_send(first) {
                Ok(()) => drop(self.kept.pop_front()),
                Err(mpsc::error::TrySendError::Full(_)) => return self.overflow(item),
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
            }
        }
        match self.items.try_send(item) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(item)) => self.overflow(item),
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }

    fn overflow(&mut self, item: FeedItem) -> bool {
        match item {
            FeedItem::Block(published) => {
                let events = published.events().saturating_add(published.block.lost);
                self.lost.fetch_add(events, Ordering::Relaxed);
            }
            FeedItem::Lost { events } => {
                self.lost.fetch_add(events, Ordering::Relaxed);
            }
            // Clocks: the newest will do. Threads: all are needed to name what follows.
            anchor @ FeedItem::Anchor(_) => {
                self.kept
                    .retain(|item| !matches!(item, FeedItem::Anchor(_)));
                self.kept.push_back(anchor);
            }
            // When there are too many, the oldest may have ended long ago; its events then have a number and no name.
            thread @ FeedItem::Thread(_) => {
                if self.kept.len() >= MAX_KEPT {
                    self.kept.pop_front();
                }
                self.kept.push_back(thread);
            }
        }
        true
    }
}
