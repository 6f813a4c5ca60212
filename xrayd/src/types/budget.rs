//! The limit on what tracing costs, and the result of keeping to it.

use std::time::Duration;

use xray_trace::{
    instr_map::{CompiledSelection, Rule, Selection},
    model::FunctionId,
};

use super::{CallFilter, Filter, Mode, compile};
use crate::refusal::{Reason, Refusal, Result};

/// The limit on what tracing costs. The default is no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Budget {
    /// No limit.
    #[default]
    None,
    /// A limit on the overhead.
    Overhead(Overhead),
    /// A duty cycle.
    Duty(Duty),
}

/// A limit on the overhead, and the functions that it never suppresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overhead {
    /// Overhead in millionths of the time that the program runs without tracing: 20,000 are 2 %.
    pub ppm: u32,
    /// Names or globs of functions that are never suppressed; empty for none. Their cost counts,
    /// and may exceed the limit.
    pub keep: Vec<String>,
}

/// Times in which all functions record, and times in which none does, in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duty {
    /// The length of a time in which functions record.
    pub on: Duration,
    /// The length of a whole cycle.
    pub every: Duration,
}

/// A limit, and its effect.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BudgetStatus {
    /// The limit.
    pub budget: Budget,
    /// The overhead that was measured last, as a share of the time that the program runs without
    /// tracing. `None` before the first measurement.
    pub overhead: Option<f64>,
    /// The estimated cost of one event, in nanoseconds; 0 before the first measurement.
    pub event_ns: f64,
    /// Suppressed functions: they are on, and their sleds are off.
    pub suppressed: u32,
    /// The estimated number of their calls that were not recorded.
    pub unrecorded: u64,
    /// The functions with the most unrecorded calls, 10 at most.
    pub top: Vec<Suppressed>,
    /// The number of times in which all functions recorded.
    pub windows: u64,
}

/// A function that is suppressed, or was.
#[derive(Debug, Clone, PartialEq)]
pub struct Suppressed {
    /// The function.
    pub function: FunctionId,
    /// Its name.
    pub name: String,
    /// True if it is suppressed now.
    pub suppressed: bool,
    /// The estimated number of its calls that were not recorded.
    pub unrecorded: u64,
}

// === impl Budget ===

impl Budget {
    /// The smallest budget and the greatest, in millionths.
    const BUDGETS: std::ops::RangeInclusive<u32> = 100..=1_000_000;
    /// The shortest time for which everything is on, and the longest cycle.
    const LEAST_ON: Duration = Duration::from_millis(1);
    const MOST_EVERY: Duration = Duration::from_secs(3600);

    /// An overhead budget, in millionths, that may suppress every function.
    pub const fn overhead(ppm: u32) -> Self {
        let keep = Vec::new();
        Self::Overhead(Overhead { ppm, keep })
    }

    /// Checks the values.
    ///
    /// # Errors
    /// A budget or a time out of range, or a pattern that does not compile.
    pub fn check(&self) -> Result<()> {
        let refuse = |message: &str| Err(Refusal::new(Reason::Limit, message.to_owned()));
        match self {
            Self::None => Ok(()),
            Self::Overhead(Overhead { ppm, .. }) if !Self::BUDGETS.contains(ppm) => {
                refuse("a budget must be from 0.01 % to 100 %")
            }
            Self::Overhead(_) => self.kept().map(drop),
            Self::Duty(Duty { on, .. }) if *on < Self::LEAST_ON => {
                refuse("the recorded time of a duty cycle must be at least 1 ms")
            }
            Self::Duty(Duty { on, every }) if on >= every || *every > Self::MOST_EVERY => {
                refuse("a duty cycle must be longer than its recorded time, and at most 1 h")
            }
            Self::Duty(_) => Ok(()),
        }
    }

    /// The functions that the budget never suppresses. `None` if it may suppress every function.
    ///
    /// # Errors
    /// A pattern that does not compile.
    pub(crate) fn kept(&self) -> Result<Option<CompiledSelection>> {
        match self {
            Self::Overhead(Overhead { keep, .. }) if !keep.is_empty() => {
                let include = keep.iter().cloned().map(Rule::Glob);
                let selection = Selection {
                    include: include.collect(),
                    exclude: Vec::new(),
                };
                compile(&selection).map(Some)
            }
            Self::None | Self::Overhead(_) | Self::Duty(_) => Ok(None),
        }
    }

    /// Checks that the mode and the filter leave the events that a limit needs.
    ///
    /// # Errors
    /// Mode `count`, or a budget beside a filter that leaves out calls in the program.
    pub(crate) fn suits(&self, mode: Mode, filter: &Filter) -> Result<()> {
        let refuse = |message: &str| Err(Refusal::new(Reason::Mode, message.to_owned()));
        match self {
            Self::None => Ok(()),
            _ if mode == Mode::Count => refuse(
                "a budget or a duty cycle does not go with mode count, because counts would not be \
                 exact: use `xrayctl budget --clear`, or another mode",
            ),
            Self::Overhead(_) if filter.calls != CallFilter::default() => refuse(
                "a budget goes only with the filters --module, --from and --until, because the \
                 cost of calls that the program leaves out is not known: use `xrayctl budget \
                 --clear`, or `xrayctl filter --clear`",
            ),
            Self::Overhead(_) | Self::Duty(_) => Ok(()),
        }
    }
}
