//! The thread that gives segments to the service manager, and takes them back. A service manager
//! that does not answer stops this thread alone, and no drain.

use std::{
    fs::File,
    io,
    sync::{
        Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use crate::notify;

/// The most orders that wait for the service manager.
const MOST_WAITING: usize = 1 << 14;

/// The way to the thread.
#[derive(Debug)]
pub(super) struct StoreSender {
    orders: SyncSender<Order>,
    /// True once an order was dropped.
    is_full: AtomicBool,
}

/// What the thread is to do. An order does not keep the contents of a segment.
#[derive(Debug)]
enum Order {
    /// Give this segment under this name, unless it was removed meanwhile.
    Give(String, Weak<File>),
    /// Take back the segment with this name.
    TakeBack(String),
}

// === impl StoreSender ===

impl StoreSender {
    /// Starts the thread.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn start() -> io::Result<Self> {
        let (sender, orders) = sync_channel(MOST_WAITING);
        let thread = thread::Builder::new().name("segments".to_owned());
        thread.spawn(move || carry_out(&orders))?;
        Ok(Self {
            orders: sender,
            is_full: AtomicBool::new(false),
        })
    }

    pub(super) fn give(&self, name: String, file: Weak<File>) {
        self.order(Order::Give(name, file));
    }

    pub(super) fn take_back(&self, name: String) {
        self.order(Order::TakeBack(name));
    }

    fn order(&self, order: Order) {
        // If the thread has panicked, the panic is logged.
        if let Err(TrySendError::Full(_)) = self.orders.try_send(order)
            && !self.is_full.swap(true, Relaxed)
        {
            tracing::error!(
                "the service manager does not answer: retained events do not outlive this daemon"
            );
        }
    }
}

fn carry_out(orders: &Receiver<Order>) {
    let mut fails = false;
    for order in orders {
        let sent = match &order {
            Order::Give(name, file) => match file.upgrade() {
                Some(file) => notify::store(name, &file),
                None => Ok(()),
            },
            Order::TakeBack(name) => notify::remove_stored(name),
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
