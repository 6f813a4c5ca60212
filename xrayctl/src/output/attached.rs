//! `xrayctl attach`.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::{
    AttachReport, AttachResponse, ProcessStatus, RefusedModule, SkippedSleds, ToggleReport,
};

use super::{Look, Tone, refused, text, toggled, units};

/// The result of an attach.
#[derive(Debug, Serialize)]
pub(crate) struct Attached {
    status: ProcessStatus,
    report: AttachReport,
    /// The functions that were switched on, process by process: this one, and those that are
    /// followed from it. `None` without selectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    enabled: Option<Vec<ToggleReport>>,
}

/// The results of several attaches.
#[derive(Debug, Serialize)]
pub(crate) struct SeveralAttached {
    pub(crate) processes: Vec<Attached>,
}

// === impl Attached ===

impl Attached {
    /// Adds the functions that were switched on, and the status after it, if that is known.
    pub(crate) fn with_enabled(
        self,
        enabled: Vec<ToggleReport>,
        status: Option<ProcessStatus>,
    ) -> Self {
        Self {
            status: status.unwrap_or(self.status),
            enabled: Some(enabled),
            ..self
        }
    }

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
        let pid = self.status.pid;
        let enabled = self.enabled.as_deref().unwrap_or_default();
        let own = enabled.iter().find(|row| row.pid == pid);
        let functions = match own {
            Some(row) => toggled::switched_on(row),
            None => format!(
                "{} can be switched on",
                units::counted(self.status.functions.into(), "function")
            ),
        };
        match already {
            true => writeln!(out, "{pid}: was attached already, {functions}")?,
            false => writeln!(out, "{pid}: attached, {functions}; {how}")?,
        }
        if let Some(row) = own {
            toggled::render_foreign(row, out, look)?;
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
        notes.try_for_each(|note| writeln!(out, "  {}", text::printable(note)))?;
        for row in enabled.iter().filter(|row| row.pid != pid) {
            match &row.refusal {
                Some(refusal) => refused::render(refusal, row.pid, out, look)?,
                None => {
                    writeln!(out, "{}: {}", row.pid, toggled::switched_on(row))?;
                    toggled::render_foreign(row, out, look)?;
                }
            }
        }
        Ok(())
    }
}

impl From<AttachResponse> for Attached {
    fn from(AttachResponse { status, report }: AttachResponse) -> Self {
        Self {
            status: status.unwrap_or_default(),
            report: report.unwrap_or_default(),
            enabled: None,
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

        let row = |pid| ToggleReport {
            pid,
            matched: 20,
            changed: 17,
            sleds: 40,
            foreign: 2,
            elapsed_ns: 123_456,
            ..ToggleReport::default()
        };
        let enabled = attached.with_enabled(vec![row(812), row(814)], None);
        golden::check("attach-enable.txt", |out| enabled.render(out, Look::PLAIN));
        golden::check_json("attach-enable.json", &enabled);
    }
}
