//! Triggers in several processes, in later processes and in libraries.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Stage, Told, calls_of, spans};
use crate::scene::{Scene, row_of, rows};
use crate::trace::read;

/// Two independent programs, up to the same moment.
#[test]
fn all_processes_are_shown_at_the_same_moment() -> Result<()> {
    let mut stage = Stage::new("1")?;
    let other = Target::spawn(Fixture::Triggers, ["--threads", "1"])?;
    stage.cli.ok(["attach", &other.pid().to_string()])?;
    // The functions are on in both programs. At first, neither program's rings are read.
    stage.cli.ok(["enable", "--function", "tick"])?;
    let both = [stage.target.pid(), other.pid()].map(i64::from);
    let ensure_both = |path: &Path, moment: Option<u64>| -> Result<()> {
        let spans = spans(path)?;
        let mut pids: Vec<i64> = spans.iter().map(|(pid, ..)| i64::from(*pid)).collect();
        pids.sort_unstable();
        let mut expected = both;
        expected.sort_unstable();
        ensure!(pids == expected, "{spans:?}");
        let [(_, begin, end), (_, other_begin, other_end)] = spans[..] else {
            anyhow::bail!("{spans:?}");
        };
        ensure!(
            begin < other_end && other_begin < end,
            "they overlap: {spans:?}"
        );
        // Both are busy all the time. Other programs use the machine, too.
        ensure!(
            end.abs_diff(other_end) < 100_000_000,
            "they end together: {spans:?}"
        );
        if let Some(moment) = moment {
            ensure!(end <= moment && other_end <= moment, "{moment}: {spans:?}");
        }
        Ok(())
    };
    let taken = stage
        .cli
        .json(["snapshot", "--all-processes", "-o", "all.xtrace"])?;
    let file = &rows(&taken, "files")?[0];
    ensure!(file["processes"] == 2 && file["pid"] == 0, "{file}");
    ensure!(file["copied_within_ns"].as_u64() > Some(0), "{file}");
    ensure_both(&stage.path("all.xtrace"), None)?;
    let answer = stage.cli.ok([
        "snapshot",
        "--all-processes",
        "--last",
        "20ms",
        "-o",
        "last.xtrace",
    ])?;
    ensure!(
        answer.contains("of 2 processes, copied within "),
        "{answer}"
    );
    for (_, begin, end) in spans(&stage.path("last.xtrace"))? {
        // A snapshot of rings that are not read also begins at its time.
        ensure!(end - begin <= 21_000_000, "{begin} {end}");
    }

    let when = [
        "--pid",
        &stage.pid,
        "--when",
        "call(quick)",
        "--after",
        "30ms",
    ];
    let shot = ["--all-processes", "-o", "both.xtrace"];
    let running = stage.trigger(&[&when[..], &shot].concat())?;
    stage.target.ask("quick 1", "quick")?;
    let reported = Told::ok(running)?;
    let at = reported.one("fired")?["monotonic_ns"]
        .as_u64()
        .context("no time")?;
    ensure_both(&stage.path("both.xtrace"), Some(at + 31_000_000))?;
    let trace = read(&stage.path("both.xtrace"))?;
    ensure!(calls_of(&trace, "quick")?.len() == 1);
    ensure!(!calls_of(&trace, "tick")?.is_empty());
    Ok(())
}

/// A followed process is watched as soon as it is found.
#[test]
fn a_later_process_is_watched_too() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let first = Target::spawn(Fixture::Triggers, ["--threads", "0"])?;
    cli.ok(["attach", &first.pid().to_string()])?;
    let arguments = [
        "trigger",
        "--json",
        "--when",
        "call(quick)",
        "--do",
        "exec true",
    ];
    let mut running = cli.start(arguments)?;
    let armed = |pid: i32| -> Result<Option<()>> {
        let status = cli.json(["status"])?;
        let row = row_of(&status, pid)?;
        Ok(row.is_some_and(|row| row["triggers"] == 1).then_some(()))
    };
    running.until("it is armed", || armed(first.pid()))?;
    let mut second = Target::spawn(Fixture::Triggers, ["--threads", "0"])?;
    cli.ok(["attach", &second.pid().to_string()])?;
    running.until("it is armed there, too", || armed(second.pid()))?;
    second.ask("quick 1", "quick")?;
    let reported = Told::ok(running)?;
    ensure!(
        reported.one("fired")?["pid"] == second.pid(),
        "{reported:?}"
    );
    Ok(())
}

/// A child is watched like its parent, from its begin.
#[test]
fn children_are_watched_too() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid, "--follow", "fork"])?;
    let arguments = ["trigger", "--json", "--pid", &pid, "--limit", "2/1h"];
    let what = ["--when", "call(work)", "--do", "exec true"];
    let mut running = cli.start([&arguments[..], &what].concat())?;
    let armed = |pid: i32| -> Result<Option<()>> {
        let status = cli.json(["status"])?;
        let row = row_of(&status, pid)?;
        Ok(row.is_some_and(|row| row["triggers"] == 1).then_some(()))
    };
    running.until("it is armed", || armed(target.pid()))?;
    let child = target.ask("child", "child ")?;
    let child: i32 = child.trim_start_matches("child ").parse()?;
    running.until("it is armed in the child", || armed(child))?;
    kill(Pid::from_raw(child), Signal::SIGUSR1)?;
    target.line_with("tally ", DEADLINE)?;
    target.kill()?;
    let reported = Told::ok(running)?;
    let fired = reported.all("fired");
    ensure!(fired.len() == 2, "{reported:?}");
    ensure!(
        fired.iter().all(|fired| fired["pid"] == child),
        "{reported:?}"
    );
    // Both have ended: the first was killed, and its children end with it.
    ensure!(reported.all("ended").len() == 2, "{reported:?}");
    Ok(())
}

/// Functions of a library count as soon as it is loaded.
#[test]
fn libraries_that_come_later_count() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    cli.ok(["attach", &target.pid().to_string()])?;
    let when = ["trigger", "--json", "--when", "call(plugin_a_call)"];
    let what = ["--do", "exec true"];
    cli.run([&when[..], &what].concat())?
        .failed(3, &["call(plugin_a_call)", "nothing matched"])?;
    let mut running = cli.start([&when[..], &what, &["--pending"]].concat())?;
    running.until("it is armed", || {
        let status = cli.json(["status"])?;
        let row = row_of(&status, target.pid())?.context("no row")?;
        Ok((row["triggers"] == 1).then_some(()))
    })?;
    target.ask("load 0 plugin_b.so", "loaded")?;
    target.ask("call 0 10", "done")?;
    target.ask("load 1 plugin_a.so", "loaded")?;
    wait_until(DEADLINE, "it has fired", || {
        target.ask("call 1 1", "done")?;
        let status = cli.json(["status"])?;
        let row = row_of(&status, target.pid())?.context("no row")?;
        Ok((row["triggers"] == 0).then_some(()))
    })?;
    let reported = Told::ok(running)?;
    ensure!(
        reported.one("fired")?["function"] == "plugin_a_call",
        "{reported:?}"
    );
    Ok(())
}
