//! Calls that end without an exit, and programs that end while they are traced.

use std::sync::Arc;

use anyhow::{Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use xrayd::types::{Phase, Switch};

use crate::support::{attach, detach, notes, pid_of, registry, retained, switch, tally};

/// Exceptions and `longjmp` leave entries without exits, and harm nothing else (P31).
#[test]
fn calls_left_by_exceptions_and_longjmp_do_no_harm() -> Result<()> {
    let mut target = Target::spawn(Fixture::NoExit, ["--depth", "50"])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    for _ in 0..3 {
        ensure!(target.ask("go", "done")? == "done 43 8");
    }
    detach(&registry, &target)?;
    let trace = retained(&session)?;
    let counts = tally(&trace)?;
    let of = |name: &str| {
        counts
            .iter()
            .find(|(key, _)| key.ends_with(name))
            .map_or([0; 3], |(_, counts)| *counts)
    };
    ensure!(of("thrower") == [153, 0, 0], "{counts:?}");
    ensure!(of("jumper") == [153, 0, 0], "{counts:?}");
    ensure!(
        of("catcher") == [3, 3, 0] && of("lander") == [3, 3, 0],
        "{counts:?}"
    );
    ensure!(of("plain") == [6, 6, 0], "{counts:?}");
    let notes = notes(&trace);
    ensure!(
        notes.unwound == 306 && notes.closed_by_outer_exit == 0 && notes.exits_without_entry == 0,
        "{notes:?}"
    );
    Ok(())
}

#[test]
fn a_program_that_ends_leaves_its_trace() -> Result<()> {
    let mut target = Target::spawn(Fixture::NoExit, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    target.ask("go", "done")?;
    target.send("leave")?;
    ensure!(target.wait(DEADLINE)?.code() == Some(3));
    wait_until(DEADLINE, "the session noticed", || {
        Ok((session.status().phase == Phase::Exited).then_some(()))
    })?;
    let counts = tally(&retained(&session)?)?;
    ensure!(
        counts
            .iter()
            .any(|(name, counts)| name.ends_with("leaver") && *counts == [1, 0, 0]),
        "{counts:?}"
    );
    let refusal = session
        .toggle(
            &crate::support::everything(),
            Switch::Off,
            xrayd::types::Run::Real,
        )
        .err();
    ensure!(
        refusal.is_some_and(|refusal| refusal.reason == xrayd::Reason::TargetExited),
        "a toggle of what has ended"
    );
    // The pid is free now. The recorded events stay.
    let pid = pid_of(&target)?;
    let refusal = attach(&registry, &target).err();
    ensure!(refusal.is_some(), "attached to what has ended");
    ensure!(
        registry
            .get(pid)
            .is_some_and(|kept| Arc::ptr_eq(&kept, &session)),
        "the trace is gone"
    );
    ensure!(registry.detach(pid)?.exited);
    ensure!(registry.get(pid).is_none());
    Ok(())
}
