//! Tail sleds in front of a conditional jump.

use anyhow::{Result, ensure};
use integration::{Fixture, Target};
use xrayd::types::Switch;

use crate::support::{attach, detach, notes, registry, retained, switch, tally};

/// Results are right, and each call has an exit: a tail exit if and only if the jump was taken.
#[test]
fn a_tail_exit_is_recorded_if_and_only_if_the_jump_is_taken() -> Result<()> {
    let mut target = Target::spawn(Fixture::TailCond, [""; 0])?;
    let registry = registry();
    let attached = attach(&registry, &target)?;
    ensure!(attached.report.skipped.is_empty(), "{:?}", attached.report);
    let session = attached.session;
    switch(&session, Switch::On)?;
    for round in 1..=100 {
        ensure!(target.ask("check", "")? == format!("ok {round}"));
    }
    detach(&registry, &target)?;
    ensure!(target.ask("check", "")? == "ok 101");
    let trace = retained(&session)?;
    let counts = tally(&trace)?;
    for name in ["equal", "unequal", "below", "above", "less", "greater"] {
        ensure!(counts[name] == [200, 100, 100], "{name}: {counts:?}");
    }
    ensure!(counts["target"] == [600, 600, 0], "{counts:?}");
    ensure!(notes(&trace) == Default::default(), "{:?}", notes(&trace));
    Ok(())
}

#[test]
fn switching_stubs_under_load_does_no_harm() -> Result<()> {
    let mut target = Target::spawn(Fixture::TailCond, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    for round in 1..=100 {
        target.send("check")?;
        switch(&session, Switch::On)?;
        switch(&session, Switch::Off)?;
        ensure!(target.line(integration::DEADLINE)? == format!("ok {round}"));
    }
    detach(&registry, &target)?;
    Ok(())
}
