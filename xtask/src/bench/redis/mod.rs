//! Redis under `redis-benchmark`, every function with sleds: off, in each mode of xrayd, and in
//! LLVM's modes.
//!
//! Each variant has a server of its own, and servers without load are idle. A reader of events runs
//! only while its own server is under load, so that it takes no time from the others. A duty cycle
//! stays attached, as users have it, and its rings are not read. With a budget a server is compared
//! with itself: by turns it is untraced, and traced with a settled budget.
//!
//! | file | content |
//! |---|---|
//! | `server` | building, starting and loading a server |
//! | `variants` | the tracing of each server, and the results |

mod server;
mod variants;

use std::time::Duration;

use anyhow::{Context as _, Result};

use self::server::{COMMANDS, Redis};
use self::variants::{Llvm, Mode, Ours, Round, Variant};
use super::daemon::{Daemon, number};
use super::drain::bytes_row;
use super::table::{Row, Table};
use super::{Bench, Effort};

/// The throughput that must remain with a budget of 2 %, in percent.
const LEFT_OF_BUDGET: f64 = 97.0;

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<Vec<Row>> {
    let redis = Redis::build()?;
    let rounds = match bench.effort {
        Effort::Full => 5,
        Effort::Quick => 1,
    };
    let dir = bench.scratch("redis")?;
    let file = dir.join("redis.xtrace");
    let daemon = Daemon::start()?;
    let mut variants: Vec<_> = Mode::ALL
        .iter()
        .map(|&mode| Variant::start(mode, &redis, &daemon, &dir))
        .collect();
    let turns = variants.iter().map(|variant| variant.mode.turns()).max();
    let turns = turns.unwrap_or(0);
    for round in 0..=rounds {
        let counts = match round {
            0 => Round::WarmUp,
            _ => Round::Measured,
        };
        for turn in 0..turns {
            let taking = variants.iter_mut();
            let mut taking: Vec<_> = taking.filter(|one| turn < one.mode.turns()).collect();
            // The server that comes first, or after a traced one, is another one each time.
            let first = (round * turns + turn) as usize % taking.len();
            taking.rotate_left(first);
            for variant in taking {
                variant.load(&redis, &daemon, &file, counts);
            }
        }
    }
    for variant in &mut variants {
        variant.end(&daemon);
    }
    table.note(format!(
        "{}, all its libraries included, by clang-19 -O2 with a sled in every function; `redis-benchmark -t set,get -P 16 -c 50`, \
         one server for each row, all on one machine, rounds interleaved, medians.",
        redis.version
    ));
    rows(&variants)
}

fn rows(variants: &[Variant]) -> Result<Vec<Row>> {
    let off = variants.iter().find(|variant| variant.mode == Mode::Off);
    let off = off.context("a variant is missing")?;
    let mut rows = Vec::new();
    for variant in variants {
        let name = variant.mode.name();
        if let Some(why) = &variant.failure {
            rows.push(Row::not_measured(name, why));
            continue;
        }
        for (index, command) in COMMANDS.iter().enumerate() {
            let rate = variant.rates[index].median();
            let share = match variant.mode {
                Mode::Ours(Ours::Budget | Ours::ProfileBudget) => {
                    variant.untraced.shares[index].median()
                }
                _ => 100.0 * rate / off.rates[index].median(),
            };
            let ratio = match variant.mode {
                Mode::Off => String::new(),
                Mode::Ours(Ours::Budget | Ours::ProfileBudget) => {
                    let shares = &variant.untraced.shares[index];
                    format!(
                        "{share:.1} % of the same server untraced, {:.1} to {:.1}",
                        shares.min(),
                        shares.max()
                    )
                }
                Mode::OffAgain | Mode::Ours(_) | Mode::Llvm(_) => format!("{share:.1} % of off"),
            };
            let (name, rate) = (
                format!("{command}, {name}"),
                format!("{:.0} k requests/s", rate / 1e3),
            );
            let row = Row::new(name, rate, ratio);
            rows.push(match variant.mode {
                Mode::Ours(Ours::Budget | Ours::ProfileBudget) => {
                    row.goal(format!("≥ {LEFT_OF_BUDGET} %"), share >= LEFT_OF_BUDGET)
                }
                _ => row,
            });
        }
        rows.push(processor_time(variant, off));
        rows.extend(details(variant, calls_a_request(variants))?);
    }
    Ok(rows)
}

