//! Looks at the threads of a trace on several processors: a thread's steps do not depend on those of another.

use std::cmp::Reverse;
use std::num::NonZero;
use std::thread;

use super::Filter;
use super::stack::Steps;
use super::step::Siblings;
use crate::container::Block;
use crate::model::{ThreadId, Trace};

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
    let mut threads: Vec<_> = trace.blocks_by_thread().into_iter().collect();
    threads.retain(|(thread, _)| filter.wants_thread(*thread));
    let shares = divide(threads);
    let work = |share: Vec<(ThreadId, Vec<&Block>)>| {
        let mut part = T::default();
        for (thread, blocks) in share {
            let steps = Steps::new(trace.clock(), thread, blocks).with_siblings(siblings);
            look(&mut part, steps);
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
fn divide(mut threads: Vec<(ThreadId, Vec<&Block>)>) -> Vec<Vec<(ThreadId, Vec<&Block>)>> {
    let len = |blocks: &[&Block]| {
        blocks
            .iter()
            .map(|block| block.encoded_len())
            .sum::<usize>()
    };
    let total: usize = threads.iter().map(|(_, blocks)| len(blocks)).sum();
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let workers = processors
        .min(WORKERS)
        .min(threads.len())
        .min(total / WORTHWHILE)
        .max(1);
    if workers == 1 {
        return vec![threads];
    }
    threads.sort_by_key(|(thread, blocks)| (Reverse(len(blocks)), *thread));
    let mut shares = vec![(0, Vec::new()); workers];
    for (thread, blocks) in threads {
        if let Some((share_len, share)) = shares.iter_mut().min_by_key(|(len, _)| *len) {
            *share_len += len(&blocks);
            share.push((thread, blocks));
        }
    }
    shares.into_iter().map(|(_, share)| share).collect()
}
