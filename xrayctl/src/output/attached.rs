//! `xrayctl attach`.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::{AttachReport, AttachResponse, ProcessStatus, RefusedModule, SkippedSleds};

use super::{Look, Tone, text, units};

/// The result of an attach.
#[derive(Debug, Serialize)]
pub(crate) struct Attached {
    status: ProcessStatus,
    report: AttachReport,
}

// === impl Attached ===

impl Attached {
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let AttachReport {
            already,
            adopted,
            stopped_ns,
            stopped_tid,
            ..
        } = self.report;
        let how = match (adopted, stopped_ns) {
            (true, _) => "memory of an earlier attach reused, no thread was stopped".to_owned(),
            (false, 0) => "no thread was stopped".to_owned(),
            (false, ns) => format!("thread {stopped_tid} was stopped for {}", units::time(ns)),
        };
        let functions = units::counted(self.status.functions.into(), "function");
        let pid = self.status.pid;
        if already {
            writeln!(
                out,
                "{pid}: was attached already, {functions} can be switched on"
            )?;
        } else {
            writeln!(
                out,
                "{pid}: attached, {functions} can be switched on; {how}"
            )?;
        }
        let warn = |out: &mut dyn io::Write, line: String| {
            writeln!(
                out,
                "  {}",
                look.paint(Tone::Warning, &text::printable(&line))
            )
        };
        for SkippedSleds { reason, sleds } in &self.report.skipped {
            warn(
                out,
                format!(
                    "{} cannot be used: {reason}",
                    units::counted(*sleds, "sled")
                ),
            )?;
        }
        for RefusedModule { path, refusal } in &self.report.refused_modules {
            let why = refusal.as_ref().map_or("", |refusal| &refusal.message);
            warn(out, format!("{path} cannot be traced: {why}"))?;
        }
        let mut notes = self.report.notes.iter();
        notes.try_for_each(|note| writeln!(out, "  {}", text::printable(note)))
    }
}

impl From<AttachResponse> for Attached {
    fn from(AttachResponse { status, report }: AttachResponse) -> Self {
        Self {
            status: status.unwrap_or_default(),
            report: report.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use xrayd_proto::v1::Refusal;

    use super::super::golden;
    use super::*;

    #[test]
    fn the_report_looks_as_agreed() {
        let status = ProcessStatus {
            pid: 812,
            functions: 1204,
            ..ProcessStatus::default()
        };
        let refusal = Refusal {
            reason: "no-memory".into(),
            message: "no room within 2 GiB".into(),
        };
        let report = AttachReport {
            already: false,
            adopted: false,
            stopped_ns: 123_456,
            stopped_tid: 813,
            skipped: vec![SkippedSleds {
                reason: "conditional tail jump".into(),
                sleds: 3,
            }],
            refused_modules: vec![RefusedModule {
                path: "/usr/lib/libfar.so".into(),
                refusal: Some(refusal),
            }],
            notes: vec!["the program is stripped".into()],
        };
        let again = Attached::from(AttachResponse {
            status: Some(status.clone()),
            report: Some(AttachReport {
                already: true,
                notes: vec!["the process keeps its rings of 1024 KiB for 1024 threads from an earlier attach".into()],
                ..AttachReport::default()
            }),
        });
        golden::check("attach-again.txt", |out| again.render(out, Look::PLAIN));
        let attached = Attached::from(AttachResponse {
            status: Some(status),
            report: Some(report),
        });
        golden::check("attach.txt", |out| attached.render(out, Look::PLAIN));
        golden::check_json("attach.json", &attached);
    }
}
