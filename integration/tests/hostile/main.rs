//! Programs that attack their tracer while it looks at them.
//!
//! Each test starts a daemon as root and one program of another user that makes one attack
//! (`fixtures/attacker.c`). That user runs every command on the program, over and over. A command
//! may be refused; what must hold afterwards is the same for all attacks: no file outside is
//! changed, the daemon lives and has its memory and threads back, and another user is served.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::scene::{Cli, Daemon, NOBODY, Scene};
use integration::{DEADLINE, Fixture, Target, copy_into, is_root_for, wait_until};
use procfs::process::Process;

/// Rounds of all commands against one attack.
const ROUNDS: usize = 2;
/// What the daemon may need at most, in bytes: twice what it needs for an honest program.
const MEMORY: u64 = 192 << 20;
/// Exit codes of commands that were done, found nothing, or were refused.
const ANSWERED: [i32; 4] = [0, 1, 3, 4];
const CONTENT: &[u8] = b"a file of root's\n";

/// A daemon, an attacker, and a second user's program.
#[derive(Debug)]
struct Attack {
    scene: Scene,
    daemon: Daemon,
    attacker: Target,
    honest: Target,
    /// A file that only root may write.
    outside: PathBuf,
}

// === impl Attack ===

impl Attack {
    fn begin(mode: &str) -> Result<Self> {
        let scene = Scene::public()?;
        let outside = scene.path("outside");
        fs::write(&outside, CONTENT)?;
        let programs = scene.path("programs");
        fs::create_dir(&programs)?;
        let program = copy_into(Fixture::Attacker, &programs)?;
        let file = match mode {
            "descriptors" => outside.clone(),
            // Any file with sleds.
            _ => {
                let library = programs.join("library.so");
                fs::copy(&program, &library)?;
                chown(&library, Some(NOBODY), Some(NOBODY))?;
                library
            }
        };
        for path in [&programs, &program] {
            chown(path, Some(NOBODY), Some(NOBODY))?;
        }
        let mut command = Command::new(program);
        command.arg(mode).arg(file);
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
        let attacker = Target::spawn_command(command)?;
        let honest = Target::spawn(Fixture::Counted, ["--threads", "1"])?;
        let daemon = scene.daemon()?;
        Ok(Self {
            scene,
            daemon,
            attacker,
            honest,
            outside,
        })
    }

    /// Every command, by the attacker's user.
    fn commands(&self, cli: &Cli) -> Result<()> {
        let pid = self.attacker.pid().to_string();
        let snapshot = [
            "snapshot",
            "--pid",
            &pid,
            "--last",
            "1s",
            "--force",
            "-o",
            "/dev/null",
        ];
        let commands = [
            &["doctor", &pid][..],
            &[
                "attach",
                &pid,
                "--ring-size",
                "64KiB",
                "--max-threads",
                "64",
            ],
            &["ps"],
            &["enable", "--pid", &pid, "--all"],
            &["functions", "--pid", &pid],
            &snapshot,
            &["disable", "--pid", &pid, "--all"],
            &["enable", "--pid", &pid, "--all"],
            &["status", "--modules"],
            &["detach", &pid],
            // Takes over what the first attach has left.
            &["attach", &pid, "--mode", "stream"],
            &["enable", "--pid", &pid, "--all"],
            &["detach", &pid],
        ];
        for command in commands {
            let ran = cli.run(command)?;
            ensure!(
                ran.code.is_some_and(|code| ANSWERED.contains(&code)),
                "{command:?}: {ran:?}"
            );
        }
        Ok(())
    }

    /// Another user's program is traced all the time.
    fn others_are_served(&self, cli: &Cli) -> Result<()> {
        let pid = self.honest.pid().to_string();
        cli.ok([
            "attach",
            &pid,
            "--ring-size",
            "64KiB",
            "--max-threads",
            "16",
        ])?;
        cli.ok(["enable", "--pid", &pid, "--all"])?;
        cli.ok(["detach", &pid])?;
        Ok(())
    }

    fn nothing_outside_is_changed(&self) -> Result<()> {
        let found = fs::metadata(&self.outside)?;
        ensure!(found.uid() == 0 && found.len() == CONTENT.len() as u64);
        ensure!(fs::read(&self.outside)? == CONTENT, "a file was changed");
        Ok(())
    }
}

fn memory_of(daemon: &Daemon) -> Result<u64> {
    let status = Process::new(daemon.pid().cast_signed())?.status()?;
    Ok(status.vmhwm.context("no VmHWM")? << 10)
}

fn threads_of(daemon: &Daemon) -> Result<u64> {
    let status = Process::new(daemon.pid().cast_signed())?.status()?;
    // Threads for blocking calls stay for a while.
    let names = fs::read_dir(
        Path::new("/proc")
            .join(daemon.pid().to_string())
            .join("task"),
    )?;
    let sessions = names
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| {
            ["ctl-", "drain-", "borrow-", "halt-", "follow-"]
                .iter()
                .any(|own| name.starts_with(own))
        });
    ensure!(status.threads < 256, "{} threads", status.threads);
    Ok(sessions.count() as u64)
}

fn survives(mode: &str) -> Result<()> {
    let test = format!("an attack by {mode}");
    if !is_root_for(&test)? {
        return Ok(());
    }
    let mut attack = Attack::begin(mode)?;
    let root = attack.scene.with(&attack.daemon)?;
    let user = root.as_user(NOBODY);
    for _ in 0..ROUNDS {
        attack.commands(&user)?;
        attack.others_are_served(&root)?;
        attack.nothing_outside_is_changed()?;
    }
    root.run(["detach", "--all"])?;
    wait_until(DEADLINE, "no session has a thread", || {
        Ok((threads_of(&attack.daemon)? == 0).then_some(()))
    })?;
    let memory = memory_of(&attack.daemon)?;
    ensure!(memory < MEMORY, "the daemon took {memory} bytes");
    let log = attack.daemon.log();
    ensure!(
        !log.contains("panicked") && !log.contains("a bug in xrayd"),
        "{log}"
    );
    attack.honest.still_running()?;
    attack.attacker.still_running()
}

#[test]
fn descriptors_are_exchanged() -> Result<()> {
    survives("descriptors")
}

#[test]
fn mappings_come_and_go() -> Result<()> {
    survives("mappings")
}

#[test]
fn paths_lead_to_fifos_and_links() -> Result<()> {
    survives("files")
}

#[test]
fn text_is_overwritten() -> Result<()> {
    survives("text")
}

#[test]
fn tables_and_rings_are_forged() -> Result<()> {
    survives("tables")
}

#[test]
fn programs_fork_and_execute() -> Result<()> {
    survives("programs")
}

#[test]
fn threads_come_and_go_without_a_main_thread() -> Result<()> {
    survives("threads")
}
