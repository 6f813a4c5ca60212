//! `xrayctl enable` and `xrayctl disable`.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::ToggleReport;

use super::processes::RefusalRow;
use super::{Look, Tone, text, units};

/// Which way functions are switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// Whether it was done or only looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Run {
    /// It was done.
    Real,
    /// It was not.
    Dry,
}

/// What was switched, process by process.
#[derive(Debug, Serialize)]
pub(crate) struct Toggled {
    switch: Switch,
    dry_run: bool,
    processes: Vec<ToggleRow>,
}

#[derive(Debug, Serialize)]
struct ToggleRow {
    pid: u32,
    matched: u32,
    changed: u32,
    sleds: u64,
    foreign: u64,
    copied_bytes: u64,
    elapsed_ns: u64,
    sample: Vec<String>,
    refusal: Option<RefusalRow>,
}

// === impl Switch ===

impl Switch {
    fn word(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

// === impl Toggled ===

impl Toggled {
    pub(crate) fn new(switch: Switch, run: Run, reports: Vec<ToggleReport>) -> Self {
        let processes = reports.into_iter().map(ToggleRow::from).collect();
        Self {
            switch,
            dry_run: run == Run::Dry,
            processes,
        }
    }

    /// The first process that nothing was done to, and why.
    pub(crate) fn refusal(&self) -> Option<(u32, &RefusalRow)> {
        self.processes
            .iter()
            .find_map(|row| Some((row.pid, row.refusal.as_ref()?)))
    }

    /// Functions that the selection matched in all processes.
    pub(crate) fn matched(&self) -> u64 {
        self.processes
            .iter()
            .map(|row| u64::from(row.matched))
            .sum()
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let verb = if self.dry_run {
            "would be switched"
        } else {
            "switched"
        };
        for row in &self.processes {
            if let Some(refusal) = &row.refusal {
                refusal.render(row.pid, out, look)?;
                continue;
            }
            write!(
                out,
                "{}: {} {verb} {} of {} matched ({}",
                row.pid,
                units::counted(row.changed.into(), "function"),
                self.switch.word(),
                units::count(row.matched.into()),
                units::counted(row.sleds, "sled"),
            )?;
            if row.copied_bytes > 0 {
                write!(out, ", {} copied", units::bytes(row.copied_bytes))?;
            }
            if !self.dry_run {
                write!(out, ", {}", units::time(row.elapsed_ns))?;
            }
            writeln!(out, ")")?;
            if row.foreign > 0 {
                let what = units::counted(row.foreign, "sled");
                let line = format!("  {what} left alone: somebody else has patched there");
                writeln!(out, "{}", look.paint(Tone::Warning, &line))?;
            }
            if self.dry_run {
                for name in &row.sample {
                    writeln!(out, "  {}", look.paint(Tone::Name, &text::printable(name)))?;
                }
                let rest = u64::from(row.matched).saturating_sub(row.sample.len() as u64);
                if rest > 0 && !row.sample.is_empty() {
                    writeln!(out, "  and {} more", units::count(rest))?;
                }
            }
        }
        Ok(())
    }
}

// === impl ToggleRow ===

impl From<ToggleReport> for ToggleRow {
    fn from(report: ToggleReport) -> Self {
        let ToggleReport {
            pid,
            matched,
            changed,
            sleds,
            foreign,
            copied_bytes,
            elapsed_ns,
            sample,
            refusal,
        } = report;
        let refusal = refusal.map(RefusalRow::from);
        Self {
            pid,
            matched,
            changed,
            sleds,
            foreign,
            copied_bytes,
            elapsed_ns,
            sample,
            refusal,
        }
    }
}

#[cfg(test)]
mod tests {
    use xrayd_proto::v1::Refusal;

    use super::super::golden;
    use super::*;

    fn sample(run: Run) -> Toggled {
        let report = ToggleReport {
            pid: 812,
            matched: 20,
            changed: 17,
            sleds: 40,
            foreign: 2,
            copied_bytes: 8192,
            elapsed_ns: 123_456,
            sample: vec!["ns::a(int)".into(), "ns::b(int)".into()],
            refusal: None,
        };
        let refusal = Refusal {
            reason: "busy".into(),
            message: "being detached".into(),
        };
        let refused = ToggleReport {
            pid: 813,
            refusal: Some(refusal),
            ..ToggleReport::default()
        };
        Toggled::new(Switch::On, run, vec![report, refused])
    }

    #[test]
    fn reports_look_as_agreed() {
        golden::check("enable.txt", |out| {
            sample(Run::Real).render(out, Look::PLAIN)
        });
        golden::check("enable-dry.txt", |out| {
            sample(Run::Dry).render(out, Look::PLAIN)
        });
        golden::check_json("enable.json", &sample(Run::Real));
        assert_eq!(sample(Run::Dry).matched(), 20);
        assert_eq!(sample(Run::Dry).refusal().map(|(pid, _)| pid), Some(813));
    }
}
