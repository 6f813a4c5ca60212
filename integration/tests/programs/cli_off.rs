//! `xrayctl off`: functions that a daemon has left on that was killed, and that no daemon goes on
//! with.

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, GroundTruth, Target, mark_as_other_version, opens_map_files, sleds_of};

use crate::scene::{Cli, Daemon, Scene, all_on, ensure_as_compiled, row_of, rows, sleds_on};
use crate::trace::ensure_exact;

/// A program in which a killed daemon has left all functions on.
fn left_on(scene: &Scene) -> Result<Target> {
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "300"])?;
    attach_and_enable(&cli, &target)?;
    daemon.kill()?;
    all_on(&target)?.context("nothing is on any more")?;
    Ok(target)
}

fn attach_and_enable(cli: &Cli, target: &Target) -> Result<()> {
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid, "--mode", "stream"])?;
    cli.ok(["enable", "--pid", &pid, "--all"])?;
    all_on(target)?.context("not everything is on")
}

#[test]
fn what_a_killed_daemon_has_left_on_is_shown_and_switched_off() -> Result<()> {
    let scene = Scene::new()?;
    let mut target = left_on(&scene)?;
    let sleds = sleds_of(target.program())?.len();
    let pid = target.pid().to_string();
    let cli = scene.alone()?;
    let listed = cli.json(["ps"])?;
    let row = row_of(&listed, target.pid())?.context("not listed")?;
    ensure!(row["state"] == "left-on", "{row}");
    ensure!(cli.ok(["ps"])?.contains("left on by a daemon that is gone"));
    let checks = cli.ok(["doctor", &pid])?;
    ensure!(checks.contains(&format!("xrayctl off {pid}")), "{checks}");
    // Not --all: other tests have processes of root, too.
    let off = cli.json(["off", &pid])?;
    let row = row_of(&off, target.pid())?.context("not switched off")?;
    ensure!(
        row["left_on"] == sleds
            && row["sleds_off"] == sleds
            && row["sleds_on"] == 0
            && row["text_bytes_different"] == 0,
        "{row}"
    );
    ensure_as_compiled(&target)?;
    let listed = cli.json(["ps"])?;
    let row = row_of(&listed, target.pid())?.context("not listed")?;
    ensure!(row["state"] == "ready", "{row}");
    // Nothing is left for a second time.
    let again = cli.ok(["off", &pid])?;
    ensure!(
        again.contains("nothing was left on") && again.contains("all off"),
        "{again}"
    );
    GroundTruth::parse(&target.ask("go", "result ")?)?;
    Ok(())
}

#[test]
fn what_a_living_tracer_has_on_stays_on() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Counted, ["--calls", "1"])?;
    attach_and_enable(&cli, &target)?;
    let alone = scene.alone()?;
    let pid = target.pid().to_string();
    alone
        .run(["off", &pid])?
        .failed(4, &["is traced by another xrayd", "[busy]"])?;
    let listed = alone.json(["ps"])?;
    let row = row_of(&listed, target.pid())?.context("not listed")?;
    ensure!(
        row["state"] == "refused" && row["refusal"]["reason"] == "busy",
        "{row}"
    );
    all_on(&target)?.context("something is off")
}

#[test]
fn a_process_that_was_never_traced_is_left_alone() -> Result<()> {
    let scene = Scene::new()?;
    let target = Target::spawn(Fixture::Counted, ["--calls", "1"])?;
    let pid = target.pid().to_string();
    let alone = scene.alone()?;
    alone
        .run(["off", &pid])?
        .failed(4, &["no memory of an earlier xrayd", "[not-attached]"])?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    ensure!(!maps.contains("xrayd"), "{maps}");
    alone
        .run(["off"])?
        .code
        .filter(|code| *code == 2)
        .context("nothing was named")?;
    Ok(())
}

/// Another version of xrayd has other trampolines, and its rings have another layout.
#[test]
fn what_another_version_has_left_on_is_switched_off() -> Result<()> {
    let scene = Scene::new()?;
    let target = left_on(&scene)?;
    mark_as_other_version(target.pid())?;
    let alone = scene.alone()?;
    let listed = alone.json(["ps"])?;
    let row = row_of(&listed, target.pid())?.context("not listed")?;
    ensure!(row["state"] == "left-on", "{row}");
    let off = alone.json(["off", &target.pid().to_string()])?;
    let sleds = sleds_of(target.program())?.len();
    ensure!(rows(&off, "processes")?[0]["left_on"] == sleds, "{off}");
    ensure_as_compiled(&target)
}

/// The version changes at each step, as if two daemons took turns. A thread of the program is never
/// asked to leave the memory of an earlier one.
#[test]
fn versions_take_turns_in_one_process() -> Result<()> {
    let scene = Scene::new()?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "4", "--calls", "250"])?;
    let mut daemon: Option<Daemon> = None;
    for _ in 0..3 {
        if let Some(daemon) = daemon.take() {
            daemon.kill()?;
            mark_as_other_version(target.pid())?;
        }
        let next = scene.daemon()?;
        let cli = scene.with(&next)?;
        let attached = cli.json(["attach", &target.pid().to_string(), "--mode", "stream"])?;
        ensure!(attached["report"]["adopted"] == false, "{attached}");
        ensure!(sleds_on(&target)? == 0);
        cli.ok(["enable", "--all"])?;
        all_on(&target)?.context("not everything is on")?;
        daemon = Some(next);
    }
    let daemon = daemon.context("no daemon")?;
    let cli = scene.with(&daemon)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    cli.ok(["disable", "--all"])?;
    cli.ok(["snapshot", "-o", "t.xtrace"])?;
    ensure_exact(&scene.path("t.xtrace"), &truth)?;
    let used = rings_resident(target.pid())?;
    // The drain gives memory back as it reads.
    ensure!(used > 0, "no ring is seen");
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)?;
    if opens_map_files()? {
        // The rings of all versions have given their memory back, but for the last one's header.
        let kept = rings_resident(target.pid())?;
        ensure!(kept <= 16, "{kept} of {used} KiB of rings");
    }
    Ok(())
}

/// The shared memory of a process in KiB. Only rings are shared in the test program.
fn rings_resident(pid: i32) -> Result<u64> {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let mut is_ring = false;
    let mut kib = 0;
    for line in smaps.lines() {
        if line
            .split_whitespace()
            .next()
            .is_some_and(|word| word.contains('-'))
        {
            is_ring = line.contains(" rw-s ");
        } else if let Some(rss) = line.strip_prefix("Rss:").filter(|_| is_ring) {
            kib += rss.trim().trim_end_matches(" kB").parse::<u64>()?;
        }
    }
    Ok(kib)
}
