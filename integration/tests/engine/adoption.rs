//! Attaches to a program at work, again and again, and after a tracer that died.

use anyhow::{Context as _, Result, ensure};
use integration::{
    DEADLINE, Fixture, GroundTruth, SequenceHash, Target, opens_map_files, ran_right, wait_until,
};
use xrayd::{
    Reason,
    process::{AttachOptions, Session},
    types::{Phase, Switch},
};

use crate::{
    support::{
        assert_exact, attach, detach, pid_of, registry, retained, seen, switch, text_is_as_compiled,
    },
    tracer::Tracer,
};

pub(crate) fn wait_for_events(session: &Session, more: u64) -> Result<()> {
    let before = session.status().events;
    wait_until(DEADLINE, "events", || {
        Ok((session.status().events >= before + more).then_some(()))
    })
}

#[test]
fn a_running_program_is_attached_to_three_times_and_its_results_are_right() -> Result<()> {
    let arguments = ["--threads", "4", "--calls", "0", "--seed", "21"];
    let mut target = Target::spawn(Fixture::Counted, arguments)?;
    let program = target.program().to_owned();
    let registry = registry();
    target.send("go")?;
    for round in 0..3 {
        let attached = attach(&registry, &target)?;
        let report = &attached.report;
        let adopted = round > 0 && opens_map_files()?;
        ensure!(
            report.adopted == adopted && report.stopped.is_none() == adopted,
            "{round}: {report:?}"
        );
        let session = attached.session;
        ensure!(session.status().functions_on == 0);
        switch(&session, Switch::On)?;
        wait_for_events(&session, 10_000)?;
        switch(&session, Switch::Off)?;
        ensure!(session.status().functions_on == 0);
        let report = detach(&registry, &target)?;
        ensure!(report.events >= 10_000, "{report:?}");
        ensure!(session.status().phase == Phase::Exited);
        let trace = retained(&session)?;
        ensure!(trace.totals().calls == report.events);
        ensure!(trace.totals().lost == report.lost);
        text_is_as_compiled(&target, &program, &program)?;
    }
    ran_right(&GroundTruth::parse(&target.ask("stop", "result ")?)?, 21)
}

#[test]
fn the_third_attach_records_exactly() -> Result<()> {
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "4", "--calls", "1000"])?;
    let registry = registry();
    for _ in 0..2 {
        let session = attach(&registry, &target)?.session;
        switch(&session, Switch::On)?;
        detach(&registry, &target)?;
    }
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    detach(&registry, &target)?;
    assert_exact(&retained(&session)?, &truth)
}

#[test]
fn a_registry_that_is_dropped_switches_everything_off() -> Result<()> {
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "0"])?;
    let program = target.program().to_owned();
    let first = registry();
    let session = attach(&first, &target)?.session;
    switch(&session, Switch::On)?;
    target.send("go")?;
    wait_for_events(&session, 1000)?;
    drop(session);
    drop(first);
    wait_until(DEADLINE, "every sled is off", || {
        Ok(text_is_as_compiled(&target, &program, &program).ok())
    })?;
    let second = registry();
    // The first tracer lets the process go when its sleds are off.
    let attached = wait_until(DEADLINE, "the first tracer has let go", || {
        match second.attach(pid_of(&target)?, AttachOptions::default()) {
            Err(refusal) if refusal.reason == Reason::Busy => Ok(None),
            attached => Ok(Some(attached?)),
        }
    })?;
    ensure!(
        attached.report.adopted == opens_map_files()?,
        "{:?}",
        attached.report
    );
    switch(&attached.session, Switch::On)?;
    wait_for_events(&attached.session, 1000)?;
    detach(&second, &target)?;
    GroundTruth::parse(&target.ask("stop", "result ")?)?;
    Ok(())
}

