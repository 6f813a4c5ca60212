//! Processes that are not traced, the reasons, and their unchanged state.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{
    DEADLINE, Fixture, ProcessState, Target, Tool, build, copy_into, text_differences, wait_until,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;
use xrayd::{
    Reason, Refusal,
    process::{AttachOptions, Registry, RegistryConfig},
    target::Caller,
    types::{Run, Switch},
};

use crate::{
    support::{attach, everything, pid, pid_of, registry, retained, soak, switch},
    tracer::Tracer,
};

const NOBODY: u32 = 65_534;

fn refusal_of(raw: i32, options: AttachOptions) -> Result<Refusal> {
    let refused = registry().attach(pid(raw)?, options);
    refused.err().context("it was attached to")
}

/// Checks that an attach is refused for `reason`, and that the process is unchanged.
fn check(target: &Target, options: AttachOptions, reason: Reason) -> Result<()> {
    let before = ProcessState::of(target.pid())?;
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid()))?;
    let refusal = refusal_of(target.pid(), options)?;
    ensure!(refusal.reason == reason, "{}: {refusal}", refusal.reason);
    ensure!(
        refusal.message.contains(&target.pid().to_string()),
        "{refusal}"
    );
    ensure!(!refusal.message.contains('\n'), "{refusal}");
    ensure!(ProcessState::of(target.pid())? == before);
    ensure!(fs::read_to_string(format!("/proc/{}/maps", target.pid()))? == maps);
    Ok(())
}

fn untouched(target: &Target) -> Result<()> {
    let program = target.program();
    ensure!(text_differences(target.pid(), program, program)?.is_empty());
    Ok(())
}

#[test]
fn no_such_process() -> Result<()> {
    let mut gone = Command::new("true").spawn()?;
    let pid = i32::try_from(gone.id())?;
    gone.wait()?;
    let refusal = refusal_of(pid, AttachOptions::default())?;
    ensure!(refusal.reason == Reason::NoSuchProcess, "{refusal}");
    // A thread is no process.
    let target = Target::spawn(Fixture::ManyThreads, ["--threads", "1"])?;
    let state = ProcessState::of(target.pid())?;
    let thread = state.threads.keys().find(|&&tid| tid != target.pid());
    let refusal = refusal_of(*thread.context("one thread")?, AttachOptions::default())?;
    ensure!(refusal.reason == Reason::NoSuchProcess, "{refusal}");
    Ok(())
}

#[test]
fn a_program_without_sleds() -> Result<()> {
    let target = Target::spawn(Fixture::Plain, [""; 0])?;
    check(&target, AttachOptions::default(), Reason::NoSleds)?;
    untouched(&target)
}

/// P53
#[test]
fn a_32_bit_program() -> Result<()> {
    let target = Target::spawn(Fixture::M32, [""; 0])?;
    check(&target, AttachOptions::default(), Reason::Not64Bit)
}

/// P46
#[test]
fn a_program_in_strict_seccomp() -> Result<()> {
    let mut target = Target::spawn(Fixture::SeccompStrict, [""; 0])?;
    check(&target, AttachOptions::default(), Reason::SeccompStrict)?;
    ensure!(target.ask("", "")? == "alive");
    untouched(&target)
}

/// P16
#[test]
fn a_program_that_somebody_else_traces() -> Result<()> {
    let mut target = Target::spawn(Fixture::Arg1, [""; 0])?;
    let mut strace = Tool::Strace
        .command()?
        .args(["-qq", "-o", "/dev/null", "-p", &target.pid().to_string()])
        .stderr(Stdio::null())
        .spawn()?;
    let leader = target.pid();
    wait_until(DEADLINE, "strace is there", || {
        let state = ProcessState::of(leader)?;
        Ok((state.threads[&leader].tracer != 0).then_some(()))
    })?;
    let refused = check(&target, AttachOptions::default(), Reason::ForeignTracer);
    let untouched = untouched(&target);
    kill(
        NixPid::from_raw(i32::try_from(strace.id())?),
        Signal::SIGINT,
    )?;
    strace.wait()?;
    refused?;
    untouched?;
    // The process has no tracer any more.
    wait_until(DEADLINE, "strace is gone", || {
        let state = ProcessState::of(leader)?;
        Ok((state.threads[&leader].tracer == 0).then_some(()))
    })?;
    attach(&registry(), &target)?;
    ensure!(target.ask("go", "done")?.len() > 5);
    Ok(())
}

