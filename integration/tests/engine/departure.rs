//! What stays in a process after us, and who else may come while we are there.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use integration::{DEADLINE, Fixture, ProcessState, Target, Tool, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;
use xrayd::session::Switch;

use crate::adoption::wait_for_events;
use crate::support::{all_stopped, attach, detach, registry, switch, text_is_as_compiled};

/// No descriptor, no thread, no signal mask or handler (P41).
#[test]
fn nothing_is_left_behind() -> Result<()> {
    for (fixture, arguments) in [
        (Fixture::Counted, &["--threads", "3", "--calls", "0"][..]),
        (Fixture::ManyThreads, &["--threads", "20"]),
        (Fixture::Static, &[]),
    ] {
        let mut target = Target::spawn(fixture, arguments)?;
        let program = target.program().to_owned();
        if fixture == Fixture::Counted {
            target.send("go")?;
            wait_until(DEADLINE, "its threads", || {
                let state = ProcessState::of(target.pid())?;
                Ok((state.threads.len() == 5).then_some(()))
            })?;
        }
        // A thread that begins blocks every signal for a moment.
        let before = wait_until(DEADLINE, "all threads have begun", || {
            let state = ProcessState::of(target.pid())?;
            let begun = state.threads.values().all(|thread| thread.blocked == 0);
            Ok(begun.then_some(state))
        })?;
        let registry = registry();
        for _ in 0..3 {
            let session = attach(&registry, &target)?.session;
            switch(&session, Switch::On)?;
            let during = ProcessState::of(target.pid())?;
            ensure!(during == before, "while traced: {during:#?} {before:#?}");
            if fixture == Fixture::Counted {
                wait_for_events(&session, 1000)?;
            }
            detach(&registry, &target)?;
            let after = ProcessState::of(target.pid())?;
            ensure!(after == before, "{after:#?} {before:#?}");
            text_is_as_compiled(&target, &program, &program)?;
        }
        target.still_running()?;
    }
    Ok(())
}

/// The tracer's seat is free while we trace (P16).
#[test]
fn gdb_and_strace_attach_while_we_trace() -> Result<()> {
    let mut target = Target::spawn(Fixture::Siglots, ["--threads", "2", "--hz", "200"])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    wait_for_events(&session, 1000)?;

    let pid = target.pid().to_string();
    let threads = Tool::Gdb.run(["-batch", "-nx", "-p", &pid, "-ex", "thread apply all bt 3"])?;
    ensure!(threads.contains("Thread "), "{threads}");
    target.still_running()?;
    wait_for_events(&session, 1000)?;

    let log = tempfile::NamedTempFile::new()?;
    let mut strace = Tool::Strace
        .command()?
        .args(["-f", "-p", &pid, "-o"])
        .arg(log.path())
        .stderr(Stdio::null())
        .spawn()?;
    wait_until(DEADLINE, "strace saw a system call", || {
        Ok((log.as_file().metadata()?.len() > 0).then_some(()))
    })?;
    wait_for_events(&session, 1000)?;
    kill(
        NixPid::from_raw(i32::try_from(strace.id())?),
        Signal::SIGINT,
    )?;
    strace.wait()?;

    wait_for_events(&session, 1000)?;
    ensure!(target.ask("check", "")?.starts_with("ok "));
    detach(&registry, &target)?;
    ensure!(target.ask("stop", "")?.starts_with("ok "));
    Ok(())
}

/// Breakpoints in functions that are traced, set and removed by a debugger while everything is on (P29).
#[test]
fn a_debugger_stops_in_traced_functions() -> Result<()> {
    let mut target = Target::spawn(Fixture::Siglots, ["--threads", "2", "--hz", "50"])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    let pid = target.pid().to_string();
    let shown = Tool::Gdb.run([
        "-batch",
        "-nx",
        "-p",
        &pid,
        "-ex",
        "handle SIGPROF nostop noprint pass",
        "-ex",
        "handle SIG34 nostop noprint pass",
        "-ex",
        "break storm::compute",
        "-ex",
        "continue",
        "-ex",
        "bt 2",
        "-ex",
        "delete",
        "-ex",
        "detach",
    ])?;
    ensure!(shown.contains("storm::compute"), "{shown}");
    target.still_running()?;
    wait_for_events(&session, 1000)?;
    detach(&registry, &target)?;
    ensure!(target.ask("stop", "")?.starts_with("ok "));
    Ok(())
}

/// A stopped program stays stopped (P5).
#[test]
fn a_stopped_program_stays_stopped() -> Result<()> {
    for signal in [Signal::SIGSTOP, Signal::SIGTSTP] {
        let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "0"])?;
        target.send("go")?;
        let process = NixPid::from_raw(target.pid());
        let pid = target.pid();
        kill(process, signal)?;
        wait_until(DEADLINE, "all threads stopped", || {
            Ok(all_stopped(pid)?.then_some(()))
        })?;
        let registry = registry();
        for _ in 0..2 {
            let session = attach(&registry, &target)?.session;
            wait_until(DEADLINE, "all threads stopped again", || {
                Ok(all_stopped(pid)?.then_some(()))
            })?;
            switch(&session, Switch::On)?;
            ensure!(all_stopped(pid)?);
            detach(&registry, &target)?;
            ensure!(all_stopped(pid)?);
        }
        let session = attach(&registry, &target)?.session;
        switch(&session, Switch::On)?;
        ensure!(session.status().events == 0);
        kill(process, Signal::SIGCONT)?;
        wait_for_events(&session, 1000)?;
        detach(&registry, &target)?;
        ensure!(target.ask("stop", "result ")?.len() > 100);
    }
    Ok(())
}

/// The mappings that stay have names that say whose they are (P57).
#[test]
fn what_stays_is_named() -> Result<()> {
    let target = Target::spawn(Fixture::Arg1, [""; 0])?;
    let registry = registry();
    attach(&registry, &target)?;
    detach(&registry, &target)?;
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid()))?;
    for line in maps.lines().filter(|line| line.contains("xrayd-")) {
        ensure!(!line.contains("rwx"), "writable and executable: {line}");
    }
    // Kernels without names for anonymous memory show none at all.
    let named = ["xrayd-code", "xrayd-table"].map(|name| maps.contains(name));
    ensure!(named[0] == named[1], "{maps}");
    let status = Command::new("kill")
        .args(["-0", &target.pid().to_string()])
        .status()?;
    ensure!(status.success());
    Ok(())
}
