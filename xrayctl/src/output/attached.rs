//! `xrayctl attach`.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::{AttachReport, AttachResponse, ProcessStatus, RefusedModule, SkippedSleds};

use super::processes::RefusalRow;
use super::status::StatusRow;
use super::{Look, Tone, text, units};

/// What attaching did.
#[derive(Debug, Serialize)]
pub(crate) struct Attached {
    status: StatusRow,
    report: ReportRow,
    #[serde(skip)]
    headline: String,
}

#[derive(Debug, Serialize)]
struct ReportRow {
    adopted: bool,
    stopped_ns: u64,
    stopped_tid: u32,
    skipped: Vec<SkippedRow>,
    refused_modules: Vec<RefusedModuleRow>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct SkippedRow {
    reason: String,
    sleds: u64,
}

#[derive(Debug, Serialize)]
struct RefusedModuleRow {
    path: String,
    refusal: Option<RefusalRow>,
}

// === impl Attached ===

impl Attached {
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let ReportRow {
            adopted,
            stopped_ns,
            stopped_tid,
            ..
        } = self.report;
        let how = match (adopted, stopped_ns) {
            (true, _) => "memory of an earlier attach taken over, no thread was stopped".to_owned(),
            (false, 0) => "no thread was stopped".to_owned(),
            (false, ns) => format!("thread {stopped_tid} stood still for {}", units::time(ns)),
        };
        writeln!(out, "{}; {how}", self.headline)?;
        let warn = |out: &mut dyn io::Write, line: String| {
            writeln!(
                out,
                "  {}",
                look.paint(Tone::Warning, &text::printable(&line))
            )
        };
        for SkippedRow { reason, sleds } in &self.report.skipped {
            warn(
                out,
                format!(
                    "{} cannot be used: {reason}",
                    units::counted(*sleds, "sled")
                ),
            )?;
        }
        for RefusedModuleRow { path, refusal } in &self.report.refused_modules {
            let why = refusal.as_ref().map_or("", |refusal| &refusal.message);
            warn(out, format!("{path} cannot be traced: {why}"))?;
        }
        let mut notes = self.report.notes.iter();
        notes.try_for_each(|note| writeln!(out, "  {}", text::printable(note)))
    }
}

impl From<AttachResponse> for Attached {
    fn from(AttachResponse { status, report }: AttachResponse) -> Self {
        let status: ProcessStatus = status.unwrap_or_default();
        let functions = units::counted(status.functions.into(), "function");
        let headline = format!("{}: attached, {functions} can be switched on", status.pid);
        let AttachReport {
            adopted,
            stopped_ns,
            stopped_tid,
            skipped,
            refused_modules,
            notes,
        } = report.unwrap_or_default();
        let skipped = skipped
            .into_iter()
            .map(|SkippedSleds { reason, sleds }| SkippedRow { reason, sleds })
            .collect();
        let refused_modules = refused_modules
            .into_iter()
            .map(|RefusedModule { path, refusal }| RefusedModuleRow {
                path,
                refusal: refusal.map(RefusalRow::from),
            })
            .collect();
        Self {
            status: status.into(),
            report: ReportRow {
                adopted,
                stopped_ns,
                stopped_tid,
                skipped,
                refused_modules,
                notes,
            },
            headline,
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
        let attached = Attached::from(AttachResponse {
            status: Some(status),
            report: Some(report),
        });
        golden::check("attach.txt", |out| attached.render(out, Look::PLAIN));
        golden::check_json("attach.json", &attached);
    }
}
