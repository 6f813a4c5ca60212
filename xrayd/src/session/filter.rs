//! What is recorded, and what of the events that are read is kept.
//!
//! Calls that are too short, too deep, elsewhere, in other threads or not of every Nth tree are left out in the program itself, before anything is written
//! ([`CallFilter`]); modules and the window of time are for the collector.

use std::{ops::Range, sync::Arc, time::Duration};

use sled_encoders::{SledKind, x86_64::call_site};
use xray_trace::{
    instr_map::{Candidate, CompiledSelection, Rule, Selection},
    model::{Clock, ClockAnchor, Ticks},
};

use super::{compile, functions::Functions, quotas::Ticket};
use crate::{
    collect::{Keep, ThreadChoice},
    inject::Choice,
    pid::Pid,
    refusal::{Reason, Refusal, Result},
    sys::now_anchor,
};

/// Bytes of a filter's description in a trace.
const LONGEST_NOTE: usize = 4096;

/// Which events are kept; by default all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those of modules of which one of these is the file name, that without its version or its ending, or a glob that matches the file name or the whole
    /// path; of all, if there are none.
    pub modules: Vec<String>,
    /// Calls that begin in it, and what is said in it.
    pub window: Window,
    /// What is recorded at all.
    pub calls: CallFilter,
}

/// Which calls are recorded; by default all. What is left out is counted, and nothing else is known of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallFilter {
    /// Those that take so long at least; zero: all. Calls whose arguments are recorded, and those in which events are said, are recorded whatever they take,
    /// and so is what they are in.
    pub shortest: Duration,
    /// Those so deep at most, where the outermost that is on has depth 1; 0: all.
    pub max_depth: u32,
    /// The first of so many call trees of each thread; 0 and 1: each.
    pub one_in: u32,
    /// Calls of functions with these names, or names that match these globs, and what happens in them; without any, whatever happens.
    pub inside: Vec<String>,
    /// Those of threads with these ids, or with names that match these globs; without any, those of all.
    pub threads: Vec<String>,
}

/// A time, in nanoseconds since the Unix epoch. The clock is read when it is set: what happens to the clock later does not move it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// When it begins; 0 for always.
    pub from_wall_ns: u64,
    /// When it has ended; the greatest number for never.
    pub until_wall_ns: u64,
}

/// A filter that is in force.
#[derive(Debug, Default)]
pub(super) struct Filtering {
    filter: Filter,
    /// `None` for all modules.
    modules: Option<CompiledSelection>,
    /// `None` for all times.
    window: Option<Range<Ticks>>,
    /// `None` for whatever happens.
    inside: Option<CompiledSelection>,
    /// `None` for all.
    threads: Option<Arc<ThreadChoice>>,
    /// Ticks of the shortest call that is recorded.
    shortest: u64,
    /// What its patterns take of the quota of the user who attached.
    ticket: Option<Ticket>,
}

// === impl Filter ===

impl Filter {
    /// Whether it can be set.
    ///
    /// # Errors
    /// A pattern that cannot be understood, a window without an end behind its begin.
    pub fn check(&self) -> Result<()> {
        self.calls.inside()?;
        self.calls.threads()?;
        self.modules().map(drop)
    }

    /// In the words of `xrayctl filter`'s options; empty if everything is recorded and kept. Of a window of time, only that there is one.
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
    pub(super) fn note(&self) -> String {
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
    fn modules(&self) -> Result<Option<CompiledSelection>> {
        if self.window.from_wall_ns >= self.window.until_wall_ns {
            let message = "a window of time has to end after its begin";
            return Err(Refusal::new(Reason::Selection, message.to_owned()));
        }
        modules(&self.modules)
    }
}

// === impl CallFilter ===

impl CallFilter {
    /// The greatest depth that can be told.
    pub const MOST_DEPTH: u32 = 128;

