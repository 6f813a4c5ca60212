//! Every register through every kind of sled.

use anyhow::{Result, ensure};
use integration::{Fixture, Target};
use xrayd::types::Switch;

use crate::support::{
    attach, detach, registry, retained, soak, switch, tally, text_is_as_compiled,
};

/// General registers, flags, x87, vector and mask registers, stack and red zone (P12, P32, P33).
#[test]
fn every_register_survives_every_kind_of_sled() -> Result<()> {
    let mut target = Target::spawn(Fixture::Torture, [""; 0])?;
    let program = target.program().to_owned();
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    for _ in 0..soak(10, 1000) {
        let answer = target.ask("check", "")?;
        ensure!(answer.starts_with("ok "), "all on: {answer}");
    }
    detach(&registry, &target)?;
    let answer = target.ask("check", "")?;
    ensure!(answer.starts_with("ok "), "after detach: {answer}");
    text_is_as_compiled(&target, &program, &program)?;
    let counts = tally(&retained(&session)?)?;
    for kind in ["entry", "argument", "exit", "tail", "tail_memory"] {
        let name = format!("sledded_{kind}");
        ensure!(
            counts
                .get(&name)
                .is_some_and(|counts| counts.iter().any(|&count| count > 0)),
            "{name} was not traced: {counts:?}"
        );
    }
    Ok(())
}

/// The same while sleds are switched during the calls (P22, P23).
#[test]
fn every_register_survives_while_sleds_are_switched() -> Result<()> {
    let mut target = Target::spawn(Fixture::Torture, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    for _ in 0..soak(10, 200) {
        for _ in 0..soak(50, 500) {
            switch(&session, Switch::On)?;
            switch(&session, Switch::Off)?;
        }
        let answer = target.ask("check", "")?;
        ensure!(answer.starts_with("ok "), "{answer}");
    }
    detach(&registry, &target)?;
    ensure!(target.ask("check", "")?.starts_with("ok "));
    Ok(())
}
