//! The trace of a program that counts its own calls has exactly these calls.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;
use xrayd::{process::AttachOptions, types::Switch};

use crate::{
    support::{
        all_stopped, assert_exact, attach_with, detach, pid_of, registry, retained, seen, soak,
        switch, text_is_as_compiled,
    },
    tracer::Tracer,
};

/// Long enough for a thread that other programs delay on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Attaches before the work, traces all of it, and compares.
fn check(arguments: &[&str], options: AttachOptions) -> Result<GroundTruth> {
    let mut target = Target::spawn(Fixture::Counted, arguments)?;
    let registry = registry();
    let attached = attach_with(&registry, &target, options)?;
    ensure!(attached.report.skipped.is_empty(), "{:?}", attached.report);
    let on = switch(&attached.session, Switch::On)?;
    ensure!(on.matched == 20 && on.changed == 20, "{on:?}");
    target.send("go")?;
    let truth = GroundTruth::parse(&target.line_with("result ", PATIENCE)?)?;
    let report = detach(&registry, &target)?;
    ensure!(report.events == truth.events(), "{report:?}");
    assert_exact(&retained(&attached.session)?, &truth)?;
    let program = target.program().to_owned();
    text_is_as_compiled(&target, &program, &program)?;
    target.send("quit")?;
    ensure!(target.wait(DEADLINE)?.success());
    Ok(truth)
}

/// Rings that hold all events of a thread, so that a slow drain loses nothing.
fn roomy(ring_bytes: u64) -> AttachOptions {
    AttachOptions {
        ring_bytes,
        ..AttachOptions::default()
    }
}

#[test]
fn one_thread_is_recorded_exactly() -> Result<()> {
    let calls = soak("10000", "1000000");
    check(
        &["--threads", "1", "--calls", calls, "--first", "5000"],
        roomy(soak(4 << 20, 1 << 29)),
    )?;
    Ok(())
}

#[test]
fn four_threads_are_recorded_exactly() -> Result<()> {
    let calls = soak("4000", "200000");
    check(
        &["--threads", "4", "--calls", calls, "--seed", "4"],
        roomy(soak(2 << 20, 1 << 27)),
    )?;
    Ok(())
}

#[test]
fn sixteen_threads_are_recorded_exactly() -> Result<()> {
    let calls = soak("1500", "50000");
    check(
        &["--threads", "16", "--calls", calls, "--seed", "16"],
        roomy(soak(1 << 20, 1 << 25)),
    )?;
    Ok(())
}

#[test]
fn sixty_four_threads_are_recorded_exactly() -> Result<()> {
    let calls = soak("500", "20000");
    check(
        &["--threads", "64", "--calls", calls, "--seed", "64"],
        roomy(soak(1 << 20, 1 << 23)),
    )?;
    Ok(())
}

/// Rings change their owners all the time (P62).
#[test]
fn threads_that_are_born_and_die_are_recorded_exactly() -> Result<()> {
    // More slots than threads at a time. Slots of ended threads come back only as fast as the drain
    // thread gets its turn.
    let churn = soak("150", "900");
    let options = AttachOptions {
        max_threads: 4096,
        ..roomy(64 << 10)
    };
    let truth = check(
        &[
            "--threads",
            "8",
            "--churn",
            churn,
            "--calls",
            "20",
            "--seed",
            "9",
        ],
        options,
    )?;
    ensure!(truth.threads.len() >= 1200, "{}", truth.threads.len());
    Ok(())
}

/// Small rings under many threads: every lost event is counted, in the thread that lost it (P68).
#[test]
fn losses_are_counted_exactly_while_the_rings_are_drained() -> Result<()> {
    let calls = soak("40000", "1000000");
    let mut target = Target::spawn(
        Fixture::Counted,
        ["--threads", "4", "--calls", calls, "--first", "0"],
    )?;
    let registry = registry();
    let session = attach_with(&registry, &target, roomy(64 << 10))?.session;
    switch(&session, Switch::On)?;
    target.send("go")?;
    let truth = GroundTruth::parse(&target.line_with("result ", PATIENCE)?)?;
    let report = detach(&registry, &target)?;
    ensure!(
        report.events + report.lost == truth.events(),
        "{report:?}, but {} events",
        truth.events()
    );
    let seen = seen(&retained(&session)?, &truth)?;
    for thread in &truth.threads {
        let seen = &seen[&thread.tid];
        ensure!(
            seen.events + seen.lost == thread.events,
            "thread {}: {} and {} lost of {}",
            thread.tid,
            seen.events,
            seen.lost,
            thread.events
        );
    }
    Ok(())
}

/// No drain runs while the program does. The ring keeps the first events and counts the
/// rest.
#[test]
fn a_ring_that_nobody_drains_keeps_the_beginning_and_counts_the_rest() -> Result<()> {
    let mut target = Target::spawn(
        Fixture::Counted,
        ["--threads", "1", "--calls", "4000", "--first", "20000"],
    )?;
    let mut tracer = Tracer::spawn()?;
    tracer.ask(&format!("attach {} 65536", pid_of(&target)?))?;
    tracer.ask("on")?;
    kill(NixPid::from_raw(tracer.pid()), Signal::SIGSTOP)?;
    wait_until(DEADLINE, "the tracer stands still", || {
        Ok(all_stopped(tracer.pid())?.then_some(()))
    })?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    kill(NixPid::from_raw(tracer.pid()), Signal::SIGCONT)?;
    tracer.ask("detach")?;
    let trace = tracer.trace()?;
    let seen = &seen(&trace, &truth)?[&truth.threads[0].tid];
    let thread = &truth.threads[0];
    ensure!(seen.lost > 0 && seen.events + seen.lost == thread.events);
    // 8192 words. Each of the 16 chunks has some for the slow path only.
    ensure!((7000..8192).contains(&seen.events), "{}", seen.events);
    ensure!(seen.all.iter().eq(thread.first.iter().take(seen.all.len())));
    Ok(())
}

/// The last losses of a thread, without a later event, are reported as soon as the thread is quiet.
#[test]
fn losses_that_no_event_follows_are_reported() -> Result<()> {
    let arguments = ["--threads", "2", "--calls", "0"];
    let mut target = Target::spawn(Fixture::Counted, arguments)?;
    let registry = registry();
    let session = attach_with(&registry, &target, roomy(64 << 10))?.session;
    target.send("go")?;
    for _ in 0..8 {
        let before = session.status().lost;
        switch(&session, Switch::On)?;
        wait_until(DEADLINE, "losses", || {
            Ok((session.status().lost > before).then_some(()))
        })?;
        switch(&session, Switch::Off)?;
        let mut quiet = session.status();
        wait_until(DEADLINE, "all is told", || {
            let reported = retained(&session)?.totals();
            let now = session.status();
            let settled = (now.events, now.lost) == (quiet.events, quiet.lost);
            quiet = now;
            Ok(
                (settled && reported.calls == quiet.events && reported.lost == quiet.lost)
                    .then_some(()),
            )
        })?;
    }
    let before = session.status();
    let report = detach(&registry, &target)?;
    ensure!(
        (report.events, report.lost) == (before.events, before.lost),
        "{report:?} after {before:?}"
    );
    GroundTruth::parse(&target.ask("stop", "result ")?)?;
    Ok(())
}
