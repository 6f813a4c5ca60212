//! `xrayctl budget`.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::{Economy, EconomyReport, EconomyStatus, ProcessStatus, Refusal};

use super::text::printable;
use super::{Column, Look, Table, refused, units};

/// The results of setting or asking for the limit on what tracing costs.
#[derive(Debug, Serialize)]
pub(crate) struct EconomySet {
    /// `None` if the limit was only asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    economy: Option<Economy>,
    processes: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    pid: u32,
    /// The limit before; `None` if it could not be changed.
    before: Option<Economy>,
    refusal: Option<Refusal>,
    /// Present if the limit was only asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<EconomyStatus>,
}

// === impl EconomySet ===

impl EconomySet {
    /// `statuses` are the states of the processes if the limit was only asked for.
    pub(crate) fn new(
        economy: Option<Economy>,
        reports: Vec<EconomyReport>,
        statuses: Vec<ProcessStatus>,
    ) -> Self {
        let mut statuses = statuses;
        let processes = reports.into_iter().map(|report| {
            let EconomyReport {
                pid,
                before,
                refusal,
            } = report;
            // After an exec, the ended program has a status with the same pid.
            let of_it = statuses.iter_mut().filter(|status| status.pid == pid);
            let status = of_it.min_by_key(|status| status.state == "exited");
            Row {
                pid,
                before,
                refusal,
                status: status.and_then(|status| status.economy.take()),
            }
        });
        Self {
            economy,
            processes: processes.collect(),
        }
    }

    /// The first process that refused.
    pub(crate) fn refusal(&self) -> Option<(u32, &Refusal)> {
        let mut rows = self.processes.iter();
        rows.find_map(|row| Some((row.pid, row.refusal.as_ref()?)))
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        for row in &self.processes {
            let pid = row.pid;
            let before = row.before.as_ref().map(describe).unwrap_or_default();
            match (&row.refusal, self.economy.as_ref().map(describe)) {
                (Some(refusal), _) => refused::render(refusal, pid, out, look)?,
                (None, None) => render_status(row, &before, out, look)?,
                (None, Some(now)) if now == before => writeln!(out, "{pid}: {now}, as before")?,
                (None, Some(now)) => writeln!(out, "{pid}: {now}; before: {before}")?,
            }
        }
        Ok(())
    }
}

fn render_status(row: &Row, what: &str, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
    let pid = row.pid;
    let Some(status) = &row.status else {
        return writeln!(out, "{pid}: {what}");
    };
    writeln!(out, "{pid}: {what}")?;
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
        table.push([
            format!(
                "~{}",
                units::count(units::rough(function.unrecorded_estimate))
            )
            .into(),
            if function.rests { "suppressed" } else { "on" }.into(),
            printable(&function.name).into(),
        ]);
    }
    table.render(out, look)
}

/// The limit in words.
pub(crate) fn describe(economy: &Economy) -> String {
    match (economy.max_overhead_ppm, &economy.duty) {
        (0, None) => "no limit".to_owned(),
        (ppm, None) => format!("at most {}", percent(ppm.into())),
        (_, Some(duty)) => format!(
            "everything for {} in each {}",
            units::time(duty.on_ns),
            units::time(duty.every_ns)
        ),
    }
}

/// The effect of a limit in lines; empty if there is no limit and was none.
pub(crate) fn came_of_it(status: &EconomyStatus) -> Vec<String> {
    let EconomyStatus {
        economy,
        overhead_ppm,
        event_ns: _,
        resting,
        unrecorded_estimate,
        top: _,
        windows,
    } = status;
    let mut lines = Vec::new();
    let budget = economy.map_or(0, |economy| economy.max_overhead_ppm);
    if let (Some(ppm), true) = (overhead_ppm, budget > 0) {
        lines.push(format!(
            "cost: about {}, limit {}",
            percent(*ppm),
            percent(budget.into())
        ));
    }
    match resting {
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
    use xrayd_proto::v1::{DutyCycle, RestingFunction};

    use super::*;

    #[test]
    fn limits_are_told_in_words() {
        let budget = |ppm| Economy {
            max_overhead_ppm: ppm,
            duty: None,
        };
        let duty = Economy {
            max_overhead_ppm: 0,
            duty: Some(DutyCycle {
                on_ns: 5_000_000,
                every_ns: 1_000_000_000,
            }),
        };
        for (economy, expected) in [
            (budget(0), "no limit"),
            (budget(20_000), "at most 2 %"),
            (budget(1_500), "at most 0.15 %"),
            (budget(25_000), "at most 2.5 %"),
            (duty, "everything for 5.000 ms in each 1.000 s"),
        ] {
            assert_eq!(describe(&economy), expected);
        }
    }

    /// A process that called exec has two statuses.
    #[test]
    fn the_status_is_that_of_the_program_that_lives() {
        let status = |state: &str, windows| ProcessStatus {
            pid: 7,
            state: state.to_owned(),
            economy: Some(EconomyStatus {
                windows,
                ..EconomyStatus::default()
            }),
            ..ProcessStatus::default()
        };
        let report = EconomyReport {
            pid: 7,
            ..EconomyReport::default()
        };
        let (ended, lives) = (status("exited", 1), status("tracing", 2));
        for statuses in [vec![ended.clone(), lives.clone()], vec![lives, ended]] {
            let set = EconomySet::new(None, vec![report.clone()], statuses);
            assert_eq!(set.processes[0].status.as_ref().unwrap().windows, 2);
        }
    }

    #[test]
    fn what_rests_is_shown() {
        let economy = Economy {
            max_overhead_ppm: 20_000,
            duty: None,
        };
        let report = EconomyReport {
            pid: 7,
            before: Some(economy),
            refusal: None,
        };
        let function = |id, rests| RestingFunction {
            id,
            name: format!("f{id}"),
            rests,
            unrecorded_estimate: 1_234_567,
        };
        let status = ProcessStatus {
            pid: 7,
            economy: Some(EconomyStatus {
                economy: Some(economy),
                overhead_ppm: Some(17_300),
                event_ns: 12.0,
                resting: 1,
                unrecorded_estimate: 2_469_134,
                top: vec![function(1, true), function(2, false)],
                windows: 0,
            }),
            ..ProcessStatus::default()
        };
        let set = EconomySet::new(None, vec![report], vec![status]);
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
