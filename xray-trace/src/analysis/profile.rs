//! The table and the stacks of a profile, which has sums and no events.

use std::collections::{BTreeMap, HashMap};

use super::account_table::{Account, AccountRow, GroupBy, Subject};
use super::distribution::{Distribution, DurationSums, RANKS, number_of_rank, numbered};
use super::trie::{Key, NodeCounts, Side, StackRoots, StackTrie, Trie};
use super::{Filter, Notes};
use crate::model::{Profile, ProfiledStack, Times, Visit};

/// The table of a profile. Only our own profiles have durations of single calls. The window of the
/// filter has no effect.
#[must_use]
pub fn account_profile(profile: &Profile, filter: &Filter, by: GroupBy) -> Account {
    let (stacks, totals) = (profile.stacks(), profile.totals_ns());
    let mut rows = BTreeMap::<Subject, AccountRow>::new();
    let mut known = BTreeMap::<Subject, Known>::new();
    // The number of open counted calls of each subject.
    let mut open = HashMap::<Subject, u64>::new();
    profile.walk(|step| {
        let (Visit::Enter(at) | Visit::Leave(at)) = step;
        let stack = &stacks[at];
        if !filter.wants_thread(stack.thread) || !filter.wants_function(stack.function) {
            return;
        }
        let subject = subject(profile, stack, by);
        let open = open.entry(subject).or_default();
        if matches!(step, Visit::Enter(_)) {
            *open += 1;
            return;
        }
        *open -= 1;
        let row = rows.entry(subject).or_insert(AccountRow {
            subject,
            calls: 0,
            unfinished: 0,
            total_ns: 0,
            self_ns: 0,
            sum_ns: 0,
            durations: None,
            on_cpu: None,
        });
        row.calls = row.calls.saturating_add(stack.calls);
        if let Some(times) = profile.times(at) {
            row.unfinished = row.unfinished.saturating_add(times.unfinished);
            known.entry(subject).or_default().add(times, stack.calls);
        }
        row.self_ns = row.self_ns.saturating_add(stack.self_ns);
        row.sum_ns = row.sum_ns.saturating_add(totals[at]);
        if *open == 0 {
            row.total_ns = row.total_ns.saturating_add(totals[at]);
        }
    });
    for (subject, known) in known {
        if let Some(row) = rows.get_mut(&subject) {
            row.sum_ns = known.sums.sum_ns;
            row.durations = known.distribution();
        }
    }
    // A caller without counted calls of its own has no row.
    let rows = rows.into_values().filter(|row| row.calls > 0);
    let missing = profile.missing();
    Account {
        rows: rows.collect(),
        notes: Notes {
            exits_without_entry: missing.exits_without_entry,
            lost: missing.lost,
            ..Notes::default()
        },
    }
}

/// The durations of a subject's calls, from its stacks in the profile.
///
/// A profile has durations in ticks, in the ranges of [`Durations`](crate::model::Durations), and
/// [`Times`] their middles in nanoseconds. They stay as they are here: the buckets of `histogram`
/// would move them once more.
#[derive(Debug, Default)]
struct Known {
    sums: DurationSums,
    /// The number of calls of each duration.
    durations: BTreeMap<u64, u64>,
}

impl Known {
    fn add(&mut self, times: &Times, calls: u64) {
        let finished = calls.saturating_sub(times.unfinished);
        if finished == 0 {
            return;
        }
        self.sums.merge(&DurationSums {
            finished,
            sum_ns: times.sum_ns,
            min_ns: times.min_ns,
            max_ns: times.max_ns,
        });
        for (duration, count) in &times.durations {
            let counted = self.durations.entry(*duration).or_default();
            *counted = counted.saturating_add(*count);
        }
    }

    /// The figures; `None` if no call finished.
    fn distribution(&self) -> Option<Distribution> {
        let durations = || self.durations.iter().map(|(ns, count)| (*ns, *count));
        let all = durations().fold(0, |sum: u64, (_, count)| sum.saturating_add(count));
        // A damaged profile may lack durations. The longest one stands for them.
        let at = |rank| numbered(durations(), number_of_rank(all, rank)).unwrap_or(u64::MAX);
        self.sums.distribution(RANKS.map(at))
    }
}

fn subject(profile: &Profile, stack: &ProfiledStack, by: GroupBy) -> Subject {
    let tables = profile.tables();
    match by {
        GroupBy::Function => Subject::Function(stack.function),
        GroupBy::Thread => Subject::Thread(stack.thread),
        GroupBy::Process => {
            Subject::Process(tables.thread(stack.thread).map(|thread| thread.process))
        }
        GroupBy::Module => {
            let function = tables.function(stack.function);
            Subject::Module(function.map(|function| function.module))
        }
    }
}

// === impl StackTrie ===

impl StackTrie {
    /// Adds the stacks of a profile, as [`StackTrie::add`] adds the stacks of a trace. A profile
    /// does not have the number of calls without callees. The calls of a stack without
    /// continuations count as such.
    pub fn add_profile(
        &mut self,
        profile: &Profile,
        filter: &Filter,
        roots: StackRoots,
        side: Side,
    ) {
        let stacks = profile.stacks();
        let mut continued = vec![false; stacks.len()];
        for caller in stacks.iter().filter_map(|stack| stack.caller) {
            continued[caller] = true;
        }
        let mut trie = Trie::default();
        // The node of each stack + 1; 0 for a stack that is not selected.
        let mut places = Vec::<u32>::with_capacity(stacks.len());
        for (at, (stack, continued)) in stacks.iter().zip(continued).enumerate() {
            let caller = stack.caller.map_or(0, |caller| places[caller]);
            let wanted = caller != 0
                || filter.wants_thread(stack.thread) && filter.wants_function(stack.function);
            if !wanted {
                places.push(0);
                continue;
            }
            let caller = match (caller, roots) {
                (0, StackRoots::PerThread) => trie.child(0, Key::Thread(stack.thread)),
                (caller, _) => caller,
            };
            let place = trie.child(caller, Key::Function(stack.function));
            places.push(place);
            let leaf = !continued;
            trie.count(
                place,
                &NodeCounts {
                    calls: stack.calls,
                    // Some formats of profiles do not have it.
                    unfinished: profile.times(at).map_or(0, |times| times.unfinished),
                    leaf_calls: if leaf { stack.calls } else { 0 },
                    leaf_ns: if leaf { stack.self_ns } else { 0 },
                    self_ns: stack.self_ns,
                },
            );
        }
        self.absorb(&trie, profile.tables(), side);
    }
}
