//! `xrayctl watch`.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, ProcessState, Target, wait_until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::scene::{Running, Scene, ensure_as_compiled, ensure_nothing_left, rows, sleds_on};

const COUNTED: [&str; 4] = ["--threads", "2", "--calls", "300"];

/// Waits until functions are on.
fn watching(running: &mut Running, target: &Target) -> Result<()> {
    running.until("functions are on", || {
        Ok((sleds_on(target)? > 0).then_some(()))
    })
}

/// With and without a daemon: the wanted number of lines of the wanted functions, and the process
/// is as it was.
#[test]
fn calls_are_shown_as_they_end() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.with(&daemon)?, scene.alone()?] {
        let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid().to_string();
        let before = ProcessState::of(target.pid())?;
        let arguments = ["watch", &pid, "--function", "work::even", "--json"];
        let more = ["--limit", "100", "--args", "1"];
        let mut running = cli.start([&arguments[..], &more].concat())?;
        watching(&mut running, &target)?;
        target.send("go")?;
        let ran = running.wait()?;
        ensure!(ran.code == Some(0), "{ran:?}");
        let calls: Vec<Value> = ran
            .out
            .lines()
            .map(|line| serde_json::from_str(line).context("a line is no JSON"))
            .collect::<Result<_>>()?;
        ensure!(calls.len() == 100, "{} calls", calls.len());
        for call in &calls {
            let its = call["pid"] == target.pid()
                && call["function"]
                    .as_str()
                    .is_some_and(|name| name.contains("even"))
                && call["duration_ns"].is_u64()
                && call["arguments"]
                    .as_array()
                    .is_some_and(|all| all.len() == 1);
            ensure!(its, "{call}");
        }
        ensure_as_compiled(&target)?;
        ensure_nothing_left(&before, target.pid())?;
        target.still_running()?;
    }
    Ok(())
}

/// With a least duration, a call comes with the calls around it, the outermost first.
#[test]
fn slow_calls_are_shown_with_their_callers() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    let arguments = ["watch", &pid, "--all", "--min-duration", "1ns"];
    let more = ["--limit", "200", "--json"];
    let mut running = cli.start([&arguments[..], &more].concat())?;
    watching(&mut running, &target)?;
    target.send("go")?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    let mut within = 0;
    for line in ran.out.lines() {
        let call: Value = serde_json::from_str(line).context("a line is no JSON")?;
        let Some(callers) = call["callers"].as_array() else {
            continue;
        };
        let named = callers.iter().filter_map(Value::as_str);
        ensure!(named.clone().count() == callers.len(), "{call}");
        ensure!(named.clone().all(|name| name.contains("work::")), "{call}");
        within += 1;
    }
    ensure!(within > 0, "no call has a caller: {}", ran.out);
    target.still_running()
}

/// Typed events are shown as they happen, with the names of types that the program registers
/// meanwhile.
#[test]
fn user_events_are_shown_with_the_names_of_their_types() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for (cli, fixture) in [
        (scene.alone()?, Fixture::Types),
        (scene.with(&daemon)?, Fixture::TypesLlvm),
    ] {
        let mut target = Target::spawn(fixture, [""; 0])?;
        let pid = target.pid().to_string();
        let watch = ["watch", &pid, "--all", "--json", "--limit", "9"];
        let formats = [
            "--event-format",
            "1=word:str2,number:u16",
            "--event-format",
            "7=a:u8",
        ];
        let mut running = cli.start([&watch[..], &formats[..]].concat())?;
        watching(&mut running, &target)?;
        // Three events, in a call each. The names can come after the first events.
        target.ask("say 3", "said 3")?;
        let printing = running.printing();
        running.until("the first events are shown", || {
            let shown = fs::read_to_string(&printing)?;
            Ok(shown.contains("typed-event").then_some(()))
        })?;
        target.ask("more 1", "said")?;
        target.ask("more 60000", "said")?;
        let ran = running.wait()?;
        ensure!(ran.code == Some(0), "{ran:?}");
        let lines = ran.out.lines().map(serde_json::from_str);
        let lines: Vec<Value> = lines.collect::<Result<_, _>>()?;
        let of = |number: u64| {
            let mut of = lines.iter().filter(|line| line["event_type"] == number);
            of.next_back().context("no event of that type")
        };
        let (known, unknown) = (of(1)?, of(60_000)?);
        for (event, name) in [(known, Some("type 1")), (unknown, None)] {
            // The compiler can give the function a suffix.
            let function = event["function"].as_str().unwrap_or_default();
            let its = event["kind"] == "typed-event"
                && event["pid"] == target.pid()
                && function.starts_with("say")
                && event["data"] == "more"
                && event["event_type_name"].as_str() == name;
            ensure!(its, "{event}");
        }
        let fields = json!({ "word": "mo", "number": u16::from_le_bytes(*b"re") });
        ensure!(
            known["fields"] == fields && unknown["fields"].is_null(),
            "{known}"
        );
        ensure_as_compiled(&target)?;
        target.still_running()?;
    }
    Ok(())
}

/// An attached process stays attached, in its mode. An interrupted or killed `watch` leaves nothing
/// on.
#[test]
fn a_watch_leaves_an_attached_process_as_it_was() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid])?;
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let mut running = cli.start(["watch", &pid, "--all"])?;
        watching(&mut running, &target)?;
        running.signal(signal)?;
        let ran = running.wait()?;
        ensure!(
            (ran.code == Some(0)) == (signal == Signal::SIGINT),
            "{ran:?}"
        );
        wait_until(DEADLINE, "it was undone", || {
            let status = cli.json(["status"])?;
            let row = &rows(&status, "processes")?[0];
            ensure!(row["mode"] == "flight", "{row}");
            Ok((row["functions_on"] == 0).then_some(()))
        })?;
    }
    cli.run(["watch", &pid, "--function", "no such one"])?
        .failed(3, &["nothing matched"])?;
    cli.ok(["detach", &pid])?;
    ensure_as_compiled(&target)
}
