//! Profiles: sums of the calls of each stack in each thread, for a run of which no events were
//! kept.

use std::collections::BTreeMap;

use super::{CallSums, FunctionId, Missing, ThreadId, Trace};
use crate::container::ProfileError;

/// The most different stacks of a file that are kept. LLVM's runtime has room by default for as
/// many as fit into 32 MiB.
pub(crate) const MOST_STACKS: usize = 1 << 20;

/// Sums of calls, by thread and stack.
#[derive(Debug, Clone)]
pub struct Profile {
    tables: Trace,
    /// A caller comes before its callees.
    stacks: Vec<ProfiledStack>,
    /// The times of each stack, if known.
    times: Vec<Times>,
    missing: Missing,
}

/// The durations of a stack's calls. Times are in nanoseconds, and only of calls with an exit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    /// Calls without an exit. Only their self time counts.
    pub unfinished: u64,
    /// The sum of the durations.
    pub sum_ns: u64,
    /// The shortest duration.
    pub min_ns: u64,
    /// The longest duration.
    pub max_ns: u64,
    /// Durations with their counts, in order of length. Each is off by at most 1/32.
    pub durations: Box<[(u64, u64)]>,
}

/// The calls of a function with the same callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProfiledStack {
    /// The thread.
    pub thread: ThreadId,
    /// The caller's stack, as an index of [`Profile::stacks`]; `None` for an outermost function.
    pub caller: Option<usize>,
    /// The innermost function.
    pub function: FunctionId,
    /// The number of its calls; 0 for a caller of which only callees were counted.
    pub calls: u64,
    /// The time in the function itself. If the rate of the counter is unknown, a tick counts as a
    /// nanosecond.
    pub self_ns: u64,
}

/// A step of a walk along all stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visit {
    /// To a stack, an index of [`Profile::stacks`], from its caller's stack.
    Enter(usize),
    /// From a stack back to its caller's, after all callees.
    Leave(usize),
}

// === impl Profile ===

impl Profile {
    /// Makes a profile. `tables` has processes, modules, functions and threads, and no events. In
    /// `stacks` a caller comes before its callees, and in the same thread.
    ///
    /// # Panics
    ///
    /// If a caller does not come before its callees.
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

    /// The profile in a trace; `None` if the trace has none.
    ///
    /// # Errors
    ///
    /// If the profile is damaged or incomplete.
    pub fn of_trace(trace: Trace) -> Result<Option<Self>, ProfileError> {
        if trace.profile_parts().is_empty() {
            return Ok(None);
        }
        let frequency = trace.clock().frequency();
        let ns = |ticks| in_ns(ticks, frequency);
        let (mut stacks, mut times) = (Vec::new(), Vec::new());
        let mut missing = Missing::default();
        // The indexes of the stacks of each thread.
        let mut places = BTreeMap::<ThreadId, Vec<usize>>::new();
        for part in trace.profile_parts() {
            missing.add(part.missing);
            let places = places.entry(part.thread).or_default();
            if u32::try_from(places.len()) != Ok(part.first) {
                return Err(ProfileError {
                    at: 0,
                    reason: "the preceding stacks are missing".to_owned(),
                });
            }
            part.each(|calls| {
                if stacks.len() >= MOST_STACKS {
                    return Err(format!("the profile has more than {MOST_STACKS} stacks"));
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

    /// Makes a profile of sums of other profiles. `times` has the times of each stack, or is empty.
    #[cfg(feature = "import")]
    pub(crate) fn of_sums(
        tables: Trace,
        stacks: Vec<ProfiledStack>,
        times: Vec<Times>,
        missing: Missing,
    ) -> Self {
        Self {
            times,
            missing,
            ..Self::new(tables, stacks)
        }
    }

    /// The durations of this stack's calls; `None` if unknown.
    #[must_use]
    pub fn times(&self, stack: usize) -> Option<&Times> {
        self.times.get(stack)
    }

    /// The missing data of all threads.
    #[must_use]
    pub fn missing(&self) -> Missing {
        self.missing
    }

    /// The processes, modules, functions and threads, without events.
    #[must_use]
    pub fn tables(&self) -> &Trace {
        &self.tables
    }

    /// All stacks. A caller comes before its callees.
    #[must_use]
    pub fn stacks(&self) -> &[ProfiledStack] {
        &self.stacks
    }

    /// The same profile, with symbols as names of the functions that have one.
    #[must_use]
    pub fn with_symbols_as_names(self) -> Self {
        Self {
            tables: self.tables.with_symbols_as_names(),
            ..self
        }
    }

    /// The time within each stack, including callees.
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

    /// Visits all stacks in the order of their calls: a stack is left before its caller.
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

/// Without a known rate a tick is a nanosecond.
fn in_ns(ticks: u64, frequency: Option<u64>) -> u64 {
    let Some(frequency) = frequency.filter(|frequency| *frequency > 0) else {
        return ticks;
    };
    let ns = u128::from(ticks) * 1_000_000_000 / u128::from(frequency);
    u64::try_from(ns).unwrap_or(u64::MAX)
}
