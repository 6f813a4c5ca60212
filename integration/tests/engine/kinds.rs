//! Programs of every C library, linked and started in every way, and under sanitizers.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target, build};
use xrayd::types::Switch;

use crate::support::{attach, detach, registry, retained, switch, tally};

/// What `kinds.c` does in one go: threads, calls of `outer` in each, and what it answers.
const CALLS: u64 = 4 * 1000;
const ANSWER: &str = "done 4004000";

/// Traces two goes of a program that is running, with one between them while everything is off.
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

/// It has no dynamic loader, and yet its addresses are not its file's.
#[test]
fn a_static_program_at_any_address_is_traced() -> Result<()> {
    fixture_is_traced(Fixture::KindStaticPie)
}

/// Its thread library keeps the thread's id elsewhere.
#[test]
fn programs_with_musl_are_traced() -> Result<()> {
    fixture_is_traced(Fixture::KindMusl)?;
    fixture_is_traced(Fixture::KindMuslStatic)
}

/// Their runtimes map terabytes around the program.
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