/// A row on the processor time of the server. Other processes on the machine disturb it less than
/// the throughput.
fn processor_time(variant: &Variant, off: &Variant) -> Row {
    let each = |cpu: Duration, requests: u64| cpu.as_secs_f64() * 1e6 / requests as f64;
    let its = each(variant.tally.cpu, variant.tally.requests);
    let (offs, of) = match variant.mode {
        Mode::Ours(Ours::Budget | Ours::ProfileBudget) => {
            let untraced = &variant.untraced;
            (
                each(untraced.cpu, untraced.requests),
                "of the same server untraced",
            )
        }
        _ => (each(off.tally.cpu, off.tally.requests), "of off"),
    };
    Row::new(
        "  the server's processor time",
        format!("{its:.2} µs a request"),
        match variant.mode {
            Mode::Off => String::new(),
            Mode::OffAgain | Mode::Ours(_) | Mode::Llvm(_) => {
                format!("{:.1} % {of}", 100.0 * its / offs)
            }
        },
    )
}

/// Calls a request, from the variant that counts calls; not a number if that failed.
fn calls_a_request(variants: &[Variant]) -> f64 {
    let mut counted = variants.iter();
    let counted = counted.find(|variant| variant.mode == Mode::Ours(Ours::Count));
    counted.map_or(f64::NAN, |counted| {
        counted.tally.events as f64 / counted.tally.requests as f64
    })
}

/// Further rows on a variant.
fn details(variant: &Variant, calls_a_request: f64) -> Result<Vec<Row>> {
    let tally = &variant.tally;
    let (events, lost) = (tally.events, tally.lost);
    let passed = (events + lost) as f64;
    let each = passed / tally.requests as f64;
    let share = 100.0 * lost as f64 / passed;
    let read = Row::new(
        "  events, all rounds",
        format!("{events} recorded, {lost} lost ({share:.1} %)"),
        format!("{each:.0} a request"),
    );
    let flown = Row::new(
        "  events, all rounds",
        format!("about {events} recorded"),
        format!("about {each:.2} a request"),
    );
    Ok(match variant.mode {
        Mode::Off | Mode::OffAgain => Vec::new(),
        Mode::Ours(Ours::Budget | Ours::ProfileBudget) => {
            let [suppressed, hidden] = rests(variant, calls_a_request)?;
            vec![suppressed, hidden, flown]
        }
        Mode::Ours(Ours::Duty) => {
            let windows = number(&variant.status["budget"], "windows")?;
            let times = format!("{windows} times since it was attached");
            vec![Row::new("  everything was on", times, ""), flown]
        }
        Mode::Ours(Ours::Flight) => vec![flown],
        Mode::Ours(ours @ (Ours::Recorded | Ours::Lossless)) => {
            let each = tally.bytes as f64 / events as f64;
            let read = match ours {
                Ours::Lossless => read.goal("0 lost", lost == 0),
                _ => read.goal("≤ 2 % lost", share <= 2.0),
            };
            vec![
                read,
                bytes_row("  bytes per event on disk", each, events, lost),
            ]
        }
        Mode::Ours(Ours::Retained | Ours::Profile) => vec![read],
        Mode::Ours(Ours::Count) => vec![Row::new(
            "  calls, all rounds",
            format!("{events} counted"),
            format!("{each:.0} a request"),
        )],
        Mode::Llvm(Llvm::Flight | Llvm::Profiling) => {
            let bytes = format!("{} bytes", variant.log_bytes);
            vec![Row::new("  its log", bytes, "")]
        }
        Mode::Llvm(Llvm::Basic) => {
            let events = variant.log_bytes / 32;
            let each = events as f64 / variant.all_requests as f64;
            let each = format!("{each:.0} a request");
            vec![Row::new("  its log", format!("{events} events"), each)]
        }
    })
}

/// The result of a budget.
fn rests(variant: &Variant, calls_a_request: f64) -> Result<[Row; 2]> {
    let status = &variant.status;
    let budget = &status["budget"];
    let on = number(status, "functions_on")?;
    let suppressed = number(budget, "suppressed")?;
    let spent = match budget["overhead_ppm"].as_u64() {
        Some(ppm) => format!("{:.2} % spent, by its own estimate", ppm as f64 / 1e4),
        None => "what is spent is not known".to_owned(),
    };
    let hidden = number(budget, "unrecorded_estimate")? as f64;
    // Next to none of these calls was recorded.
    let calls = variant.all_requests as f64 * calls_a_request;
    Ok([
        Row::new(
            "  functions after the last load",
            format!(
                "{suppressed} of {on} rest, {} are recorded",
                on.saturating_sub(suppressed)
            ),
            spent,
        ),
        Row::new(
            "  calls not recorded, as estimated",
            format!("{:.0} M", hidden / 1e6),
            format!(
                "{:.2} × those that there were, {:.0} M",
                hidden / calls,
                calls / 1e6
            ),
        ),
    ])
}
