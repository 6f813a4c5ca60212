//! Which part of a trace an answer is about.

use std::collections::BTreeSet;

use globset::GlobBuilder;

use super::step::Open;
use crate::model::{FunctionId, ThreadId, Ticks, Trace};

/// Which part of a trace is wanted. The default is all of it. Calls are followed to their ends and into all that they call,
/// so a filter never changes what a call's duration or self time is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only these threads.
    pub threads: Option<BTreeSet<ThreadId>>,
    /// Only these functions; in a tree, also what they call.
    pub functions: Option<BTreeSet<FunctionId>>,
    /// Only calls that begin at this tick or later.
    pub since: Option<Ticks>,
    /// Only calls that begin before this tick.
    pub until: Option<Ticks>,
}

/// A pattern that cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("the pattern '{pattern}' is not a valid glob")]
pub struct PatternError {
    /// The pattern.
    pattern: String,
    /// What is wrong with it.
    source: globset::Error,
}

// === impl Filter ===

impl Filter {
    /// The functions that a pattern names: by mangled or demangled name, or by demangled name without parameters.
    /// `*` stands for any text and `?` for any character.
    ///
    /// # Errors
    ///
    /// If the pattern is not a valid glob.
    pub fn matching_functions(
        trace: &Trace,
        pattern: &str,
    ) -> Result<BTreeSet<FunctionId>, PatternError> {
        let matcher = Matcher::new(pattern)?;
        let functions = trace.functions().iter().filter(|function| {
            let bare = without_parameters(&function.name);
            let symbol = function.symbol.as_deref().unwrap_or_default();
            [function.name.as_str(), bare, symbol]
                .iter()
                .any(|name| matcher.matches(name))
        });
        Ok(functions.map(|function| function.id).collect())
    }

    /// The threads that a pattern names: by the kernel's number or by name.
    ///
    /// # Errors
    ///
    /// If the pattern is not a valid glob.
    pub fn matching_threads(
        trace: &Trace,
        pattern: &str,
    ) -> Result<BTreeSet<ThreadId>, PatternError> {
        let matcher = Matcher::new(pattern)?;
        let threads = trace.threads().iter();
        let threads = threads
            .filter(|thread| matcher.matches(&thread.name) || thread.tid.to_string() == pattern);
        Ok(threads.map(|thread| thread.id).collect())
    }

    /// The first tick that is so many nanoseconds after the trace's first event, or later.
    #[must_use]
    pub fn tick_after(trace: &Trace, after_ns: u64) -> Ticks {
        let blocks = || trace.blocks().iter();
        let first = blocks().map(|block| block.first.0).min().unwrap_or(0);
        let last = blocks().map(|block| block.last.0).max().unwrap_or(0);
        let clock = trace.clock();
        let wanted = clock.monotonic_ns(Ticks(first)).saturating_add(after_ns);
        // The clock never runs backwards, so the tick can be found by halving.
        let (mut before, mut at) = (first, last.saturating_add(1));
        while before < at {
            let middle = before + (at - before) / 2;
            if clock.monotonic_ns(Ticks(middle)) < wanted {
                before = middle + 1;
            } else {
                at = middle;
            }
        }
        Ticks(at)
    }

    /// Whether anything of that thread is wanted.
    #[inline]
    #[must_use]
    pub fn wants_thread(&self, thread: ThreadId) -> bool {
        self.threads
            .as_ref()
            .is_none_or(|threads| threads.contains(&thread))
    }

    /// Whether that function is wanted.
    #[inline]
    #[must_use]
    pub fn wants_function(&self, function: FunctionId) -> bool {
        self.functions
            .as_ref()
            .is_none_or(|functions| functions.contains(&function))
    }

    /// Whether what begins then is wanted.
    #[inline]
    #[must_use]
    pub fn wants_time(&self, ticks: Ticks) -> bool {
        self.since.is_none_or(|since| ticks >= since)
            && self.until.is_none_or(|until| ticks < until)
    }

    /// Whether that call is wanted for itself.
    #[inline]
    #[must_use]
    pub fn wants_call(&self, call: &Open) -> bool {
        self.wants_time(call.start) && self.wants_function(call.function)
    }
}

/// A demangled name up to its parameters. The brackets of `(anonymous namespace)` and `operator()` are part of a name.
fn without_parameters(name: &str) -> &str {
    let mut from = 0;
    while let Some(at) = name[from..].find('(').map(|at| from + at) {
        from = if name[at..].starts_with("(anonymous namespace)") {
            at + "(anonymous namespace)".len()
        } else if name[at..].starts_with("()(") && name[..at].ends_with("operator") {
            at + "()".len()
        } else {
            return &name[..at];
        };
    }
    name
}

/// A name, or a glob.
struct Matcher<'a> {
    exactly: &'a str,
    glob: globset::GlobMatcher,
}

// === impl Matcher ===

impl<'a> Matcher<'a> {
    fn new(pattern: &'a str) -> Result<Self, PatternError> {
        // Names of functions are full of brackets, which mean themselves here.
        let mut escaped = String::with_capacity(pattern.len());
        for character in pattern.chars() {
            if matches!(character, '[' | ']' | '{' | '}' | '\\') {
                escaped.push('\\');
            }
            escaped.push(character);
        }
        let built = GlobBuilder::new(&escaped).backslash_escape(true).build();
        let glob = built.map_err(|source| PatternError {
            pattern: pattern.into(),
            source,
        })?;
        Ok(Self {
            exactly: pattern,
            glob: glob.compile_matcher(),
        })
    }

    fn matches(&self, name: &str) -> bool {
        !name.is_empty() && (name == self.exactly || self.glob.is_match(name))
    }
}
