//! The highest rate of events without a loss, and the cost of an event on its way.
//!
//! A program passes sleds at a steady rate. The daemon drains the events, and `xrayctl record`
//! writes them to a file. The rate is doubled and halved in short probes. The highest one is then
//! kept for ten seconds.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target};

use super::daemon::{Daemon, Recorded};
use super::table::{Row, Table};
use super::{Bench, Effort};

/// The first rate of the search, and the rate at which it gives up.
const FIRST_RATE: f64 = 4e6;
const LEAST_RATE: f64 = 0.25e6;
/// A rate that no program reaches with calls.
const MOST_RATE: f64 = 512e6;
/// The search ends when the ratio of the lowest bad rate to the highest good one is below this.
const NEAR: f64 = 1.08;
/// The factor for a rate that held in a probe, and not for long.
const STEP_DOWN: f64 = 0.85;
/// The most rates that are tried for long.
const ATTEMPTS: i32 = 16;

/// The way of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Through the daemon and `xrayctl record` into a file.
    File,
    /// Only into the daemon's memory.
    Memory,
    /// Into sums by stack, which the daemon makes.
    Sums,
}

/// The result of one run at one rate.
#[derive(Clone, Debug)]
struct Outcome {
    /// The actual rate, in events a second.
    rate: f64,
    events: u64,
    lost: u64,
    daemon_cpu: Duration,
    peak_memory: u64,
    /// The recording, if the way is a file.
    recorded: Option<Recorded>,
}

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<Vec<Row>> {
    let (probe, whole) = match bench.effort {
        Effort::Full => (1500, 10_000),
        Effort::Quick => (700, 3000),
    };
    let dir = bench.scratch("drain")?;
    let file = dir.join("drain.xtrace");
    let seconds = whole / 1000;
    let mut rows = Vec::new();
    for way in [Way::File, Way::Memory, Way::Sums] {
        let Found { kept, fast } = highest(way, &file, probe, whole)?;
        let to = match way {
            Way::File => "recorded to a file",
            Way::Memory => "retained by the daemon",
            Way::Sums => "added up by the daemon (mode profile, with a filter)",
        };
        let rate = kept.rate / 1e6;
        let result = match kept.lost {
            0 => format!("{rate:.1} M events/s, {} events, 0 lost", kept.events),
            lost => format!("none: of {rate:.1} M events/s, {lost} are lost still"),
        };
        let name = format!("highest rate kept for {seconds} s, {to}");
        rows.push(Row::new(name, result, "").goal("0 lost", kept.lost == 0));
        let Outcome {
            rate,
            events,
            lost,
            daemon_cpu,
            peak_memory,
            recorded,
        } = &fast;
        let millions = *events as f64 / 1e6;
        let ms = |cpu: Duration| format!("{:.1} ms", cpu.as_secs_f64() * 1e3 / millions);
        let per_second = millions / daemon_cpu.as_secs_f64().max(1e-9);
        let cost = Row::new(
            "  the daemon's CPU time per million events",
            format!("{} at {:.1} M/s, {lost} lost", ms(*daemon_cpu), rate / 1e6),
            format!(
                "{}: {per_second:.0} M events/s on one",
                share(*daemon_cpu, seconds)
            ),
        );
        rows.push(match way {
            Way::File => cost,
            Way::Memory => cost.goal("≥ 60 M/s on one", per_second >= 60.0),
            Way::Sums => cost.goal("≥ 30 M/s on one", per_second >= 30.0),
        });
        if let Some(recorded) = recorded {
            rows.push(Row::new(
                "  xrayctl's, which writes the file",
                ms(recorded.cpu),
                share(recorded.cpu, seconds),
            ));
            let each = recorded.bytes as f64 / recorded.events as f64;
            rows.push(Row::new(
                "  bytes per event of this program",
                format!("{each:.2}"),
                "",
            ));
        }
        let mib = *peak_memory as f64 / (1 << 20) as f64;
        let within = match way {
            Way::File | Way::Memory => "256 MiB of retained events in it at most",
            Way::Sums => "",
        };
        rows.push(Row::new(
            "  the daemon's peak memory",
            format!("{mib:.0} MiB"),
            within,
        ));
    }
    rows.push(demo(&file, Duration::from_millis(whole / 2))?);
    fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    table.note(
        "The program that drives the drain is one thread that paces itself by the clock; a rate that lost events twice was lowered.",
    );
    Ok(rows)
}

fn share(cpu: Duration, seconds: u64) -> String {
    format!("{:.2} processors", cpu.as_secs_f64() / seconds as f64)
}

/// The result of a search.
#[derive(Clone, Debug)]
struct Found {
    /// The run at the highest rate that was kept without a loss, or at the last one that was tried.
    kept: Outcome,
    /// The run at the highest rate that a probe kept, for the whole time. The cost of an event
    /// shows best where there are many.
    fast: Outcome,
}

