//! The live readers of one session. Each has a bounded queue, which
//! [`subscription`](super::subscription) fills.

use std::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use xray_trace::model::Ticks;

use super::subscription::{ProcessPublisher, StreamItem};
use crate::{lock::lock, sys::ticks_now, types::LeaseId};

/// The live readers of one session.
#[derive(Debug)]
pub(crate) struct LiveReaders {
    /// `None` once nothing more will come.
    publishers: Mutex<Option<Vec<ProcessPublisher>>>,
    /// Readers that will subscribe at once.
    coming: AtomicU32,
}

// === impl LiveReaders ===

impl LiveReaders {
    pub(super) fn new() -> Self {
        Self {
            publishers: Mutex::new(Some(Vec::new())),
            coming: AtomicU32::new(0),
        }
    }

    /// Counts one more reader that will subscribe at once.
    pub(super) fn expect(&self) {
        self.coming.fetch_add(1, Relaxed);
    }

    /// Counts one less.
    pub(super) fn unexpect(&self) {
        self.coming.fetch_sub(1, Relaxed);
    }

    /// Adds a reader.
    pub(super) fn add(&self, mut publisher: ProcessPublisher) {
        match &mut *lock(&self.publishers) {
            Some(publishers) => publishers.push(publisher),
            None => {
                publisher.send(StreamItem::Ended);
            }
        }
    }

    /// True if there is a reader, or will be one at once.
    pub(crate) fn has_any(&self) -> bool {
        let some = |publishers: &Vec<_>| !publishers.is_empty();
        self.coming.load(Relaxed) > 0 || lock(&self.publishers).as_ref().is_some_and(some)
    }

    /// The ticks for which threads wait for room in their full rings; 0 for none.
    pub(super) fn wait(&self) -> u64 {
        let publishers = lock(&self.publishers);
        let waits = publishers.iter().flatten().map(ProcessPublisher::wait);
        waits.max().unwrap_or(0)
    }

    /// True if a lossless reader is behind, and goes on.
    pub(super) fn are_behind(&self) -> bool {
        let mut publishers = lock(&self.publishers);
        let mut publishers = publishers.iter_mut().flatten();
        publishers.any(ProcessPublisher::is_behind)
    }

    /// Sends an item to all readers.
    pub(crate) fn send(&self, item: &StreamItem) {
        if let Some(publishers) = &mut *lock(&self.publishers) {
            publishers.retain_mut(|publisher| publisher.send(item.clone()));
        }
    }

    /// Ends all subscriptions: nothing more will come.
    pub(super) fn close(&self) {
        // A reader without room for this receives the end when it has read everything.
        self.send(&StreamItem::Ended);
        *lock(&self.publishers) = None;
    }

    // --- readers of a lease

    /// Begins a lease. Its subscriptions contain nothing from before.
    pub(crate) fn begin_lease(&self, lease: LeaseId) {
        self.mark_now(lease, StreamItem::Begin);
    }

    /// Marks the end of a lease. Its subscriptions contain nothing from after it.
    pub(crate) fn stop_lease(&self, lease: LeaseId) {
        self.mark_now(lease, StreamItem::Until);
    }

    /// Sends the present moment to the subscriptions of a lease. The moment is taken while no block
    /// can go to them, so no earlier block has a later event.
    fn mark_now(&self, lease: LeaseId, mark: impl Fn(Ticks) -> StreamItem) {
        if let Some(publishers) = &mut *lock(&self.publishers) {
            let now = ticks_now();
            publishers
                .retain_mut(|publisher| !publisher.is_for(lease) || publisher.send(mark(now)));
        }
    }

    /// True if a subscription for this lease is open.
    pub(crate) fn has_lease(&self, lease: LeaseId) -> bool {
        let publishers = lock(&self.publishers);
        let mut publishers = publishers.iter().flatten();
        publishers.any(|publisher| publisher.is_for(lease))
    }

    /// Ends the subscriptions of a lease, once everything that was recorded on it is published.
    pub(crate) fn end_lease(&self, lease: LeaseId) {
        if let Some(publishers) = &mut *lock(&self.publishers) {
            publishers.retain_mut(|publisher| {
                let over = publisher.is_for(lease);
                if over {
                    // A reader without room for this receives it when it has read everything.
                    publisher.send(StreamItem::Ended);
                }
                !over
            });
        }
    }
}
