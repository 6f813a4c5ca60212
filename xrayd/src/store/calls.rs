//! Counted calls by thread and function, since the mode became
//! [`Mode::Count`](crate::types::Mode::Count). They were counted in the program, and not recorded.

use std::{collections::BTreeMap, sync::Mutex};

use xray_trace::model::{FunctionId, Thread, ThreadId};

use crate::lock::lock;

/// The number of ended threads whose calls are kept by thread.
const ENDED_APART: usize = 1024;

/// The counted calls of a session. Written by the drain alone.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    counted: Mutex<CallCounts>,
}

/// The number of calls of each function.
#[derive(Debug, Clone, Default)]
pub struct CallCounts {
    threads: BTreeMap<ThreadId, ThreadCalls>,
    /// The calls of the threads that ended first.
    ended: BTreeMap<FunctionId, u64>,
    /// Calls of functions that could not be told apart: too many functions were called, or their
    /// library was gone.
    unnamed: u64,
}

/// The calls of one thread.
#[derive(Debug, Clone)]
pub struct ThreadCalls {
    /// The thread.
    pub thread: Thread,
    /// The number of calls, by function.
    pub calls: BTreeMap<FunctionId, u64>,
    ended: bool,
}

// === impl Calls ===

impl Calls {
    /// Begins to count anew.
    pub(crate) fn restart(&self) {
        *lock(&self.counted) = CallCounts::default();
    }

    /// Adds calls of a thread. `None` stands for functions without a known name.
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

    /// Notes that a thread calls nothing any more.
    pub(crate) fn end(&self, thread: ThreadId) {
        let mut counted = lock(&self.counted);
        if let Some(known) = counted.threads.get_mut(&thread) {
            known.ended = true;
        }
        counted.put_together();
    }

    /// The calls that were counted so far.
    pub(crate) fn get(&self) -> CallCounts {
        lock(&self.counted).clone()
    }
}

// === impl CallCounts ===

impl CallCounts {
    /// The calls of each thread.
    pub fn threads(&self) -> impl Iterator<Item = &ThreadCalls> {
        self.threads.values()
    }

    /// The calls of ended threads that are not kept by thread any more.
    pub fn ended(&self) -> &BTreeMap<FunctionId, u64> {
        &self.ended
    }

    /// The calls of functions that could not be told apart.
    pub fn unnamed(&self) -> u64 {
        self.unnamed
    }

    /// Puts together the calls of ended threads beyond [`ENDED_APART`], the oldest threads first.
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
