//! Answers about settings and their effect.

use std::time::Duration;

use xrayd_proto::v1;

use crate::types::{
    Budget, BudgetStatus, CallFilter, Duty, Filter, Mode, Overhead, Settings, Suppressed, Window,
};

/// Converts a filter.
pub(super) fn filter(filter: Filter) -> v1::Filter {
    let Filter {
        modules,
        window: Window {
            from_wall_ns,
            until_wall_ns,
        },
        calls:
            CallFilter {
                shortest,
                max_depth,
                one_in,
                inside,
                threads,
            },
    } = filter;
    v1::Filter {
        min_duration_ns: u64::try_from(shortest.as_nanos()).unwrap_or(u64::MAX),
        max_depth,
        one_in,
        inside,
        threads,
        modules,
        from_wall_ns,
        until_wall_ns: match until_wall_ns {
            u64::MAX => 0,
            until => until,
        },
    }
}

pub(crate) fn settings(settings: Settings) -> v1::Settings {
    let Settings {
        mode: its_mode,
        filter: its_filter,
        budget: its_budget,
    } = settings;
    v1::Settings {
        mode: mode(its_mode).into(),
        filter: Some(filter(its_filter)),
        budget: Some(budget(its_budget)),
    }
}

/// Converts a limit on the cost of tracing.
fn budget(budget: Budget) -> v1::Budget {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    match budget {
        Budget::None => v1::Budget::default(),
        Budget::Overhead(Overhead { ppm, keep }) => v1::Budget {
            max_overhead_ppm: ppm,
            duty: None,
            keep,
        },
        Budget::Duty(Duty { on, every }) => v1::Budget {
            duty: Some(v1::DutyCycle {
                on_ns: ns(on),
                every_ns: ns(every),
            }),
            ..v1::Budget::default()
        },
    }
}

pub(super) fn budget_status(status: BudgetStatus) -> v1::BudgetStatus {
    let BudgetStatus {
        budget: wanted,
        overhead,
        event_ns,
        suppressed,
        unrecorded,
        top,
        windows,
    } = status;
    let suppressed_function = |function: Suppressed| v1::SuppressedFunction {
        id: function.function.0,
        name: function.name,
        suppressed: function.suppressed,
        unrecorded_estimate: function.unrecorded,
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share, not below 0; what is beyond all bounds is the greatest number"
    )]
    let ppm = |share: f64| (share * 1e6).round() as u64;
    v1::BudgetStatus {
        budget: Some(budget(wanted)),
        overhead_ppm: overhead.map(ppm),
        event_ns,
        suppressed,
        unrecorded_estimate: unrecorded,
        top: top.into_iter().map(suppressed_function).collect(),
        windows,
    }
}

pub(in crate::rpc) fn mode(mode: Mode) -> v1::Mode {
    match mode {
        Mode::Flight => v1::Mode::Flight,
        Mode::Stream => v1::Mode::Stream,
        Mode::Profile => v1::Mode::Profile,
        Mode::Count => v1::Mode::Count,
    }
}
