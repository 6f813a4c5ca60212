//! `xrayctl status`.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::ProcessStatus;

use super::{Cell, Column, Look, Table, Tone, units};

/// State and counters of the attached processes.
#[derive(Debug, Serialize)]
pub(crate) struct Statuses {
    pub(crate) processes: Vec<StatusRow>,
}

/// State and counters of one process.
#[derive(Debug, Serialize)]
pub(crate) struct StatusRow {
    pid: u32,
    uid: u32,
    command: String,
    mode: String,
    state: String,
    functions: u32,
    functions_on: u32,
    threads: u32,
    events: u64,
    events_per_second: f64,
    lost: u64,
    ring_use_permille: u32,
    ring_bytes: u64,
    max_threads: u32,
    copied_bytes: u64,
    retained_bytes: u64,
    retained_events: u64,
    evicted_events: u64,
    attached_wall_ns: u64,
}

// === impl Statuses ===

impl Statuses {
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        if self.processes.is_empty() {
            return writeln!(out, "no process is attached");
        }
        let mut table = Table::new([
            Column::Right("PID"),
            Column::Elastic("COMMAND"),
            Column::Left("STATE"),
            Column::Left("MODE"),
            Column::Right("ON"),
            Column::Right("OF"),
            Column::Right("THREADS"),
            Column::Right("EVENTS"),
            Column::Right("EVENTS/S"),
            Column::Right("LOST"),
            Column::Right("RING"),
            Column::Right("COPIED"),
            Column::Right("RETAINED"),
        ]);
        self.processes
            .iter()
            .for_each(|row| table.push(row.cells()));
        table.render(out, look)
    }
}

// === impl StatusRow ===

impl StatusRow {
    fn cells(&self) -> [Cell; 13] {
        let state = if self.state == "tracing" {
            Tone::Good
        } else {
            Tone::Warning
        };
        let lost = if self.lost == 0 {
            Tone::Plain
        } else {
            Tone::Bad
        };
        let permille = self.ring_use_permille;
        [
            self.pid.to_string().into(),
            self.command.as_str().into(),
            Cell::toned(&self.state, state),
            self.mode.as_str().into(),
            self.functions_on.to_string().into(),
            self.functions.to_string().into(),
            self.threads.to_string().into(),
            units::count(self.events).into(),
            format!("{:.0}", self.events_per_second).into(),
            Cell::toned(units::count(self.lost), lost),
            format!("{}.{}%", permille / 10, permille % 10).into(),
            units::bytes(self.copied_bytes).into(),
            units::bytes(self.retained_bytes).into(),
        ]
    }
}

impl From<ProcessStatus> for StatusRow {
    fn from(status: ProcessStatus) -> Self {
        let ProcessStatus {
            pid,
            command,
            mode,
            state,
            functions,
            functions_on,
            threads,
            events,
            events_per_second,
            lost,
            ring_use_permille,
            ring_bytes,
            max_threads,
            copied_bytes,
            retained_bytes,
            retained_events,
            evicted_events,
            attached_wall_ns,
            uid,
        } = status;
        Self {
            pid,
            uid,
            command,
            mode,
            state,
            functions,
            functions_on,
            threads,
            events,
            events_per_second,
            lost,
            ring_use_permille,
            ring_bytes,
            max_threads,
            copied_bytes,
            retained_bytes,
            retained_events,
            evicted_events,
            attached_wall_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn rows_look_as_agreed() {
        let status = ProcessStatus {
            pid: 812,
            command: "./server".into(),
            mode: "stream".into(),
            state: "tracing".into(),
            functions: 1204,
            functions_on: 17,
            threads: 4,
            events: 1_234_567,
            events_per_second: 45_678.4,
            lost: 3,
            ring_use_permille: 125,
            ring_bytes: 1 << 20,
            max_threads: 1024,
            copied_bytes: 40 << 10,
            retained_bytes: 3 << 20,
            retained_events: 1_234_560,
            evicted_events: 7,
            attached_wall_ns: 1_700_000_000_000_000_000,
            uid: 1000,
        };
        let statuses = Statuses {
            processes: vec![status.into()],
        };
        golden::check("status.txt", |out| statuses.render(out, Look::PLAIN));
        golden::check_json("status.json", &statuses);
        let none = Statuses {
            processes: Vec::new(),
        };
        golden::check("status-none.txt", |out| none.render(out, Look::PLAIN));
    }
}
