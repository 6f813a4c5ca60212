//! The limit on what tracing costs, and the result of keeping to it.

use std::time::Duration;

use xray_trace::model::FunctionId;

use super::{CallFilter, Filter, Mode};
use crate::refusal::{Reason, Refusal, Result};

/// What tracing may cost; by default, whatever it does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Economy {
    /// No limit.
    #[default]
    None,
    /// At most so many millionths of the time that the program runs without it: 20,000 are 2 %.
    Budget(u32),
    /// Everything is recorded for a while, again and again, and nothing in between.
    Duty(Duty),
}

/// A duty cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duty {
    /// For so long everything is recorded…
    pub on: Duration,
    /// …in each so long.
    pub every: Duration,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EconomyStatus {
    /// What is wanted.
    pub economy: Economy,
    /// What tracing has cost of late, as a share of the time that the program runs without it; `None` before that was measured.
    pub overhead: Option<f64>,
    /// What an event is taken to cost, in nanoseconds; 0 before that was measured.
    pub event_ns: f64,
    /// Functions that are switched on and rest.
    pub resting: u32,
    /// About so many calls of them were not recorded.
    pub unrecorded: u64,
    /// Those of which the most were not, at most 10.
    pub top: Vec<Resting>,
    /// How often everything was recorded for a while.
    pub windows: u64,
}

/// A function that rests, or has rested.
#[derive(Debug, Clone, PartialEq)]
pub struct Resting {
    /// Which.
    pub function: FunctionId,
    /// Its name.
    pub name: String,
    /// Whether it rests now.
    pub rests: bool,
    /// About so many calls of it were not recorded.
    pub unrecorded: u64,
}

// === impl Economy ===

impl Economy {
    /// The smallest budget and the greatest, in millionths.
    const BUDGETS: std::ops::RangeInclusive<u32> = 100..=1_000_000;
    /// The shortest time for which everything is on, and the longest cycle.
    const LEAST_ON: Duration = Duration::from_millis(1);
    const MOST_EVERY: Duration = Duration::from_secs(3600);

    /// Whether it can be kept to.
    ///
    /// # Errors
    /// A budget or a time out of range.
    pub fn check(self) -> Result<()> {
        let refuse = |message: &str| Err(Refusal::new(Reason::Limit, message.to_owned()));
        match self {
            Self::None => Ok(()),
            Self::Budget(ppm) if !Self::BUDGETS.contains(&ppm) => {
                refuse("a budget is from 0.01 % to 100 %")
            }
            Self::Budget(_) => Ok(()),
            Self::Duty(Duty { on, .. }) if on < Self::LEAST_ON => {
                refuse("a duty cycle has everything on for 1 ms at least")
            }
            Self::Duty(Duty { on, every }) if on >= every || every > Self::MOST_EVERY => refuse(
                "a duty cycle is longer than the time for which everything is on, and an hour at most",
            ),
            Self::Duty(_) => Ok(()),
        }
    }

    /// Whether what it needs to know is to be had.
    ///
    /// # Errors
    /// Nothing is recorded by which functions could be weighed, or what is left out in the program would be.
    pub(crate) fn suits(self, mode: Mode, filter: &Filter) -> Result<()> {
        let refuse = |message: &str| Err(Refusal::new(Reason::Mode, message.to_owned()));
        match self {
            Self::None => Ok(()),
            _ if mode == Mode::Count => refuse(
                "counts would not be exact with a budget or a duty cycle: `xrayctl budget --clear`, or another mode",
            ),
            Self::Budget(_) if filter.calls != CallFilter::default() => refuse(
                "what a filter leaves out in the program cannot be weighed: a budget goes with --module, --from and --until only; `xrayctl budget --clear`, or `xrayctl filter --clear`",
            ),
            Self::Budget(_) | Self::Duty(_) => Ok(()),
        }
    }
}