/// The new tracer finds all functions on, and its predecessor's events in the rings (P64).
#[test]
fn a_killed_tracer_is_succeeded_by_another_one() -> Result<()> {
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "4", "--calls", "0"])?;
    let program = target.program().to_owned();
    target.send("go")?;
    for round in 0..3 {
        let mut tracer = Tracer::spawn()?;
        let answer = tracer.ask(&format!("attach {}", pid_of(&target)?))?;
        ensure!(
            answer == format!("adopted={}", round > 0 && opens_map_files()?),
            "{answer}"
        );
        tracer.ask("on")?;
        wait_until(DEADLINE, "events", || {
            Ok((tracer.events()? > 10_000).then_some(()))
        })?;
        tracer.kill()?;
        target.still_running()?;
        ensure!(
            text_is_as_compiled(&target, &program, &program).is_err(),
            "nothing was on"
        );
    }
    let registry = registry();
    let attached = attach(&registry, &target)?;
    let adopted = opens_map_files()?;
    ensure!(
        attached.report.adopted == adopted && attached.report.stopped.is_none() == adopted,
        "{:?}",
        attached.report
    );
    ensure!(
        attached
            .report
            .notes
            .iter()
            .any(|note| note.contains("left on")),
        "{:?}",
        attached.report
    );
    text_is_as_compiled(&target, &program, &program)?;
    switch(&attached.session, Switch::On)?;
    wait_for_events(&attached.session, 10_000)?;
    detach(&registry, &target)?;
    text_is_as_compiled(&target, &program, &program)?;
    ran_right(&GroundTruth::parse(&target.ask("stop", "result ")?)?, 1)
}

#[test]
fn after_a_killed_tracer_the_next_one_records_exactly() -> Result<()> {
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "4", "--calls", "1000"])?;
    let mut tracer = Tracer::spawn()?;
    tracer.ask(&format!("attach {}", pid_of(&target)?))?;
    tracer.ask("on")?;
    tracer.kill()?;
    let registry = registry();
    let attached = attach(&registry, &target)?;
    ensure!(
        attached.report.adopted == opens_map_files()?,
        "{:?}",
        attached.report
    );
    switch(&attached.session, Switch::On)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    detach(&registry, &target)?;
    assert_exact(&retained(&attached.session)?, &truth)
}

/// The trace has the events of a killed target up to the last one. Each thread's events are the
/// begin of its work, in order and without a gap (P61). A thread that is seen to end before the
/// process has left its calls.
#[test]
fn a_killed_target_leaves_everything_up_to_its_last_event() -> Result<()> {
    let mut target = Target::spawn(
        Fixture::Counted,
        ["--threads", "2", "--calls", "0", "--seed", "5"],
    )?;
    let registry = registry();
    let options = xrayd::process::AttachOptions {
        ring_bytes: 64 << 20,
        ..Default::default()
    };
    let session = crate::support::attach_with(&registry, &target, options)?.session;
    switch(&session, Switch::On)?;
    target.send("go")?;
    wait_for_events(&session, 50_000)?;
    target.kill()?;
    wait_until(DEADLINE, "the session noticed", || {
        Ok((session.status().phase == Phase::Exited).then_some(()))
    })?;
    let trace = retained(&session)?;
    let status = session.status();
    ensure!(trace.totals().calls == status.events, "{status:?}");
    // Runs the program once more, untraced, as long as the longer thread ran.
    let mut plain = Target::spawn(
        Fixture::Counted,
        [
            "--threads",
            "2",
            "--calls",
            "1",
            "--seed",
            "5",
            "--first",
            "0",
        ],
    )?;
    let names = GroundTruth::parse(&plain.ask("go", "result ")?)?;
    let seen = seen(&trace, &names)?;
    ensure!(seen.len() == 2, "{} threads", seen.len());
    let longest = seen
        .values()
        .map(|thread| thread.all.len())
        .max()
        .context("no events")?;
    let (calls, first) = (longest.to_string(), longest.to_string());
    let mut plain = Target::spawn(
        Fixture::Counted,
        [
            "--threads",
            "2",
            "--calls",
            &calls,
            "--seed",
            "5",
            "--first",
            &first,
        ],
    )?;
    let truth = GroundTruth::parse(&plain.ask("go", "result ")?)?;
    for (tid, thread) in &seen {
        // A thread that was killed between the reservation of a word and its write leaves one hole.
        ensure!(thread.lost <= 1, "thread {tid} lost {}", thread.lost);
        let mut hash = SequenceHash::new();
        thread.all.iter().for_each(|event| hash.push(*event));
        ensure!(hash == thread.hash);
        ensure!(
            truth.threads.iter().any(|truth| truth
                .first
                .iter()
                .take(thread.all.len())
                .eq(&thread.all)),
            "thread {tid}: {} events that are not the beginning of what it does",
            thread.all.len()
        );
    }
    ensure!(registry.detach(pid_of(&target)?)?.exited);
    Ok(())
}
