//! The state of a process after a detach, and other tracers during an attach.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use integration::{
    DEADLINE, Fixture, GroundTruth, ProcessState, Target, Tool, build, opens_map_files, ran_right,
    wait_until,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;
use xrayd::{
    process::AttachOptions,
    types::{Run, Switch},
};

use crate::{
    adoption::wait_for_events,
    support::{
        all_stopped, attach, attach_with, detach, everything, memory, pid_of, registry, switch,
        text_is_as_compiled,
    },
};

/// No descriptor, thread, signal mask or handler is left (P41).
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
        // A new thread blocks every signal for a moment.
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

/// Another tracer can attach by ptrace while we trace (P16).
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

/// A debugger sets and removes breakpoints in traced functions while all sleds are on (P29).
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
        let mut command = Command::new(build(Fixture::Counted)?);
        // SIGTSTP stops no process of an orphaned process group. Without a shell, the tests' own
        // group is orphaned.
        command
            .args(["--threads", "2", "--calls", "0"])
            .process_group(0);
        let mut target = Target::spawn_command(command)?;
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

/// The mappings that stay have our names (P57).
#[test]
fn leftovers_are_named() -> Result<()> {
    let target = Target::spawn(Fixture::Arg1, [""; 0])?;
    let registry = registry();
    attach(&registry, &target)?;
    detach(&registry, &target)?;
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid()))?;
    for line in maps.lines().filter(|line| line.contains("xrayd-")) {
        ensure!(!line.contains("rwx"), "writable and executable: {line}");
    }
    // A kernel without names for anonymous memory shows no name.
    let named = ["xrayd-code", "xrayd-table"].map(|name| maps.contains(name));
    ensure!(named[0] == named[1], "{maps}");
    kill(NixPid::from_raw(target.pid()), None)?;
    Ok(())
}

/// The address range of the first mapping whose line ends in one of `names`.
fn mapping(target: &Target, names: &[&str]) -> Result<std::ops::Range<u64>> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid()))?;
    let line = maps
        .lines()
        .find(|line| names.iter().any(|name| line.contains(name)))
        .with_context(|| format!("no {names:?} in {maps}"))?;
    let (range, _) = line.split_once(' ').context("a line of one word")?;
    let (start, end) = range.split_once('-').context("a range")?;
    Ok(u64::from_str_radix(start, 16)?..u64::from_str_radix(end, 16)?)
}

/// The address of the word that lets trampolines record. The next attach finds it in the same way:
/// by the handshake in the code mapping.
fn live_word(target: &Target) -> Result<u64> {
    let memory = memory(target)?;
    let word = |address| -> Result<u64> {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, address)?;
        Ok(u64::from_le_bytes(bytes))
    };
    for entry in procfs::process::Process::new(target.pid())?.maps()? {
        let start = entry.address.0;
        if entry.inode == 0
            && word(start).is_ok_and(|word| word.to_le_bytes().starts_with(b"xrayd"))
        {
            return word(word(start + 16)?);
        }
    }
    anyhow::bail!("no code of xrayd's")
}

/// A detach while the threads write as fast as they can. The proof holds, nothing is written to the
/// rings afterwards, the results are right, and a new attach works (P30).
#[test]
fn nothing_is_written_after_a_detach_at_full_speed() -> Result<()> {
    let arguments = ["--threads", "4", "--calls", "0", "--seed", "77"];
    let mut target = Target::spawn(Fixture::Counted, arguments)?;
    let program = target.program().to_owned();
    let registry = registry();
    let options = AttachOptions {
        ring_bytes: 64 << 10,
        max_threads: 8,
        ..AttachOptions::default()
    };
    target.send("go")?;
    for round in 0..3 {
        let attached = attach_with(&registry, &target, options.clone())?;
        ensure!(attached.report.adopted == (round > 0 && opens_map_files()?));
        switch(&attached.session, Switch::On)?;
        wait_for_events(&attached.session, 10_000)?;
        detach(&registry, &target)?;
        text_is_as_compiled(&target, &program, &program)?;
        let rings = mapping(
            &target,
            &[
                "/memfd:xrayd-rings:",
                "[anon_shmem:xrayd-rings]",
                "/dev/zero (deleted)",
            ],
        )?;
        let memory = memory(&target)?;
        let worked = || -> Result<u64> {
            let stat = procfs::process::Process::new(target.pid())?.stat()?;
            Ok(stat.utime + stat.stime)
        };
        let mut before = Vec::new();
        // A thread that lost its processor inside a trampoline runs it to the end once.
        wait_until(DEADLINE, "nothing more is written to the rings", || {
            let since = worked()?;
            wait_until(DEADLINE, "the program works", || {
                Ok((worked()? >= since + 10).then_some(()))
            })?;
            let mut now = vec![0u8; usize::try_from(rings.end - rings.start)?];
            memory.read_exact_at(&mut now, rings.start)?;
            let same = now == before;
            before = now;
            Ok(same.then_some(()))
        })?;
    }
    let truth = GroundTruth::parse(&target.ask("stop", "result ")?)?;
    ran_right(&truth, 77)
}

