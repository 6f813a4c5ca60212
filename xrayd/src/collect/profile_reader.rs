//! The sums of one thread that its trampolines add up in the program: the calls since the last
//! look.
//!
//! The program's sums only grow. So the reader keeps what it has seen of each stack, and returns
//! the difference. A site has the function that it has at the time of the look, as events have that
//! of their time; so sites are read before they get another meaning.

use shm_ring::profile::{DurationRange, Profile, StackSums as Added};
use xray_trace::{
    analysis::{MORE_STACKS, ProfileBudget, StackId, StackSums},
    model::{CallSums, FunctionId, Missing},
};

use crate::store::Handover;

/// How adding up begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddUp {
    /// Nothing is added up so far.
    Anew,
    /// The program has gone on since an earlier daemon.
    GoOn,
}

/// The most new calls of a stack in one look. No program makes as many.
const MOST_NEWS: u64 = 1 << 48;

/// The reader of one thread's profile.
#[derive(Debug, Default)]
pub(super) struct ProfileReader {
    /// What was seen, by stack.
    seen: Vec<Seen>,
    unmatched: u64,
    not_followed: u64,
    /// The words that change with each event, at the last look.
    state: [u64; 3],
    /// True if they were the same at the look before. Then nothing was under way at the last one.
    is_settled: bool,
    /// See [`ProfileReader::bytes`].
    bytes: usize,
}

/// What was seen of a stack.
#[derive(Debug, Default, Clone)]
struct Seen {
    finished: u64,
    left: u64,
    unsorted: u64,
    total: u64,
    shortest: u64,
    longest: u64,
    /// The time in the function itself, up to now.
    own: u64,
    durations: Vec<(DurationRange, u64)>,
}

/// The calls since the last look.
#[derive(Debug)]
pub(super) struct NewCalls {
    pub(super) sums: StackSums,
    /// Calls by function. A function can be there more than once.
    pub(super) calls: Vec<(FunctionId, u64)>,
    /// Entries and exits.
    pub(super) events: u64,
    /// Events among them of sites that have no function.
    pub(super) lost: u64,
}

// === impl ProfileReader ===

impl ProfileReader {
    /// True if there may be something new, by the words that change with each event.
    pub(super) fn has_news(&mut self, state: [u64; 3]) -> bool {
        let is_same = std::mem::replace(&mut self.state, state) == state;
        !std::mem::replace(&mut self.is_settled, is_same) || !is_same
    }

    /// The bytes of what was seen, approximately.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes that are kept of a profile, approximately.
    pub(super) fn bytes_of(profile: &Profile) -> usize {
        let durations = profile.stacks.iter().map(|stack| stack.durations.len());
        profile.stacks.len() * size_of::<Seen>()
            + durations.sum::<usize>() * size_of::<(DurationRange, u64)>()
    }

    /// The calls since the last look. In the last look, when the thread is gone or does not add up
    /// any more, open calls count as left. `find` returns the function of a site.
    pub(super) fn take(
        &mut self,
        mut profile: Profile,
        look: Handover,
        find: impl Fn(u32) -> Option<FunctionId>,
        room: ProfileBudget,
    ) -> NewCalls {
        self.bytes = Self::bytes_of(&profile);
        let own = own_times(&mut profile, look);
        let stacks = &profile.stacks;
        self.seen.resize(stacks.len(), Seen::default());
        let mut news = NewCalls {
            sums: StackSums::new(room),
            calls: Vec::new(),
            events: 0,
            lost: 0,
        };
        let functions: Vec<Option<FunctionId>> = stacks
            .iter()
            .map(|stack| stack.site.map_or(Some(MORE_STACKS), &find))
            .collect();
        let mut ids = vec![None; stacks.len()];
        for (at, ((stack, own), seen)) in stacks.iter().zip(own).zip(&mut self.seen).enumerate() {
            let Some(sums) = seen.take(stack, own) else {
                continue;
            };
            let events = 2 * sums.calls - sums.unfinished;
            news.events = news.events.saturating_add(events);
            let Some(function) = functions[at] else {
                news.lost = news.lost.saturating_add(events);
                continue;
            };
            news.calls.push((function, sums.calls));
            let id = id_of(at, stacks, &functions, &mut ids, &mut news.sums);
            if let Some(id) = id {
                news.sums.add_calls(id, &sums);
            }
        }
        let since = |now: u64, seen: &mut u64| now.saturating_sub(std::mem::replace(seen, now));
        news.sums.add_missing(Missing {
            exits_without_entry: since(profile.unmatched, &mut self.unmatched),
            lost: news.lost,
            too_deep: since(profile.not_followed, &mut self.not_followed),
        });
        if look == Handover::Last {
            *self = Self::default();
        }
        news
    }
}

