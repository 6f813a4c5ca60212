//! The owner of a process traces it without any capability.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use integration::{
    DEADLINE, Fixture, GroundTruth, ProcessState, Target, copy_into, ran_right, wait_until,
};

use crate::support::{assert_exact, text_is_as_compiled};
use crate::tracer::Tracer;

const NOBODY: u32 = 65_534;

fn spawn_as_nobody(program: &Path, arguments: &[&str]) -> Result<Target> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/");
    Target::spawn_command(command)
}

/// The rings lie in a memfd, and no descriptor of it stays (P43).
#[test]
fn the_owner_needs_no_capability() -> Result<()> {
    if !integration::is_root_for("the_owner_needs_no_capability")? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let program = copy_into(Fixture::Counted, dir.path())?;
    let mut target = spawn_as_nobody(&program, &["--threads", "4", "--calls", "1000"])?;
    let before = ProcessState::of(target.pid())?;

    // Twice: the second tracer cannot open the rings of the first, and puts its own in their place.
    for round in 0..2 {
        let mut tracer = Tracer::spawn_as(NOBODY, dir.path())?;
        let answer = tracer.ask(&format!("attach {}", target.pid()))?;
        ensure!(answer.starts_with("adopted="), "{answer}");
        tracer.ask("on")?;
        ensure!(ProcessState::of(target.pid())? == before);
        if round == 0 {
            tracer.ask("detach")?;
            continue;
        }
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        tracer.ask("detach")?;
        assert_exact(&tracer.trace()?, &truth)?;
    }
    text_is_as_compiled(&target, &program, &program)
}

/// Rings that cannot be opened any more are replaced while threads write to them (P64).
#[test]
fn the_owner_succeeds_a_killed_tracer() -> Result<()> {
    if !integration::is_root_for("the_owner_succeeds_a_killed_tracer")? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let program = copy_into(Fixture::Counted, dir.path())?;
    let arguments = ["--threads", "4", "--calls", "0", "--seed", "3"];
    let mut target = spawn_as_nobody(&program, &arguments)?;
    target.send("go")?;
    for round in 0..5 {
        let mut tracer = Tracer::spawn_as(NOBODY, dir.path())?;
        tracer.ask(&format!("attach {}", target.pid()))?;
        text_is_as_compiled(&target, &program, &program)?;
        tracer.ask("on")?;
        wait_until(DEADLINE, "events", || {
            Ok((tracer.events()? > 10_000).then_some(()))
        })?;
        if round < 4 {
            tracer.kill()?;
        } else {
            tracer.ask("detach")?;
        }
        target.still_running()?;
    }
    text_is_as_compiled(&target, &program, &program)?;
    ran_right(&GroundTruth::parse(&target.ask("stop", "result ")?)?, 3)
}
