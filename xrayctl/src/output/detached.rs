//! `xrayctl detach`: the proof that a process is as it was.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::DetachReport;

use super::processes::RefusalRow;
use super::{Look, Tone, units};

/// What detaching found, process by process.
#[derive(Debug, Serialize)]
pub(crate) struct Detached {
    processes: Vec<DetachRow>,
}

#[derive(Debug, Serialize)]
struct DetachRow {
    pid: u32,
    exited: bool,
    sleds_off: u64,
    sleds_on: u64,
    text_bytes_compared: u64,
    text_bytes_different: u64,
    events: u64,
    lost: u64,
    refusal: Option<RefusalRow>,
}

// === impl Detached ===

impl Detached {
    /// The first process that was not detached, and why.
    pub(crate) fn refusal(&self) -> Option<(u32, &RefusalRow)> {
        self.processes
            .iter()
            .find_map(|row| Some((row.pid, row.refusal.as_ref()?)))
    }

    /// The first process that is not proven to be as it was.
    pub(crate) fn unproven(&self) -> Option<u32> {
        let differs = |row: &&DetachRow| row.text_bytes_different > 0 || row.sleds_on > 0;
        self.processes.iter().find(differs).map(|row| row.pid)
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        if self.processes.is_empty() {
            return writeln!(out, "no process is attached");
        }
        self.processes
            .iter()
            .try_for_each(|row| row.render(out, look))
    }
}

impl From<Vec<DetachReport>> for Detached {
    fn from(reports: Vec<DetachReport>) -> Self {
        Self {
            processes: reports.into_iter().map(DetachRow::from).collect(),
        }
    }
}

// === impl DetachRow ===

impl DetachRow {
    fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        if let Some(refusal) = &self.refusal {
            return refusal.render(self.pid, out, look);
        }
        let events = units::counted(self.events, "event");
        let lost = units::count(self.lost);
        if self.exited {
            return writeln!(
                out,
                "{}: had already ended; {events}, {lost} lost",
                self.pid
            );
        }
        writeln!(out, "{}: detached; {events}, {lost} lost", self.pid)?;
        let (proof, no_proof) = (
            look.paint(Tone::Good, "proof"),
            look.paint(Tone::Bad, "no proof"),
        );
        let off = units::counted(self.sleds_off, "sled");
        match self.sleds_on {
            0 => writeln!(out, "  {proof}: {off} read back, every one off")?,
            on => {
                let on = units::count(on);
                writeln!(
                    out,
                    "  {no_proof}: {off} read back and off, {on} left, where somebody else's bytes stand"
                )?;
            }
        }
        let equal = units::counted(self.text_bytes_compared, "byte");
        match self.text_bytes_different {
            0 => writeln!(
                out,
                "  {proof}: text outside the sleds identical to the file ({equal} compared)"
            ),
            different => {
                let different = units::counted(different, "byte");
                writeln!(
                    out,
                    "  {no_proof}: text outside the sleds differs from the file in {different}, made so by xrayd or by others; {equal} are identical"
                )
            }
        }
    }
}

impl From<DetachReport> for DetachRow {
    fn from(report: DetachReport) -> Self {
        let DetachReport {
            pid,
            sleds_off,
            sleds_on,
            text_bytes_compared,
            text_bytes_different,
            exited,
            events,
            lost,
            refusal,
        } = report;
        Self {
            pid,
            exited,
            sleds_off,
            sleds_on,
            text_bytes_compared,
            text_bytes_different,
            events,
            lost,
            refusal: refusal.map(RefusalRow::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use xrayd_proto::v1::Refusal;

    use super::super::golden;
    use super::*;

    #[test]
    fn the_proof_looks_as_agreed() {
        let clean = DetachReport {
            pid: 812,
            sleds_off: 2408,
            text_bytes_compared: 1_234_567,
            events: 99,
            ..DetachReport::default()
        };
        let differs = DetachReport {
            pid: 813,
            text_bytes_different: 4,
            sleds_on: 2,
            ..clean.clone()
        };
        let refusal = Refusal {
            reason: "busy".into(),
            message: "being attached".into(),
        };
        let refused = DetachReport {
            pid: 815,
            refusal: Some(refusal),
            ..DetachReport::default()
        };
        let exited = DetachReport {
            pid: 814,
            exited: true,
            ..DetachReport::default()
        };
        let detached = Detached::from(vec![clean, differs, exited, refused]);
        golden::check("detach.txt", |out| detached.render(out, Look::PLAIN));
        golden::check_json("detach.json", &detached);
        assert_eq!(detached.unproven(), Some(813));
        assert_eq!(detached.refusal().map(|(pid, _)| pid), Some(815));
    }
}
