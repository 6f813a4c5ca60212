//! The memory that tracing takes from a process, and processes with little memory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{
    DEADLINE, Fixture, GroundTruth, MemoryGroup, Target, copy_into, is_root_for, wait_until,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xrayd::{
    Reason, Refusal,
    process::AttachOptions,
    types::{Mode, Run, Switch},
};

use crate::support::{attach, attach_with, detach, everything, pid_of, registry, switch};

const NOBODY: &str = "65534";

/// The kernel charges written pages to the process. Without room for them, nothing is switched
/// (P36).
#[test]
fn a_process_at_its_limit_is_not_given_to_the_oom_killer() -> Result<()> {
    let Some(group) = MemoryGroup::new("limit")? else {
        return Ok(());
    };
    let mut target = Target::spawn(Fixture::Many20k, [""; 0])?;
    group.take(target.pid())?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    let planned = session.toggle(&everything(), Switch::On, Run::Dry)?;
    ensure!(planned.copied_bytes > 512 << 10, "{planned:?}");
    group.limit("524288")?;
    let error = session.toggle(&everything(), Switch::On, Run::Real);
    let error = error.err().context("it was switched on")?;
    let refusal: &Refusal = &error;
    ensure!(refusal.reason == Reason::NoMemory, "{refusal}");
    ensure!(session.status().copied_bytes == 0, "{:?}", session.status());
    target.ask("go", "done")?;
    group.limit("1073741824")?;
    let report = switch(&session, Switch::On)?;
    ensure!(report.copied_bytes == planned.copied_bytes, "{report:?}");
    target.ask("go", "done")?;
    detach(&registry, &target)?;
    drop(target);
    Ok(())
}

/// The kernel's information on the mapping of the rings in a target.
#[derive(Debug)]
pub(crate) struct RingsMapping {
    /// Bytes of resident pages.
    pub(crate) resident: u64,
    locked: u64,
    flags: Vec<String>,
}

// === impl RingsMapping ===

impl RingsMapping {
    pub(crate) fn of(target: &Target) -> Result<RingsMapping> {
        let maps = fs::read_to_string(format!("/proc/{}/smaps", target.pid()))?;
        let mut lines = maps
            .lines()
            .skip_while(|line| !(line.contains(" rw-s ") && line.ends_with(" (deleted)")))
            .skip(1)
            .take_while(|line| {
                line.split(' ')
                    .next()
                    .is_some_and(|word| word.ends_with(':'))
            });
        let mut mapping = RingsMapping {
            resident: 0,
            locked: 0,
            flags: Vec::new(),
        };
        for (name, value) in lines.by_ref().filter_map(|line| line.split_once(':')) {
            let kib = || value.trim().trim_end_matches(" kB").parse::<u64>();
            match name {
                "Rss" => mapping.resident = kib()? << 10,
                "Locked" => mapping.locked = kib()? << 10,
                "VmFlags" => mapping.flags = value.split_whitespace().map(str::to_owned).collect(),
                _ => {}
            }
        }
        ensure!(!mapping.flags.is_empty(), "no rings in {maps}");
        Ok(mapping)
    }
}

fn status_kib(target: &Target, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", target.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let value = line.with_context(|| format!("no {name}"))?;
    Ok(value.trim_matches([':', '\t', ' ', 'k', 'B']).parse()?)
}

/// Most memory of the rings is never written. A core dump does not contain it.
#[test]
fn rings_are_in_no_core_dump() -> Result<()> {
    let target = Target::spawn(Fixture::ManyThreads, ["--threads", "2"])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    ensure!(RingsMapping::of(&target)?.flags.contains(&"dd".to_owned()));
    detach(&registry, &target)?;
    ensure!(RingsMapping::of(&target)?.flags.contains(&"dd".to_owned()));
    Ok(())
}

/// A program that locks its memory does not fill the rings, and runs on as before.
#[test]
fn rings_of_a_program_that_locks_its_memory_are_not_filled() -> Result<()> {
    let mut target = Target::spawn(Fixture::ManyThreads, ["--threads", "2", "--lock", "all"])?;
    let before = (status_kib(&target, "VmRSS")?, status_kib(&target, "VmLck")?);
    ensure!(before.1 > 0, "it locks nothing");
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    let after = (status_kib(&target, "VmRSS")?, status_kib(&target, "VmLck")?);
    ensure!(after.0 < before.0 + (16 << 10), "{before:?}, {after:?}");
    ensure!(after.1 < before.1 + (16 << 10), "{before:?}, {after:?}");
    let rings = RingsMapping::of(&target)?;
    ensure!(rings.locked == 0 && rings.resident < 1 << 20, "{rings:?}");
    ensure!(!rings.flags.contains(&"lo".to_owned()), "{rings:?}");
    switch(&session, Switch::On)?;
    wait_until(DEADLINE, "calls are recorded", || {
        Ok((session.status().events > 0).then_some(()))
    })?;
    target.ask("gap", "gap")?;
    detach(&registry, &target)?;
    Ok(())
}

