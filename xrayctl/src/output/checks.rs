//! `xrayctl doctor`.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::{Check, CheckResult, PreflightResponse};

use super::{Look, Tone, text};

/// The checks of whether a process can be traced, row by row.
#[derive(Debug, Serialize)]
pub(crate) struct Checks {
    pid: u32,
    ready: bool,
    checks: Vec<CheckRow>,
}

#[derive(Debug, Serialize)]
struct CheckRow {
    id: String,
    subject: String,
    result: Verdict,
    finding: String,
    remedy: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Ok,
    Warning,
    Failed,
    Unknown,
}

// === impl Checks ===

impl Checks {
    /// The first check that failed: its id and its finding.
    pub(crate) fn failure(&self) -> Option<(&str, &str)> {
        let failed = self
            .checks
            .iter()
            .find(|check| check.result == Verdict::Failed)?;
        Some((&failed.id, &failed.finding))
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let subject = self
            .checks
            .iter()
            .map(|check| check.subject.chars().count());
        let width = subject.max().unwrap_or(0);
        for CheckRow {
            id: _,
            subject,
            result,
            finding,
            remedy,
        } in &self.checks
        {
            let (word, tone) = match result {
                Verdict::Ok => ("ok     ", Tone::Good),
                Verdict::Warning => ("warning", Tone::Warning),
                Verdict::Failed => ("failed ", Tone::Bad),
                Verdict::Unknown => ("unknown", Tone::Plain),
            };
            let (subject, finding) = (text::printable(subject), text::printable(finding));
            writeln!(
                out,
                "{}  {subject:width$}  {finding}",
                look.paint(tone, word)
            )?;
            if !remedy.is_empty() {
                writeln!(
                    out,
                    "{:9}{:width$}  try: {}",
                    "",
                    "",
                    text::printable(remedy)
                )?;
            }
        }
        if self.ready {
            writeln!(out, "process {} can be traced", self.pid)
        } else {
            writeln!(out, "process {} cannot be traced", self.pid)
        }
    }
}

impl From<PreflightResponse> for Checks {
    fn from(PreflightResponse { pid, checks, ready }: PreflightResponse) -> Self {
        Self {
            pid,
            ready,
            checks: checks.into_iter().map(CheckRow::from).collect(),
        }
    }
}

// === impl CheckRow ===

impl From<Check> for CheckRow {
    fn from(check: Check) -> Self {
        let result = match check.result() {
            CheckResult::Unspecified => Verdict::Unknown,
            CheckResult::Ok => Verdict::Ok,
            CheckResult::Warning => Verdict::Warning,
            CheckResult::Failed => Verdict::Failed,
        };
        let Check {
            id,
            subject,
            result: _,
            finding,
            remedy,
        } = check;
        Self {
            id,
            subject,
            result,
            finding,
            remedy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    fn sample() -> Checks {
        let check = |id: &str, result: CheckResult, finding: &str, remedy: &str| Check {
            id: id.into(),
            subject: id.replace('-', " "),
            result: result.into(),
            finding: finding.into(),
            remedy: remedy.into(),
        };
        let checks = vec![
            check("no-sleds", CheckResult::Ok, "2 modules, 1204 functions", ""),
            check(
                "symbols",
                CheckResult::Warning,
                "stripped",
                "install redis-dbgsym",
            ),
            check(
                "foreign-tracer",
                CheckResult::Failed,
                "traced by gdb (5)",
                "kill 5",
            ),
        ];
        PreflightResponse {
            pid: 812,
            checks,
            ready: false,
        }
        .into()
    }

    #[test]
    fn rows_look_as_agreed() {
        golden::check("doctor.txt", |out| sample().render(out, Look::PLAIN));
        golden::check_json("doctor.json", &sample());
    }

    #[test]
    fn the_failure_is_the_first_failed_check() {
        assert_eq!(
            sample().failure(),
            Some(("foreign-tracer", "traced by gdb (5)"))
        );
    }
}
