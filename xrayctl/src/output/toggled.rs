//! `xrayctl enable` and `xrayctl disable`.

use std::io;

use serde::Serialize;
use xrayd::types::Wanted;
use xrayd_proto::v1::{Refusal, ToggleReport};

use super::{Look, Tone, refused, text, units};

/// The direction of a toggle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Switch {
    /// Functions are enabled.
    On,
    /// Functions are disabled.
    Off,
}

/// Whether the toggle was done or only planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Run {
    /// The toggle was done.
    Real,
    /// The toggle was only planned.
    Dry,
}

/// The results of a toggle, process by process.
#[derive(Debug, Serialize)]
pub(crate) struct Toggled {
    switch: Switch,
    dry_run: bool,
    processes: Vec<ToggleReport>,
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
    pub(crate) fn new(wanted: Wanted, run: Run, reports: Vec<ToggleReport>) -> Self {
        Self {
            switch: match wanted {
                Wanted::On(_) => Switch::On,
                Wanted::Off => Switch::Off,
            },
            dry_run: run == Run::Dry,
            processes: reports,
        }
    }

    /// The first process in which nothing was done, and the reason.
    pub(crate) fn refusal(&self) -> Option<(u32, &Refusal)> {
        self.processes
            .iter()
            .find_map(|row| Some((row.pid, row.refusal.as_ref()?)))
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let run = match self.dry_run {
            true => Run::Dry,
            false => Run::Real,
        };
        for row in &self.processes {
            if let Some(refusal) = &row.refusal {
                refused::render(refusal, row.pid, out, look)?;
                continue;
            }
            writeln!(out, "{}: {}", row.pid, words(row, self.switch, run))?;
            render_foreign(row, out, look)?;
            if self.dry_run {
                for name in &row.sample {
                    let name = text::printable(&look.names.show(name));
                    writeln!(out, "  {}", look.paint(Tone::Name, &name))?;
                }
                let rest = u64::from(row.matched).saturating_sub(row.sample.len() as u64);
                if rest > 0 && !row.sample.is_empty() {
                    writeln!(out, "  and {} more", units::count(rest))?;
                }
                for module in &row.modules {
                    let (bytes, path) = (units::bytes(module.copied_bytes), &module.path);
                    writeln!(out, "  {bytes} copied in {}", text::printable(path))?;
                }
            }
        }
        Ok(())
    }
}

/// The number of functions that a process has switched on, and what it took.
pub(super) fn switched_on(row: &ToggleReport) -> String {
    words(row, Switch::On, Run::Real)
}

/// The result in a process, in words.
fn words(row: &ToggleReport, switch: Switch, run: Run) -> String {
    let verb = match run {
        Run::Real => "switched",
        Run::Dry => "would be switched",
    };
    let mut words = format!(
        "{} {verb} {} of {} matched ({}",
        units::counted(row.changed.into(), "function"),
        switch.word(),
        units::count(row.matched.into()),
        units::counted(row.sleds, "sled"),
    );
    if row.copied_bytes > 0 {
        words += &format!(", {} copied", units::bytes(row.copied_bytes));
    }
    if row.restaged > 0 {
        let sleds = units::counted(row.restaged, "sled");
        words += &format!(", {sleds} to record other values");
    }
    if run == Run::Real {
        words += &format!(", {}", units::time(row.elapsed_ns));
        if row.stopped_ns > 0 {
            words += &format!(", process stopped for {}", units::time(row.stopped_ns));
        }
    }
    words + ")"
}

/// Writes a line about sleds of a process that stay as they are, if there are such sleds.
pub(super) fn render_foreign(
    row: &ToggleReport,
    out: &mut dyn io::Write,
    look: Look,
) -> io::Result<()> {
    if row.foreign == 0 {
        return Ok(());
    }
    let what = units::counted(row.foreign, "sled");
    let line = format!("  {what} left unchanged: another tool has patched them");
    writeln!(out, "{}", look.paint(Tone::Warning, &line))
}

#[cfg(test)]
mod tests {
    use xrayd::types::Capture;
    use xrayd_proto::v1::ModuleCopies;

    use super::{super::golden, *};

    fn sample(run: Run) -> Toggled {
        let report = ToggleReport {
            pid: 812,
            matched: 20,
            changed: 17,
            sleds: 40,
            foreign: 2,
            copied_bytes: 8192,
            stopped_ns: 84_000,
            restaged: 4,
            elapsed_ns: 123_456,
            sample: vec!["ns::a(int)".into(), "ns::b(int)".into()],
            refusal: None,
            modules: match run {
                Run::Real => Vec::new(),
                Run::Dry => [("/srv/server", 4096), ("/lib/liba.so", 4096)]
                    .map(|(path, copied_bytes)| ModuleCopies {
                        path: path.into(),
                        copied_bytes,
                    })
                    .into(),
            },
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
        Toggled::new(Wanted::On(Capture::NONE), run, vec![report, refused])
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
        assert_eq!(sample(Run::Dry).refusal().map(|(pid, _)| pid), Some(813));
    }
}
