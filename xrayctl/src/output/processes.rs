//! `xrayctl ps`.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::{ProcessInfo, ProcessState, Refusal};

use super::{Cell, Column, Look, Table, Tone};

/// Every process with sleds.
#[derive(Debug, Serialize)]
pub(crate) struct Processes {
    pub(crate) processes: Vec<ProcessRow>,
}

/// A process with sleds.
#[derive(Debug, Serialize)]
pub(crate) struct ProcessRow {
    pid: u32,
    uid: u32,
    user: String,
    unit: String,
    command: String,
    modules: u32,
    functions: u32,
    state: State,
    refusal: Option<Refusal>,
    start_time: u64,
    /// The first process of its group, if it was followed; else 0.
    root: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    Ready,
    Traced,
    Refused,
    /// A daemon that is gone has left sleds on.
    LeftOn,
    /// It was forked from a traced process.
    Inherited,
    Unknown,
}

// === impl Processes ===

impl Processes {
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        if self.processes.is_empty() {
            return writeln!(out, "no process with sleds is running");
        }
        ProcessRow::render_all(&self.processes, out, look)
    }
}

// === impl ProcessRow ===

impl ProcessRow {
    /// Writes a table of processes.
    pub(super) fn render_all<'a>(
        rows: impl IntoIterator<Item = &'a Self>,
        out: &mut dyn io::Write,
        look: Look,
    ) -> io::Result<()> {
        let mut table = Table::new([
            Column::right("PID"),
            Column::left("USER").minor(1),
            Column::left("UNIT").minor(3),
            Column::elastic("COMMAND"),
            Column::right("MODULES").minor(4),
            Column::right("FUNCTIONS").minor(2),
            Column::left("STATE"),
        ]);
        for row in rows {
            table.push([
                row.pid.to_string().into(),
                row.user.as_str().into(),
                Cell::toned(&row.unit, Tone::Dim),
                row.command.as_str().into(),
                row.modules.to_string().into(),
                row.functions.to_string().into(),
                row.state_cell(),
            ]);
        }
        table.render(out, look)
    }

    fn state_cell(&self) -> Cell {
        match (self.state, &self.refusal) {
            (State::Ready, _) => Cell::toned("ready", Tone::Good),
            (State::Traced, _) if self.root != 0 => {
                Cell::toned(format!("traced, from {}", self.root), Tone::Name)
            }
            (State::Traced, _) => Cell::toned("traced", Tone::Name),
            (State::Refused, Some(refusal)) => {
                Cell::toned(format!("refused: {}", refusal.reason), Tone::Bad)
            }
            (State::Refused, None) => Cell::toned("refused", Tone::Bad),
            (State::Inherited, _) => Cell::toned("forked from a traced process", Tone::Bad),
            (State::LeftOn, _) => Cell::toned("left on by a daemon that is gone", Tone::Bad),
            (State::Unknown, _) => "unknown".into(),
        }
    }
}

impl From<ProcessInfo> for ProcessRow {
    fn from(info: ProcessInfo) -> Self {
        let state = match info.state() {
            ProcessState::Unspecified => State::Unknown,
            ProcessState::Ready => State::Ready,
            ProcessState::Traced => State::Traced,
            ProcessState::Refused => State::Refused,
            ProcessState::LeftOn => State::LeftOn,
            ProcessState::Inherited => State::Inherited,
        };
        let ProcessInfo {
            pid,
            uid,
            user,
            unit,
            command,
            modules,
            functions,
            state: _,
            refusal,
            start_time,
            root,
        } = info;
        Self {
            pid,
            uid,
            user,
            unit,
            command,
            modules,
            functions,
            state,
            refusal,
            start_time,
            root,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    fn sample() -> Processes {
        let ready = ProcessInfo {
            pid: 812,
            uid: 1000,
            user: "ada".into(),
            command: "./server --port 80".into(),
            modules: 2,
            functions: 1204,
            state: ProcessState::Ready.into(),
            start_time: 77,
            ..ProcessInfo::default()
        };
        let refused = ProcessInfo {
            pid: 90_001,
            user: "root".into(),
            unit: "redis.service".into(),
            command: "redis-server \u{1b}[2J*:6379".into(),
            modules: 1,
            functions: 9,
            state: ProcessState::Refused.into(),
            refusal: Some(Refusal {
                reason: "foreign-tracer".into(),
                message: "traced by gdb (5)".into(),
            }),
            ..ProcessInfo::default()
        };
        let followed = ProcessInfo {
            pid: 813,
            state: ProcessState::Traced.into(),
            root: 812,
            ..ready.clone()
        };
        let left_on = ProcessInfo {
            pid: 900,
            state: ProcessState::LeftOn.into(),
            ..ready.clone()
        };
        Processes {
            processes: [ready, followed, refused, left_on]
                .into_iter()
                .map(ProcessRow::from)
                .collect(),
        }
    }

    #[test]
    fn rows_look_as_agreed() {
        golden::check("ps.txt", |out| sample().render(out, Look::PLAIN));
        golden::check_narrow("ps-narrow.txt", |out, look| sample().render(out, look));
        golden::check_json("ps.json", &sample());
    }
}
