//! Sums of calls, made while a process runs.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, wait_until};
use xray_trace::analysis::{Filter, Siblings, Side, StackRoots, StackTrie};
use xray_trace::model::{Missing, Profile};
use xrayd::{
    process::{AttachOptions, Firing, Profiling, Trigger},
    triggers::{CallTime, Condition, Value},
    types::{Mode, Phase, Switch},
};

use crate::support::{attach_with, detach, everything, read_profile, registry, retained, switch};

/// Long enough for a thread that other programs delay on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn counted(calls: &str) -> Result<Target> {
    let arguments = ["--threads", "3", "--calls", calls, "--seed", "7"];
    Target::spawn(Fixture::Counted, arguments)
}

/// Calls until the line "stop", of threads that wait in between, so that no ring is full.
const SLOWLY: [&str; 8] = [
    "--threads",
    "3",
    "--calls",
    "0",
    "--seed",
    "7",
    "--pause",
    "200",
];

fn options(mode: Mode) -> AttachOptions {
    AttachOptions {
        ring_bytes: 16 << 20,
        mode,
        ..AttachOptions::default()
    }
}

fn go(target: &mut Target) -> Result<GroundTruth> {
    target.send("go")?;
    GroundTruth::parse(&target.line_with("result ", PATIENCE)?)
}

/// Calls and self time of each stack of each thread.
fn by_stack(stacks: &StackTrie) -> BTreeMap<Vec<String>, (u64, u64)> {
    let nodes = stacks.nodes().iter().enumerate();
    let paths = nodes.map(|(at, node)| {
        let path = stacks.path(at).into_iter().map(str::to_owned).collect();
        let [counts, _] = node.counts;
        (path, (counts.calls, counts.self_ns))
    });
    paths.collect()
}

fn of_profile(profile: &Profile) -> BTreeMap<Vec<String>, (u64, u64)> {
    let mut stacks = StackTrie::default();
    let (roots, side) = (StackRoots::PerThread, Side::Before);
    stacks.add_profile(profile, &Filter::default(), roots, side);
    by_stack(&stacks)
}

/// Calls of each function, in the order of the program's list of functions.
fn calls(profile: &Profile, truth: &GroundTruth) -> Result<Vec<u64>> {
    let mut calls = vec![0; truth.functions.len()];
    for stack in profile.stacks() {
        let name = profile.tables().function_name(stack.function);
        let index = truth.function(&name).with_context(|| name.to_string())?;
        calls[index] += stack.calls;
    }
    Ok(calls)
}

/// The profile of the same events agrees stack by stack and thread by thread, while others ask for
/// profiles, too.
#[test]
fn a_profile_is_that_of_the_full_trace() -> Result<()> {
    let mut target = counted("20000")?;
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Stream))?.session;
    let profiling = Profiling::begin(&session)?;
    switch(&session, Switch::On)?;
    target.send("go")?;
    for _ in 0..20 {
        let others = Profiling::begin(&session)?;
        std::thread::sleep(Duration::from_millis(1));
        others.finish()?;
    }
    let truth = GroundTruth::parse(&target.line_with("result ", PATIENCE)?)?;
    let profile = read_profile(&session, profiling.finish()?)?;
    let trace = retained(&session)?;
    ensure!(trace.totals().calls == truth.events() && trace.totals().lost == 0);
    ensure!(profile.missing() == Missing::default());
    ensure!(calls(&profile, &truth)? == truth.calls());
    let mut stacks = StackTrie::default();
    let (roots, side) = (StackRoots::PerThread, Side::Before);
    stacks.add(&trace, &Filter::default(), Siblings::Closed, roots, side);
    let (expected, found) = (by_stack(&stacks), of_profile(&profile));
    ensure!(found.len() == expected.len() && found.len() > 30);
    for (path, (calls, self_ns)) in expected {
        let (its_calls, its_self_ns) = found.get(&path).copied().unwrap_or_default();
        // The trace rounds the duration of each call to nanoseconds. The profile measures the rate
        // second by second.
        let off = self_ns.abs_diff(its_self_ns);
        ensure!(
            calls == its_calls && off <= calls + self_ns / 500,
            "{path:?}: {calls} calls in {self_ns} ns, profiled {its_calls} in {its_self_ns}"
        );
    }
    for at in 0..profile.stacks().len() {
        let (stack, times) = (profile.stacks()[at], profile.times(at).context("no times")?);
        let counted: u64 = times.durations.iter().map(|(_, count)| count).sum();
        ensure!(counted == stack.calls && times.unfinished == 0);
        ensure!(times.min_ns <= times.max_ns && times.max_ns <= times.sum_ns);
        ensure!(times.sum_ns >= stack.self_ns.saturating_sub(stack.calls));
    }
    detach(&registry, &target)?;
    Ok(())
}

