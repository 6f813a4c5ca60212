//! The part of a trace that an analysis covers. A filter selects threads, functions, a window of
//! time and user events; it reads no events.

use std::collections::BTreeSet;

use globset::GlobBuilder;

use super::step::Open;
use crate::event_format::EventFilter;
use crate::instr_map::without_llvm_suffix;
use crate::model::{FunctionId, ThreadId, Ticks, Trace};

/// The selected part of a trace. The default selects everything. Calls are followed to their ends
/// and into all their callees, so a filter never changes the duration or the self time of a call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// Only these threads.
    pub threads: Option<BTreeSet<ThreadId>>,
    /// Only these functions; in a tree, also their callees.
    pub functions: Option<BTreeSet<FunctionId>>,
    /// Only calls that begin at this tick or later.
    pub since: Option<Ticks>,
    /// Only calls that begin before this tick.
    pub until: Option<Ticks>,
    /// Only these user events. Calls do not depend on it.
    pub user_events: EventFilter,
}

/// A pattern that is not a valid glob.
#[derive(Debug, thiserror::Error)]
#[error("the pattern '{pattern}' is not a valid glob")]
pub struct PatternError {
    /// The pattern.
    pattern: String,
    /// The reason.
    source: globset::Error,
}

// === impl Filter ===

impl Filter {
    /// The functions that match a pattern by symbol, by demangled name, or by demangled name
    /// without parameters. A name with a suffix of LLVM (`.llvm.77`) also matches without it. `*`
    /// matches any text and `?` any character.
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
            let name = function.name.as_str();
            let symbol = function.symbol.as_deref().unwrap_or_default();
            let short = without_llvm_suffix(name);
            let whole = [name, without_parameters(name), symbol];
            whole.iter().any(|name| matcher.matches(name))
                || short.len() < name.len()
                    && [&*short, without_parameters(&short)]
                        .iter()
                        .any(|name| matcher.matches(name))
        });
        Ok(functions.map(|function| function.id).collect())
    }

    /// The threads that match a pattern by the kernel's thread id or by name.
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

    /// The first tick that is at least `after_ns` nanoseconds after the trace's first event.
    #[must_use]
    pub fn tick_after(trace: &Trace, after_ns: u64) -> Ticks {
        let blocks = || trace.blocks().iter();
        let first = blocks().map(|block| block.first.0).min().unwrap_or(0);
        let last = blocks().map(|block| block.last.0).max().unwrap_or(0);
        let clock = trace.clock();
        let wanted = clock.monotonic_ns(Ticks(first)).saturating_add(after_ns);
        // The clock never runs backwards, so a binary search finds the tick.
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

    /// Whether any part of this thread is selected.
    #[inline]
    #[must_use]
    pub fn wants_thread(&self, thread: ThreadId) -> bool {
        self.threads
            .as_ref()
            .is_none_or(|threads| threads.contains(&thread))
    }

    /// Whether this function is selected.
    #[inline]
    #[must_use]
    pub fn wants_function(&self, function: FunctionId) -> bool {
        self.functions
            .as_ref()
            .is_none_or(|functions| functions.contains(&function))
    }

    /// Whether a call that begins at this tick is selected.
    #[inline]
    #[must_use]
    pub fn wants_time(&self, ticks: Ticks) -> bool {
        self.since.is_none_or(|since| ticks >= since)
            && self.until.is_none_or(|until| ticks < until)
    }

    /// Whether this call is selected by itself.
    #[inline]
    #[must_use]
    pub fn wants_call(&self, call: &Open) -> bool {
        self.wants_time(call.start) && self.wants_function(call.function)
    }
}

/// A demangled name without its parameters. The parentheses of `(anonymous namespace)` and
/// `operator()` are part of a name.
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

/// A matcher of names: an exact name, or a glob.
struct Matcher<'a> {
    exactly: &'a str,
    glob: globset::GlobMatcher,
}

// === impl Matcher ===

impl<'a> Matcher<'a> {
    fn new(pattern: &'a str) -> Result<Self, PatternError> {
        // Names of functions contain brackets, which are literal here.
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
