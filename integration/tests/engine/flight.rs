//! Rings that keep the newest events by themselves, and snapshots of them: while the process runs,
//! hangs, and after it has died.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{CallEvent, DEADLINE, Fixture, GroundTruth, Target, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;
use xray_trace::analysis::Notes;
use xray_trace::model::{EventBody, Trace};
use xrayd::{
    process::{AttachOptions, Attached, Registry},
    types::{Mode, Phase, Switch},
};

use crate::support::{
    all_stopped, assert_exact, attach_with, detach, notes, registry, retained, seen, switch,
    text_is_as_compiled,
};

/// Long enough for a thread that other programs delay on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn in_flight(ring_bytes: u64) -> AttachOptions {
    AttachOptions {
        ring_bytes,
        mode: Mode::Flight,
        ..AttachOptions::default()
    }
}

fn counted(calls: &str) -> Result<Target> {
    let arguments = ["--threads", "3", "--calls", calls, "--seed", "5"];
    Target::spawn(Fixture::Counted, arguments)
}

/// Attaches in flight mode, with all functions on.
fn fly(registry: &Registry, target: &Target, ring_bytes: u64) -> Result<Attached> {
    let attached = attach_with(registry, target, in_flight(ring_bytes))?;
    switch(&attached.session, Switch::On)?;
    Ok(attached)
}

fn go(target: &mut Target) -> Result<GroundTruth> {
    target.send("go")?;
    GroundTruth::parse(&target.line_with("result ", PATIENCE)?)
}

/// The events of each thread, in the order of the program's list of threads.
fn sequences(trace: &Trace, truth: &GroundTruth) -> Result<Vec<Vec<CallEvent>>> {
    let mut seen = seen(trace, truth)?;
    let threads = truth.threads.iter();
    let sequences = threads.map(|thread| {
        let seen = seen.remove(&thread.tid);
        seen.map(|seen| seen.all).context("a thread is missing")
    });
    sequences.collect()
}

#[test]
fn rings_that_hold_it_all_show_it_all() -> Result<()> {
    let mut target = counted("4000")?;
    let registry = registry();
    let session = fly(&registry, &target, 4 << 20)?.session;
    let truth = go(&mut target)?;
    // The rings of threads that have ended are read. The rings of other threads are copied.
    assert_exact(&retained(&session)?, &truth)?;
    assert_exact(&retained(&session)?, &truth)?;
    let status = session.status();
    ensure!(
        status.mode == Mode::Flight && status.lost == 0,
        "{status:?}"
    );
    ensure!(status.events.abs_diff(truth.events()) < truth.events() / 50 + 200);
    let report = detach(&registry, &target)?;
    ensure!(report.lost == 0, "{report:?}");
    let program = target.program().to_owned();
    text_is_as_compiled(&target, &program, &program)
}

/// The same work in rings that it fills many times over. The snapshot has the end of each thread's
/// events, without a gap.
#[test]
fn the_newest_of_each_thread_are_shown() -> Result<()> {
    let all = {
        let mut target = counted("20000")?;
        let registry = registry();
        let session = fly(&registry, &target, 16 << 20)?.session;
        let truth = go(&mut target)?;
        let all = sequences(&retained(&session)?, &truth)?;
        detach(&registry, &target)?;
        all
    };
    let mut target = counted("20000")?;
    let registry = registry();
    let session = fly(&registry, &target, 64 << 10)?.session;
    let truth = go(&mut target)?;
    let trace = retained(&session)?;
    ensure!(trace.totals().lost == 0, "{:?}", trace.totals());
    for (all, newest) in all.iter().zip(sequences(&trace, &truth)?) {
        let kept = newest.len();
        ensure!((6000..9000).contains(&kept), "{kept} of {}", all.len());
        ensure!(all.ends_with(&newest), "{kept} are not the last ones");
    }
    let report = detach(&registry, &target)?;
    ensure!(report.lost == 0, "{report:?}");
    Ok(())
}