/// A copy of the program with the library, so that the test can damage its file.
fn program_with_library(directory: &Path) -> Result<Target> {
    let program = build(Fixture::Dso)?;
    let from = program.parent().context("a directory")?;
    for name in ["dso", "libtraced.so"] {
        fs::copy(from.join(name), directory.join(name))?;
    }
    Target::spawn_command(Command::new(directory.join("dso")))
}

/// A part of the text can be neither read nor written, because the library's file was cut short.
/// Sleds that are on already are switched off again, and a detach that fails leaves nothing that
/// records.
#[test]
fn a_switch_that_fails_half_way_leaves_nothing_on() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut target = program_with_library(directory.path())?;
    let program = target.program().to_owned();
    let library = directory.path().join("libtraced.so");
    let whole = fs::read(&library)?;
    let cut = || OpenOptions::new().write(true).open(&library)?.set_len(4096);
    let mend = || -> Result<()> {
        let file = OpenOptions::new().write(true).open(&library)?;
        Ok(file.write_all_at(&whole, 0)?)
    };
    let registry = registry();
    for _ in 0..2 {
        let session = attach(&registry, &target)?.session;
        cut()?;
        let failed = session.toggle(&everything(), Switch::On, Run::Real);
        ensure!(failed.is_err(), "{failed:?}");
        text_is_as_compiled(&target, &program, &program)?;
        mend()?;
        ensure!(target.ask("go", "done")? == "done 1016");
        ensure!(session.status().events == 0, "something was on");
        switch(&session, Switch::On)?;
        ensure!(target.ask("go", "done")? == "done 1016");
        wait_until(DEADLINE, "its events", || {
            Ok((session.status().events == 6).then_some(()))
        })?;
        ensure!(live_word(&target)? == 1);

        cut()?;
        let failed = registry.detach(pid_of(&target)?);
        ensure!(failed.is_err(), "{failed:?}");
        text_is_as_compiled(&target, &program, &program)?;
        ensure!(live_word(&target)? == 0, "trampolines may record");
        mend()?;
        ensure!(target.ask("go", "done")? == "done 1016");
    }
    attach(&registry, &target)?;
    detach(&registry, &target)?;
    Ok(())
}

/// Bytes that the program changed itself are reported, and left as they are (P27).
#[test]
fn a_sled_that_the_program_changed_is_left_alone() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut target = program_with_library(directory.path())?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    let rows = session.functions(None)?;
    let sleds = rows.iter().map(|row| u64::from(row.sleds)).sum::<u64>();
    let inner = rows
        .iter()
        .find(|row| row.name == "library_inner")
        .context("no such function")?;
    let memory = memory(&target)?;
    let mut entry = [0; 2];
    memory.read_exact_at(&mut entry, inner.address)?;
    ensure!(entry == [0xeb, 0x09], "no entry sled: {entry:x?}");
    // Bytes that no thread executes.
    memory.write_all_at(&[0xcc; 9], inner.address + 2)?;
    let report = session.toggle(&everything(), Switch::On, Run::Real)?;
    ensure!(
        (report.foreign, report.sleds) == (1, sleds - 1),
        "{report:?}"
    );
    ensure!(target.ask("go", "done")? == "done 1016");
    wait_until(DEADLINE, "its events", || {
        Ok((session.status().events == 5).then_some(()))
    })?;
    let report = registry.detach(pid_of(&target)?)?;
    ensure!(
        (report.sleds_on, report.sleds_off) == (1, sleds - 1) && report.text_bytes_different == 0,
        "{report:?}"
    );
    let mut left = [0; 11];
    memory.read_exact_at(&mut left, inner.address)?;
    ensure!(left == *b"\xeb\x09\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc");
    ensure!(target.ask("go", "done")? == "done 1016");
    Ok(())
}
