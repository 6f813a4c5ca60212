//! Child processes, and programs that call `exec`.

use anyhow::{Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use xrayd::types::{Phase, Switch};

use crate::support::{attach, detach, pid_of, registry, retained, switch, tally};

/// A forked child runs on untraced. A vforked child borrows its parent's thread and is recorded as
/// that thread (P58, P59).
#[test]
fn children_run_on_and_the_parent_is_recorded_exactly() -> Result<()> {
    let mut target = Target::spawn(Fixture::Forks, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    ensure!(target.ask("fork 20", "")? == "done 100");
    ensure!(target.ask("vfork 10", "")? == "done 1200");
    ensure!(target.ask("fork 5", "")? == "done 1300");
    let report = detach(&registry, &target)?;
    ensure!(report.lost == 0, "{report:?}");
    let trace = retained(&session)?;
    ensure!(
        tally(&trace)?["work"] == [1300, 1300, 0],
        "{:?}",
        tally(&trace)?
    );
    ensure!(trace.blocks_by_thread().len() == 1);
    Ok(())
}

/// An `exec` ends the session and keeps the data. The new program can be attached (P60).
#[test]
fn a_program_that_becomes_another_ends_its_session() -> Result<()> {
    let mut target = Target::spawn(Fixture::Forks, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    ensure!(target.ask("fork 1", "")? == "done 100");
    target.ask("exec", "ready")?;
    wait_until(DEADLINE, "the session noticed", || {
        Ok((session.status().phase == Phase::Exited).then_some(()))
    })?;
    ensure!(tally(&retained(&session)?)?["work"] == [100, 100, 0]);
    // The image is another program now.
    let again = attach(&registry, &target)?;
    ensure!(!again.report.adopted);
    switch(&again.session, Switch::On)?;
    ensure!(target.ask("fork 1", "")? == "done 100");
    detach(&registry, &target)?;
    ensure!(tally(&retained(&again.session)?)?["work"] == [100, 100, 0]);
    Ok(())
}

/// The same, if nothing looks at the process before the detach.
#[test]
fn detaching_from_a_program_that_became_another_is_no_error() -> Result<()> {
    for _ in 0..5 {
        let mut target = Target::spawn(Fixture::Forks, [""; 0])?;
        let registry = registry();
        let session = attach(&registry, &target)?.session;
        switch(&session, Switch::On)?;
        target.ask("exec", "ready")?;
        let report = registry.detach(pid_of(&target)?)?;
        ensure!(report.exited, "{report:?}");
        ensure!(target.ask("fork 1", "")? == "done 100");
    }
    Ok(())
}
