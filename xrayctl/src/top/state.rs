//! The state of the view, and the keys that change it.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, VecDeque};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use xrayd::types::Switch;

use super::interval::{Interval, Row};
use crate::output::Names;

/// The number of intervals in a trend.
const TREND: usize = 8;

/// Everything on the screen.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(super) interval: Interval,
    /// Calls per second of each function in the newest intervals, the oldest first.
    trends: HashMap<String, VecDeque<f64>>,
    pub(super) what: What,
    pub(super) sort: Sort,
    pub(super) filter: String,
    /// True if keys go into the filter.
    pub(super) typing: bool,
    /// True if new intervals are not shown.
    pub(super) paused: bool,
    /// The marked row among the rows that are shown.
    pub(super) marked: usize,
    /// The function whose callers and callees are shown.
    pub(super) inside: Option<String>,
    /// Functions that the user switched off in this view.
    pub(super) off: BTreeSet<String>,
    /// The last error.
    pub(super) message: Option<String>,
    /// The form of the names of functions.
    pub(super) names: Names,
}

/// The subject of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum What {
    #[default]
    Functions,
    Threads,
}

/// The order of the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    SelfTime,
    OnCpu,
    Calls,
    Median,
    P99,
    Max,
    Name,
}

/// The action of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Draw again.
    Draw,
    /// End the program.
    Quit,
    /// Enable or disable a function.
    Switch { function: String, to: Switch },
}

// === impl State ===

impl State {
    /// A state without figures, which shows names in this form.
    pub(crate) fn new(names: Names) -> Self {
        Self {
            names,
            ..Self::default()
        }
    }

    /// Takes the next interval in.
    pub(crate) fn take(&mut self, interval: Interval) {
        if self.paused {
            return;
        }
        let mut seen = BTreeSet::new();
        for row in &interval.rows {
            seen.insert(row.name.as_str());
            let trend = self.trends.entry(row.name.clone()).or_default();
            trend.push_back(row.calls_per_second);
        }
        self.trends.retain(|name, trend| {
            if !seen.contains(name.as_str()) {
                trend.push_back(0.0);
            }
            if trend.len() > TREND {
                trend.pop_front();
            }
            trend.iter().any(|calls| *calls > 0.0)
        });
        self.interval = interval;
        self.keep_marked();
    }

    /// Takes the result of enabling or disabling a function.
    pub(crate) fn switched(&mut self, function: String, to: Switch, result: Result<(), String>) {
        match (result, to) {
            (Err(why), _) => self.message = Some(why),
            (Ok(()), Switch::On) => drop(self.off.remove(&function)),
            (Ok(()), Switch::Off) => drop(self.off.insert(function)),
        }
    }

    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Option<Action> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        self.message = None;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if control => return Some(Action::Quit),
            code if self.typing => self.type_into_filter(code),
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Esc if self.inside.take().is_some() => {}
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Down | KeyCode::Char('j') => self.marked = self.marked.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.marked = self.marked.saturating_sub(1),
            KeyCode::PageDown => self.marked = self.marked.saturating_add(15),
            KeyCode::PageUp => self.marked = self.marked.saturating_sub(15),
            KeyCode::Home => self.marked = 0,
            KeyCode::End => self.marked = usize::MAX,
            KeyCode::Char('s') => self.sort = self.sort.next(self.shows_on_cpu()),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('t') => {
                self.what = match self.what {
                    What::Functions => What::Threads,
                    What::Threads => What::Functions,
                };
                if self.sort == Sort::OnCpu && !self.shows_on_cpu() {
                    self.sort = Sort::default();
                }
                self.inside = None;
            }
            KeyCode::Enter if self.what == What::Functions => self.inside = self.marked_name(),
            KeyCode::Char(' ') if self.what == What::Functions => {
                let function = self.marked_name()?;
                let to = match self.off.contains(&function) {
                    true => Switch::On,
                    false => Switch::Off,
                };
                return Some(Action::Switch { function, to });
            }
            _ => return None,
        }
        self.keep_marked();
        Some(Action::Draw)
    }

    fn type_into_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
    }

    /// The rows that are shown, in order. Functions that were switched off in this view are among
    /// them.
    pub(super) fn rows(&self) -> Vec<Row> {
        let rows = match self.what {
            What::Functions => &self.interval.rows,
            What::Threads => &self.interval.threads,
        };
        let mut rows = rows.clone();
        if self.what == What::Functions {
            let silent = |name: &&String| !rows.iter().any(|row| row.name == **name);
            let off: Vec<Row> = self
                .off
                .iter()
                .filter(silent)
                .map(|name| Row {
                    name: name.clone(),
                    ..Row::default()
                })
                .collect();
            rows.extend(off);
        }
        rows.retain(|row| row.name.contains(&self.filter));
        rows.sort_by(|a, b| self.sort.compare(a, b).then_with(|| a.name.cmp(&b.name)));
        rows
    }

    /// True if rows have the time for which they had a processor.
    pub(super) fn shows_on_cpu(&self) -> bool {
        self.what == What::Threads || self.interval.has_on_cpu
    }

    pub(super) fn trend(&self, name: &str) -> impl Iterator<Item = f64> {
        self.trends.get(name).into_iter().flatten().copied()
    }

    fn marked_name(&self) -> Option<String> {
        self.rows().into_iter().nth(self.marked).map(|row| row.name)
    }

    fn keep_marked(&mut self) {
        self.marked = self.marked.min(self.rows().len().saturating_sub(1));
    }
}

// === impl Sort ===

impl Sort {
    fn next(self, shows_on_cpu: bool) -> Self {
        match self {
            Self::SelfTime if shows_on_cpu => Self::OnCpu,
            Self::SelfTime | Self::OnCpu => Self::Calls,
            Self::Calls => Self::Median,
            Self::Median => Self::P99,
            Self::P99 => Self::Max,
            Self::Max => Self::Name,
            Self::Name => Self::SelfTime,
        }
    }

    /// The greatest value first, then in order of names.
    fn compare(self, a: &Row, b: &Row) -> Ordering {
        match self {
            Self::SelfTime => b.self_ns_per_second.total_cmp(&a.self_ns_per_second),
            Self::OnCpu => {
                let on_cpu = |row: &Row| row.on_cpu_ns_per_second.unwrap_or(-1.0);
                on_cpu(b).total_cmp(&on_cpu(a))
            }
            Self::Calls => b.calls_per_second.total_cmp(&a.calls_per_second),
            Self::Median => b.median_ns.cmp(&a.median_ns),
            Self::P99 => b.p99_ns.cmp(&a.p99_ns),
            Self::Max => b.max_ns.cmp(&a.max_ns),
            Self::Name => Ordering::Equal,
        }
    }
}
