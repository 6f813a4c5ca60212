//! Which calls are recorded, and which of the events that were read are kept.
//!
//! The target itself leaves out calls by duration, depth, enclosing function, thread and sampling
//! ([`CallFilter`]). The collector leaves out events by module and by time.

use std::{ops::Range, sync::Arc, time::Duration};

use xray_trace::{
    instr_map::{Candidate, CompiledSelection, Rule, Selection},
    model::{Clock, ClockAnchor, Ticks},
};

use super::{ThreadChoice, compile};
use crate::refusal::{Reason, Refusal, Result};

/// The longest description of a filter in a trace, in bytes.
const LONGEST_NOTE: usize = 4096;

/// A filter. The default keeps all events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Modules whose events are kept; empty for all modules. An entry is a file name, a file name
    /// without version or ending, or a glob for the file name or the whole path.
    pub modules: Vec<String>,
    /// The time whose calls and user events are kept. A call belongs to the time of its entry.
    pub window: Window,
    /// The calls that are recorded at all.
    pub calls: CallFilter,
}

/// The calls that the program records. The default is all of them. Other calls are only counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallFilter {
    /// The shortest duration of a recorded call; zero for all calls. Calls with recorded arguments,
    /// calls with user events in them, and the calls around both are recorded in any case.
    pub shortest: Duration,
    /// The greatest depth of a recorded call; 0 for all calls. The outermost call of a function
    /// that is on has depth 1.
    pub max_depth: u32,
    /// The first of this many call trees of a thread is recorded; 0 and 1 for all trees.
    pub one_in: u32,
    /// Names or globs of functions; empty for all. A call is recorded if it is one of their calls
    /// or happens within one.
    pub inside: Vec<String>,
    /// Ids of threads, or globs for their names; empty for all threads.
    pub threads: Vec<String>,
}

/// A window of time, in nanoseconds since the Unix epoch. The clock is read when the filter is set.
/// A later change of the clock does not move the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its begin; 0 for no begin.
    pub from_wall_ns: u64,
    /// Its end, not included; `u64::MAX` for no end.
    pub until_wall_ns: u64,
}

// === impl Filter ===

impl Filter {
    /// Checks that the filter can be set.
    ///
    /// # Errors
    /// A pattern that cannot be understood, a window without an end behind its begin.
    pub fn check(&self) -> Result<()> {
        self.calls.inside()?;
        self.calls.threads()?;
        self.modules().map(drop)
    }

    /// The filter as options of `xrayctl filter`; empty if it keeps all events. A window of time is
    /// mentioned without its bounds.
    fn options(&self) -> String {
        let Self {
            modules,
            window,
            calls:
                CallFilter {
                    shortest,
                    max_depth,
                    one_in,
                    inside,
                    threads,
                },
        } = self;
        let mut options = Vec::new();
        if !shortest.is_zero() {
            options.push(format!("--min-duration {shortest:?}"));
        }
        if *max_depth > 0 {
            options.push(format!("--max-depth {max_depth}"));
        }
        if *one_in > 1 {
            options.push(format!("--one-in {one_in}"));
        }
        for (option, names) in [
            ("--inside", inside),
            ("--thread", threads),
            ("--module", modules),
        ] {
            options.extend(names.iter().map(|name| format!("{option} {name}")));
        }
        if *window != Window::default() {
            options.push("--from … --until …".to_owned());
        }
        options.join(" ")
    }

    /// The same for the notes of a trace, where it is cut off: a filter may have a thousand
    /// patterns.
    pub(crate) fn note(&self) -> String {
        let mut options = self.options();
        if options.len() > LONGEST_NOTE {
            let end = (0..=LONGEST_NOTE)
                .rev()
                .find(|&at| options.is_char_boundary(at));
            options.truncate(end.unwrap_or(0));
            options.push('…');
        }
        options
    }

    /// The modules, if not all; once the rest was checked.
    pub(crate) fn modules(&self) -> Result<Option<CompiledSelection>> {
        if self.window.from_wall_ns >= self.window.until_wall_ns {
            let message = "the time window of a filter must end after its begin";
            return Err(Refusal::new(Reason::Selection, message.to_owned()));
        }
        modules(&self.modules)
    }
}

impl CallFilter {
    /// The greatest depth that can be told.
    pub const MOST_DEPTH: u32 = 128;

    pub(crate) fn inside(&self) -> Result<Option<CompiledSelection>> {
        if self.max_depth > Self::MOST_DEPTH {
            let message = format!("the maximum depth of a filter is {}", Self::MOST_DEPTH);
            return Err(Refusal::new(Reason::Selection, message));
        }
        if self.inside.is_empty() {
            return Ok(None);
        }
        let include = self.inside.iter().cloned().map(Rule::Glob);
        compile(&Selection {
            include: include.collect(),
            exclude: Vec::new(),
        })
        .map(Some)
    }