/// The kernel lets a process lock no more than its limit, even for a moment. The refusal has the
/// limit, and nothing is changed.
#[test]
fn a_program_that_may_not_lock_as_much_is_refused_with_the_limit() -> Result<()> {
    if !is_root_for("a_program_that_may_not_lock_as_much_is_refused_with_the_limit")? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let program = copy_into(Fixture::ManyThreads, dir.path())?;
    let mut command = Command::new("prlimit");
    command.args(["--memlock=8388608:8388608", "setpriv", "--clear-groups"]);
    command.args(["--reuid", NOBODY, "--regid", NOBODY]);
    command.arg(&program);
    command.args(["--threads", "1", "--lock", "all"]);
    command.current_dir("/");
    let mut target = Target::spawn_command(command)?;
    let maps = |target: &Target| fs::read_to_string(format!("/proc/{}/maps", target.pid()));
    let before = maps(&target)?;
    let registry = registry();
    let refused = registry.attach(pid_of(&target)?, AttachOptions::default());
    let refusal = refused.err().context("attached")?;
    ensure!(refusal.reason == Reason::NoMemory, "{refusal}");
    let says = refusal.to_string();
    ensure!(says.contains("RLIMIT_MEMLOCK is 8388608"), "{says}");
    ensure!(maps(&target)? == before);
    target.ask("gap", "gap")?;
    Ok(())
}

/// The kernel charges rings to the process as its threads write them. Rings are as small as its
/// control group demands, and the group has the memory back after a detach.
#[test]
fn rings_leave_room_in_the_control_group() -> Result<()> {
    const THREADS: u64 = 24;
    const LIMIT: u64 = 20 << 20;
    let Some(group) = MemoryGroup::new("rings")? else {
        return Ok(());
    };
    let arguments = ["--threads", &THREADS.to_string(), "--calls", "0"];
    let mut target = Target::spawn(Fixture::Counted, arguments)?;
    let second = Target::spawn(Fixture::Counted, arguments)?;
    group.take(target.pid())?;
    group.take(second.pid())?;
    group.limit(&LIMIT.to_string())?;
    let registry = registry();
    let options = AttachOptions {
        mode: Mode::Flight,
        ..AttachOptions::default()
    };
    let attached = attach_with(&registry, &target, options.clone())?;
    let notes = attached.report.notes.join("; ");
    ensure!(notes.contains("instead of 1024 KiB for 1024"), "{notes}");
    let session = attached.session;
    switch(&session, Switch::On)?;
    target.send("go")?;
    // Each thread has written more than fits its ring.
    wait_until(DEADLINE, "the rings are full", || {
        let rings = RingsMapping::of(&target)?.resident;
        Ok((rings > THREADS * (64 << 10)).then_some(()))
    })?;

    // The memory that the first process may still take is not left for others.
    let refused = registry.attach(pid_of(&second)?, options);
    let whole = match refused {
        Ok(attached) => attached.report.notes.join("; "),
        Err(refusal) => {
            ensure!(refusal.reason == Reason::NoMemory, "{refusal}");
            refusal.to_string()
        }
    };
    ensure!(whole.contains("rings may take half of that"), "{whole}");

    let rings = RingsMapping::of(&target)?.resident;
    ensure!(rings < LIMIT / 2, "{rings}");
    // Otherwise the threads take all processors from the tracer.
    kill(Pid::from_raw(target.pid()), Signal::SIGSTOP)?;
    let while_attached = group.usage()?;
    ensure!(while_attached < LIMIT, "{while_attached}");
    detach(&registry, &target)?;
    let left = RingsMapping::of(&target)?.resident;
    kill(Pid::from_raw(target.pid()), Signal::SIGCONT)?;
    ensure!(left < 1 << 20, "{left} bytes of rings are left");
    let given_back = while_attached.saturating_sub(group.usage()?);
    ensure!(given_back > rings / 2, "{given_back} of {rings}");
    let truth = GroundTruth::parse(&target.ask("stop", "result ")?)?;
    ensure!(truth.threads.len() as u64 == THREADS);
    drop((target, second));
    Ok(())
}
