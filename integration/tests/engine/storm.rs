//! Sleds switched under load, from several sides, with signals in between.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target, build};
use xray_trace::instr_map::{Rule, Selection};
use xrayd::{
    process::{Registry, RegistryConfig},
    types::{Run, Switch},
};

use crate::{
    adoption::wait_for_events,
    support::{attach, detach, soak, switch, text_is_as_compiled},
};

/// Switches a million sleds while workers run in them, and instrumented handlers interrupt the
/// workers on small stacks (P21, P22, P38).
#[test]
fn a_million_toggles_under_load_and_signals_do_no_harm() -> Result<()> {
    let program = build(Fixture::Siglots)?;
    // The workers take every processor. At a low priority, they do not keep the tracer from its
    // turn.
    let mut command = Command::new("nice");
    command
        .args(["-n", "19"])
        .arg(&program)
        .args(["--threads", "4", "--hz", "2000"]);
    let mut target = Target::spawn_command(command)?;
    let registry = Registry::new(RegistryConfig {
        retain_bytes: 8 << 20,
        ..RegistryConfig::default()
    });
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    wait_for_events(&session, 1000)?;
    switch(&session, Switch::Off)?;

    let wanted = soak(1_000_000, 50_000_000);
    let switched = AtomicU64::new(0);
    let storm = |rule: &Rule| -> Result<()> {
        let selection = Selection {
            include: vec![rule.clone()],
            exclude: Vec::new(),
        };
        while switched.load(Ordering::Relaxed) < wanted {
            for to in [Switch::On, Switch::Off] {
                let report = session.toggle(&selection, to, Run::Real)?;
                ensure!(report.foreign == 0, "{report:?}");
                switched.fetch_add(report.sleds, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let sides = [Rule::All, Rule::Glob("*handler*".into()), Rule::All];
        let threads = sides.map(|rule| scope.spawn(move || storm(&rule)));
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().ok().context("panicked")?)
    })?;
    let answer = target.ask("check", "")?;
    ensure!(answer.starts_with("ok "), "{answer}");
    detach(&registry, &target)?;
    text_is_as_compiled(&target, &program, &program)?;
    let answer = target.ask("stop", "")?;
    ensure!(answer.starts_with("ok "), "{answer}");
    Ok(())
}

/// Detaches and attaches under full load. Threads stand in trampolines each time (P30).
#[test]
fn detaching_under_load_does_no_harm() -> Result<()> {
    let mut target = Target::spawn(Fixture::Siglots, ["--threads", "4", "--hz", "2000"])?;
    let program = target.program().to_owned();
    let registry = Registry::new(RegistryConfig {
        retain_bytes: 8 << 20,
        ..RegistryConfig::default()
    });
    for round in 0..soak(40, 2000) {
        let session = attach(&registry, &target)?.session;
        switch(&session, Switch::On)?;
        if round % 8 == 0 {
            wait_for_events(&session, 100)?;
        }
        detach(&registry, &target)?;
    }
    text_is_as_compiled(&target, &program, &program)?;
    let answer = target.ask("stop", "")?;
    ensure!(answer.starts_with("ok "), "{answer}");
    Ok(())
}
