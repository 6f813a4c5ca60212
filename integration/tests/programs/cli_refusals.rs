//! Every command that refuses reports the reason, and leaves the process as it was.

use std::fs;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use integration::{
    DEADLINE, Fixture, ProcessState, Target, Tool, build, text_differences, wait_until,
};

use crate::scene::{Cli, Scene, all_on, row_of};

/// A foreign tracer. It detaches when this is dropped.
struct Tracer(Child);

impl Drop for Tracer {
    fn drop(&mut self) {
        // A debugger detaches when its standard input ends. The signal ends other tracers.
        if let Some(mut stdin) = self.0.stdin.take() {
            let _ = stdin.write_all(b"detach\nquit\n");
        }
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.0.id().cast_signed()),
            nix::sys::signal::Signal::SIGTERM,
        );
        let _ = self.0.wait();
    }
}

/// Checks `attach` through the daemon and `record` without one. Neither leaves anything behind.
fn refused(scene: &Scene, attached: &Cli, pid: i32, reason: &str) -> Result<()> {
    let pid = pid.to_string();
    attached.run(["attach", &pid])?.refused(reason)?;
    let ran = scene.alone()?.run(["record", &pid, "-o", "f"])?;
    ran.refused(reason)?;
    ensure!(!scene.path("f").exists(), "a file was left");
    let doctor = attached.run(["doctor", &pid])?;
    doctor.refused(reason)
}

/// The same as [`refused`], for a process that goes on.
fn left_alone(scene: &Scene, cli: &Cli, target: &Target, reason: &str) -> Result<()> {
    let maps = format!("/proc/{}/maps", target.pid());
    let state = || anyhow::Ok((ProcessState::of(target.pid())?, fs::read_to_string(&maps)?));
    let before = state()?;
    refused(scene, cli, target.pid(), reason)?;
    ensure!(state()? == before);
    Ok(())
}

fn untouched(target: &Target) -> Result<()> {
    let program = target.program();
    ensure!(text_differences(target.pid(), program, program)?.is_empty());
    Ok(())
}

#[test]
fn programs_that_cannot_be_traced() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    for (fixture, reason) in [
        (Fixture::Plain, "no-sleds"),
        (Fixture::M32, "not-64-bit"),
        (Fixture::SeccompStrict, "seccomp-strict"),
    ] {
        let target = Target::spawn(fixture, [""; 0])?;
        left_alone(&scene, &cli, &target, reason).with_context(|| format!("{fixture:?}"))?;
        if fixture != Fixture::M32 {
            untouched(&target)?;
        }
    }
    Ok(())
}

#[test]
fn a_program_that_its_own_runtime_has_patched() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let mut command = Command::new(build(Fixture::CountedLlvm)?);
    command
        .args(["--calls", "10", "--mode", "xray-basic"])
        .current_dir(scene.path(""));
    let target = Target::spawn_command(command)?;
    left_alone(&scene, &scene.with(&daemon)?, &target, "already-patched")
}

#[test]
fn programs_that_others_trace() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Arg1, [""; 0])?;
    let pid = target.pid();
    let tracer_of = || anyhow::Ok(ProcessState::of(pid)?.threads[&pid].tracer);
    for (tool, args) in [
        (Tool::Strace, &["-qq", "-o", "/dev/null"][..]),
        (Tool::Gdb, &["-q", "-nx"]),
    ] {
        let mut command = tool.command()?;
        command.args(args).args(["-p", &pid.to_string()]);
        let streams = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let tracer = Tracer(streams.spawn()?);
        wait_until(DEADLINE, "the tracer is there", || {
            Ok((tracer_of()? != 0).then_some(()))
        })?;
        left_alone(&scene, &cli, &target, "foreign-tracer").with_context(|| format!("{tool:?}"))?;
        let listing = cli.json(["ps"])?;
        let row = row_of(&listing, pid)?.context("not listed")?;
        ensure!(row["state"] == "refused", "{row}");
        ensure!(row["refusal"]["reason"] == "foreign-tracer", "{row}");
        drop(tracer);
        wait_until(DEADLINE, "the tracer is gone", || {
            Ok((tracer_of()? == 0).then_some(()))
        })?;
    }
    untouched(&target)?;
    cli.ok(["attach", &pid.to_string()])?;
    cli.ok(["detach", &pid.to_string()])?;
    Ok(())
}

#[test]
fn processes_that_are_none() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;

    let mut gone = Command::new("true").spawn()?;
    let pid = gone.id().cast_signed();
    wait_until(DEADLINE, "it is a zombie", || {
        let state = procfs_state(pid)?;
        Ok((state == 'Z').then_some(()))
    })?;
    let zombie = refused(&scene, &cli, pid, "zombie");
    gone.wait()?;
    zombie?;
    refused(&scene, &cli, pid, "no-such-process")?;
    // The largest number that clap accepts.
    cli.run(["attach", &u32::MAX.to_string()])?.failed(4, &[])?;

    // A container's pid namespace shows no kernel thread.
    let kernel = fs::read("/proc/2/cmdline").is_ok_and(|line| line.is_empty())
        && fs::read_link("/proc/2/exe").is_err()
        && fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
    if kernel {
        refused(&scene, &cli, 2, "kernel-thread")?;
    }
    Ok(())
}

fn procfs_state(pid: i32) -> Result<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(") ").context("no state")?;
    rest.chars().next().context("no state")
}

/// A second engine tries to attach while the daemon has the process attached.
#[test]
fn two_engines_do_not_share_a_process() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Arg1, [""; 0])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid])?;
    cli.ok(["enable", "--all"])?;
    // The daemon's own clients get the same session.
    cli.ok(["attach", &pid])?;
    let ran = scene
        .alone()?
        .run(["record", &pid, "-o", "f", "--duration", "100ms"])?;
    ran.refused("busy")?;
    ensure!(!scene.path("f").exists());
    all_on(&target)?.context("somebody switched functions off")?;
    let status = cli.json(["status"])?;
    ensure!(status["processes"][0]["functions_on"] == 3, "{status}");
    let detached = cli.json(["detach", &pid])?;
    ensure!(
        detached["processes"][0]["text_bytes_different"] == 0,
        "{detached}"
    );
    // The process can be attached by another engine at once.
    scene
        .alone()?
        .ok(["record", &pid, "-o", "f", "--duration", "10ms"])?;
    Ok(())
}