/// The stack of `sums` for the stack `at`. Calls of sites without a function are left out of it.
/// `ids` has those that are known already; an inner `None` has no function and no caller with one.
fn id_of(
    at: usize,
    stacks: &[Added],
    functions: &[Option<FunctionId>],
    ids: &mut [Option<Option<StackId>>],
    sums: &mut StackSums,
) -> Option<StackId> {
    let mut path = Vec::new();
    let mut next = Some(at);
    let mut known = None;
    while let Some(at) = next {
        if let Some(id) = ids[at] {
            known = id;
            break;
        }
        path.push(at);
        // A caller comes before its callees, so this ends.
        next = stacks[at].caller;
    }
    for at in path.into_iter().rev() {
        if let Some(function) = functions[at] {
            known = Some(sums.stack(known, function));
        }
        ids[at] = Some(known);
    }
    known
}

/// The time in each stack's function itself, up to the latest event. In the last look, open calls
/// become calls without an exit.
fn own_times(profile: &mut Profile, look: Handover) -> Vec<u64> {
    let mut open = vec![0_u64; profile.stacks.len()];
    let mut caller = None;
    for call in &profile.open {
        let Some(stack) = profile.stacks.get_mut(call.stack) else {
            break;
        };
        let ticks = profile.latest.saturating_sub(call.began);
        // All stacks without a site of their own within a caller are one stack.
        let is_nested = caller == Some(call.stack);
        caller = Some(call.stack);
        match look {
            Handover::Interim if is_nested => {}
            Handover::Interim => open[call.stack] = open[call.stack].saturating_add(ticks),
            Handover::Last => {
                stack.left = stack.left.saturating_add(1);
                stack.left_ticks = stack.left_ticks.saturating_add(ticks);
                if is_nested {
                    stack.nested = stack.nested.saturating_add(ticks);
                }
            }
        }
    }
    let stacks = profile.stacks.iter();
    let times: Vec<u64> = stacks
        .zip(open)
        .map(|(stack, open)| {
            let ended = stack.total.saturating_add(stack.left_ticks);
            ended.saturating_sub(stack.nested).saturating_add(open)
        })
        .collect();
    let mut own = times.clone();
    for (stack, time) in profile.stacks.iter().zip(&times) {
        if let Some(own) = stack.caller.and_then(|caller| own.get_mut(caller)) {
            *own = own.saturating_sub(*time);
        }
    }
    own
}

// === impl Seen ===

