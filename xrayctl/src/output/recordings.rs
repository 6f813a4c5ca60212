//! `xrayctl recordings`.

use std::io;

use serde::{Deserialize, Serialize};

use super::table::{self, Column};
use super::{Look, moment, text, units};
use crate::recordings::Recording;

/// The recordings of the relay.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    recordings: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    bytes: u64,
    /// In seconds since the Unix epoch.
    written_s: i64,
    /// True if it is still written.
    is_part: bool,
}

/// What was not recorded.
#[derive(Debug, Serialize)]
pub(crate) struct Losses {
    losses: Vec<Loss>,
}

#[derive(Debug, Serialize)]
struct Loss {
    policy: String,
    #[serde(flatten)]
    what: Line,
}

/// A line of the relay's file.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    pid: u32,
    since_ms: u64,
    until_ms: u64,
    events: u64,
    why: String,
    /// True for the time before a process was recorded for the first time.
    #[serde(default)]
    is_begin: bool,
}

/// The moments at which triggers have fired.
#[derive(Debug, Serialize)]
pub(crate) struct Firings {
    firings: Vec<Firing>,
}

#[derive(Debug, Serialize)]
struct Firing {
    policy: String,
    #[serde(flatten)]
    what: FiringLine,
}

/// A line of the relay's file.
#[derive(Debug, Serialize, Deserialize)]
struct FiringLine {
    trigger: u32,
    condition: String,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    function: String,
    at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_ns: Option<u64>,
    skipped: u64,
    unjudged: u64,
    /// The snapshot, as other subcommands name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    recording: Option<String>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

// === impl Table ===

impl Table {
    pub(crate) fn new(recordings: &[Recording]) -> Self {
        let rows = recordings.iter().map(|recording| Row {
            name: recording.name(),
            policy: recording.policy.clone(),
            pid: recording.pid(),
            bytes: recording.bytes,
            written_s: recording.written_s,
            is_part: recording.is_part(),
        });
        Self {
            recordings: rows.collect(),
        }
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        if self.recordings.is_empty() {
            return writeln!(out, "there are no recordings");
        }
        let mut table = table::Table::new([
            Column::right("PID"),
            Column::right("SIZE"),
            Column::left("RECORDING"),
        ]);
        for row in &self.recordings {
            table.push([
                row.pid
                    .map(|pid| pid.to_string())
                    .unwrap_or_default()
                    .into(),
                units::bytes(row.bytes).into(),
                text::printable(&row.name).into(),
            ]);
        }
        table.render(out, look)
    }
}

// === impl Losses ===

impl Losses {
    /// Reads the lines of policies, and orders them by time. What is no line of the relay is left
    /// out.
    pub(crate) fn new(
        lines: Vec<(String, String)>,
        policy: Option<&str>,
        pid: Option<u32>,
    ) -> Self {
        let losses = lines.into_iter().filter_map(|(its, line)| {
            let what: Line = serde_json::from_str(&line).ok()?;
            let is_wanted =
                policy.is_none_or(|policy| policy == its) && pid.is_none_or(|pid| pid == what.pid);
            is_wanted.then_some(Loss { policy: its, what })
        });
        let mut losses: Vec<Loss> = losses.collect();
        losses.sort_by_key(|loss| loss.what.since_ms);
        Self { losses }
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        if self.losses.is_empty() {
            return writeln!(out, "nothing is missing");
        }
        let mut table = table::Table::new([
            Column::left("SINCE"),
            Column::right("TIME"),
            Column::left("POLICY"),
            Column::right("PID"),
            Column::right("EVENTS"),
            Column::left("WHY"),
        ]);
        for Loss { policy, what } in &self.losses {
            let ns = |ms: u64| ms.saturating_mul(1_000_000);
            let events = match what.events {
                0 => String::new(),
                events => units::count(events),
            };
            table.push([
                moment::shown(ns(what.since_ms)).into(),
                units::time(ns(what.until_ms.saturating_sub(what.since_ms))).into(),
                text::printable(policy).into(),
                match what.pid {
                    0 => "all".into(),
                    pid => pid.to_string().into(),
                },
                events.into(),
                text::printable(&what.why).into(),
            ]);
        }
        table.render(out, look)
    }
}

// === impl Firings ===

impl Firings {
    /// Reads the lines of policies. What is no line of the relay is left out.
    pub(crate) fn new(
        lines: Vec<(String, String)>,
        policy: Option<&str>,
        pid: Option<u32>,
    ) -> Self {
        let firings = lines.into_iter().filter_map(|(its, line)| {
            let mut what: FiringLine = serde_json::from_str(&line).ok()?;
            let is_wanted =
                policy.is_none_or(|policy| policy == its) && pid.is_none_or(|pid| pid == what.pid);
            what.recording = what.recording.map(|file| format!("{its}/{file}"));
            is_wanted.then_some(Firing { policy: its, what })
        });
        let mut firings: Vec<Firing> = firings.collect();
        firings.sort_by_key(|firing| firing.what.at_ms);
        Self { firings }
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        if self.firings.is_empty() {
            return writeln!(out, "no trigger has fired");
        }
        let mut table = table::Table::new([
            Column::left("AT"),
            Column::right("PID"),
            Column::left("CONDITION"),
            Column::right("TIME"),
            Column::left("RECORDING"),
        ]);
        // Those without a process only have numbers.
        let fired = self.firings.iter().filter(|firing| firing.what.pid > 0);
        for Firing { policy: _, what } in fired {
            let recording = match (&what.recording, &what.why) {
                (Some(recording), _) => recording.clone(),
                (None, Some(why)) => format!("none: {why}"),
                (None, None) => String::new(),
            };
            table.push([
                moment::shown(what.at_ms.saturating_mul(1_000_000)).into(),
                what.pid.to_string().into(),
                text::printable(&what.condition).into(),
                what.value_ns.map(units::time).unwrap_or_default().into(),
                text::printable(&recording).into(),
            ]);
        }
        table.render(out, look)?;
        let skipped = self.firings.iter().map(|firing| firing.what.skipped);
        let skipped = skipped.fold(0, u64::saturating_add);
        if skipped > 0 {
            let moments = units::counted(skipped, "further moment");
            writeln!(out, "limits did not allow {moments}")?;
        }
        Ok(())
    }
}