/// No event is kept. The sums remain after the process has ended, and are dropped with the mode.
#[test]
fn in_profile_mode_sums_are_kept_and_no_events() -> Result<()> {
    let mut target = counted("20000")?;
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Profile))?.session;
    switch(&session, Switch::On)?;
    let truth = go(&mut target)?;
    for _ in 0..2 {
        let kept = session.kept_profile()?.context("nothing is kept")?;
        ensure!(calls(&read_profile(&session, kept)?, &truth)? == truth.calls());
    }
    let status = session.status();
    ensure!(
        (status.events, status.lost, status.retained_events) == (truth.events(), 0, 0),
        "{status:?}"
    );
    ensure!(retained(&session)?.blocks().is_empty());
    target.kill()?;
    wait_until(DEADLINE, "the session has noticed", || {
        Ok((session.status().phase == Phase::Exited).then_some(()))
    })?;
    let kept = session.kept_profile()?.context("nothing is kept")?;
    ensure!(calls(&read_profile(&session, kept)?, &truth)? == truth.calls());

    let mut target = counted("4000")?;
    let session = attach_with(&registry, &target, options(Mode::Profile))?.session;
    switch(&session, Switch::On)?;
    ensure!(session.update(Mode::Stream)?.mode == Mode::Profile);
    ensure!(session.kept_profile()?.is_none());
    let profiling = Profiling::begin(&session)?;
    let truth = go(&mut target)?;
    ensure!(retained(&session)?.totals().calls == truth.events());
    session.update(Mode::Profile)?;
    let status = session.status();
    ensure!(
        status.retained_events == 0 && status.overwritten_events == truth.events(),
        "{status:?}"
    );
    // The kept sums begin with the mode. A client that asked before has all calls.
    ensure!(calls(&read_profile(&session, profiling.finish()?)?, &truth)? == truth.calls());
    let kept = session.kept_profile()?.context("nothing is kept")?;
    ensure!(read_profile(&session, kept)?.stacks().is_empty());
    ensure!(session.status().events == truth.events());
    detach(&registry, &target)?;
    Ok(())
}

/// A live reader has all events, and the sums go on.
#[test]
fn a_profile_goes_on_while_somebody_reads() -> Result<()> {
    let mut target = counted("20000")?;
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Profile))?.session;
    switch(&session, Switch::On)?;
    let feed = session.subscribe(None, 0);
    let truth = go(&mut target)?;
    let trace = retained(&session)?;
    ensure!(trace.totals().calls == truth.events());
    drop(feed);
    let kept = session.kept_profile()?.context("nothing is kept")?;
    ensure!(calls(&read_profile(&session, kept)?, &truth)? == truth.calls());
    detach(&registry, &target)?;
    Ok(())
}

