//! One call of a small function, entry and exit: untouched (the floor), traced by xrayd, and traced
//! by other tools.
//!
//! All variants take turns in short batches, so that a machine that is slow for a while is slow for
//! all of them.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, build, wait_until};

use super::daemon::Daemon;
use super::samples::Samples;
use super::table::{Row, Table};
use super::{Bench, Effort};

/// Calls in a batch. Both events of each call fit in a ring several times over, so that nothing
/// waits for the drain.
const CALLS: u64 = 20_000;
const BATCHES: u64 = 10;
/// The pause before each batch: long enough for the drain to catch up. All variants pause alike.
const PAUSE_MICROS: u64 = 20_000;
/// The largest difference that is no cost, on a machine with other users.
const NO_COST_NS: f64 = 0.5;

/// The name of the variant that records into rings without a reader.
const FLYING: &str = "traced by xrayd, in flight";
const COUNTED: &str = "counted by xrayd";
/// The name of the variant that adds calls up by stack in the program.
const ADDED_UP: &str = "added up by xrayd, by stack";
/// The name of the variant whose daemon was killed, and the time since.
const LEFT_ON: &str = "traced by xrayd until it was killed 15 s ago";
const GONE_FOR: Duration = Duration::from_secs(15);
/// Options of `xrayctl filter`, the effect on all calls, and the most that they may cost, in
/// floors.
const FILTERED: [(&str, &[&str], Option<f64>); 5] = [
    (
        "left out by xrayd, too short",
        &["--min-duration", "1s"],
        Some(1.25),
    ),
    (
        "left out by xrayd, elsewhere",
        &["--inside", "nobody"],
        None,
    ),
    (
        "left out by xrayd, of another thread",
        &["--thread", "nobody"],
        None,
    ),
    ("traced by xrayd, to a depth", &["--max-depth", "100"], None),
    ("traced by xrayd, one tree in two", &["--one-in", "2"], None),
];

