//! What is known of a run of which no events were kept: how often each stack of calls was met in each thread, how long.

use std::collections::BTreeMap;

use super::{CallSums, FunctionId, Missing, ThreadId, Trace};
use crate::container::ProfileError;

/// The most different stacks of a file that are kept. LLVM's runtime, by default, has room for those that fit into 32 MiB.
pub(crate) const MOST_STACKS: usize = 1 << 20;

/// Sums of calls, by thread and stack.
#[derive(Debug, Clone)]
pub struct Profile {
    tables: Trace,
    /// A caller stands before those that it called.
    stacks: Vec<ProfiledStack>,
    /// Of each stack, if that is known.
    times: Vec<Times>,
    missing: Missing,
}

/// How long the calls of a stack were. Times are nanoseconds and of calls whose exit was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    /// Calls that saw no exit. No other time than self time is counted for them.
    pub unfinished: u64,
    /// The sum of the durations.
    pub sum_ns: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Durations, each off by 1/32 at most, and how many there are of them, in order of length.
    pub durations: Box<[(u64, u64)]>,
}

/// The calls of a function within the same callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProfiledStack {
    /// In which thread.
    pub thread: ThreadId,
    /// The caller's stack, an index of [`Profile::stacks`]; `None` for the outermost function.
    pub caller: Option<usize>,
    /// The innermost function.
    pub function: FunctionId,
    /// How often it was called there; 0 for a caller of which only callees were counted.
    pub calls: u64,
    /// Time in the function itself. Where the rate of the counter is not known, a tick counts as a nanosecond.
    pub self_ns: u64,
}

/// A step of a walk along all stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visit {
    /// To a stack, an index of [`Profile::stacks`], from its caller's.
    Enter(usize),
    /// From a stack back to its caller's, after all that it called.
    Leave(usize),
}

// === impl Profile ===

impl Profile {
    /// `tables`: processes, modules, functions and threads, without events. `stacks`: a caller before those that it called,
    /// in the same thread.
    ///
    /// # Panics
    ///
    /// If a caller does not stand before those that it called.
    #[must_use]
    pub fn new(tables: Trace, stacks: Vec<ProfiledStack>) -> Self {
        let mut callers = stacks.iter().enumerate();
        assert!(
            callers.all(|(at, stack)| stack.caller.is_none_or(|caller| caller < at)),
            "callers stand before those that they called"
        );
        Self {
            tables,
            stacks,
            times: Vec::new(),
            missing: Missing::default(),
        }
    }

    /// The profile that a trace has instead of events; `None` if it has none.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is not one.
    pub fn of_trace(trace: Trace) -> Result<Option<Self>, ProfileError> {
        if trace.profile_parts().is_empty() {
            return Ok(None);
        }
        let frequency = trace.clock().frequency();
        let ns = |ticks| in_ns(ticks, frequency);
        let (mut stacks, mut times) = (Vec::new(), Vec::new());
        let mut missing = Missing::default();
        // Where the stacks of each thread are.
        let mut places = BTreeMap::<ThreadId, Vec<usize>>::new();
        for part in trace.profile_parts() {
            missing.add(part.missing);
            let places = places.entry(part.thread).or_default();
            if u32::try_from(places.len()) != Ok(part.first) {
                return Err(ProfileError {
                    at: 0,
                    reason: "the stacks before these are missing".to_owned(),
                });
            }
            part.each(|calls| {
                if stacks.len() >= MOST_STACKS {
                    return Err(format!("there are more than {MOST_STACKS}"));
                }
                let caller = calls.caller.and_then(|at| places.get(at as usize)).copied();
                let CallSums {
                    calls: count,
                    unfinished,
                    self_ticks,
                    total_ticks,
                    min_ticks,
                    max_ticks,
                    durations,
                } = calls.sums;
                places.push(stacks.len());
                stacks.push(ProfiledStack {
                    thread: part.thread,
                    caller,
                    function: calls.function,
                    calls: count,
                    self_ns: ns(self_ticks),
                });
                times.push(Times {
                    unfinished,
                    sum_ns: ns(total_ticks),
                    min_ns: ns(min_ticks),
                    max_ns: ns(max_ticks),
                    durations: durations
                        .middles()
                        .map(|(ticks, count)| (ns(ticks), count))
                        .collect(),
                });
                Ok(())
            })?;
        }
        Ok(Some(Self {
            tables: trace,
            stacks,
            times,
            missing,
        }))
    }

    /// How long the calls of that stack were; `None` if that is not known.
    #[must_use]
    pub fn times(&self, stack: usize) -> Option<&Times> {
        self.times.get(stack)
    }

    /// What is missing, in all threads.
    #[must_use]
    pub fn missing(&self) -> Missing {
        self.missing
    }

    /// The processes, modules, functions and threads; it has no events.
    #[must_use]
    pub fn tables(&self) -> &Trace {
        &self.tables
    }

    /// All stacks; a caller stands before those that it called.
    #[must_use]
    pub fn stacks(&self) -> &[ProfiledStack] {
        &self.stacks
    }

    /// The same profile, in which functions are called by their symbols where they have one.
    #[must_use]
    pub fn with_symbols_as_names(self) -> Self {
        Self {
            tables: self.tables.with_symbols_as_names(),
            ..self
        }
    }

    /// The time within each stack, with what was called there.
    #[must_use]
    pub fn totals_ns(&self) -> Vec<u64> {
        let mut totals: Vec<u64> = self.stacks.iter().map(|stack| stack.self_ns).collect();
        for (at, stack) in self.stacks.iter().enumerate().rev() {
            if let Some(caller) = stack.caller {
                totals[caller] = totals[caller].saturating_add(totals[at]);
            }
        }
        totals
    }

    /// Goes along all stacks as their calls would: whatever is entered is left before its caller.
    pub fn walk(&self, mut visit: impl FnMut(Visit)) {
        let mut callees = vec![Vec::new(); self.stacks.len()];
        let mut next = Vec::new();
        for (at, stack) in self.stacks.iter().enumerate() {
            match stack.caller {
                Some(caller) => callees[caller].push(at),
                None => next.push(Visit::Enter(at)),
            }
        }
        next.reverse();
        while let Some(step) = next.pop() {
            visit(step);
            if let Visit::Enter(at) = step {
                next.push(Visit::Leave(at));
                let callees = std::mem::take(&mut callees[at]);
                next.extend(callees.into_iter().rev().map(Visit::Enter));
            }
        }
    }
}

/// At a rate that is not known, a tick is a nanosecond.
fn in_ns(ticks: u64, frequency: Option<u64>) -> u64 {
    let Some(frequency) = frequency.filter(|frequency| *frequency > 0) else {
        return ticks;
    };
    let ns = u128::from(ticks) * 1_000_000_000 / u128::from(frequency);
    u64::try_from(ns).unwrap_or(u64::MAX)
}
