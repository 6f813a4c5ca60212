//! What a thread has added up, as a sample reads it: the growth of its numbers of calls between two
//! samples.

use std::collections::HashMap;

use shm_ring::profile::{CallNumbers, StackCalls};
use xray_trace::model::FunctionId;

use super::sample::{Share, Tally};

/// The most calls of a stack between two samples. No program makes as many.
const MOST_CALLS: u64 = 1 << 48;

/// The number of events that a thread has added up since the first look at it: entries and exits
/// that changed its frames, and two for each call that was not followed.
#[derive(Debug, Default)]
pub(super) struct AddedEvents {
    /// The thread's own number at the last look, which has 32 bits; `None` before the first look.
    seen: Option<u32>,
    frames: u64,
    /// Calls that had no frame, by the thread's own number.
    not_followed: u64,
    /// The number of events in recent samples; in older ones they count less.
    recent: u64,
}

/// The numbers of a thread's calls at one moment.
#[derive(Debug)]
pub(super) struct CallReading(CallNumbers);

// === impl AddedEvents ===

impl AddedEvents {
    /// Takes over the words of a profile that change with each event, as
    /// [`Profile::state`](shm_ring::profile::Profile::state) returns them. Returns by how much the
    /// number has grown since the last look.
    pub(super) fn follow(&mut self, [open, _, not_followed]: [u64; 3]) -> u64 {
        let before = self.events();
        // The upper half of the word counts its changes: each event adds a frame or removes one.
        let now = (open >> 32) as u32;
        let more = self.seen.map_or(0, |seen| now.wrapping_sub(seen));
        self.seen = Some(now);
        self.frames = self.frames.saturating_add(more.into());
        self.not_followed = not_followed;
        self.events().saturating_sub(before)
    }

    /// Takes the events of a sample over into [`Self::recent`].
    pub(super) fn end_sample(&mut self, more: u64) {
        self.recent = (self.recent / 2).saturating_add(more);
    }

    /// The rank of the thread among those that make events.
    pub(super) fn recent(&self) -> u64 {
        self.recent
    }

    pub(super) fn events(&self) -> u64 {
        let events = self.not_followed.saturating_mul(2);
        self.frames.saturating_add(events)
    }
}

// === impl CallReading ===

impl CallReading {
    pub(super) fn new(numbers: CallNumbers) -> Self {
        Self(numbers)
    }

    /// The calls since the reading `before`. `find` returns the function of a site. Calls of
    /// sites without a function are left out, as of a library that is unloaded, and so are
    /// calls without a stack of their own, for which the thread had no memory. The second number
    /// counts the events of calls without a stack.
    pub(super) fn since(
        &self,
        Self(before): &Self,
        find: impl Fn(u32) -> Option<FunctionId>,
    ) -> (Tally, u64) {
        let Self(now) = self;
        let function = |stack: &StackCalls| stack.site.and_then(&find);
        let mut functions = HashMap::<FunctionId, Share>::new();
        let (mut events, mut nameless) = (0_u64, 0_u64);
        for (at, stack) in now.stacks.iter().enumerate() {
            let before = before.stacks.get(at).copied().unwrap_or_default();
            // The memory may hold anything, and a number never shrinks.
            let finished = stack
                .finished
                .saturating_sub(before.finished)
                .min(MOST_CALLS);
            let left = stack.left.saturating_sub(before.left).min(MOST_CALLS);
            let its = 2 * (finished + left);
            let Some(function) = function(stack) else {
                if stack.site.is_none() {
                    nameless = nameless.saturating_add(its);
                }
                continue;
            };
            if its == 0 {
                continue;
            }
            let share = functions.entry(function).or_default();
            share.calls = share.calls.saturating_add(finished + left);
            share.events = share.events.saturating_add(its);
            let ticks = stack.ticks.saturating_sub(before.ticks);
            share.ticks = share.ticks.saturating_add(ticks);
            events = events.saturating_add(its);
        }
        for open in &now.open {
            let function = now.stacks.get(open.stack).and_then(function);
            if let Some(function) = function {
                let since = open.began.max(before.latest);
                let share = functions.entry(function).or_default();
                let ticks = now.latest.saturating_sub(since);
                share.ticks = share.ticks.saturating_add(ticks);
            }
        }
        let tally = Tally {
            events,
            passed: events,
            unseen: 0,
            lost: 0,
            functions,
        };
        (tally, nameless)
    }
}

#[cfg(test)]
mod tests {
    use shm_ring::profile::OpenCall;

    use super::*;

    fn stack(site: Option<u32>, finished: u64, left: u64, ticks: u64) -> StackCalls {
        StackCalls {
            site,
            finished,
            left,
            ticks,
        }
    }

    fn find(site: u32) -> Option<FunctionId> {
        (site != 9).then_some(FunctionId(site))
    }

    #[test]
    fn a_tally_has_the_growth_between_two_readings() {
        let before = CallReading::new(CallNumbers {
            stacks: vec![stack(Some(1), 0, 0, 0), stack(Some(2), 10, 1, 1000)],
            open: vec![OpenCall { stack: 0, began: 5 }],
            latest: 100,
        });
        let now = CallReading::new(CallNumbers {
            stacks: vec![
                stack(Some(1), 0, 0, 0),
                stack(Some(2), 17, 3, 1900),
                // The same function, called by another one.
                stack(Some(2), 4, 0, 50),
                stack(None, 70, 0, 700),
                stack(Some(9), 80, 0, 800),
            ],
            open: vec![
                OpenCall { stack: 0, began: 5 },
                OpenCall {
                    stack: 1,
                    began: 350,
                },
                OpenCall {
                    stack: 77,
                    began: 1,
                },
            ],
            latest: 400,
        });
        let share = |events, calls, ticks| Share {
            events,
            calls,
            ticks,
        };
        let (tally, nameless) = now.since(&before, find);
        assert_eq!((tally.events, tally.passed, nameless), (26, 26, 140));
        let expected = [
            (FunctionId(1), share(0, 0, 300)),
            (FunctionId(2), share(26, 13, 1000)),
        ];
        assert_eq!(tally.functions, HashMap::from(expected));
        // A target may write anything. A cleared profile is smaller.
        let wild = CallReading::new(CallNumbers {
            stacks: vec![stack(Some(1), u64::MAX, u64::MAX, u64::MAX); 3],
            open: vec![
                OpenCall {
                    stack: 1,
                    began: u64::MAX,
                };
                2
            ],
            latest: u64::MAX,
        });
        assert!(wild.since(&now, find).0.events > 0);
        assert_eq!(now.since(&wild, find).0.events, 0);
    }

    #[test]
    fn events_are_followed_when_the_number_of_a_thread_wraps_around() {
        let mut events = AddedEvents::default();
        let open = |changes: u64| changes << 32 | 3;
        assert_eq!(events.follow([open(0xffff_fff0), 0, 0]), 0);
        assert_eq!(events.follow([open(4), 0, 0]), 20);
        assert_eq!(events.follow([open(5), 0, 10]), 21);
        assert_eq!(events.follow([open(5), 7, 10]), 0);
        assert_eq!(events.events(), 41);
    }
}
