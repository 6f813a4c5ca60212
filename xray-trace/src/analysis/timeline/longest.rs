//! The longest calls of each function. They are independent of the calls that a thread's timeline
//! keeps.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::thread_timeline::TimelineCall;
use crate::function_map::FunctionMap;
use crate::model::{FunctionId, ThreadId};

/// The longest calls of each function, up to a number for each.
#[derive(Debug, Default)]
pub(super) struct Longest {
    most: usize,
    /// The index + 1 of each function in `functions`.
    places: FunctionMap<u32>,
    functions: Vec<(FunctionId, LongestCalls)>,
}

/// The calls of one function, in no order.
#[derive(Debug, Default)]
struct LongestCalls {
    calls: Vec<(ThreadId, TimelineCall)>,
    /// Shorter calls are not needed any more.
    from_ns: u64,
}

// === impl Longest ===

impl Longest {
    /// Sets the number of calls for each function.
    pub(super) fn keep(&mut self, most: usize) {
        self.most = most;
    }

    #[inline]
    pub(super) fn see(&mut self, thread: ThreadId, call: &TimelineCall) {
        let most = self.most;
        if most == 0 {
            return;
        }
        if let Some(kept) = self.of(call.function)
            && (call.len_ns() >= kept.from_ns || kept.calls.len() < most)
        {
            kept.take(thread, *call, most);
        }
    }

    #[inline]
    fn of(&mut self, function: FunctionId) -> Option<&mut LongestCalls> {
        let place = self.places.entry(function);
        if *place == 0 {
            self.functions.push((function, LongestCalls::default()));
            *place = u32::try_from(self.functions.len()).unwrap_or(0);
        }
        let at = usize::try_from(place.checked_sub(1)?).ok()?;
        self.functions.get_mut(at).map(|(_, kept)| kept)
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (_, kept) in other.functions {
            for (thread, call) in kept.calls {
                self.see(thread, &call);
            }
        }
    }

    /// The calls by function, the longest first.
    pub(super) fn into_calls(self) -> BTreeMap<FunctionId, Vec<(ThreadId, TimelineCall)>> {
        let functions = self.functions.into_iter();
        let sorted = functions.map(|(function, mut kept)| {
            kept.calls.sort_by_key(rank);
            (function, kept.calls)
        });
        sorted.filter(|(_, calls)| !calls.is_empty()).collect()
    }
}

// === impl LongestCalls ===

impl LongestCalls {
    #[cold]
    fn take(&mut self, thread: ThreadId, call: TimelineCall, most: usize) {
        self.calls.push((thread, call));
        if self.calls.len() > most {
            // The choice among equal calls does not depend on the order in which they come.
            let last = self
                .calls
                .iter()
                .enumerate()
                .max_by_key(|(_, kept)| rank(kept));
            if let Some((last, _)) = last {
                self.calls.swap_remove(last);
            }
            let shortest = self.calls.iter().map(|(_, call)| call.len_ns()).min();
            self.from_ns = shortest.unwrap_or(u64::MAX);
        }
    }
}

/// The order of calls: the longest first, equal ones by time.
fn rank((thread, call): &(ThreadId, TimelineCall)) -> (Reverse<u64>, u64, ThreadId, usize) {
    (Reverse(call.len_ns()), call.start_ns, *thread, call.depth)
}