/// P28
#[test]
fn a_program_that_its_own_runtime_has_patched() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut command = Command::new(build(Fixture::CountedLlvm)?);
    command
        .args(["--threads", "1", "--calls", "10", "--mode", "xray-basic"])
        .current_dir(dir.path());
    let mut target = Target::spawn_command(command)?;
    let program = target.program().to_owned();
    let before = text_differences(target.pid(), &program, &program)?;
    ensure!(!before.is_empty(), "the runtime patched nothing");
    check(&target, AttachOptions::default(), Reason::AlreadyPatched)?;
    ensure!(text_differences(target.pid(), &program, &program)? == before);
    target.ask("go", "result ")?;
    Ok(())
}

#[test]
fn a_kernel_thread() -> Result<()> {
    // A container's pid namespace shows no kernel thread.
    let Some(raw) = (2..100).find(|raw| {
        procfs::process::Process::new(*raw)
            .and_then(|process| process.stat())
            .is_ok_and(|stat| stat.flags & 0x0020_0000 != 0)
    }) else {
        return Ok(());
    };
    let refusal = refusal_of(raw, AttachOptions::default())?;
    ensure!(refusal.reason == Reason::KernelThread, "{refusal}");
    Ok(())
}

#[test]
fn a_process_that_nobody_has_collected() -> Result<()> {
    let mut zombie = Command::new("true").spawn()?;
    let pid = i32::try_from(zombie.id())?;
    wait_until(DEADLINE, "it is a zombie", || {
        let state = procfs::process::Process::new(pid)?.stat()?.state;
        Ok((state == 'Z').then_some(()))
    })?;
    let refusal = refusal_of(pid, AttachOptions::default())?;
    zombie.wait()?;
    ensure!(refusal.reason == Reason::Zombie, "{refusal}");
    Ok(())
}

/// P18
#[test]
fn a_pid_that_was_used_again() -> Result<()> {
    let target = Target::spawn(Fixture::Arg1, [""; 0])?;
    let started = procfs::process::Process::new(target.pid())?
        .stat()?
        .starttime;
    let options = AttachOptions {
        start_time: Some(started - 1),
        ..AttachOptions::default()
    };
    check(&target, options, Reason::PidReused)?;
    untouched(&target)?;
    let options = AttachOptions {
        start_time: Some(started),
        ..AttachOptions::default()
    };
    crate::support::attach_with(&registry(), &target, options)?;
    Ok(())
}

#[test]
fn rings_of_impossible_sizes() -> Result<()> {
    let target = Target::spawn(Fixture::Arg1, [""; 0])?;
    for (ring_bytes, max_threads) in [
        (0, 16),
        (65_536 - 1, 16),
        (3 << 20, 16),
        (u64::MAX, 16),
        (1 << 20, 0),
        (1 << 20, u32::MAX),
        (1 << 30, 65_536),
    ] {
        let options = AttachOptions {
            ring_bytes,
            max_threads,
            ..AttachOptions::default()
        };
        let before = ProcessState::of(target.pid())?;
        let refused = registry().attach(pid_of(&target)?, options);
        // The largest geometry may find room on a machine with much address space.
        if let Err(refusal) = refused {
            ensure!(
                matches!(refusal.reason, Reason::Limit | Reason::NoMemory),
                "{refusal}"
            );
        } else {
            ensure!(ring_bytes == 1 << 30, "{ring_bytes} {max_threads}");
        }
        ensure!(ProcessState::of(target.pid())? == before);
    }
    Ok(())
}

/// The engine itself checks whether its caller may trace the process. It checks at a time from
/// which the process cannot become another user's unseen (P17).
#[test]
fn a_program_that_the_caller_may_not_trace() -> Result<()> {
    let target = Target::spawn(Fixture::Counted, [""; 0])?;
    let own = nix::unistd::geteuid().as_raw();
    let caller = |uid| AttachOptions {
        caller: Some(Caller::in_process(uid, std::process::id())),
        ..AttachOptions::default()
    };
    check(&target, caller(own ^ 1), Reason::Permission)?;
    let attached = registry().attach(pid_of(&target)?, caller(own))?;
    ensure!(!attached.report.already);
    Ok(())
}

