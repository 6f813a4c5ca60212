//! Looks at the threads of a trace on several processors: a thread's steps do not depend on those of another.

use std::cmp::Reverse;
use std::num::NonZero;
use std::thread;

use super::Filter;
use super::stack::Steps;
use super::step::Siblings;
use super::window::{Wanted, wanted};
use crate::model::Trace;

/// What a trace is divided among at most. Each has its own results, so memory grows with their number.
const WORKERS: usize = 4;

/// It is not worth beginning another worker for fewer bytes of packed events.
const WORTHWHILE: usize = 256 << 10;

/// Lets `look` see the steps of every thread that `filter` wants. The results, at least one, are parts of the answer, each of
/// threads of its own; which part has which thread depends on the machine.
pub(super) fn by_thread<T: Default + Send>(
    trace: &Trace,
    filter: &Filter,
    siblings: Siblings,
    look: impl Fn(&mut T, Steps<'_>) + Sync,
) -> Vec<T> {
    let shares = divide(wanted(trace, filter));
    let work = |share: Vec<Wanted<'_>>| {
        let mut part = T::default();
        for thread in share {
            look(&mut part, thread.steps(trace, siblings));
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
fn divide(mut threads: Vec<Wanted<'_>>) -> Vec<Vec<Wanted<'_>>> {
    let total: usize = threads.iter().map(Wanted::len).sum();
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let workers = processors
        .min(WORKERS)
        .min(threads.len())
        .min(total / WORTHWHILE)
        .max(1);
    if workers == 1 {
        return vec![threads];
    }
    threads.sort_by_cached_key(|wanted| (Reverse(wanted.len()), wanted.thread));
    let mut shares: Vec<_> = (0..workers).map(|_| (0, Vec::new())).collect();
    for wanted in threads {
        if let Some((share_len, share)) = shares.iter_mut().min_by_key(|(len, _)| *len) {
            *share_len += wanted.len();
            share.push(wanted);
        }
    }
    shares.into_iter().map(|(_, share)| share).collect()
}