/// Searches in probes of `probe` milliseconds. The runs that it returns took `whole`.
fn highest(way: Way, file: &Path, probe: u64, whole: u64) -> Result<Found> {
    let (mut good, mut bad) = (0.0, f64::INFINITY);
    let mut rate = FIRST_RATE;
    while bad / good > NEAR && rate < MOST_RATE {
        let outcome = try_rate(way, file, rate, probe)?;
        if outcome.lost == 0 {
            good = outcome.rate.max(good);
            // The program does not get any faster.
            if outcome.rate < rate * 0.9 {
                break;
            }
        } else {
            bad = rate;
        }
        rate = match (good, bad) {
            (_, bad) if bad.is_infinite() => rate * 2.0,
            (0.0, bad) => bad / 2.0,
            (good, bad) => (good * bad).sqrt(),
        };
        ensure!(
            rate > LEAST_RATE,
            "events are lost at {:.2} million a second already",
            rate / 1e6
        );
    }
    let fast = try_rate(way, file, good, whole)?;
    let mut kept = fast.clone();
    for attempt in 0..ATTEMPTS {
        if kept.lost == 0 {
            break;
        }
        // One failure may be the machine's fault.
        let lower = STEP_DOWN.powi(attempt / 2);
        kept = try_rate(way, file, good * lower, whole)?;
    }
    Ok(Found { kept, fast })
}

fn try_rate(way: Way, file: &Path, rate: f64, milliseconds: u64) -> Result<Outcome> {
    let daemon = Daemon::start()?;
    let mut target = Target::spawn(Fixture::Leaf, [""; 0])?;
    let pid = target.pid();
    let command = format!("pace {rate:.0} {milliseconds}");
    let (calls, nanoseconds, (events, lost), recorded) = match way {
        Way::File => {
            let recording = daemon.record(pid, file, None)?;
            let (calls, nanoseconds) = pace(&mut target, &command)?;
            let recorded = recording.finish()?;
            let counts = (recorded.events, recorded.lost);
            (calls, nanoseconds, counts, Some(recorded))
        }
        Way::Memory | Way::Sums => {
            let mode = match way {
                Way::Sums => "profile",
                Way::File | Way::Memory => "stream",
            };
            daemon.attach_in(pid, mode)?;
            if way == Way::Sums {
                // Without a filter, the program adds its calls up itself.
                let pid = pid.to_string();
                daemon.ctl(&["filter", "--pid", &pid, "--until", "1h"])?;
            }
            daemon.toggle(pid, "enable")?;
            let (calls, nanoseconds) = pace(&mut target, &command)?;
            daemon.toggle(pid, "disable")?;
            let mut report = daemon.ctl(&["detach", &pid.to_string()])?;
            let report = report["processes"][0].take();
            let counts = (
                super::daemon::number(&report, "events")?,
                super::daemon::number(&report, "lost")?,
            );
            (calls, nanoseconds, counts, None)
        }
    };
    ensure!(
        events + lost == 2 * calls,
        "{events} events and {lost} lost, but the program passed {} sleds",
        2 * calls
    );
    Ok(Outcome {
        rate: 2e9 * calls as f64 / nanoseconds,
        events,
        lost,
        daemon_cpu: daemon.cpu()?,
        peak_memory: daemon.peak_memory()?,
        recorded,
    })
}

/// Calls made, and nanoseconds taken.
fn pace(target: &mut Target, command: &str) -> Result<(u64, f64)> {
    let line = target.ask(command, "paced")?;
    let mut words = line.split(' ').skip(1);
    let calls = words.next().and_then(|word| word.parse().ok());
    let nanoseconds = words.next().and_then(|word| word.parse().ok());
    calls
        .zip(nanoseconds)
        .with_context(|| format!("not a count and a time: {line:?}"))
}

/// Bytes per event of the example program, which does real work in six threads.
fn demo(file: &Path, time: Duration) -> Result<Row> {
    let daemon = Daemon::start()?;
    let target = Target::spawn(Fixture::Demo, [""; 0])?;
    let recording = daemon.record(target.pid(), file, None)?;
    std::thread::sleep(time);
    let Recorded {
        events,
        lost,
        bytes,
        ..
    } = recording.finish()?;
    ensure!(events > 0, "the example program did nothing");
    let each = bytes as f64 / events as f64;
    Ok(bytes_row(
        "bytes per event on disk: the example program",
        each,
        events,
        lost,
    ))
}

/// A row on the size of a real program's events in a file.
pub(super) fn bytes_row(what: &str, each: f64, events: u64, lost: u64) -> Row {
    let result = format!("{each:.2} ({events} events, {lost} lost)");
    Row::new(what, result, "").goal("≤ 3", each <= 3.0)
}