/// Root's program, and a user's own program that hides its memory (P17).
#[test]
fn a_program_that_the_user_may_not_trace() -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;

    if !integration::is_root_for("a_program_that_the_user_may_not_trace")? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let mut tracer = Tracer::spawn_as(NOBODY, dir.path())?;

    let roots = Target::spawn(Fixture::Arg1, [""; 0])?;
    let before = ProcessState::of(roots.pid())?;
    ensure!(tracer.refused(&format!("attach {}", roots.pid()))? == "permission");
    ensure!(ProcessState::of(roots.pid())? == before);
    untouched(&roots)?;

    // A program that its user may execute but not read is not dumpable.
    let program = copy_into(Fixture::Arg1, dir.path())?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o711))?;
    let mut command = Command::new(&program);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let hidden = Target::spawn_command(command)?;
    let before = ProcessState::of(hidden.pid())?;
    ensure!(tracer.refused(&format!("attach {}", hidden.pid()))? == "permission");
    ensure!(ProcessState::of(hidden.pid())? == before);
    untouched(&hidden)
}

/// A refused attach can be tried again. An attached process is found. A detached process is not
/// attached.
#[test]
fn sessions_are_found_and_ended_once() -> Result<()> {
    let target = Target::spawn(Fixture::Arg1, [""; 0])?;
    let registry = registry();
    let pid = pid_of(&target)?;
    ensure!(registry.get(pid).is_none());
    let first = attach(&registry, &target)?.session;
    let second = attach(&registry, &target)?.session;
    ensure!(std::sync::Arc::ptr_eq(&first, &second));
    registry.detach(pid)?;
    let again = registry.detach(pid).err().context("detached twice")?;
    ensure!(again.reason == Reason::NotAttached, "{again}");
    ensure!(registry.sessions().is_empty());
    Ok(())
}

/// The newest ended processes are kept, without a thread. They are found, a request reports their
/// end, and a detach works once.
#[test]
fn the_memory_of_ended_processes_is_bounded() -> Result<()> {
    let registry = Registry::new(RegistryConfig {
        retain_exited_bytes: 1,
        ..RegistryConfig::default()
    });
    let mut latest = None;
    for _ in 0..3 {
        let mut target = Target::spawn(Fixture::Arg1, [""; 0])?;
        let pid = pid_of(&target)?;
        let session = attach(&registry, &target)?.session;
        switch(&session, Switch::On)?;
        target.ask("go", "done")?;
        target.close_stdin();
        target.wait(DEADLINE)?;
        wait_until(DEADLINE, "the session is over, and alone", || {
            let sessions = registry.sessions();
            let kept: Vec<_> = sessions.iter().map(|session| session.pid()).collect();
            Ok((session.has_exited() && kept == [pid]).then_some(()))
        })?;
        let refusal = session.toggle(&everything(), Switch::Off, Run::Real).err();
        let refusal = refusal.context("a process that has ended was switched")?;
        ensure!(refusal.reason == Reason::TargetExited, "{refusal}");
        latest = Some((pid, session));
    }
    let (pid, session) = latest.context("three rounds")?;
    let events = retained(&session)?.totals().calls;
    let report = registry.detach(pid)?;
    ensure!(
        report.exited && report.events == events && events > 0,
        "{report:?}"
    );
    let again = registry.detach(pid).err().context("detached twice")?;
    ensure!(again.reason == Reason::NotAttached, "{again}");
    Ok(())
}

/// The program is killed at every moment of an attach. The attach is refused for that reason and no
/// other, in each of its steps (P61).
#[test]
fn a_program_that_ends_while_it_is_attached_to() -> Result<()> {
    let rounds: u32 = soak(60, 2000);
    let mut refused = 0;
    for round in 0..rounds {
        let target = Target::spawn(Fixture::Counted, ["--threads", "1", "--calls", "0"])?;
        let process = NixPid::from_raw(target.pid());
        let registry = registry();
        let attached = std::thread::scope(|scope| {
            let killer = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20) * round / rounds);
                kill(process, Signal::SIGKILL)
            });
            let attached = registry.attach(pid_of(&target)?, AttachOptions::default());
            killer.join().ok().context("panicked")??;
            anyhow::Ok(attached)
        })?;
        if let Err(refusal) = attached {
            refused += 1;
            // Before the first step, the process is no candidate any more.
            let ended = [Reason::TargetExited, Reason::NoSuchProcess, Reason::Zombie];
            ensure!(
                ended.contains(&refusal.reason),
                "{}: {refusal}",
                refusal.reason
            );
        }
    }
    ensure!(refused > 0, "every attach was faster than a signal");
    Ok(())
}
