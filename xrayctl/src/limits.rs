//! The limit on what tracing costs, as options of the command line.

use std::time::Duration;

use xrayd::types;
use xrayd_proto::v1::{Budget, DutyCycle};

use crate::parse;

/// What tracing may cost.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Limits {
    /// Limit the cost of tracing to this share of the program's own time, from 0.01% to 100%, like
    /// 2%: functions that are called often and take little time are suppressed
    #[arg(long, value_name = "PERCENT", value_parser = parse::percent, conflicts_with = "duty")]
    max_overhead: Option<u32>,
    /// Never suppress functions with this name or glob for --max-overhead; can be given several
    /// times
    #[arg(long, value_name = "FUNCTION", requires = "max_overhead")]
    keep: Vec<String>,
    /// Record for TIME in each CYCLE, and nothing in the rest of it, like 5ms/1s; TIME is at least
    /// 1ms, CYCLE at most 1h
    #[arg(long, value_name = "TIME/CYCLE", value_parser = parse::duty)]
    duty: Option<(Duration, Duration)>,
}

// === impl Limits ===

impl Limits {
    /// The limit for a daemon; `None` without an option.
    pub(crate) fn wire(&self) -> Option<Budget> {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let cycle = |(on, every)| DutyCycle {
            on_ns: ns(on),
            every_ns: ns(every),
        };
        let budget = Budget {
            max_overhead_ppm: self.max_overhead.unwrap_or(0),
            duty: self.duty.map(cycle),
            keep: self.keep.clone(),
        };
        (budget != Budget::default()).then_some(budget)
    }

    /// The limit for the engine in this process.
    pub(crate) fn engine(&self) -> types::Budget {
        match (self.max_overhead, self.duty) {
            (Some(ppm), _) => types::Budget::Overhead(types::Overhead {
                ppm,
                keep: self.keep.clone(),
            }),
            (None, Some((on, every))) => types::Budget::Duty(types::Duty { on, every }),
            (None, None) => types::Budget::None,
        }
    }
}
