//! Unpacks a trace on a thread of its own, so that the sink that writes the file does not wait for
//! it.
//!
//! ```text
//!            batches of items, 4 at most
//!  make ──────────────────────────────────────▶ take
//!       ◀──────────────────────────────────────
//!            the same batches, emptied
//! ```

use std::io;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::model::DataRef;

/// Items of a batch. Handing a batch over takes much less time than filling it.
const ITEMS: usize = 2048;
/// Bytes of user events after which a batch is handed over.
const BATCH_BYTES: usize = 1 << 16;
/// The most batches that wait to be taken.
const WAITING: usize = 4;

/// The bytes that items refer to.
#[derive(Debug, Default)]
pub(super) struct Bytes(Vec<u8>);

/// Items, and the bytes that they refer to.
#[derive(Debug)]
struct Batch<T> {
    items: Vec<T>,
    bytes: Bytes,
}

/// The maker's end of the queue. All its methods return `Break` after `take` has failed.
#[derive(Debug)]
pub(super) struct Outlet<T> {
    batch: Batch<T>,
    full: SyncSender<Batch<T>>,
    emptied: Receiver<Batch<T>>,
}

/// Runs `make` on a thread of its own, and calls `take` for its items in the same order. Returns
/// the result of `make`.
///
/// # Errors
///
/// The first error of `take`. No items are taken after it.
pub(super) fn ahead<T: Send, R: Send>(
    make: impl FnOnce(&mut Outlet<T>) -> ControlFlow<(), R> + Send,
    mut take: impl FnMut(&T, &Bytes) -> io::Result<()>,
) -> io::Result<R> {
    thread::scope(|scope| {
        let (full, batches) = sync_channel(WAITING);
        // Besides the batches that wait, one is being filled and one is being taken.
        let (empty, emptied) = sync_channel(WAITING + 2);
        let maker = scope.spawn(move || {
            let batch = Batch::new();
            let mut outlet = Outlet {
                batch,
                full,
                emptied,
            };
            let made = make(&mut outlet)?;
            outlet.pass()?;
            ControlFlow::Continue(made)
        });
        let taken = batches.iter().try_for_each(|mut batch: Batch<T>| {
            let Batch { items, bytes } = &batch;
            items.iter().try_for_each(|item| take(item, bytes))?;
            batch.clear();
            // The send fails only if the maker has finished and needs no more batches.
            let _ = empty.try_send(batch);
            Ok(())
        });
        drop(batches);
        match maker.join() {
            Ok(ControlFlow::Continue(made)) => taken.map(|()| made),
            // The maker breaks off only after an error here.
            Ok(ControlFlow::Break(())) => taken.and(Err(io::ErrorKind::BrokenPipe.into())),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

// === impl Bytes ===

impl Bytes {
    /// The bytes of an item.
    pub(super) fn get(&self, kept: DataRef) -> &[u8] {
        let DataRef { at, len, .. } = kept;
        let [at, len] = [at, len].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        self.0.get(at..at.saturating_add(len)).unwrap_or_default()
    }
}

// === impl Batch ===

impl<T> Batch<T> {
    fn new() -> Self {
        Self {
            items: Vec::with_capacity(ITEMS),
            bytes: Bytes::default(),
        }
    }

    fn clear(&mut self) {
        let Self { items, bytes } = self;
        items.clear();
        bytes.0.clear();
    }
}

// === impl Outlet ===

impl<T> Outlet<T> {
    /// Puts an item.
    #[inline]
    pub(super) fn put(&mut self, item: T) -> ControlFlow<()> {
        self.batch.items.push(item);
        self.pass_enough()
    }

    /// Puts several items at once; not many more than [`ITEMS`].
    #[inline]
    pub(super) fn put_all(&mut self, items: &[T]) -> ControlFlow<()>
    where
        T: Copy,
    {
        self.batch.items.extend(items.iter().copied());
        self.pass_enough()
    }

    #[inline]
    fn pass_enough(&mut self) -> ControlFlow<()> {
        if self.batch.items.len() >= ITEMS || self.batch.bytes.0.len() >= BATCH_BYTES {
            self.pass()?;
        }
        ControlFlow::Continue(())
    }

    /// Stores bytes that the next item refers to. Returns their new place, in place of `data`.
    #[cold]
    pub(super) fn keep(&mut self, bytes: &[u8], data: DataRef) -> DataRef {
        let kept = &mut self.batch.bytes.0;
        // Both numbers are far below the limit: an event has at most 1 MiB.
        let at = u32::try_from(kept.len()).unwrap_or(u32::MAX);
        let len = u32::try_from(bytes.len()).unwrap_or(0);
        kept.extend_from_slice(bytes);
        DataRef { at, len, ..data }
    }

    #[cold]
    fn pass(&mut self) -> ControlFlow<()> {
        let next = self.emptied.try_recv().unwrap_or_else(|_| Batch::new());
        let batch = std::mem::replace(&mut self.batch, next);
        match self.full.send(batch) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_taken_in_order_with_its_bytes() {
        let count = 3 * ITEMS as u64 + 1;
        let data = DataRef {
            at: 9,
            len: 9,
            size: u32::MAX,
            function: None,
        };
        let mut seen = 0;
        let made = ahead(
            |outlet| {
                for number in 0..count {
                    // From time to time more bytes than a batch is to have.
                    let len = if number % 1000 == 7 {
                        BATCH_BYTES + 1
                    } else {
                        3
                    };
                    let kept = outlet.keep(&vec![number.to_le_bytes()[0]; len], data);
                    outlet.put((number, kept))?;
                }
                ControlFlow::Continue("all")
            },
            |(number, kept), bytes| {
                assert_eq!(*number, seen);
                seen += 1;
                let len = if number % 1000 == 7 {
                    BATCH_BYTES + 1
                } else {
                    3
                };
                assert_eq!(bytes.get(*kept), vec![number.to_le_bytes()[0]; len]);
                Ok(())
            },
        );
        assert_eq!(made.expect("nothing went wrong"), "all");
        assert_eq!(seen, count);
    }

    #[test]
    fn an_error_of_the_taker_ends_the_maker() {
        let made = ahead(
            |outlet| {
                for number in 0_u64.. {
                    outlet.put(number)?;
                }
                ControlFlow::Continue(())
            },
            |number, _| match number {
                5 => Err(io::Error::other("five")),
                _ => Ok(()),
            },
        );
        assert_eq!(made.expect_err("it went wrong").to_string(), "five");
    }
}