/// One line of the table.
struct Variant {
    name: &'static str,
    mode: &'static str,
    target: Target,
    /// The median of the batches of each round, and the fastest batch of each.
    medians: Samples,
    fastest: Samples,
}

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<Vec<Row>> {
    let rounds = match bench.effort {
        Effort::Full => 15,
        Effort::Quick => 4,
    };
    let daemon = Daemon::start()?;
    let dir = bench.scratch("leaf")?;

    let untouched = spawn(Command::new(build(Fixture::Leaf)?), &[])?;
    let traced = spawn(Command::new(build(Fixture::Leaf)?), &[])?;
    daemon.attach(traced.pid())?;
    daemon.toggle(traced.pid(), "enable")?;
    let traced_pid = traced.pid();
    let flying = spawn(Command::new(build(Fixture::Leaf)?), &[])?;
    daemon.attach(flying.pid())?;
    daemon.ctl(&["mode", "flight", "--pid", &flying.pid().to_string()])?;
    daemon.toggle(flying.pid(), "enable")?;
    let flying_pid = flying.pid();
    let counted = spawn(Command::new(build(Fixture::Leaf)?), &[])?;
    daemon.attach(counted.pid())?;
    daemon.ctl(&["mode", "count", "--pid", &counted.pid().to_string()])?;
    daemon.toggle(counted.pid(), "enable")?;
    let added_up = spawn(Command::new(build(Fixture::Leaf)?), &[])?;
    daemon.attach_in(added_up.pid(), "profile")?;
    daemon.toggle(added_up.pid(), "enable")?;
    let added_up_pid = added_up.pid();
    let mut filtered = Vec::new();
    for (name, options, _) in FILTERED {
        let target = spawn(Command::new(build(Fixture::Leaf)?), &[])?;
        let pid = target.pid().to_string();
        daemon.attach(target.pid())?;
        daemon.ctl(&["mode", "flight", "--pid", &pid])?;
        daemon.ctl(&[&["filter", "--pid", &pid], options].concat())?;
        daemon.toggle(target.pid(), "enable")?;
        filtered.push(Variant::new(name, "sleds", target));
    }
    let mut left = spawn(Command::new(build(Fixture::Leaf)?), &[])?;
    daemon.attach(left.pid())?;
    daemon.toggle(left.pid(), "enable")?;
    left.ask("go sleds", "sleds")?;
    daemon.detach(left.pid())?;

    let left_on = spawn(Command::new(build(Fixture::Leaf)?), &[])?;
    let gone = Daemon::start()?;
    gone.attach(left_on.pid())?;
    gone.toggle(left_on.pid(), "enable")?;
    gone.kill()?;
    let since = Instant::now();

    let mut variants = vec![
        Variant::new("floor: two counter reads and a call", "floor", untouched),
        Variant::new(
            "plain call, no sleds",
            "plain",
            spawn(Command::new(build(Fixture::Leaf)?), &[])?,
        ),
        Variant::new(
            "sleds off, before attach",
            "sleds",
            spawn(Command::new(build(Fixture::Leaf)?), &[])?,
        ),
        Variant::new("sleds off, after detach", "sleds", left),
        Variant::new("traced by xrayd", "sleds", traced),
        Variant::new(FLYING, "sleds", flying),
        Variant::new(COUNTED, "sleds", counted),
        Variant::new(ADDED_UP, "sleds", added_up),
        Variant::new(LEFT_ON, "sleds", left_on),
    ];
    variants.extend(filtered);
    for (name, log) in [
        ("LLVM XRay, FDR mode", "xray-fdr"),
        ("LLVM XRay, basic mode", "xray-basic"),
        ("LLVM XRay, profiling mode", "xray-profiling"),
    ] {
        variants.push(Variant::new(name, "sleds", llvm(&dir, log)?));
    }
    let uftrace = Path::new("/usr/bin/uftrace");
    if uftrace.exists() {
        let target = spawn_uftrace(uftrace, &dir)?;
        variants.push(Variant::new("uftrace, XRay sleds patched", "sleds", target));
    }

    sleep(GONE_FOR.saturating_sub(since.elapsed()));
    let per_round = 2 * CALLS * BATCHES;
    let (mut expected, _) = daemon.counters(traced_pid)?;
    for round in 0..=rounds {
        for variant in &mut variants {
            let (fastest, median) = variant.go()?;
            if variant.target.pid() == traced_pid {
                expected += per_round;
                // Every event of the round was recorded. A loss would be waited for in vain.
                wait_until(DEADLINE, "every event is counted", || {
                    let (events, lost) = daemon.counters(traced_pid)?;
                    Ok((events + lost >= expected).then_some(()))
                })?;
            }
            // The first touch of every page is not the cost of a call.
            if round > 0 {
                variant.medians.push(median);
                variant.fastest.push(fastest);
            }
        }
    }
    let (events, lost) = daemon.counters(traced_pid)?;
    ensure!(
        events + lost == expected,
        "{events} events and {lost} lost instead of {expected}"
    );
    let (added, none) = daemon.counters(added_up_pid)?;
    ensure!(
        (added, none) == (expected, 0),
        "{added} events added up, {none} lost, instead of {expected}"
    );
    let (about, none) = daemon.counters(flying_pid)?;
    ensure!(
        none == 0 && about.abs_diff(events) < events / 100,
        "{about} events in flight, {none} lost"
    );

    let mut rows = rows(
        &variants,
        &format!("{events} events recorded, {lost} lost"),
        lost,
    )?;
    if !uftrace.exists() {
        rows.push(Row::not_measured("uftrace", "uftrace is not installed"));
    }
    // The logs are written as the programs end.
    for variant in &mut variants {
        variant.target.close_stdin();
    }
    drop(
        variants
            .drain(..)
            .map(Variant::end)
            .collect::<Result<Vec<_>>>()?,
    );
    check_logs(&dir, table, per_round * (rounds + 1))?;
    Ok(rows)
}

fn rows(variants: &[Variant], recorded: &str, lost: u64) -> Result<Vec<Row>> {
    let median = |name: &str| {
        let variant = variants
            .iter()
            .find(|variant| variant.name.starts_with(name));
        variant
            .map(|variant| variant.medians.median())
            .context("a variant is missing")
    };
    let (floor, plain) = (median("floor")?, median("plain")?);
    let (ours, fdr) = (median("traced")?, median("LLVM XRay, FDR")?);
    let mut rows = Vec::new();
    for variant in variants {
        let cost = variant.medians.median();
        let result = format!("{cost:.2} ns, fastest {:.2}", variant.fastest.min());
        let ratio = format!("{:.2} × floor", cost / floor);
        rows.push(match variant.name {
            name if name.starts_with("sleds off") => {
                let ratio = format!("{:+.2} ns to plain", cost - plain);
                Row::new(name, result, ratio)
                    .goal(format!("< {NO_COST_NS} ns"), cost - plain < NO_COST_NS)
            }
            FLYING => Row::new(FLYING, result, ratio).goal("≤ 1.15 × floor", cost <= 1.15 * floor),
            ADDED_UP => {
                Row::new(ADDED_UP, result, ratio).goal("≤ 1.30 × floor", cost <= 1.3 * floor)
            }
            COUNTED => {
                Row::new(COUNTED, result, ratio).goal("≤ 0.25 × floor", cost <= 0.25 * floor)
            }
            LEFT_ON => Row::new(LEFT_ON, result, format!("{:.2} × traced", cost / ours))
                .goal("≤ 0.4 × traced", cost <= 0.4 * ours),
            name if filter(name).is_some() => {
                let row = Row::new(name, result, ratio);
                match filter(name).flatten() {
                    Some(most) => row.goal(format!("≤ {most} × floor"), cost <= most * floor),
                    None => row,
                }
            }
            name if name.starts_with("traced") => {
                Row::new(name, format!("{result}; {recorded}"), ratio)
                    .goal("≤ 1.15 × floor, 0 lost", cost <= 1.15 * floor && lost == 0)
            }
            name => Row::new(name, result, ratio),
        });
    }
    let faster = fdr / ours;
    rows.push(
        Row::new(
            "xrayd against FDR mode",
            format!("{faster:.2} × faster"),
            "",
        )
        .goal("≥ 3.5 × faster", faster >= 3.5),
    );
    Ok(rows)
}

