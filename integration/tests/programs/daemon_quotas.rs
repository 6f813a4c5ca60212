//! The limits on a user's share of the daemon, and their effect on others.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use integration::{DEADLINE, Fixture, Target, copy_into, wait_until};

use crate::scene::{Cli, NOBODY, Scene, ensure_as_compiled, rows};

/// Rings of 4 TiB, the most that an attach can request.
const LARGEST: [&str; 4] = ["--ring-size", "1GiB", "--max-threads", "2048"];

/// A program that a user owns.
pub(crate) fn program_of(
    scene: &Scene,
    uid: u32,
    fixture: Fixture,
    args: &[&str],
) -> Result<Target> {
    static PROGRAMS: AtomicU32 = AtomicU32::new(0);
    // A running program's file cannot be written.
    let number = PROGRAMS.fetch_add(1, Ordering::Relaxed);
    let dir = scene.path(&format!("program-{number}"));
    fs::create_dir(&dir)?;
    let mut command = Command::new(copy_into(fixture, &dir)?);
    command.args(args).uid(uid).gid(uid).current_dir("/");
    Target::spawn_command(command)
}

/// One user cannot take the daemon's whole address space: the refusal names the quota, and root is
/// served.
#[test]
fn a_user_does_not_fill_the_daemons_address_space() -> Result<()> {
    if !integration::is_root_for("a_user_does_not_fill_the_daemons_address_space")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    // Room for one process with the largest rings, and not for two.
    let daemon = scene.daemon_with(&["--quota", "mapped=8TiB/64TiB"])?;
    let root = scene.with(&daemon)?;
    let nobody = root.as_user(NOBODY);
    let attach = |cli: &Cli, target: &Target| {
        let pid = target.pid().to_string();
        cli.run(["attach", &pid].into_iter().chain(LARGEST))
    };
    let own = |_| program_of(&scene, NOBODY, Fixture::Counted, &[]);
    let targets = (0..3).map(own).collect::<Result<Vec<_>>>()?;
    ensure!(attach(&nobody, &targets[0])?.code == Some(0));
    let refused = wait_until(DEADLINE, "the quota is reached", || {
        for target in &targets[1..] {
            let ran = attach(&nobody, target)?;
            if ran.code != Some(0) {
                return Ok(Some(ran));
            }
        }
        anyhow::bail!("3 attaches map 12 TiB")
    })?;
    refused.refused("quota")?;
    ensure!(refused.err.contains("--quota mapped="), "{refused:?}");
    // The process was not changed, and the daemon keeps nothing of it.
    ensure!(rows(&nobody.json(["status"])?, "processes")?.len() == 1);
    ensure_as_compiled(&targets[1])?;

    // Root is not refused, even for a process of the same user.
    let roots = Target::spawn(Fixture::Counted, [""; 0])?;
    for target in [&roots, &targets[1]] {
        let ran = attach(&root, target)?;
        ensure!(ran.code == Some(0), "{ran:?}");
    }
    // A detach gives everything back.
    nobody.ok(["detach", &targets[0].pid().to_string()])?;
    let ran = attach(&nobody, &targets[2])?;
    ensure!(ran.code == Some(0), "{ran:?}");
    Ok(())
}

/// Followed processes are sessions as well, and each of them counts for the quota.
#[test]
fn followed_processes_count_too() -> Result<()> {
    if !integration::is_root_for("followed_processes_count_too")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let daemon = scene.daemon_with(&["--quota", "sessions=2/4"])?;
    let root = scene.with(&daemon)?;
    let nobody = root.as_user(NOBODY);
    let mut target = program_of(&scene, NOBODY, Fixture::Group, &[])?;
    let pid = target.pid().to_string();
    nobody.ok(["attach", &pid, "--follow", "fork"])?;
    target.ask("child", "child ")?;
    let traced = |count: usize| {
        wait_until(DEADLINE, "children are traced", || {
            let status = nobody.json(["status"])?;
            Ok((rows(&status, "processes")?.len() == count).then_some(()))
        })
    };
    traced(2)?;
    target.ask("child", "child ")?;
    let reported = wait_until(DEADLINE, "a child is not followed", || {
        let shown = nobody.ok(["status"])?;
        Ok(shown.contains("--quota sessions=2/4").then_some(shown))
    })?;
    ensure!(reported.contains("user 65534 has 2 sessions"), "{reported}");
    // An undo is never refused.
    nobody.ok(["disable", "--pid", &pid, "--all"])?;
    nobody.ok(["detach", &pid])?;
    ensure_as_compiled(&target)
}