/// A trigger that waits for long calls has events recorded beside the sums. The daemon does not
/// read them before a snapshot is taken, and no call is in the sums twice.
#[test]
fn sums_go_on_while_a_trigger_waits_for_long_calls() -> Result<()> {
    let mut target = Target::spawn(Fixture::Counted, SLOWLY)?;
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Profile))?.session;
    switch(&session, Switch::On)?;
    let arm = |at_least| -> Result<_> {
        let condition = Condition::Duration {
            of: everything(),
            time: CallTime::Duration,
            at_least,
        };
        let (mut trigger, matches, _) = Trigger::new(vec![condition], 1000)?;
        ensure!(trigger.arm(&session)?);
        Trigger::read_all(&session)?;
        Ok((trigger, matches))
    };
    target.send("go")?;
    let (trigger, mut none) = arm(Duration::from_secs(3600))?;
    wait_until(DEADLINE, "calls are added up", || {
        session.kept_profile()?;
        Ok((session.status().events > 100_000).then_some(()))
    })?;
    ensure!(
        session.status().retained_events == 0,
        "{:?}",
        session.status()
    );
    ensure!(retained(&session)?.totals().calls > 10_000);
    // No trigger for a while, and then one for shorter calls.
    drop(trigger);
    Trigger::read_all(&session)?;
    ensure!(retained(&session)?.totals().lost == 0);
    let (trigger, mut some) = arm(Duration::from_millis(1))?;
    let truth = GroundTruth::parse(&target.ask("stop", "result ")?)?;
    let kept = session.kept_profile()?.context("nothing is kept")?;
    let profile = read_profile(&session, kept)?;
    let found = calls(&profile, &truth)?;
    ensure!(found == truth.calls(), "{found:?}, not {:?}", truth.calls());
    let status = session.status();
    ensure!(
        (status.events, status.lost) == (truth.events(), 0),
        "{status:?}, {} events",
        truth.events()
    );
    ensure!(none.next_now().is_none());
    while let Some(hit) = some.next_now() {
        let Firing { value, .. } = trigger.describe(&hit);
        ensure!(
            matches!(value, Value::Duration(ns) if ns >= 1_000_000),
            "{value:?}"
        );
    }
    drop(trigger);
    detach(&registry, &target)?;
    Ok(())
}

/// Triggers of both kinds come and go. Each change between sums in the program and events that are
/// read keeps each call.
#[test]
fn no_call_is_missing_while_triggers_come_and_go() -> Result<()> {
    let mut target = Target::spawn(Fixture::Counted, SLOWLY)?;
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Profile))?.session;
    switch(&session, Switch::On)?;
    target.send("go")?;
    let long = |at_least| Condition::Duration {
        of: everything(),
        time: CallTime::Duration,
        at_least,
    };
    for _ in 0..5 {
        let (mut waiting, _long, _) = Trigger::new(vec![long(Duration::from_secs(1))], 1)?;
        let (mut counting, _calls, _) = Trigger::new(vec![Condition::Call(everything())], 1)?;
        for trigger in [&mut waiting, &mut counting] {
            ensure!(trigger.arm(&session)?);
            Trigger::read_all(&session)?;
            let before = session.status().events;
            wait_until(DEADLINE, "some events", || {
                session.kept_profile()?;
                Ok((session.status().events > before + 5000).then_some(()))
            })?;
        }
        drop(counting);
        Trigger::read_all(&session)?;
        drop(waiting);
        Trigger::read_all(&session)?;
    }
    let truth = GroundTruth::parse(&target.ask("stop", "result ")?)?;
    let kept = session.kept_profile()?.context("nothing is kept")?;
    let found = calls(&read_profile(&session, kept)?, &truth)?;
    ensure!(found == truth.calls(), "{found:?}, not {:?}", truth.calls());
    ensure!(session.status().lost == 0);
    detach(&registry, &target)?;
    Ok(())
}

/// Earlier events of the rings are not in the profile, and the rings keep the newest events again
/// afterwards.
#[test]
fn a_flight_is_profiled_for_a_while() -> Result<()> {
    let mut target = counted("4000")?;
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Flight))?.session;
    switch(&session, Switch::On)?;
    let profiling = Profiling::begin(&session)?;
    let truth = go(&mut target)?;
    let profile = read_profile(&session, profiling.finish()?)?;
    ensure!(calls(&profile, &truth)? == truth.calls());
    let profiling = Profiling::begin(&session)?;
    let nothing = read_profile(&session, profiling.finish()?)?;
    ensure!(nothing.stacks().is_empty(), "{:?}", nothing.stacks());
    drop(Profiling::begin(&session)?);
    ensure!(session.settings().mode == Mode::Flight);
    detach(&registry, &target)?;
    Ok(())
}
