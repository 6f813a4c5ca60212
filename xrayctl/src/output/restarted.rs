//! `xrayctl daemon restart`: the new daemon, and the processes that it traces.

use std::{io, time::Duration};

use serde::Serialize;
use xrayd_proto::v1::GetInfoResponse;

use super::{Look, units};

/// The new daemon.
#[derive(Debug, Serialize)]
pub(crate) struct Restarted {
    version: String,
    daemon_pid: u32,
    /// The time from the request to the first answer of the new daemon, in nanoseconds.
    within_ns: u64,
    /// The processes with which it goes on.
    processes: Vec<u32>,
    /// Those that were traced before, and are not any more.
    left: Vec<u32>,
}

// === impl Restarted ===

impl Restarted {
    /// `before` are the processes that the old daemon traced, and `now` those of the new one.
    pub(crate) fn new(
        info: &GetInfoResponse,
        within: Duration,
        before: Vec<u32>,
        now: Vec<u32>,
    ) -> Self {
        let left = before
            .into_iter()
            .filter(|pid| !now.contains(pid))
            .collect();
        Self {
            version: info.version.clone(),
            daemon_pid: info.daemon_pid,
            within_ns: u64::try_from(within.as_nanos()).unwrap_or(u64::MAX),
            processes: now,
            left,
        }
    }

    /// The first process that the new daemon does not go on with.
    pub(crate) fn first_left(&self) -> Option<u32> {
        self.left.first().copied()
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, _: Look) -> io::Result<()> {
        let Self {
            version,
            daemon_pid,
            within_ns,
            processes,
            left,
        } = self;
        let within = units::time(*within_ns);
        writeln!(
            out,
            "xrayd {version} (pid {daemon_pid}) answers {within} after the request"
        )?;
        let going_on = match processes.len() {
            0 => "no process is".to_owned(),
            1 => "1 process is".to_owned(),
            several => format!("{several} processes are"),
        };
        match left.len() {
            0 if processes.is_empty() => writeln!(out, "no process was traced"),
            0 => writeln!(out, "{going_on} traced as before"),
            gone => writeln!(out, "{going_on} traced as before, {gone} not any more"),
        }
    }
}
