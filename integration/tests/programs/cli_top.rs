//! `xrayctl top`.

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, GroundTruth, ProcessState, Target};
use nix::sys::signal::Signal;

use crate::scene::{Scene, ensure_as_compiled, ensure_nothing_left, rows, sleds_on};
use crate::terminal::Terminal;

const COUNTED: [&str; 4] = ["--threads", "2", "--calls", "300"];

/// One interval for scripts, with all calls that ended in it.
#[test]
fn one_interval_is_printed() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    let before = ProcessState::of(target.pid())?;
    let top = ["top", &pid, "--once", "--interval", "5s", "--json"];
    let mut running = cli.start(top)?;
    running.until("functions are on", || {
        Ok((sleds_on(&target)? > 0).then_some(()))
    })?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    let interval: serde_json::Value = serde_json::from_str(&ran.out)?;
    let seconds = interval["seconds"].as_f64().context("no seconds")?;
    let mut calls = vec![0.0; truth.functions.len()];
    for row in rows(&interval, "rows")? {
        let name = row["name"].as_str().context("no name")?;
        let rate = row["calls_per_second"].as_f64().context("no rate")?;
        calls[truth.function(name).context("no function")?] = (rate * seconds).round();
    }
    let expected: Vec<f64> = truth.calls().iter().map(|calls| *calls as f64).collect();
    ensure!(calls == expected, "{calls:?} of {expected:?}");
    ensure!(interval["pid"] == target.pid() && interval["lost"] == 0);
    ensure_as_compiled(&target)?;
    ensure_nothing_left(&before, target.pid())?;

    for (more, why) in [
        (&["--json"][..], "--json works only with --once"),
        (&[], "not a terminal; --once prints"),
    ] {
        let ran = cli.run([&["top", &pid], more].concat())?;
        ran.failed(2, &[why])?;
    }
    ensure_as_compiled(&target)
}

/// On a terminal of 80 columns: functions appear, keys work, and every kind of end leaves the
/// process as it was.
#[test]
fn the_screen_is_alive_and_leaves_nothing_behind() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    for (ending, options) in [
        ("q", &[][..]),
        ("\u{3}", &["--on-cpu"]),
        ("SIGTERM", &["--on-cpu"]),
    ] {
        let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid().to_string();
        let before = ProcessState::of(target.pid())?;
        let top = [&["top", &pid, "--interval", "200ms"], options].concat();
        let mut terminal = Terminal::start(&cli.command(top), 80)?;
        terminal.until("it is drawn", |seen| {
            Ok(seen.contains("CALLS/S") && sleds_on(&target)? > 0)
        })?;
        target.ask("go", "result ")?;
        terminal.until(
            "functions are shown",
            |seen| Ok(seen.contains("work::even")),
        )?;
        if !options.is_empty() {
            let is_shown = |seen: &str| Ok(seen.contains("ON-CPU"));
            terminal.until("the time with a processor is shown", is_shown)?;
        }
        terminal.press("s/odd\r")?;
        terminal.until("the filter is shown", |seen| Ok(seen.contains("clears)")))?;
        match ending {
            "SIGTERM" => terminal.signal(Signal::SIGTERM)?,
            key => terminal.press(key)?,
        }
        let ended = terminal.wait()?;
        ensure!(ended.code == Some(0), "{ended:?}");
        // The earlier screen and the cursor are back.
        ensure!(ended.seen.contains("\u{1b}[?1049l") && ended.seen.contains("\u{1b}[?25h"));
        ensure_as_compiled(&target)?;
        ensure_nothing_left(&before, target.pid())?;
        target.still_running()?;
    }
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    let top = ["top", &pid, "--interval", "200ms"];
    let mut terminal = Terminal::start(&cli.command(top), 80)?;
    terminal.until("it is drawn", |seen| {
        Ok(seen.contains("CALLS/S") && sleds_on(&target)? > 0)
    })?;
    target.kill()?;
    let ended = terminal.wait()?;
    ensure!(
        ended.code == Some(0) && ended.seen.contains("has ended"),
        "{ended:?}"
    );
    Ok(())
}
