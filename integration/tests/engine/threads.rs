//! Processes without a main thread, with very many threads, and with threads that come and go.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, opens_map_files, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;
use xrayd::{process::AttachOptions, types::Switch};

use crate::{
    adoption::wait_for_events,
    support::{attach, attach_with, detach, pid_of, registry, retained, soak, switch, tally},
    tracer::Tracer,
};

/// The main thread has ended (P3).
#[test]
fn a_process_without_its_main_thread_is_traced() -> Result<()> {
    let mut target = Target::spawn(Fixture::Leaderless, [""; 0])?;
    let registry = registry();
    for round in 0..2 {
        let attached = attach(&registry, &target)?;
        ensure!(attached.report.adopted == (round > 0 && opens_map_files()?));
        switch(&attached.session, Switch::On)?;
        for call in 1..=5 {
            ensure!(target.ask("go", "done")? == format!("done {}", round * 5 + call));
        }
        detach(&registry, &target)?;
        ensure!(tally(&retained(&attached.session)?)?["work"] == [5, 5, 0]);
    }
    target.send("quit")?;
    ensure!(target.wait(DEADLINE)?.success());
    Ok(())
}

/// Only one of a thousand threads is stopped (P19).
#[test]
fn a_process_with_a_thousand_threads_is_traced() -> Result<()> {
    let mut target = Target::spawn(Fixture::ManyThreads, ["--threads", "1000"])?;
    let registry = registry();
    let attached = attach(&registry, &target)?;
    ensure!(attached.report.stopped.is_some());
    switch(&attached.session, Switch::On)?;
    wait_for_events(&attached.session, 100)?;
    let before = target.ask("calls", "calls")?;
    wait_until(DEADLINE, "it goes on", || {
        Ok((target.ask("calls", "calls")? != before).then_some(()))
    })?;
    let report = detach(&registry, &target)?;
    ensure!(report.lost == 0, "{report:?}");
    let counts = tally(&retained(&attached.session)?)?;
    ensure!(counts.len() == 1 && counts["beat"][0] > 0, "{counts:?}");
    Ok(())
}

/// Threads begin and end during an attach (P1, P2).
#[test]
fn attaching_while_threads_come_and_go_never_fails() -> Result<()> {
    // Endless, so that a slow machine is never too late for the last threads. Few slots, because it
    // takes long to take back thousands of them beside a program that wants all processor time.
    const ARGUMENTS: &str = "--threads 8 --churn 1 --endless 1 --calls 5 --first 0";
    for _ in 0..soak(4, 200) {
        let mut target = Target::spawn(Fixture::Counted, ARGUMENTS.split(' '))?;
        target.send("go")?;
        let registry = registry();
        for _ in 0..4 {
            let options = AttachOptions {
                max_threads: 64,
                ..AttachOptions::default()
            };
            let session = attach_with(&registry, &target, options)?.session;
            switch(&session, Switch::On)?;
            wait_for_events(&session, 1000)?;
            detach(&registry, &target)?;
        }
        GroundTruth::parse(&target.ask("stop", "result ")?)?;
    }
    Ok(())
}

/// More threads than slots. A thread without a ring loses all its events, and every loss is counted
/// for its thread.
#[test]
fn losses_of_threads_without_a_ring_are_distinguished() -> Result<()> {
    // The smallest table has 64 slots, and as many buckets.
    let mut target = Target::spawn(
        Fixture::Counted,
        ["--threads", "120", "--calls", "3000", "--first", "0"],
    )?;
    let registry = registry();
    let options = AttachOptions {
        max_threads: 4,
        ..AttachOptions::default()
    };
    let session = attach_with(&registry, &target, options)?.session;
    switch(&session, Switch::On)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    detach(&registry, &target)?;
    let trace = retained(&session)?;
    let mut reported = BTreeMap::<u32, (u64, u64)>::new();
    for block in trace.blocks() {
        let thread = trace.thread(block.thread).context("a thread")?;
        let (calls, lost) = reported.entry(thread.tid).or_default();
        *calls += u64::from(block.calls);
        *lost += block.lost;
    }
    for thread in &truth.threads {
        let tid = u32::try_from(thread.tid)?;
        let (calls, lost) = reported.remove(&tid).unwrap_or_default();
        ensure!(
            calls + lost == thread.events,
            "thread {tid}: {calls} and {lost} lost of {}",
            thread.events
        );
    }
    ensure!(reported.is_empty(), "no such threads: {reported:?}");
    // Each thread is described once, even one that got a ring later.
    let mut tids: Vec<u32> = trace.threads().iter().map(|thread| thread.tid).collect();
    let threads = tids.len();
    tids.sort_unstable();
    tids.dedup();
    ensure!(tids.len() == threads, "{:?}", trace.threads());
    let without = trace.threads().iter().filter(|thread| {
        let blocks = trace.blocks().iter();
        let mut blocks = blocks.filter(|block| block.thread == thread.id);
        blocks.all(|block| block.calls == 0)
    });
    ensure!(without.count() > 0, "the slots have run out");
    Ok(())
}

/// So many threads that their losses cannot all be told apart. They are counted all the same.
#[test]
fn threads_without_a_ring_are_counted() -> Result<()> {
    let mut target = Target::spawn(
        Fixture::Counted,
        ["--threads", "300", "--calls", "300", "--first", "0"],
    )?;
    let registry = registry();
    let options = AttachOptions {
        max_threads: 4,
        ..AttachOptions::default()
    };
    let session = attach_with(&registry, &target, options)?.session;
    switch(&session, Switch::On)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let report = detach(&registry, &target)?;
    ensure!(
        report.events + report.lost == truth.events(),
        "{report:?}, but {} events",
        truth.events()
    );
    let totals = retained(&session)?.totals();
    ensure!(totals.calls + totals.lost == truth.events(), "{totals:?}");
    Ok(())
}

/// Threads are counted even without a drain. The next tracer reports them.
#[test]
fn threads_without_a_ring_are_counted_between_two_tracers() -> Result<()> {
    let mut target = Target::spawn(
        Fixture::Counted,
        [
            "--threads",
            "64",
            "--churn",
            "8",
            "--calls",
            "3",
            "--first",
            "0",
        ],
    )?;
    let mut tracer = Tracer::spawn()?;
    // The smallest table has 64 slots.
    tracer.ask(&format!("attach {} 65536 4", pid_of(&target)?))?;
    tracer.ask("on")?;
    kill(NixPid::from_raw(tracer.pid()), Signal::SIGKILL)?;
    drop(tracer);
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let registry = registry();
    let attached = attach(&registry, &target)?;
    ensure!(attached.report.adopted == opens_map_files()?);
    let report = detach(&registry, &target)?;
    if opens_map_files()? {
        ensure!(
            report.lost > 0 && report.events + report.lost == truth.events(),
            "{report:?}, but {} events",
            truth.events()
        );
    } else {
        // The losses lie in rings that cannot be opened any more. The report only notes that
        // another tracer was there.
        let notes = &attached.report.notes;
        ensure!(notes.iter().any(|note| note.contains("left on")));
        ensure!((report.events, report.lost) == (0, 0), "{report:?}");
    }
    // Nothing is reported twice.
    attach(&registry, &target)?;
    let report = detach(&registry, &target)?;
    ensure!((report.events, report.lost) == (0, 0), "{report:?}");
    Ok(())
}
