//! `xrayctl detach`: the proof that a process is as it was.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::{DetachReport, Refusal};

use super::{Look, Tone, refused, units};

/// The results of a detach, process by process.
#[derive(Debug, Serialize)]
pub(crate) struct Detached {
    processes: Vec<DetachReport>,
}

// === impl Detached ===

impl Detached {
    /// The first process that was not detached, and the reason.
    pub(crate) fn refusal(&self) -> Option<(u32, &Refusal)> {
        self.processes
            .iter()
            .find_map(|row| Some((row.pid, row.refusal.as_ref()?)))
    }

    /// The first process that is not proven to be as it was.
    pub(crate) fn unproven(&self) -> Option<u32> {
        let mut rows = self.processes.iter();
        rows.find(|row| is_unproven(row)).map(|row| row.pid)
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        if self.processes.is_empty() {
            return writeln!(out, "no process is attached");
        }
        self.processes
            .iter()
            .try_for_each(|row| render_row(row, out, look))
    }
}

impl From<Vec<DetachReport>> for Detached {
    fn from(processes: Vec<DetachReport>) -> Self {
        Self { processes }
    }
}

/// True if a process is not proven to be as it was.
pub(super) fn is_unproven(row: &DetachReport) -> bool {
    row.text_bytes_different > 0 || row.sleds_on > 0
}

fn render_row(row: &DetachReport, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
    if let Some(refusal) = &row.refusal {
        return refused::render(refusal, row.pid, out, look);
    }
    if row.inherited {
        writeln!(
            out,
            "{}: a forked process that was not followed; detached",
            row.pid
        )?;
        return render_proof(row, out, look);
    }
    let events = units::counted(row.events, "event");
    let lost = units::count(row.lost);
    if row.exited {
        return writeln!(out, "{}: had already ended; {events}, {lost} lost", row.pid);
    }
    writeln!(out, "{}: detached; {events}, {lost} lost", row.pid)?;
    render_proof(row, out, look)
}

/// Writes the lines of the proof.
pub(super) fn render_proof(
    row: &DetachReport,
    out: &mut dyn io::Write,
    look: Look,
) -> io::Result<()> {
    let (proof, no_proof) = (
        look.paint(Tone::Good, "proof"),
        look.paint(Tone::Bad, "no proof"),
    );
    let off = units::counted(row.sleds_off, "sled");
    match row.sleds_on {
        0 => writeln!(out, "  {proof}: {off} read back, all off")?,
        on => {
            let on = units::count(on);
            writeln!(
                out,
                "  {no_proof}: {off} read back and off, {on} left unchanged, because another tool has patched them"
            )?;
        }
    }
    let equal = units::counted(row.text_bytes_compared, "byte");
    match row.text_bytes_different {
        0 => writeln!(
            out,
            "  {proof}: text outside the sleds identical to the file ({equal} compared)"
        ),
        different => {
            let different = units::counted(different, "byte");
            writeln!(
                out,
                "  {no_proof}: text outside the sleds differs from the file in {different}, changed by xrayd or by another tool; {equal} are identical"
            )
        }
    }
}

#[cfg(test)]
mod tests {
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
        let inherited = DetachReport {
            pid: 816,
            inherited: true,
            ..clean.clone()
        };
        let detached = Detached::from(vec![clean, differs, exited, refused, inherited]);
        golden::check("detach.txt", |out| detached.render(out, Look::PLAIN));
        golden::check_json("detach.json", &detached);
        assert_eq!(detached.unproven(), Some(813));
        assert_eq!(detached.refusal().map(|(pid, _)| pid), Some(815));
    }
}
