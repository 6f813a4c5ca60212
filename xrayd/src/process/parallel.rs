//! The same work for many items, several at a time, some of which may hang.
//!
//! A process whose memory lies in a file system that does not answer holds up the thread that reads
//! it, and the kernel does not let that thread go.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::sync_channel,
    },
    thread,
    time::{Duration, Instant},
};

use crate::lock::lock;

/// Threads that work at the same time, at first.
const AT_A_TIME: usize = 16;
/// The same at most for one call.
pub(crate) const MOST_IN_A_CALL: usize = 64;
/// The same at most for the members of one group. Each call of a user may have as many.
pub(crate) const MOST_IN_A_GROUP: usize = 8;
/// How long items wait for a thread before there are twice as many threads.
const PATIENCE: Duration = Duration::from_secs(1);

/// Does `work` for each item on up to `most` threads, and waits for all of them. The results are in
/// the items' order.
///
/// An item that hangs keeps its thread. So that the other items are done all the same, the number
/// of threads doubles each second while items wait for one.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    most: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    if let [item] = items {
        return vec![work(item)];
    }
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    let run = || {
        loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(item) = items.get(index) else {
                break;
            };
            let result = work(item);
            lock(&results).push((index, result));
        }
    };
    thread::scope(|scope| {
        let (end, has_ended) = sync_channel(1);
        let mut threads = 0;
        while next.load(Relaxed) < items.len() {
            let wanted = (2 * threads).max(AT_A_TIME).min(most).min(items.len());
            let started = (threads..wanted).filter(|_| {
                let end = end.clone();
                let run = move || {
                    run();
                    // One message is enough.
                    let _ = end.try_send(());
                };
                let started = named().spawn_scoped(scope, run);
                if let Err(error) = &started {
                    // The others do its work.
                    tracing::debug!(
                        %error,
                        "cannot start one of several threads; the others do its work"
                    );
                }
                started.is_ok()
            });
            threads += started.count();
            if threads == 0 {
                run();
            } else {
                // A thread ends when no item is left.
                let _ = has_ended.recv_timeout(PATIENCE);
            }
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// As [`in_parallel`] with as many threads as items, but waits until `deadline` at most. The result
/// of an item whose work has not ended by then is `None`. That work goes on.
pub(super) fn in_parallel_until<T: Send + Sync + 'static, R: Send + 'static>(
    deadline: Instant,
    items: Vec<T>,
    work: impl Fn(&T) -> R + Send + Sync + 'static,
) -> Vec<Option<R>> {
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let (done, is_done) = sync_channel(items.len());
    let items: Vec<(usize, T)> = items.into_iter().enumerate().collect();
    let run = Arc::new(move || {
        in_parallel(&items, usize::MAX, |(index, item)| {
            // The receiver is gone after the deadline.
            let _ = done.send((*index, work(item)));
        });
    });
    let runs = Arc::clone(&run);
    if let Err(error) = named().spawn(move || runs()) {
        tracing::debug!(%error, "cannot start a thread that waits; this one waits itself");
        run();
    }
    for _ in 0..results.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((index, result)) = is_done.recv_timeout(left) else {
            break;
        };
        results[index] = Some(result);
    }
    results
}

fn named() -> thread::Builder {
    thread::Builder::new().name("each-process".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_work_is_done_once_each_and_reported_in_order() {
        assert_eq!(in_parallel(&[0; 0], MOST_IN_A_CALL, |_| ()), []);
        let meet = std::sync::Barrier::new(AT_A_TIME);
        let items: Vec<usize> = (0..3 * AT_A_TIME).collect();
        // No thread passes it before as many have come.
        let twice = |item: &usize| {
            meet.wait();
            item * 2
        };
        let expected: Vec<usize> = items.iter().map(|item| item * 2).collect();
        assert_eq!(in_parallel(&items, MOST_IN_A_CALL, twice), expected);
    }

    /// More items hang than there are threads at first, and they come first.
    #[test]
    fn items_that_hang_keep_no_other_from_being_done() {
        let hung = Arc::new(Mutex::new(()));
        let held = lock(&hung);
        let items: Vec<usize> = (0..5 * AT_A_TIME).collect();
        let waits = Arc::clone(&hung);
        let work = move |item: &usize| {
            if *item < 2 * AT_A_TIME {
                drop(lock(&waits));
            }
            item * 2
        };
        let deadline = Instant::now() + 8 * PATIENCE;
        let results = in_parallel_until(deadline, items, work);
        for (item, result) in results.into_iter().enumerate() {
            let expected = (item >= 2 * AT_A_TIME).then_some(item * 2);
            assert_eq!(result, expected, "{item}");
        }
        drop(held);
        let none: Vec<Option<()>> = in_parallel_until(deadline, vec![0; 0], |_| ());
        assert!(none.is_empty());
        let all = in_parallel_until(Instant::now() + 60 * PATIENCE, vec![1, 2], |item| item + 1);
        assert_eq!(all, [Some(2), Some(3)]);
    }
}
