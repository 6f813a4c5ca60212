//! The owner of a process traces it without any capability.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Result, ensure};
use integration::{Fixture, GroundTruth, ProcessState, Target, copy_into};

use crate::support::{assert_exact, text_is_as_compiled};
use crate::tracer::Tracer;

const NOBODY: u32 = 65_534;

/// The rings lie in a memfd then, of which no descriptor stays (P43).
#[test]
fn the_owner_needs_no_capability() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        // All other tests show it then.
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let program = copy_into(Fixture::Counted, dir.path())?;
    let mut command = Command::new(&program);
    command
        .args(["--threads", "4", "--calls", "1000"])
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/");
    let mut target = Target::spawn_command(command)?;
    let before = ProcessState::of(target.pid())?;

    let mut tracer = Tracer::spawn_as(NOBODY, dir.path())?;
    tracer.ask(&format!("attach {}", target.pid()))?;
    tracer.ask("on")?;
    ensure!(ProcessState::of(target.pid())? == before);
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    tracer.ask("detach")?;
    assert_exact(&tracer.trace()?, &truth)?;
    text_is_as_compiled(&target, &program, &program)
}