    fn inside(&self) -> Result<Option<CompiledSelection>> {
        if self.max_depth > Self::MOST_DEPTH {
            let message = format!("calls can be told apart to depth {}", Self::MOST_DEPTH);
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

    fn threads(&self) -> Result<Option<Arc<ThreadChoice>>> {
        if self.threads.is_empty() {
            return Ok(None);
        }
        let choice = ThreadChoice::new(&self.threads);
        let choice = choice.map_err(|error| Refusal::new(Reason::Selection, error.to_string()))?;
        Ok(Some(Arc::new(choice)))
    }
}

// === impl Window ===

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
    fn ticks(self, attached: ClockAnchor, now: ClockAnchor) -> Range<Ticks> {
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

// === impl Filtering ===

impl Filtering {
    /// # Errors
    /// A pattern that cannot be understood, a window without an end behind its begin, a clock that cannot be read.
    pub(super) fn new(pid: Pid, filter: &Filter, attached: ClockAnchor) -> Result<Self> {
        let modules = filter.modules()?;
        let now = now_anchor();
        let now = now.map_err(|error| Refusal::from_io(pid, "read the clock", &error))?;
        let window = if filter.window == Window::default() {
            None
        } else {
            Some(filter.window.ticks(attached, now))
        };
        let frequency = Clock::new(vec![attached, now]).frequency();
        let frequency = u128::from(frequency.unwrap_or(1_000_000_000));
        let shortest = filter.calls.shortest.as_nanos() * frequency / 1_000_000_000;
        Ok(Self {
            modules,
            window,
            inside: filter.calls.inside()?,
            threads: filter.calls.threads()?,
            shortest: u64::try_from(shortest).unwrap_or(u64::MAX),
            filter: filter.clone(),
            ticket: None,
        })
    }

    /// Has its patterns counted, for as long as it is in force.
    ///
    /// # Errors
    /// The quota would be exceeded.
    pub(super) fn pay(&mut self, take: impl FnOnce(usize) -> Result<Ticket>) -> Result<()> {
        let selections = [&self.modules, &self.inside].into_iter().flatten();
        let sizes = selections.map(CompiledSelection::size);
        let threads = self.threads.as_ref().map_or(0, |threads| threads.size());
        self.ticket = Some(take(sizes.sum::<usize>() + threads)?);
        Ok(())
    }

    /// Which threads are recorded; `None` for all.
    pub(super) fn threads(&self) -> Option<Arc<ThreadChoice>> {
        self.threads.clone()
    }

    /// For the program itself: what it means for the functions that there are. `None` if everything is recorded.
    ///
    /// # Errors
    /// More functions are meant than there is room for.
    pub(super) fn choice(&self, pid: Pid, functions: &Functions) -> Result<Option<Choice>> {
        if self.filter.calls == CallFilter::default() {
            return Ok(None);
        }
        let inside = self.inside.as_ref().map(|inside| {
            let ids = functions.matching(&functions.loaded(), inside);
            let sites = functions.sites(&ids).into_iter();
            let entries =
                sites.filter(|site| matches!(site.kind, SledKind::Entry | SledKind::EntryArgument));
            #[expect(clippy::cast_possible_truncation, reason = "the low half is the name")]
            let names = entries.map(|site| call_site(site.kind, site.address) as u32);
            names.collect::<Vec<u32>>()
        });
        if let Some(names) = &inside
            && names.len() > Choice::MOST_INSIDE
        {
            let message = format!(
                "process {pid}: calls inside {} functions cannot be chosen, at most {}",
                names.len(),
                Choice::MOST_INSIDE
            );
            return Err(Refusal::new(Reason::Limit, message));
        }
        Ok(Some(Choice {
            shortest: self.shortest,
            max_depth: self.filter.calls.max_depth,
            one_in: self.filter.calls.one_in,
            inside,
        }))
    }

    /// Whether it matters which functions there are.
    pub(super) fn is_by_function(&self) -> bool {
        self.inside.is_some()
    }

    pub(super) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Whether it matters which modules there are.
    pub(super) fn is_by_module(&self) -> bool {
        self.modules.is_some()
    }

    /// For the drain: what it means for the functions that there are. `None` if all is kept.
    pub(super) fn keep(&self, functions: &Functions) -> Option<Arc<Keep>> {
        if self.modules.is_none() && self.window.is_none() {
            return None;
        }
        let functions = self.modules.as_ref().map(|modules| {
            let loaded = functions.modules().into_iter();
            let kept = loaded.filter(|loaded| is_of(modules, &loaded.module.path));
            kept.map(|loaded| loaded.ids()).collect()
        });
        let window = self.window.clone();
        let window = window.unwrap_or(Ticks(0)..Ticks(u64::MAX));
        Some(Arc::new(Keep::new(functions, window)))
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

/// Whether these are the modules of that path.
fn is_of(modules: &CompiledSelection, path: &str) -> bool {
    modules.matches(&Candidate {
        id: 0,
        module: path,
        symbol: None,
        name: "",
        source: None,
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
            assert_eq!(is_of(&modules, path), expected, "{pattern}");
        }
        assert!(modules(&[]).unwrap().is_none());
        let refusal = modules(&["a[".to_owned()]).unwrap_err();
        assert_eq!(refusal.reason, Reason::Selection);
    }

    #[test]
    fn a_window_is_told_in_ticks_by_the_rate_of_the_counter() {
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
        let now = now_anchor().unwrap();
        for (from, until) in [(5, 5), (6, 5), (u64::MAX, u64::MAX)] {
            let filter = Filter {
                window: Window {
                    from_wall_ns: from,
                    until_wall_ns: until,
                },
                ..Filter::default()
            };
            let refused = Filtering::new(Pid::this(), &filter, now).unwrap_err();
            assert_eq!(refused.reason, Reason::Selection);
        }
    }
}
