//! The thread that gives segments to the service manager, and takes them back. A service manager
//! that does not answer stops this thread alone, and no drain.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    sync::{Arc, Condvar, Mutex, PoisonError, Weak},
    thread,
    time::Duration,
};

use crate::{lock::lock, notify};

/// The way to the thread.
#[derive(Debug, Default)]
pub(super) struct StoreSender {
    orders: Mutex<Orders>,
    /// An order came, or the last one was carried out.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Orders {
    /// What is to be done, by the name of the segment. A later order replaces an earlier one.
    waiting: BTreeMap<String, Order>,
    /// True while the thread carries out an order.
    is_busy: bool,
}

/// What the thread is to do. An order does not keep the contents of a segment.
#[derive(Debug)]
enum Order {
    /// Give this segment, unless it was removed meanwhile.
    Give(Weak<File>),
    /// Take the segment back.
    TakeBack,
}

// === impl StoreSender ===

impl StoreSender {
    /// Starts the thread.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let sender = Arc::new(Self::default());
        let of_thread = Arc::clone(&sender);
        let thread = thread::Builder::new().name("segments".to_owned());
        thread.spawn(move || of_thread.carry_out())?;
        Ok(sender)
    }

    pub(super) fn give(&self, name: String, file: Weak<File>) {
        self.order(name, Order::Give(file));
    }

    pub(super) fn take_back(&self, name: String) {
        let mut orders = lock(&self.orders);
        if let Some(Order::Give(_)) = orders.waiting.remove(&name) {
            // The service manager does not have it yet.
            return;
        }
        drop(orders);
        self.order(name, Order::TakeBack);
    }

    /// Waits until all orders are carried out, at most for `time`.
    pub(super) fn flush(&self, time: Duration) {
        let orders = lock(&self.orders);
        let is_at_work = |orders: &mut Orders| orders.is_busy || !orders.waiting.is_empty();
        let waited = self.changed.wait_timeout_while(orders, time, is_at_work);
        let (orders, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            tracing::error!(
                orders = orders.waiting.len(),
                "the service manager does not answer: some retained events do not outlive this \
                 daemon"
            );
        }
    }

    /// There is at most one order for each segment, and for each one that the service manager still
    /// has.
    fn order(&self, name: String, order: Order) {
        lock(&self.orders).waiting.insert(name, order);
        self.changed.notify_all();
    }

    fn next(&self) -> (String, Order) {
        let mut orders = lock(&self.orders);
        orders.is_busy = false;
        loop {
            if let Some(next) = orders.waiting.pop_first() {
                orders.is_busy = true;
                return next;
            }
            self.changed.notify_all();
            let woken = self.changed.wait(orders);
            orders = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn carry_out(&self) {
        let mut fails = false;
        loop {
            let (name, order) = self.next();
            let sent = match order {
                Order::Give(file) => match file.upgrade() {
                    Some(file) => notify::store(&name, &file),
                    None => Ok(()),
                },
                Order::TakeBack => notify::remove_stored(&name),
            };
            let failed = sent.is_err();
            if let (false, Err(error)) = (std::mem::replace(&mut fails, failed), sent) {
                tracing::error!(
                    %error,
                    "cannot give retained events to the service manager: they do not outlive this \
                     daemon"
                );
            }
        }
    }
}
