//! Analyses the threads of a trace on several processors. The steps of a thread do not depend on
//! other threads.

use std::num::NonZero;
use std::thread;

use super::Filter;
use super::stack::Steps;
use super::step::Siblings;
use super::thread_blocks::ThreadBlocks;
use super::threads_in_window::threads_in_window;
use crate::model::Trace;

/// The most workers. Each has its own results, so memory grows with their number.
const WORKERS: usize = 4;

/// The bytes of packed events that justify another worker.
const WORTHWHILE: usize = 256 << 10;

/// Calls `look` for the steps of every thread that `filter` selects. The results, at least one, are
/// parts of the answer for different threads. Their number depends on the machine, but the threads
/// of a part come before those of the next part. So a caller that merges the parts in order gets
/// the same order on every machine.
pub(super) fn by_thread<T: Default + Send>(
    trace: &Trace,
    filter: &Filter,
    siblings: Siblings,
    look: impl Fn(&mut T, Steps<'_>) + Sync,
) -> Vec<T> {
    let threads = threads_in_window(trace, filter);
    in_shares(threads, ThreadBlocks::len, |part, thread| {
        look(part, Steps::in_window(trace, thread, siblings));
    })
}

/// Calls `look` for each thread, as [`by_thread`] does. `len` is the number of packed bytes of a
/// thread's events.
pub(super) fn in_shares<I: Send, T: Default + Send>(
    threads: Vec<I>,
    len: impl Fn(&I) -> usize,
    look: impl Fn(&mut T, I) + Sync,
) -> Vec<T> {
    let shares = divide(threads, len);
    let work = |share: Vec<I>| {
        let mut part = T::default();
        share.into_iter().for_each(|thread| look(&mut part, thread));
        part
    };
    thread::scope(|scope| {
        let mut shares = shares.into_iter();
        let first = shares.next().unwrap_or_default();
        let others: Vec<_> = shares.map(|share| scope.spawn(|| work(share))).collect();
        let mut parts = vec![work(first)];
        for other in others {
            match other.join() {
                Ok(part) => parts.push(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        parts
    })
}

/// Divides threads into shares of about the same length, as many as are justified.
fn divide<I>(threads: Vec<I>, len: impl Fn(&I) -> usize) -> Vec<Vec<I>> {
    let total: usize = threads.iter().map(&len).sum();
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let workers = processors
        .min(WORKERS)
        .min(threads.len())
        .min(total / WORTHWHILE)
        .max(1);
    let mut shares: Vec<_> = (0..workers).map(|_| Vec::new()).collect();
    let mut before = 0;
    for thread in threads {
        // A thread belongs to the share of its middle.
        let len = len(&thread);
        let middle = before + len / 2;
        let share = (middle * workers).checked_div(total).unwrap_or(0);
        shares[share.min(workers - 1)].push(thread);
        before += len;
    }
    shares
}
