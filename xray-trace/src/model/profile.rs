//! What is known of a run of which no events were kept: how often each stack of calls was met in each thread, how long.

use super::{FunctionId, ThreadId, Trace};

/// Sums of calls, by thread and stack.
#[derive(Debug, Clone)]
pub struct Profile {
    tables: Trace,
    /// A caller stands before those that it called.
    stacks: Vec<ProfiledStack>,
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
        Self { tables, stacks }
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
