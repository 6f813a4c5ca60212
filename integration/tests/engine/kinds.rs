//! Programs with every C library, with every kind of linking and start, and under sanitizers.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target, build};
use xrayd::types::Switch;

use crate::support::{attach, detach, registry, retained, switch, tally};

/// The work of `kinds.c` in one go: threads, calls of `outer` in each, and its answer.
const CALLS: u64 = 4 * 1000;
const ANSWER: &str = "done 4004000";

/// Traces two goes of a running program. Between them is one with all functions off.
fn is_traced(mut target: Target) -> Result<()> {
    ensure!(target.ask("go", "done")? == ANSWER);
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    for to in [Switch::On, Switch::Off, Switch::On] {
        switch(&session, to)?;
        ensure!(target.ask("go", "done")? == ANSWER);
    }
    detach(&registry, &target)?;
    let counts = tally(&retained(&session)?)?;
    ensure!(
        counts["outer"] == [2 * CALLS, 2 * CALLS, 0]
            && counts["inner"] == [4 * CALLS, 4 * CALLS, 0],
        "{counts:?}"
    );
    ensure!(target.ask("go", "done")? == ANSWER);
    target.send("quit")?;
    ensure!(target.wait(integration::DEADLINE)?.success());
    Ok(())
}

fn fixture_is_traced(fixture: Fixture) -> Result<()> {
    let target = Target::spawn(fixture, [""; 0])?;
    is_traced(target).with_context(|| fixture.name())
}

#[test]
fn a_program_at_fixed_addresses_is_traced() -> Result<()> {
    fixture_is_traced(Fixture::KindFixed)
}

/// The program has no dynamic loader, and still its addresses differ from its file's.
#[test]
fn a_static_program_at_any_address_is_traced() -> Result<()> {
    fixture_is_traced(Fixture::KindStaticPie)
}

/// musl keeps the thread's id at another place.
#[test]
fn programs_with_musl_are_traced() -> Result<()> {
    fixture_is_traced(Fixture::KindMusl)?;
    fixture_is_traced(Fixture::KindMuslStatic)
}

/// The runtimes of sanitizers map terabytes around the program.
#[test]
fn programs_under_sanitizers_are_traced() -> Result<()> {
    fixture_is_traced(Fixture::KindAsan)?;
    fixture_is_traced(Fixture::KindTsan)
}

#[test]
fn a_program_without_address_randomisation_is_traced() -> Result<()> {
    let mut command = Command::new("setarch");
    command.arg("-R").arg(build(Fixture::KindStaticPie)?);
    is_traced(Target::spawn_command(command)?)?;
    let mut command = Command::new("setarch");
    command.arg("-R").arg(build(Fixture::Dso)?);
    let mut target = Target::spawn_command(command)?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    ensure!(target.ask("go", "done")? == "done 1016");
    detach(&registry, &target)?;
    ensure!(tally(&retained(&session)?)?["library_call"] == [1, 1, 0]);
    Ok(())
}
