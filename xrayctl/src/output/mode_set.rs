//! `xrayctl mode`.

use std::io;

use serde::Serialize;
use xrayd::types::Mode;
use xrayd_proto::v1::{self, ModeReport, Refusal};

use super::{Look, refused};

/// The results of setting the mode.
#[derive(Debug, Serialize)]
pub(crate) struct ModeSet {
    mode: &'static str,
    processes: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    pid: u32,
    /// The mode before; `None` if it was not changed.
    before: Option<&'static str>,
    refusal: Option<Refusal>,
}

// === impl ModeSet ===

impl ModeSet {
    pub(crate) fn new(mode: Mode, reports: Vec<ModeReport>) -> Self {
        let row = |report: ModeReport| {
            let before = match report.before() {
                v1::Mode::Unspecified => None,
                v1::Mode::Flight => Some(Mode::Flight.name()),
                v1::Mode::Stream => Some(Mode::Stream.name()),
                v1::Mode::Profile => Some(Mode::Profile.name()),
                v1::Mode::Count => Some(Mode::Count.name()),
            };
            let ModeReport { pid, refusal, .. } = report;
            Row {
                pid,
                before,
                refusal,
            }
        };
        Self {
            mode: mode.name(),
            processes: reports.into_iter().map(row).collect(),
        }
    }

    /// The first process that refused.
    pub(crate) fn refusal(&self) -> Option<(u32, &Refusal)> {
        let mut rows = self.processes.iter();
        rows.find_map(|row| Some((row.pid, row.refusal.as_ref()?)))
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mode = self.mode;
        for row in &self.processes {
            let pid = row.pid;
            match (&row.refusal, row.before) {
                (Some(refusal), _) => refused::render(refusal, pid, out, look)?,
                (None, Some(before)) if before != mode => {
                    writeln!(out, "{pid}: {mode}, was {before}")?;
                }
                (None, _) => writeln!(out, "{pid}: {mode}, as before")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::golden, *};

    #[test]
    fn what_became_of_each_is_told() {
        let report = |pid, before: v1::Mode| ModeReport {
            pid,
            before: before.into(),
            refusal: None,
        };
        let refused = ModeReport {
            pid: 9,
            before: 0,
            refusal: Some(Refusal {
                reason: "target-exited".into(),
                message: "process 9 has ended".into(),
            }),
        };
        let reports = vec![
            report(7, v1::Mode::Flight),
            report(8, v1::Mode::Stream),
            refused,
        ];
        let set = ModeSet::new(Mode::Stream, reports);
        golden::check("mode.txt", |out| set.render(out, Look::PLAIN));
        golden::check_json("mode.json", &set);
    }
}
