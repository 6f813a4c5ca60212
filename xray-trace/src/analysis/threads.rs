//! Looks at the threads of a trace on several processors: a thread's steps do not depend on those of another.

use std::num::NonZero;
use std::thread;

use super::Filter;
use super::stack::Steps;
use super::step::Siblings;
use super::thread_blocks::ThreadBlocks;
use crate::model::Trace;

/// What a trace is divided among at most. Each has its own results, so memory grows with their number.
const WORKERS: usize = 4;

/// It is not worth beginning another worker for fewer bytes of packed events.
const WORTHWHILE: usize = 256 << 10;

/// Lets `look` see the steps of every thread that `filter` wants. The results, at least one, are parts of the answer, each of
/// threads of its own. How many there are depends on the machine, but the threads of a part stand before those of the next one: whoever takes
/// them in one by one meets everything in the same order on every machine.
pub(super) fn by_thread<T: Default + Send>(
    trace: &Trace,
    filter: &Filter,
    siblings: Siblings,
    look: impl Fn(&mut T, Steps<'_>) + Sync,
) -> Vec<T> {
    let shares = divide(ThreadBlocks::of_trace(trace, filter));
    let work = |share: Vec<ThreadBlocks<'_>>| {
        let mut part = T::default();
        for thread in share {
            look(&mut part, Steps::in_window(trace, thread, siblings));
        }
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

/// Divides threads into shares of about the same length, as many as are worthwhile.
fn divide(threads: Vec<ThreadBlocks<'_>>) -> Vec<Vec<ThreadBlocks<'_>>> {
    let total: usize = threads.iter().map(ThreadBlocks::len).sum();
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let workers = processors
        .min(WORKERS)
        .min(threads.len())
        .min(total / WORTHWHILE)
        .max(1);
    let mut shares: Vec<_> = (0..workers).map(|_| Vec::new()).collect();
    let mut before = 0;
    for thread in threads {
        // It belongs where its middle is.
        let len = thread.len();
        let middle = before + len / 2;
        let share = (middle * workers).checked_div(total).unwrap_or(0);
        shares[share.min(workers - 1)].push(thread);
        before += len;
    }
    shares
}
