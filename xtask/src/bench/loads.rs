//! The time from `dlopen` to the first event of a library that a rule names. Libraries that are
//! loaded before the attach are not measured.

use std::ffi::OsStr;
use std::fs::File;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target, build};
use xray_trace::model::{EventBody, Trace};

use super::daemon::Daemon;
use super::samples::Samples;
use super::table::Row;
use super::{Bench, Effort};

const LIMIT_MS: f64 = 10.0;
/// The function of the library that is called once it is loaded.
const CALLED: &str = "plugin_a_call";
/// The time for which it is called. Without the kernel's perf events the daemon finds a load by its
/// next look at the maps, and a slow machine affords fewer looks.
const RACE_MS: u32 = 100;

/// A detection method for loads, and the program that makes the daemon use it.
struct Way<'a> {
    name: &'a str,
    under: &'a [&'a OsStr],
}

pub(super) fn run(bench: &Bench) -> Result<Vec<Row>> {
    let confined = build(Fixture::Confined)?;
    let words = ["--filter", "no-perf", "--exec"].map(OsStr::new);
    let [filter, how, exec] = words;
    let without = [confined.as_os_str(), filter, how, exec];
    let ways = [
        Way {
            name: "perf",
            under: &[],
        },
        Way {
            name: "maps",
            under: &without,
        },
    ];
    let mut rows = Vec::new();
    for way in ways {
        rows.extend(way.rows(bench)?);
    }
    Ok(rows)
}

// === impl Way ===

impl Way<'_> {
    fn rows(&self, bench: &Bench) -> Result<Vec<Row>> {
        let loads = match bench.effort {
            Effort::Full => 50,
            Effort::Quick => 10,
        };
        let daemon = Daemon::start_under(self.under)?;
        let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
        let pid = target.pid();
        let pid_word = pid.to_string();
        daemon.attach(pid)?;
        let only = ["enable", "--pid", &pid_word, "--module", "many_a.so"];
        daemon.ctl(&only)?;
        let (mut begun, mut reported) = (Vec::new(), Samples::default());
        for _ in 0..loads {
            let raced = target.ask(&format!("race 0 many_a.so {RACE_MS}"), "raced ")?;
            let nanoseconds = raced.trim_start_matches("raced ").trim();
            begun.push(nanoseconds.parse::<u64>().context("no time")?);
            let status = daemon.ctl(&["status", "--pid", &pid_word])?;
            let process = &status["processes"][0];
            ensure!(process["detection"] == self.name, "{process}");
            let modules = process["modules"].as_array().into_iter().flatten();
            let mut armed = modules.filter_map(|module| {
                let many = module["functions_on"].as_u64()? > 1000;
                many.then(|| module["armed_within_ns"].as_u64())?
            });
            if let Some(nanoseconds) = armed.next_back() {
                reported.push(nanoseconds as f64 / 1e6);
            }
            target.ask("unload 0", "unloaded")?;
            // This makes the daemon look at the maps: no perf event reports an unloaded library.
            daemon.ctl(&["functions", "--pid", &pid_word])?;
        }
        let file = bench.scratch("loads")?.join(self.name);
        let path = file.to_str().context("not UTF-8")?;
        daemon.ctl(&["snapshot", "--pid", &pid_word, "-o", path])?;
        daemon.detach(pid)?;
        let trace = Trace::read(File::open(&file)?)?;
        let first = first_events(&trace, &begun)?;
        ensure!(
            first.len() == begun.len(),
            "{} of {loads} loads were recorded",
            first.len()
        );
        let first: Samples = first.into_iter().collect();
        let of = |samples: &Samples| {
            let (median, max) = (samples.median(), samples.max());
            format!("{median:.2} ms, {:.2} to {max:.2}", samples.min())
        };
        let bound = match self.name {
            "perf" => "measured",
            _ => "at most",
        };
        Ok(vec![
            Row::new(
                format!(
                    "noticed by {}: from before dlopen to the first event",
                    self.name
                ),
                of(&first),
                format!("{loads} loads"),
            )
            .goal(format!("≤ {LIMIT_MS:.0} ms"), first.max() <= LIMIT_MS),
            Row::new(
                "  from the mapping of its text to armed, as told",
                of(&reported),
                bound,
            ),
        ])
    }
}

/// The times from each of `begun` (by `CLOCK_MONOTONIC`) to the first event of the library, in
/// milliseconds.
fn first_events(trace: &Trace, begun: &[u64]) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    let called = trace
        .functions()
        .iter()
        .find(|function| function.name == CALLED);
    let called = called.context("nothing was recorded")?.id;
    for block in trace.blocks() {
        for event in block.events() {
            let event = event?;
            if matches!(event.body, EventBody::Call { function, .. } if function == called) {
                times.push(trace.clock().monotonic_ns(event.ticks));
            }
        }
    }
    times.sort_unstable();
    let after = begun.iter().zip(begun.iter().skip(1).chain([&u64::MAX]));
    let first = after.filter_map(|(&begun, &next)| {
        let first = times.get(times.partition_point(|&time| time < begun))?;
        (*first < next).then(|| (first - begun) as f64 / 1e6)
    });
    Ok(first.collect())
}
