//! Attaching to a program with few and many threads: the longest time for which a thread stands
//! still, seen from inside.
//!
//! The main thread only reads the clock. The others sleep, and the engine borrows one of them if
//! there is any. The figure is the longest time between two readings of the clock. Where the engine
//! borrowed a sleeping thread, the figure is that thread's stop by the daemon's report, if that is
//! longer. The reference is the longest time without a stop, while `xrayctl doctor` reads as much
//! of the process as attaching does.

use std::time::Duration;

use anyhow::{Context as _, Result};
use integration::{Fixture, Target};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::daemon::{Daemon, number};
use super::samples::Samples;
use super::switches::Switches;
use super::table::Row;
use super::{Bench, Effort};

/// The time for which the clock's thread runs before the first measurement.
const WARM_UP: Duration = Duration::from_millis(200);

/// The processors of this process, given back in the end.
struct Corner {
    before: CpuSet,
    /// The processor of the thread that reads the clock; `None` if there is no processor to spare.
    clock: Option<CpuSet>,
}

/// The results of all repetitions, times in milliseconds.
#[derive(Debug, Default)]
struct Measured {
    /// The longest time between two readings of the clock while no thread was stopped.
    undisturbed: Samples,
    /// The same during an attach, or the stop by the report, whichever is longer.
    seen: Samples,
    /// The stop by the daemon's own report.
    reported: Samples,
    /// The most threads that were disturbed in any repetition.
    stopped: usize,
}

pub(super) fn run(bench: &Bench) -> Result<Vec<Row>> {
    let repetitions = match bench.effort {
        Effort::Full => 15,
        Effort::Quick => 4,
    };
    let corner = Corner::take()?;
    let daemon = Daemon::start()?;
    let mut rows = Vec::new();
    for threads in [1, 100, 1000] {
        match measure(threads, repetitions, &corner, &daemon) {
            Ok(measured) => rows.extend(describe(threads, &measured)),
            // A thread that gets no processor cannot be stopped. Another number of threads may
            // work.
            Err(error) => rows.push(Row::not_measured(name(threads), format!("{error:#}"))),
        }
    }
    Ok(rows)
}

fn measure(threads: u32, repetitions: u32, corner: &Corner, daemon: &Daemon) -> Result<Measured> {
    let mut measured = Measured::default();
    for _ in 0..repetitions {
        let arguments = ["--threads", &threads.to_string(), "--spin", "main"];
        let mut target = Target::spawn(Fixture::ManyThreads, arguments)?;
        let pid = target.pid();
        corner.give_clock(pid)?;
        std::thread::sleep(WARM_UP);
        target.ask("gap", "gap")?;
        daemon.ctl(&["doctor", &pid.to_string()])?;
        measured.undisturbed.push(gap_ms(&mut target)?);

        let sleepers = Switches::of(pid)?;
        target.ask("gap", "gap")?;
        let report = daemon.attach(pid)?;
        let reported = number(&report, "stopped_ns")? as f64 / 1e6;
        measured.seen.push(gap_ms(&mut target)?.max(reported));
        measured.reported.push(reported);
        // The kernel's counters show disturbed sleeping threads; the report shows the clock's
        // thread.
        let clock = usize::from(number(&report, "stopped_tid")? == u64::from(pid.unsigned_abs()));
        let others = sleepers.disturbed_threads()?;
        let others = others.iter().filter(|&&tid| tid != pid).count();
        measured.stopped = measured.stopped.max(clock + others);
        daemon.detach(pid)?;
    }
    Ok(measured)
}

fn name(threads: u32) -> String {
    match threads {
        1 => "1 thread".to_owned(),
        more => format!("{more} threads"),
    }
}

fn describe(threads: u32, measured: &Measured) -> [Row; 2] {
    let Measured {
        undisturbed,
        seen,
        reported,
        stopped,
    } = measured;
    let name = name(threads);
    let result = format!(
        "{:.3} ms, {:.3} to {:.3}; by the report {:.3} ms, at most {:.3}",
        seen.median(),
        seen.min(),
        seen.max(),
        reported.median(),
        reported.max()
    );
    let ratio = format!(
        "{:.3} ms, at most {:.3}, without a stop",
        undisturbed.median(),
        undisturbed.max()
    );
    [
        Row::new(
            format!("{name}: longest time that one stood still"),
            result,
            ratio,
        )
        .goal("≤ 1 ms", seen.max() <= 1.0 && reported.max() <= 1.0),
        Row::new(format!("{name}: threads stopped"), stopped.to_string(), "")
            .goal("1", *stopped == 1),
    ]
}

fn gap_ms(target: &mut Target) -> Result<f64> {
    let line = target.ask("gap", "gap")?;
    let nanoseconds = line
        .strip_prefix("gap ")
        .and_then(|number| number.parse::<f64>().ok());
    Ok(nanoseconds.with_context(|| format!("not a gap: {line:?}"))? / 1e6)
}

// === impl Corner ===

impl Corner {
    /// Keeps this process, and the programs that it starts, off the last processor, which is for
    /// the clock.
    fn take() -> Result<Self> {
        let own = Pid::from_raw(0);
        let before = sched_getaffinity(own).context("cannot read the processors")?;
        let allowed: Vec<_> = (0..CpuSet::count())
            .filter(|&cpu| before.is_set(cpu).unwrap_or(false))
            .collect();
        let clock = match allowed.split_last() {
            Some((&last, rest)) if !rest.is_empty() => {
                let mut others = CpuSet::new();
                rest.iter().try_for_each(|&cpu| others.set(cpu))?;
                sched_setaffinity(own, &others).context("cannot choose processors")?;
                let mut clock = CpuSet::new();
                clock.set(last)?;
                Some(clock)
            }
            _ => None,
        };
        Ok(Self { before, clock })
    }

    fn give_clock(&self, tid: i32) -> Result<()> {
        match &self.clock {
            Some(clock) => {
                sched_setaffinity(Pid::from_raw(tid), clock).context("cannot choose a processor")
            }
            None => Ok(()),
        }
    }
}

impl Drop for Corner {
    fn drop(&mut self) {
        // A process that may run on any processor may run on the one of before.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.before);
    }
}
