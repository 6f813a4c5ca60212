//! `xrayctl budget`.

use std::io;

use xrayd_proto::v1::{
    Budget, BudgetStatus, ProcessStatus, SessionState, Settings, SettingsReport,
};

use super::per_process::{PerProcess, Setting};
use super::{Cell, Column, Look, Table, units};

/// The results of setting the limit on what tracing costs, or of asking for it. `statuses` are the
/// states of the processes if the limit was only asked for.
pub(crate) fn set(
    budget: Option<Budget>,
    reports: Vec<SettingsReport>,
    mut statuses: Vec<ProcessStatus>,
) -> PerProcess<Budget> {
    PerProcess::with_effects(budget, reports, |pid| {
        // After an exec, the ended program has a status with the same pid.
        let of_it = statuses.iter_mut().filter(|status| status.pid == pid);
        let status = of_it.min_by_key(|status| status.state() == SessionState::Exited);
        status.and_then(|status| status.budget.take())
    })
}

impl Setting for Budget {
    const KEY: &'static str = "budget";
    type Effect = BudgetStatus;

    fn of(settings: Settings) -> Option<Self> {
        settings.budget
    }

    fn into_settings(self) -> Settings {
        Settings {
            budget: Some(self),
            ..Settings::default()
        }
    }

    fn describe(&self) -> String {
        describe(self)
    }

    fn render_effect(
        pid: u32,
        status: &BudgetStatus,
        out: &mut dyn io::Write,
        look: Look,
    ) -> io::Result<()> {
        for line in came_of_it(status) {
            writeln!(out, "{pid}: {line}")?;
        }
        if status.top.is_empty() {
            return Ok(());
        }
        let mut table = Table::new([
            Column::right("NOT RECORDED"),
            Column::left("NOW"),
            Column::elastic("FUNCTION"),
        ]);
        for function in &status.top {
            let calls = units::count(units::rough(function.unrecorded_estimate));
            let now = match function.suppressed {
                true => "suppressed",
                false => "on",
            };
            table.push([
                format!("~{calls}").into(),
                now.into(),
                Cell::function(&function.name),
            ]);
        }
        table.render(out, look)
    }
}

/// The limit in words.
pub(crate) fn describe(budget: &Budget) -> String {
    match (budget.max_overhead_ppm, &budget.duty) {
        (0, None) => "no limit".to_owned(),
        (ppm, None) => {
            let mut limit = format!("at most {}", percent(ppm.into()));
            if !budget.keep.is_empty() {
                limit.push_str(", never suppressing ");
                limit.push_str(&budget.keep.join(" "));
            }
            limit
        }
        (_, Some(duty)) => format!(
            "everything for {} in each {}",
            units::time(duty.on_ns),
            units::time(duty.every_ns)
        ),
    }
}

/// The effect of a limit in lines; empty if there is no limit and was none.
pub(crate) fn came_of_it(status: &BudgetStatus) -> Vec<String> {
    let BudgetStatus {
        budget,
        overhead_ppm,
        event_ns: _,
        suppressed,
        unrecorded_estimate,
        top: _,
        windows,
    } = status;
    let mut lines = Vec::new();
    let budget = budget.as_ref();
    let budget = budget.map_or(0, |budget| budget.max_overhead_ppm);
    if let (Some(ppm), true) = (overhead_ppm, budget > 0) {
        lines.push(format!(
            "cost: about {}, limit {}",
            percent(*ppm),
            percent(budget.into())
        ));
    }
    match suppressed {
        0 => {}
        1 => lines.push("1 function suppressed".to_owned()),
        more => lines.push(format!("{more} functions suppressed")),
    }
    if *unrecorded_estimate > 0 {
        let calls = units::count(units::rough(*unrecorded_estimate));
        lines.push(format!("~{calls} calls not recorded"));
    }
    if *windows > 0 {
        let windows = units::counted(*windows, "window");
        lines.push(format!("recorded in {windows} so far"));
    }
    lines
}

/// Millionths as a percentage.
fn percent(ppm: u64) -> String {
    let hundredths = ppm.saturating_add(50) / 100;
    match (hundredths / 100, hundredths % 100) {
        (whole, 0) => format!("{whole} %"),
        (whole, rest) if rest % 10 == 0 => format!("{whole}.{} %", rest / 10),
        (whole, rest) => format!("{whole}.{rest:02} %"),
    }
}

#[cfg(test)]
mod tests {
    use xrayd_proto::v1::{DutyCycle, SuppressedFunction};

    use super::*;

    #[test]
    fn limits_are_reported_in_words() {
        let budget = |ppm| Budget {
            max_overhead_ppm: ppm,
            ..Budget::default()
        };
        let keeping = Budget {
            keep: vec!["svc::handle".to_owned(), "io::*".to_owned()],
            ..budget(20_000)
        };
        let duty = Budget {
            duty: Some(DutyCycle {
                on_ns: 5_000_000,
                every_ns: 1_000_000_000,
            }),
            ..Budget::default()
        };
        for (budget, expected) in [
            (budget(0), "no limit"),
            (budget(20_000), "at most 2 %"),
            (budget(1_500), "at most 0.15 %"),
            (budget(25_000), "at most 2.5 %"),
            (keeping, "at most 2 %, never suppressing svc::handle io::*"),
            (duty, "everything for 5.000 ms in each 1.000 s"),
        ] {
            assert_eq!(describe(&budget), expected);
        }
    }

    /// A process that called exec has two statuses.
    #[test]
    fn the_status_is_that_of_the_program_that_lives() {
        let status = |state: SessionState, windows| ProcessStatus {
            pid: 7,
            state: state.into(),
            budget: Some(BudgetStatus {
                windows,
                ..BudgetStatus::default()
            }),
            ..ProcessStatus::default()
        };
        let report = SettingsReport {
            pid: 7,
            ..SettingsReport::default()
        };
        let (ended, lives) = (
            status(SessionState::Exited, 1),
            status(SessionState::Tracing, 2),
        );
        for statuses in [vec![ended.clone(), lives.clone()], vec![lives, ended]] {
            let set = set(None, vec![report.clone()], statuses);
            let json = serde_json::to_value(&set).unwrap();
            assert_eq!(json["processes"][0]["status"]["windows"], 2);
        }
    }

    #[test]
    fn suppressed_functions_are_shown() {
        let budget = Budget {
            max_overhead_ppm: 20_000,
            ..Budget::default()
        };
        let report = SettingsReport {
            pid: 7,
            before: Some(budget.clone().into_settings()),
            refusal: None,
        };
        let function = |id, suppressed| SuppressedFunction {
            id,
            name: format!("f{id}"),
            suppressed,
            unrecorded_estimate: 1_234_567,
        };
        let status = ProcessStatus {
            pid: 7,
            budget: Some(BudgetStatus {
                budget: Some(budget),
                overhead_ppm: Some(17_300),
                event_ns: 12.0,
                suppressed: 1,
                unrecorded_estimate: 2_469_134,
                top: vec![function(1, true), function(2, false)],
                windows: 0,
            }),
            ..ProcessStatus::default()
        };
        let set = set(None, vec![report], vec![status]);
        let mut out = Vec::new();
        set.render(&mut out, Look::PLAIN).unwrap();
        let expected = "\
7: at most 2 %
7: cost: about 1.73 %, limit 2 %
7: 1 function suppressed
7: ~2,500,000 calls not recorded
NOT RECORDED  NOW         FUNCTION
  ~1,200,000  suppressed  f1
  ~1,200,000  on          f2
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