    pub(crate) fn threads(&self) -> Result<Option<Arc<ThreadChoice>>> {
        if self.threads.is_empty() {
            return Ok(None);
        }
        let choice = ThreadChoice::new(&self.threads);
        let choice = choice.map_err(|error| Refusal::new(Reason::Selection, error.to_string()))?;
        Ok(Some(Arc::new(choice)))
    }
}

impl Default for Window {
    fn default() -> Self {
        Self {
            from_wall_ns: 0,
            until_wall_ns: u64::MAX,
        }
    }
}

impl Window {
    /// In ticks of the counter: its rate is that between these two moments, which are not the same.
    pub(crate) fn ticks(self, attached: ClockAnchor, now: ClockAnchor) -> Range<Ticks> {
        let frequency = Clock::new(vec![attached, now]).frequency();
        // Where the rate of the counter is not known, a nanosecond counts as a tick.
        let frequency = u128::from(frequency.unwrap_or(1_000_000_000));
        let ticks = |wall_ns: u64| {
            let off = u128::from(wall_ns.abs_diff(now.wall_ns)) * frequency / 1_000_000_000;
            let off = u64::try_from(off).unwrap_or(u64::MAX);
            Ticks(match wall_ns >= now.wall_ns {
                true => now.ticks.0.saturating_add(off),
                false => now.ticks.0.saturating_sub(off),
            })
        };
        let from = match self.from_wall_ns {
            0 => Ticks(0),
            from => ticks(from),
        };
        let until = match self.until_wall_ns {
            u64::MAX => Ticks(u64::MAX),
            until => ticks(until),
        };
        from..until
    }
}

/// `None` for all.
fn modules(patterns: &[String]) -> Result<Option<CompiledSelection>> {
    if patterns.is_empty() {
        return Ok(None);
    }
    let include = patterns.iter().flat_map(|pattern| {
        // A glob is compared with the whole path.
        let name = (!pattern.contains('/')).then(|| format!("*/{pattern}"));
        [Some(pattern.clone()), name].into_iter().flatten()
    });
    let selection = Selection {
        include: include.map(Rule::Module).collect(),
        exclude: Vec::new(),
    };
    compile(&selection).map(Some)
}

/// Whether the module at this path is one of `modules`.
pub(crate) fn is_module_of(modules: &CompiledSelection, path: &str) -> bool {
    modules.matches(&Candidate {
        module: path,
        ..Candidate::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_named_by_file_or_by_glob() {
        let path = "/usr/lib/x86_64/libfoo.so.1.2";
        for (pattern, expected) in [
            ("libfoo.so.1.2", true),
            ("libfoo.so", true),
            ("libfoo", true),
            ("libfo*", true),
            ("lib*.so.?.2", true),
            ("*foo*", true),
            ("/usr/lib/*/libfoo*", true),
            ("libfoo2", false),
            ("foo*", false),
            ("/lib/*", false),
        ] {
            let modules = modules(&[pattern.to_owned()]).unwrap().unwrap();
            assert_eq!(is_module_of(&modules, path), expected, "{pattern}");
        }
        assert!(modules(&[]).unwrap().is_none());
        let refusal = modules(&["a[".to_owned()]).unwrap_err();
        assert_eq!(refusal.reason, Reason::Selection);
    }

    #[test]
    fn a_window_is_reported_in_ticks_by_the_rate_of_the_counter() {
        let anchor = |ticks, ns| ClockAnchor {
            ticks: Ticks(ticks),
            monotonic_ns: ns,
            wall_ns: 1_000_000 + ns,
        };
        // Two ticks a nanosecond.
        let (attached, now) = (anchor(10_000, 1_000), anchor(30_000, 11_000));
        for (from, until, expected) in [
            (0, u64::MAX, 0..u64::MAX),
            (1_011_000, 1_012_000, 30_000..32_000),
            (1_001_000, u64::MAX, 10_000..u64::MAX),
            (0, 1_010_000, 0..28_000),
            (1, 2, 0..0),
            (u64::MAX - 1, u64::MAX, u64::MAX..u64::MAX),
        ] {
            let window = Window {
                from_wall_ns: from,
                until_wall_ns: until,
            };
            let ticks = window.ticks(attached, now);
            assert_eq!(ticks.start.0..ticks.end.0, expected, "{from} to {until}");
        }
    }

    #[test]
    fn a_window_that_ends_before_it_begins_is_refused() {
        for (from, until) in [(5, 5), (6, 5), (u64::MAX, u64::MAX)] {
            let filter = Filter {
                window: Window {
                    from_wall_ns: from,
                    until_wall_ns: until,
                },
                ..Filter::default()
            };
            let refused = filter.check().unwrap_err();
            assert_eq!(refused.reason, Reason::Selection);
        }
    }
}
