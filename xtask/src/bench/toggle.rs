//! Twenty thousand functions on and off, and the threads that stood still for it.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target};
use procfs::process::{MMPermissions, Process};

use super::daemon::{Daemon, number};
use super::samples::Samples;
use super::switches::Switches;
use super::table::Row;
use super::{Bench, Effort};

const FIRST_MS: f64 = 120.0;
const AGAIN_MS: f64 = 25.0;

/// Times, in milliseconds.
#[derive(Default)]
struct Times {
    /// The time by the daemon's own report.
    engine: Samples,
    /// The time of the whole command, with a process started for it.
    command: Samples,
}

pub(super) fn run(bench: &Bench) -> Result<Vec<Row>> {
    let (processes, again) = match bench.effort {
        Effort::Full => (5, 10),
        Effort::Quick => (2, 4),
    };
    let mut first = Times::default();
    let mut enable = Times::default();
    let mut disable = Times::default();
    let (mut copied, mut sleds, mut stopped) = (0, 0, 0);
    for _ in 0..processes {
        let daemon = Daemon::start()?;
        let mut target = Target::spawn(Fixture::Many20k, [""; 0])?;
        let pid = target.pid();
        daemon.attach(pid)?;
        // The program waits for a line meanwhile, so a stop would wake it.
        let before = Switches::of(pid)?;
        let report = first.toggle(&daemon, pid, "enable")?;
        copied = number(&report, "copied_bytes")?;
        sleds = number(&report, "sleds")?;
        ensure!(number(&report, "changed")? == 20_000, "{report}");
        disable.toggle(&daemon, pid, "disable")?;
        for _ in 1..again {
            let report = enable.toggle(&daemon, pid, "enable")?;
            ensure!(number(&report, "copied_bytes")? == 0, "{report}");
            disable.toggle(&daemon, pid, "disable")?;
        }
        stopped += before.disturbed()?;
        enable.toggle(&daemon, pid, "enable")?;
        // They really are on.
        target.ask("go", "done")?;
        let (events, lost) = daemon.counters(pid)?;
        ensure!(events + lost <= 40_000, "{events} events and {lost} lost");
        disable.toggle(&daemon, pid, "disable")?;
        target.ask("go", "done")?;
        daemon.detach(pid)?;
    }
    let copied = copied as f64 / (1 << 20) as f64;
    let floor = floor(sleds, processes * again)?;
    Ok(vec![
        Row::new(
            format!("floor: {sleds} bytes are written, each by a call of its own"),
            format!(
                "{:.1} ms, {:.1} to {:.1}",
                floor.median(),
                floor.min(),
                floor.max()
            ),
            "1.00 × floor",
        ),
        first.row(
            &format!("enable for the first time: {sleds} sleds, {copied:.1} MiB copied"),
            FIRST_MS,
            &floor,
        ),
        enable.row("enable again", AGAIN_MS, &floor),
        disable.row("disable", AGAIN_MS, &floor),
        Row::new("threads stopped", stopped.to_string(), "").goal("0", stopped == 0),
    ])
}

/// Milliseconds for `bytes` writes of a byte each, as many as sleds are switched, to pages that
/// were written to before. The bytes lie evenly in the text of a program that is not traced.
fn floor(bytes: u64, rounds: usize) -> Result<Samples> {
    let target = Target::spawn(Fixture::Many20k, [""; 0])?;
    let pid = target.pid();
    let process = Process::new(pid)?;
    let maps = process.maps()?;
    let text = maps
        .iter()
        .filter(|map| map.perms.contains(MMPermissions::EXECUTE))
        .max_by_key(|map| map.address.1 - map.address.0)
        .context("a program without text")?;
    let (start, end) = text.address;
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))?;
    let addresses = (0..bytes).map(|byte| start + (end - start) * byte / bytes);
    let mut writes = Vec::new();
    for address in addresses {
        let mut there = [0];
        memory.read_exact_at(&mut there, address)?;
        writes.push((address, there));
    }
    let write_all = || {
        let mut writes = writes.iter();
        writes.try_for_each(|(address, byte)| memory.write_all_at(byte, *address))
    };
    write_all()?;
    let mut times = Samples::default();
    for _ in 0..rounds {
        let begun = Instant::now();
        write_all()?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(times)
}

// === impl Times ===

impl Times {
    fn toggle(&mut self, daemon: &Daemon, pid: i32, to: &str) -> Result<serde_json::Value> {
        let begun = Instant::now();
        let report = daemon.toggle(pid, to)?;
        self.command.push(begun.elapsed().as_secs_f64() * 1e3);
        self.engine
            .push(number(&report, "elapsed_ns")? as f64 / 1e6);
        Ok(report)
    }

    fn row(&self, what: &str, limit: f64, floor: &Samples) -> Row {
        let Self { engine, command } = self;
        let result = format!(
            "{:.1} ms, {:.1} to {:.1}; whole command {:.0} ms",
            engine.median(),
            engine.min(),
            engine.max(),
            command.median()
        );
        let ratio = format!(
            "{:.2} × target, {:.2} × floor",
            engine.median() / limit,
            engine.median() / floor.median()
        );
        Row::new(what, result, ratio).goal(format!("≤ {limit:.0} ms"), engine.median() <= limit)
    }
}
