//! A tracer that is killed while it holds a thread of the target (P15).
//!
//! `strace` kills the tracer at its first, second, third … system call of a kind. So every moment
//! between two steps of an attach has its turn: before and after each call that changes the
//! borrowed thread.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, Tool, build};
use xrayd::types::Switch;

use crate::{
    adoption::wait_for_events,
    support::{attach, detach, registry, soak, switch},
    tracer::Tracer,
};

/// The calls at which the tracer dies. `ptrace` changes the thread, `wait4` waits for it,
/// `pwrite64` writes to its memory.
const CALLS: [&str; 3] = ["ptrace", "wait4", "pwrite64"];
/// More calls of one kind than an attach makes.
const MOST: usize = 200;

/// Lets a tracer attach to `pid` and kills it at its `nth` system call of this kind. Returns true
/// if it was killed.
fn kill_at(call: &str, nth: usize, pid: i32) -> Result<bool> {
    let mut strace = Command::new(Tool::Strace.path()?);
    strace
        .args(["-f", "-qq", "-o", "/dev/null", "-e"])
        .arg(format!("trace={call}"))
        .arg("-e")
        .arg(format!("inject={call}:signal=SIGKILL:when={nth}"))
        .arg("--");
    Tracer::spawn_under(strace)?.attach_or_die(pid)
}

/// Kills tracers of `pid` at every `step`th call of this kind, until one lives to attach. `healthy`
/// checks the target after each kill.
fn kill_everywhere(
    call: &str,
    step: usize,
    pid: i32,
    mut healthy: impl FnMut() -> Result<()>,
) -> Result<()> {
    for (killed, nth) in (1..MOST).step_by(step).enumerate() {
        let died = kill_at(call, nth, pid)?;
        healthy().with_context(|| format!("killed at {call} number {nth}"))?;
        if !died {
            ensure!(killed > 0, "attached without {call}");
            return Ok(());
        }
    }
    anyhow::bail!("{MOST} calls of {call} were not enough")
}

/// The borrowed thread computes with every register when it is stopped.
#[test]
fn a_thread_at_work_goes_on() -> Result<()> {
    for call in CALLS {
        let mut target = Target::spawn(Fixture::Torture, [""; 0])?;
        let pid = target.pid();
        let mut asked = 0;
        kill_everywhere(call, soak(4, 1), pid, || {
            // The thread works on the last requests while the next tracer comes.
            for _ in 0..3 {
                target.send("check")?;
            }
            asked += 3;
            while asked > 2 {
                let answer = target.line(DEADLINE)?;
                ensure!(answer.starts_with("ok "), "{answer}");
                asked -= 1;
            }
            Ok(())
        })?;
        target.still_running()?;
    }
    Ok(())
}

fn sleeping_in(name: &str) -> Result<Target> {
    let mut command = Command::new(build(Fixture::Blocking)?);
    command.args(["--main", name]);
    let mut target = Target::spawn_unready(command)?;
    target.line_with("ready", DEADLINE)?;
    Ok(target)
}

/// Checks that none of the threads came back from its call.
fn sleeps_on(target: &mut Target) -> Result<()> {
    let answer = target.ask("check", "checked")?;
    ensure!(answer == "checked 39 0", "{answer}");
    Ok(())
}

fn wake(mut target: Target) -> Result<()> {
    target.send("quit")?;
    ensure!(target.wait(DEADLINE)?.success());
    Ok(())
}

/// The borrowed thread sleeps in a call that the kernel restarts.
#[test]
fn a_thread_asleep_goes_on_sleeping() -> Result<()> {
    for (name, call) in [("futex", "ptrace"), ("read-pipe", "wait4")] {
        let mut target = sleeping_in(name)?;
        let pid = target.pid();
        kill_everywhere(call, soak(5, 1), pid, || sleeps_on(&mut target))
            .with_context(|| name.to_owned())?;
        wake(target)?;
    }
    Ok(())
}

/// The same in a call that the kernel resumes with `restart_syscall`. Each such call can be tested
/// once.
#[test]
fn a_thread_asleep_until_a_time_goes_on_sleeping() -> Result<()> {
    for nth in (1..MOST).step_by(soak(5, 1)) {
        let mut target = sleeping_in("futex-timed")?;
        let died = kill_at("ptrace", nth, target.pid())?;
        sleeps_on(&mut target).with_context(|| format!("killed at ptrace number {nth}"))?;
        wake(target)?;
        if !died {
            break;
        }
    }
    Ok(())
}

/// The leftovers of a killed tracer do not prevent the next one from attaching.
#[test]
fn the_next_tracer_attaches() -> Result<()> {
    for call in CALLS {
        for nth in (1..MOST).step_by(soak(9, 1)) {
            let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "0"])?;
            target.send("go")?;
            let died = kill_at(call, nth, target.pid())?;
            let registry = registry();
            let session = attach(&registry, &target)
                .with_context(|| format!("killed at {call} number {nth}"))?
                .session;
            switch(&session, Switch::On)?;
            wait_for_events(&session, 1000)?;
            detach(&registry, &target)?;
            target.ask("stop", "result ")?;
            if !died {
                break;
            }
        }
    }
    Ok(())
}
