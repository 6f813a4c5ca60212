//! `xrayctl record --lossless`: threads wait for xrayd in place of losing events, and the trace
//! shows for how long.

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, GroundTruth, Target};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::record;
use crate::scene::{Cli, Running, Scene};
use crate::trace::{ensure_exact, read};

/// Recordings of which one has to be without losses. A collector that gets no processor for long
/// enough loses events of a thread that waits.
const ATTEMPTS: u32 = 5;

/// A busy program with rings that it fills at once: three times as many events as there is room
/// for, each 4 ms.
const BUSY: [&str; 6] = ["--threads", "2", "--calls", "20000", "--seed", "3"];

/// Many busy threads. If the collector read from one ring what its thread writes meanwhile, the
/// other threads would wait in vain.
const MANY: [&str; 6] = ["--threads", "12", "--calls", "4000", "--seed", "3"];

/// A recording with small rings.
fn begun(cli: &Cli, target: &Target, more: &[&str]) -> Result<Running> {
    let options = ["--ring-size", "64KiB", "--force", "--json"];
    record(cli, target, &[&options, more].concat())
}

/// The summary of a recording of a program with small rings, and what the program did.
fn recorded(cli: &Cli, program: [&str; 6], more: &[&str]) -> Result<(Value, GroundTruth)> {
    let mut target = Target::spawn(Fixture::Counted, program)?;
    let running = begun(cli, &target, more)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    let done = running.wait()?;
    ensure!(done.code == Some(0), "{done:?}");
    Ok((serde_json::from_str(&done.out)?, truth))
}

/// An own engine, and a daemon. Both read the rings while their threads wait.
#[test]
fn a_lossless_recording_has_every_call_and_the_waits() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let path = scene.path("f.xtrace");
    let alone = scene.alone()?;
    for (cli, program) in [
        (&alone, BUSY),
        (&alone, MANY),
        (&scene.with(&daemon)?, BUSY),
    ] {
        let mut whole = None;
        for attempt in 0..ATTEMPTS {
            let (summary, truth) = recorded(cli, program, &["--lossless=100ms"])?;
            let number = |key: &str| summary[key].as_u64().context(key.to_owned());
            let (events, lost) = (number("events")?, number("lost")?);
            ensure!(events + lost == truth.events(), "{summary} {truth:?}");
            if lost == 0 {
                whole = Some((number("waited_ns")?, truth));
                break;
            }
            eprintln!("attempt {attempt}: {lost} events lost");
        }
        let (waited_ns, truth) = whole.context("each recording lost events")?;
        ensure_exact(&path, &truth)?;
        let trace = read(&path)?;
        let waits = &trace.coverage().waits;
        let is_sound = |wait: &xray_trace::model::ThreadWait| {
            (1..=wait.until.0 - wait.from.0).contains(&wait.waited)
        };
        ensure!(!waits.is_empty() && waits.iter().all(is_sound), "{waits:?}");
        let info = cli.json(["info", "f.xtrace"])?;
        let reported = info["trace"]["waits"]["waited_ns"].as_u64();
        let reported = reported.with_context(|| info.to_string())?;
        // The counter's rate is measured, by the daemon and from the anchors of the trace.
        ensure!(
            reported.abs_diff(waited_ns) <= waited_ns / 10,
            "{reported} {waited_ns}"
        );
        let report = cli.ok(["report", "f.xtrace"])?;
        ensure!(report.contains(" until xrayd had read events"), "{report}");
    }
    Ok(())
}

/// Without waits the same program loses events, so the test above shows what it says. The summary
/// proposes to wait.
#[test]
fn the_same_recording_without_waits_loses_events() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let (summary, truth) = recorded(&cli, BUSY, &[])?;
    let number = |key: &str| summary[key].as_u64().context(key.to_owned());
    let (events, lost) = (number("events")?, number("lost")?);
    ensure!(events + lost == truth.events() && lost > 0, "{summary}");
    ensure!(summary["waited_ns"].is_null(), "{summary}");
    Ok(())
}

/// Threads wait for a daemon that stands still, once each, and go on. The program's events are
/// there or counted.
#[test]
fn a_daemon_that_stands_still_does_not_stop_the_program() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, BUSY)?;
    let running = begun(&cli, &target, &["--lossless=100ms"])?;
    let pid = Pid::from_raw(daemon.pid().cast_signed());
    kill(pid, Signal::SIGSTOP)?;
    let gone = target.ask("go", "result ");
    kill(pid, Signal::SIGCONT)?;
    let truth = GroundTruth::parse(&gone?)?;
    running.signal(Signal::SIGINT)?;
    let done = running.wait()?;
    ensure!(done.code == Some(0), "{done:?}");
    let summary: Value = serde_json::from_str(&done.out)?;
    let number = |key: &str| summary[key].as_u64().context(key.to_owned());
    let (events, lost) = (number("events")?, number("lost")?);
    ensure!(
        events + lost == truth.events() && lost > 0,
        "{summary} {truth:?}"
    );
    Ok(())
}

/// A daemon that is killed sets nothing back. Threads wait once each, and the program goes on.
#[test]
fn a_daemon_that_is_killed_does_not_stop_the_program() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, BUSY)?;
    let running = begun(&cli, &target, &["--lossless=100ms"])?;
    kill(Pid::from_raw(daemon.pid().cast_signed()), Signal::SIGKILL)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    ensure!(truth.events() > 0);
    target.still_running()?;
    ensure!(running.wait()?.code != Some(0));
    Ok(())
}

/// A limit on the overhead and waits contradict each other, and a wait has a bound.
#[test]
fn waits_have_bounds() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, BUSY)?;
    let pid = target.pid().to_string();
    let limited = ["record", &pid, "--lossless", "--max-overhead", "3%"];
    let refused = cli.run(limited)?;
    let says_why = refused.err.contains("cannot be used with '--max-overhead");
    ensure!(refused.code == Some(2) && says_why, "{refused:?}");
    cli.run(["record", &pid, "--lossless=101ms"])?
        .failed(4, &["the most is 100ms"])?;
    target.still_running()?;
    Ok(())
}
