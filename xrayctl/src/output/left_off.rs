//! `xrayctl off`: what was left on, and the proof that it is off.

use std::io;

use serde::Serialize;
use xrayd::{Pid, Refusal, types::DetachReport};
use xrayd_proto::v1;

use super::{Look, detached, refused, units};

/// The results, process by process.
#[derive(Debug, Serialize)]
pub(crate) struct LeftOff {
    processes: Vec<LeftOffRow>,
}

/// The result for one process.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LeftOffRow {
    /// Sleds that were on.
    left_on: u64,
    #[serde(flatten)]
    report: v1::DetachReport,
}

// === impl LeftOff ===

impl LeftOff {
    /// The first process that was refused, and the reason.
    pub(crate) fn refusal(&self) -> Option<(u32, &v1::Refusal)> {
        let mut rows = self.processes.iter().map(|row| &row.report);
        rows.find_map(|row| Some((row.pid, row.refusal.as_ref()?)))
    }

    /// The first process that is not proven to be as it was.
    pub(crate) fn unproven(&self) -> Option<u32> {
        let mut rows = self.processes.iter().map(|row| &row.report);
        rows.find(|row| detached::is_unproven(row))
            .map(|row| row.pid)
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        if self.processes.is_empty() {
            return writeln!(out, "nothing was left on in any process");
        }
        self.processes
            .iter()
            .try_for_each(|row| row.render(out, look))
    }
}

impl From<Vec<LeftOffRow>> for LeftOff {
    fn from(processes: Vec<LeftOffRow>) -> Self {
        Self { processes }
    }
}

// === impl LeftOffRow ===

impl LeftOffRow {
    pub(crate) fn new(pid: Pid, result: Result<(u64, DetachReport), Refusal>) -> Self {
        let pid = pid.as_u32();
        match result {
            Ok((left_on, report)) => Self {
                left_on,
                report: v1::DetachReport {
                    pid,
                    ..report.into()
                },
            },
            Err(Refusal { reason, message }) => Self {
                left_on: 0,
                report: v1::DetachReport {
                    pid,
                    refusal: Some(v1::Refusal {
                        reason: reason.id().to_owned(),
                        message,
                    }),
                    ..v1::DetachReport::default()
                },
            },
        }
    }

    fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let Self { left_on, report } = self;
        let pid = report.pid;
        if let Some(refusal) = &report.refusal {
            return refused::render(refusal, pid, out, look);
        }
        if report.exited {
            return writeln!(out, "{pid}: had already ended");
        }
        match left_on {
            0 => writeln!(out, "{pid}: nothing was left on")?,
            left_on => writeln!(
                out,
                "{pid}: switched off {}",
                units::counted(*left_on, "sled")
            )?,
        }
        detached::render_proof(report, out, look)
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;
    use xrayd::Reason;

    #[test]
    fn the_result_looks_as_agreed() {
        let pid = |pid: u32| Pid::try_from(pid).unwrap();
        let report = DetachReport {
            sleds_off: 2408,
            text_bytes_compared: 1_234_567,
            ..DetachReport::default()
        };
        let differs = DetachReport {
            sleds_on: 2,
            ..report
        };
        let refusal = Refusal {
            reason: Reason::Busy,
            message: "process 815 is traced by another xrayd".to_owned(),
        };
        let rows = vec![
            LeftOffRow::new(pid(812), Ok((43, report))),
            LeftOffRow::new(pid(813), Ok((0, report))),
            LeftOffRow::new(pid(814), Ok((7, differs))),
            LeftOffRow::new(pid(815), Err(refusal)),
        ];
        let left_off = LeftOff::from(rows);
        golden::check("off.txt", |out| left_off.render(out, Look::PLAIN));
        golden::check_json("off.json", &left_off);
        assert_eq!(left_off.unproven(), Some(814));
        assert_eq!(left_off.refusal().map(|(pid, _)| pid), Some(815));
    }
}
