//! Calls that were counted: by thread and function, since the mode became [`Mode::Count`](super::Mode::Count).

use std::{collections::BTreeMap, sync::Mutex};

use xray_trace::model::{FunctionId, Thread, ThreadId};

use crate::lock::lock;

/// Threads that have ended whose calls are kept apart.
const ENDED_APART: usize = 1024;

/// Calls go in here. The drain alone writes.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    counted: Mutex<CallCounts>,
}

/// How often functions were called.
#[derive(Debug, Clone, Default)]
pub struct CallCounts {
    threads: BTreeMap<ThreadId, ThreadCalls>,
    /// Of threads that ended first.
    ended: BTreeMap<FunctionId, u64>,
    /// Calls of functions that could not be told apart: too many were called, or their library was gone.
    unnamed: u64,
}

/// The calls of one thread.
#[derive(Debug, Clone)]
pub struct ThreadCalls {
    /// Which one.
    pub thread: Thread,
    /// By function.
    pub calls: BTreeMap<FunctionId, u64>,
    ended: bool,
}

// === impl Calls ===

impl Calls {
    /// Everything is counted anew.
    pub(crate) fn restart(&self) {
        *lock(&self.counted) = CallCounts::default();
    }

    /// So many calls more of a thread; `None` are those of functions that nobody can name.
    pub(crate) fn add(
        &self,
        thread: &Thread,
        calls: impl Iterator<Item = (Option<FunctionId>, u64)>,
    ) {
        let mut counted = lock(&self.counted);
        for (function, calls) in calls {
            let Some(function) = function else {
                counted.unnamed = counted.unnamed.saturating_add(calls);
                continue;
            };
            let known = counted
                .threads
                .entry(thread.id)
                .or_insert_with(|| ThreadCalls {
                    thread: thread.clone(),
                    calls: BTreeMap::new(),
                    ended: false,
                });
            let sum = known.calls.entry(function).or_default();
            *sum = sum.saturating_add(calls);
        }
    }

    /// A thread calls nothing any more.
    pub(crate) fn end(&self, thread: ThreadId) {
        let mut counted = lock(&self.counted);
        if let Some(known) = counted.threads.get_mut(&thread) {
            known.ended = true;
        }
        counted.put_together();
    }

    /// What was counted so far.
    pub(crate) fn get(&self) -> CallCounts {
        lock(&self.counted).clone()
    }
}

// === impl CallCounts ===

impl CallCounts {
    /// By thread.
    pub fn threads(&self) -> impl Iterator<Item = &ThreadCalls> {
        self.threads.values()
    }

    /// Of threads that have ended and are not told apart any more.
    pub fn ended(&self) -> &BTreeMap<FunctionId, u64> {
        &self.ended
    }

    /// Of functions that could not be told apart.
    pub fn unnamed(&self) -> u64 {
        self.unnamed
    }

    /// The calls of those threads that ended first, or nearly, become one's.
    fn put_together(&mut self) {
        let ended = self.threads.values().filter(|known| known.ended).count();
        for _ in ENDED_APART..ended {
            let first = self.threads.iter().find(|(_, known)| known.ended);
            let Some(id) = first.map(|(id, _)| *id) else {
                return;
            };
            let Some(gone) = self.threads.remove(&id) else {
                return;
            };
            for (function, calls) in gone.calls {
                let sum = self.ended.entry(function).or_default();
                *sum = sum.saturating_add(calls);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use xray_trace::model::ProcessId;

    use super::*;

    #[test]
    fn calls_of_threads_that_have_ended_are_put_together() {
        let calls = Calls::default();
        let threads = u32::try_from(ENDED_APART).unwrap() + 10;
        for id in 0..threads {
            let thread = Thread {
                id: ThreadId(id),
                process: ProcessId(0),
                tid: id,
                name: String::new(),
            };
            calls.add(&thread, [(Some(FunctionId(3)), 2), (None, 1)].into_iter());
            calls.end(thread.id);
        }
        let counted = calls.get();
        assert_eq!(counted.threads().count(), ENDED_APART);
        assert_eq!(counted.ended()[&FunctionId(3)], 20);
        assert_eq!(counted.unnamed(), u64::from(threads));
        calls.restart();
        assert_eq!(calls.get().threads().count(), 0);
    }
}