/// A snapshot of a process that hangs shows the events before that.
#[test]
fn a_process_that_hangs_is_seen_as_it_is() -> Result<()> {
    let mut target = counted("2000000")?;
    let registry = registry();
    let session = fly(&registry, &target, 64 << 10)?.session;
    target.send("go")?;
    wait_until(DEADLINE, "the rings are full", || {
        Ok((session.status().events > 100_000).then_some(()))
    })?;
    let pid = NixPid::from_raw(target.pid());
    kill(pid, Signal::SIGSTOP)?;
    wait_until(DEADLINE, "all stand", || {
        Ok(all_stopped(target.pid())?.then_some(()))
    })?;
    let events = |trace: &Trace| -> Result<BTreeMap<u32, Vec<(u64, EventBody)>>> {
        let mut events = BTreeMap::<u32, Vec<_>>::new();
        for (thread, blocks) in trace.blocks_by_thread() {
            let its = events.entry(thread.0).or_default();
            for event in blocks.iter().flat_map(|block| block.events()) {
                let event = event?;
                // This event marks that calls are open when the snapshot is taken.
                if event.body != (EventBody::Unwound { calls: 0 }) {
                    its.push((event.ticks.0, event.body));
                }
            }
        }
        Ok(events)
    };
    let first = events(&retained(&session)?)?;
    ensure!(first.len() == 3 && first.values().all(|its| its.len() > 6000));
    ensure!(events(&retained(&session)?)? == first);
    kill(pid, Signal::SIGCONT)?;
    detach(&registry, &target)?;
    Ok(())
}

/// A snapshot reaches up to the last event, without a core file.
#[test]
fn a_process_that_has_died_is_seen_to_its_end() -> Result<()> {
    for signal in [Signal::SIGKILL, Signal::SIGSEGV, Signal::SIGABRT] {
        let mut target = counted("3000")?;
        let registry = registry();
        let session = fly(&registry, &target, 4 << 20)?.session;
        let truth = go(&mut target)?;
        kill(NixPid::from_raw(target.pid()), signal)?;
        target.wait(DEADLINE)?;
        wait_until(DEADLINE, "the session has noticed", || {
            Ok((session.status().phase == Phase::Exited).then_some(()))
        })?;
        assert_exact(&retained(&session)?, &truth).with_context(|| format!("{signal}"))?;
    }
    Ok(())
}

/// Events of a flight are retained when it ends. Retained events are dropped and counted when one
/// begins.
#[test]
fn a_flight_ends_and_begins() -> Result<()> {
    let mut target = counted("4000")?;
    let registry = registry();
    let session = fly(&registry, &target, 4 << 20)?.session;
    let truth = go(&mut target)?;
    ensure!(session.update(Mode::Stream)?.mode == Mode::Flight);
    assert_exact(&retained(&session)?, &truth)?;
    ensure!(session.status().events == truth.events());
    ensure!(session.update(Mode::Flight)?.mode == Mode::Stream);
    let status = session.status();
    ensure!(status.retained_events == 0 && status.overwritten_events == truth.events());
    detach(&registry, &target)?;

    let mut target = counted("4000")?;
    let session = attach_with(&registry, &target, in_flight(4 << 20))?.session;
    session.update(Mode::Stream)?;
    switch(&session, Switch::On)?;
    session.update(Mode::Flight)?;
    let truth = go(&mut target)?;
    assert_exact(&retained(&session)?, &truth)?;
    detach(&registry, &target)?;
    Ok(())
}

/// Many changes of the mode under load: no event is lost, no event is there twice, and the events
/// nest.
#[test]
fn modes_change_while_it_runs() -> Result<()> {
    let mut target = counted("60000")?;
    let registry = registry();
    let session = fly(&registry, &target, 16 << 20)?.session;
    target.send("go")?;
    for _ in 0..30 {
        session.update(Mode::Stream)?;
        session.update(Mode::Flight)?;
    }
    session.update(Mode::Stream)?;
    let truth = GroundTruth::parse(&target.line_with("result ", PATIENCE)?)?;
    let trace = retained(&session)?;
    let evicted = session.status().overwritten_events;
    ensure!(session.status().events == truth.events());
    let totals = trace.totals();
    ensure!(totals.calls + evicted == truth.events(), "{totals:?}");
    let reported = trace
        .coverage()
        .overwritten
        .iter()
        .filter_map(|its| its.events);
    ensure!(
        reported.sum::<u64>() == evicted && totals.lost == 0,
        "what went is told, and is no loss: {:?}",
        &trace.coverage().overwritten
    );
    let Notes {
        closed_by_outer_exit,
        closed_at_end,
        ..
    } = notes(&trace);
    ensure!(
        closed_by_outer_exit + closed_at_end == 0,
        "{:?}",
        notes(&trace)
    );
    detach(&registry, &target)?;
    Ok(())
}
