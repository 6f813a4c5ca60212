//! Attaching to a program of 200,000 functions: the time of the command, and the daemon's memory.
//!
//! The daemon keeps what it has read of a program while a process of it is traced. So the second
//! attach of a round, to another process of the same program, shows what the reading takes.

use std::time::Instant;

use anyhow::{Result, ensure};
use integration::{Fixture, Target};

use super::daemon::{Daemon, number};
use super::samples::Samples;
use super::table::Row;
use super::{Bench, Effort};

const FUNCTIONS: u64 = 200_000;
const LONGEST_ATTACH_MS: f64 = 500.0;
const MOST_MEMORY_MIB: f64 = 64.0;

/// The results of all rounds.
#[derive(Default)]
struct Measured {
    /// Milliseconds of the first attach.
    first: Samples,
    /// Milliseconds of the attach to another process of the same program.
    second: Samples,
    /// Milliseconds of the first enable.
    enable: Samples,
    /// The daemon's memory in MiB, as long as one process is attached and all its functions are on.
    resident: Samples,
    /// The most memory that it has had until then, in MiB.
    peak: Samples,
}

pub(super) fn run(bench: &Bench) -> Result<Vec<Row>> {
    let rounds = match bench.effort {
        Effort::Full => 7,
        Effort::Quick => 2,
    };
    let mut measured = Measured::default();
    for _ in 0..rounds {
        measured.round()?;
    }
    let Measured {
        first,
        second,
        enable,
        resident,
        peak,
    } = measured;
    let times = |samples: &Samples| {
        format!(
            "{:.0} ms, {:.0} to {:.0}",
            samples.median(),
            samples.min(),
            samples.max()
        )
    };
    let of_first = |samples: &Samples| format!("{:.2} × first", samples.median() / first.median());
    Ok(vec![
        Row::new("attach, the whole command", times(&first), "1.00 × first")
            .goal("≤ 500 ms", first.median() <= LONGEST_ATTACH_MS),
        Row::new(
            "attach to a second process",
            times(&second),
            of_first(&second),
        ),
        Row::new(
            "enable all, the whole command",
            times(&enable),
            of_first(&enable),
        ),
        Row::new(
            "the daemon's memory with all functions on",
            format!("{:.0} MiB, at most {:.0}", resident.median(), peak.max()),
            "",
        )
        .goal("≤ 64 MiB", peak.max() <= MOST_MEMORY_MIB),
    ])
}

// === impl Measured ===

impl Measured {
    fn round(&mut self) -> Result<()> {
        let daemon = Daemon::start()?;
        let mut target = Target::spawn(Fixture::Many200k, [""; 0])?;
        let pid = target.pid();
        let begun = Instant::now();
        daemon.attach(pid)?;
        self.first.push(milliseconds(begun));
        let begun = Instant::now();
        let report = daemon.toggle(pid, "enable")?;
        self.enable.push(milliseconds(begun));
        ensure!(number(&report, "changed")? == FUNCTIONS, "{report}");
        let (_, resident) = daemon.threads_and_memory()?;
        self.resident.push(mib(resident));
        self.peak.push(mib(daemon.peak_memory()?));
        // They really are on.
        target.ask("go", "done")?;
        let (events, lost) = daemon.counters(pid)?;
        ensure!(events + lost > 0, "no event");
        let other = Target::spawn(Fixture::Many200k, [""; 0])?;
        let begun = Instant::now();
        daemon.attach(other.pid())?;
        self.second.push(milliseconds(begun));
        daemon.detach(other.pid())?;
        daemon.detach(pid)?;
        Ok(())
    }
}

fn milliseconds(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