/// The most that calls with that filter may cost, in floors; `None` for a variant without a filter.
fn filter(name: &str) -> Option<Option<f64>> {
    let mut filtered = FILTERED.iter();
    filtered.find(|row| row.0 == name).map(|row| row.2)
}

// === impl Variant ===

impl Variant {
    fn new(name: &'static str, mode: &'static str, target: Target) -> Self {
        Self {
            name,
            mode,
            target,
            medians: Samples::default(),
            fastest: Samples::default(),
        }
    }

    /// Makes a round, and returns nanoseconds a call in the fastest and the middle batch.
    fn go(&mut self) -> Result<(f64, f64)> {
        let line = self.target.ask(&format!("go {}", self.mode), self.mode)?;
        let mut numbers = line.split(' ').skip(1).map(str::parse::<f64>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(fastest)), Some(Ok(median))) => Ok((fastest, median)),
            _ => anyhow::bail!("{}: {line:?}", self.name),
        }
    }

    fn end(mut self) -> Result<()> {
        let status = self.target.wait(DEADLINE)?;
        ensure!(status.success(), "{}: {status}", self.name);
        Ok(())
    }
}

fn spawn(mut command: Command, more: &[&str]) -> Result<Target> {
    command.args(more);
    command.args(["--batches", &BATCHES.to_string()]);
    command.args(["--calls", &CALLS.to_string()]);
    command.args(["--pause", &PAUSE_MICROS.to_string()]);
    Target::spawn_command(command)
}

/// A program with LLVM's runtime. It writes its logs into the current directory, and complaints
/// beside them.
fn llvm(dir: &Path, log: &str) -> Result<Target> {
    let dir = dir.join(log);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut command = Command::new(build(Fixture::LeafLlvm)?);
    command.current_dir(&dir);
    command.stderr(File::create(dir.join("complaints")).context("cannot create a file")?);
    // In its default memory, the profiling mode adds up some 2,000 calls, and then nothing more.
    command.env(
        "XRAY_PROFILING_OPTIONS",
        "per_thread_allocator_max=67108864 global_allocator_max=268435456 stack_allocator_max=67108864",
    );
    spawn(command, &["--log", log])
}

fn spawn_uftrace(uftrace: &Path, dir: &Path) -> Result<Target> {
    let mut command = Command::new(uftrace);
    command
        .args(["record", "-P", ".", "--no-libcall", "--no-event", "-d"])
        .arg(dir.join("uftrace"))
        .arg(build(Fixture::Leaf)?)
        .stderr(File::create(dir.join("uftrace-complaints")).context("cannot create a file")?);
    spawn(command, &[])
}

/// Checks that the logs of LLVM's modes and uftrace show a recording.
fn check_logs(dir: &Path, table: &mut Table, events: u64) -> Result<()> {
    let is_log = |name: &str| name.starts_with("xray-log.");
    let fdr = log_bytes(&dir.join("xray-fdr"), is_log)?;
    // The flight recorder keeps 100 buffers of 16 KiB.
    ensure!(
        fdr > 1 << 20,
        "FDR mode recorded next to nothing: a log of {fdr} bytes"
    );
    let basic = log_bytes(&dir.join("xray-basic"), is_log)? / 32;
    ensure!(
        basic >= events - 4096,
        "basic mode recorded {basic} of {events} events"
    );
    let uftrace = dir.join("uftrace");
    if uftrace.exists() {
        let records = log_bytes(&uftrace, |name| name.ends_with(".dat"))? / 16;
        if records < events - 4096 {
            table.note(format!("uftrace recorded {records} of {events} events."));
        }
    }
    let complaints = fs::read_to_string(dir.join("xray-fdr/complaints"))
        .context("cannot read what LLVM's runtime complained about")?;
    if complaints.contains("Unable to determine CPU frequency") {
        table.note(
            "LLVM's runtime finds no frequency of the counter on this machine (`/sys` has none) and reads \
             CLOCK_REALTIME instead: its figures hold for machines like this one.",
        );
    }
    Ok(())
}

/// Bytes of the files in `dir` with a wanted name.
fn log_bytes(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let entry = entry?;
        if wanted(&entry.file_name().to_string_lossy()) {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}