impl Seen {
    /// The calls since the last look; `None` if there is nothing new.
    fn take(&mut self, stack: &Added, own: u64) -> Option<CallSums> {
        let finished = stack.finished();
        // The memory may hold anything, and a sum never shrinks.
        let since = |now: u64, seen: u64| now.saturating_sub(seen);
        let ended = since(finished, self.finished).min(MOST_NEWS);
        let left = since(stack.left, self.left).min(MOST_NEWS);
        let own_news = since(own, self.own);
        if ended == 0 && left == 0 && own_news == 0 {
            return None;
        }
        let mut sums = CallSums {
            calls: ended + left,
            unfinished: left,
            self_ticks: own_news,
            total_ticks: since(stack.total, self.total),
            ..CallSums::default()
        };
        let mut seen = self.durations.iter().copied().peekable();
        let mut bounds: Option<(u64, u64)> = None;
        for &(range, calls) in &stack.durations {
            while seen.next_if(|(before, _)| *before < range).is_some() {}
            let before = seen.next_if(|(before, _)| *before == range);
            let before = before.map_or(0, |(_, calls)| calls);
            let news = since(calls, before).min(MOST_NEWS);
            if news > 0 {
                sums.durations.add(range.middle(), news);
                let (low, high) = range.bounds();
                bounds = Some((bounds.map_or(low, |(low, _)| low), high));
            }
        }
        let unsorted = since(stack.unsorted, self.unsorted);
        if unsorted > 0 {
            let mean = stack.total.checked_div(finished).unwrap_or(0);
            sums.durations.add(mean, unsorted);
            bounds = Some((stack.shortest, stack.longest));
        }
        if let Some((low, high)) = bounds {
            let is_first = self.finished == 0;
            let is_shortest = is_first || stack.shortest < self.shortest;
            let is_longest = is_first || stack.longest > self.longest;
            sums.min_ticks = match is_shortest {
                true => stack.shortest,
                false => low.max(stack.shortest),
            };
            sums.max_ticks = match is_longest {
                true => stack.longest,
                false => high.min(stack.longest),
            };
        }
        *self = Self {
            finished,
            left: stack.left,
            unsorted: stack.unsorted,
            total: stack.total,
            shortest: stack.shortest,
            longest: stack.longest,
            own: own.max(self.own),
            durations: stack.durations.clone(),
        };
        Some(sums)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shm_ring::profile::OpenCall;

    use super::*;

    /// The stacks that calls are made with: the caller of each.
    const CALLERS: [Option<usize>; 6] = [None, Some(0), Some(0), Some(1), Some(3), None];

    /// The sums of each function, which has its stack's index.
    fn sums_of(sums: &StackSums) -> Vec<(u32, CallSums)> {
        let mut all: Vec<_> = sums
            .calls()
            .map(|(function, sums)| (function.0, sums.clone()))
            .filter(|(_, sums)| sums.calls > 0 || sums.self_ticks > 0)
            .collect();
        all.sort_by_key(|(function, _)| *function);
        all
    }

    fn empty() -> Profile {
        let stacks = (0..).zip(CALLERS).map(|(site, caller)| Added {
            caller,
            site: Some(site),
            shortest: u64::MAX,
            ..Added::default()
        });
        Profile {
            stacks: stacks.collect(),
            ..Profile::default()
        }
    }

    /// Adds a call with this stack, and with it calls of all its callers. Each takes `own` ticks by
    /// itself. A call that is left has no exit.
    fn call(profile: &mut Profile, stack: usize, own: u64, is_left: bool) {
        let (mut next, mut ticks) = (Some(stack), 0);
        while let Some(at) = next {
            ticks += own;
            let stack = &mut profile.stacks[at];
            next = stack.caller;
            if is_left {
                stack.left += 1;
                stack.left_ticks += ticks;
                continue;
            }
            stack.total += ticks;
            stack.shortest = stack.shortest.min(ticks);
            stack.longest = stack.longest.max(ticks);
            let range = DurationRange::of(ticks);
            match stack
                .durations
                .binary_search_by_key(&range, |(range, _)| *range)
            {
                Ok(known) => stack.durations[known].1 += 1,
                Err(new) => stack.durations.insert(new, (range, 1)),
            }
        }
    }

    fn room() -> ProfileBudget {
        ProfileBudget::new(1 << 30)
    }

    fn find(site: u32) -> Option<FunctionId> {
        Some(FunctionId(site))
    }

    proptest! {
        /// However often a profile is read, each call is in the sums once.
        #[test]
        fn what_is_read_in_parts_is_what_is_there(
            calls in prop::collection::vec(
                (0..CALLERS.len(), 1_u64..100_000, prop::bool::weighted(0.1), any::<bool>()),
                1..60,
            ),
        ) {
            let (mut parts, mut whole) = (ProfileReader::default(), ProfileReader::default());
            let mut profile = empty();
            let mut sums = StackSums::new(room());
            let mut events = 0;
            for (stack, own, is_left, is_read) in calls {
                call(&mut profile, stack, own, is_left);
                if is_read {
                    let news = parts.take(profile.clone(), Handover::Interim, find, room());
                    sums.add(&news.sums);
                    events += news.events;
                }
            }
            let rest = parts.take(profile.clone(), Handover::Last, find, room());
            sums.add(&rest.sums);
            let all = whole.take(profile, Handover::Last, find, room());
            prop_assert_eq!(sums_of(&sums), sums_of(&all.sums));
            prop_assert_eq!(events + rest.events, all.events);
        }
    }

    /// An open call counts with its own time, and with its whole time once it has ended.
    #[test]
    fn open_calls_count_once() {
        let mut reader = ProfileReader::default();
        let mut profile = empty();
        let of = |sums: &StackSums| -> Vec<(u32, u64, u64, u64)> {
            let all = sums_of(sums).into_iter();
            all.map(|(id, sums)| (id, sums.calls, sums.self_ticks, sums.total_ticks))
                .collect()
        };
        profile.latest = 1000;
        profile.open = vec![
            OpenCall {
                stack: 0,
                began: 100,
            },
            OpenCall {
                stack: 1,
                began: 400,
            },
        ];
        let first = reader.take(profile.clone(), Handover::Interim, find, room());
        assert_eq!(of(&first.sums), [(0, 0, 300, 0), (1, 0, 600, 0)]);
        // The inner call has ended after 700 ticks.
        profile.stacks[1].total = 700;
        profile.stacks[1].shortest = 700;
        profile.stacks[1].longest = 700;
        profile.stacks[1].durations = vec![(DurationRange::of(700), 1)];
        profile.open.truncate(1);
        profile.latest = 1300;
        let second = reader.take(profile.clone(), Handover::Interim, find, room());
        assert_eq!(of(&second.sums), [(0, 0, 200, 0), (1, 1, 100, 700)]);
        assert_eq!(second.events, 2);
        let last = reader.take(profile, Handover::Last, find, room());
        assert_eq!(of(&last.sums), [(0, 1, 0, 0)]);
        assert_eq!(last.events, 1);
    }

    /// Calls of a site without a function are lost, and calls within them are within their callers.
    #[test]
    fn sites_without_a_function_are_left_out() {
        let mut profile = empty();
        call(&mut profile, 3, 10, false);
        let only = |site: u32| (site != 1).then_some(FunctionId(site));
        let mut reader = ProfileReader::default();
        let news = reader.take(profile, Handover::Last, only, room());
        let ids: Vec<u32> = sums_of(&news.sums).iter().map(|(id, _)| *id).collect();
        assert_eq!((ids, news.lost, news.events), (vec![0, 3], 2, 6));
    }

    /// Whatever a target writes into its profile.
    #[test]
    fn sums_that_shrink_and_open_calls_of_no_stack_are_harmless() {
        let mut reader = ProfileReader::default();
        let mut profile = empty();
        call(&mut profile, 4, 10, false);
        reader.take(profile.clone(), Handover::Interim, find, room());
        for stack in &mut profile.stacks {
            (stack.total, stack.left) = (u64::MAX, u64::MAX);
            (stack.left_ticks, stack.nested) = (u64::MAX, u64::MAX);
            stack.unsorted = u64::MAX;
        }
        profile.open = vec![
            OpenCall {
                stack: 99,
                began: u64::MAX
            };
            3
        ];
        let news = reader.take(profile, Handover::Interim, find, room());
        assert!(!news.sums.is_empty());
        let news = reader.take(empty(), Handover::Last, find, room());
        assert!(news.calls.is_empty());
    }
}
