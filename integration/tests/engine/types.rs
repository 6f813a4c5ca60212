//! Names of types of typed events, registered by the program at any time.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Result, ensure};
use integration::{Fixture, Target, stripped_into};
use xray_trace::model::{DataKind, EventBody, Trace};
use xrayd::types::Switch;

use crate::support::{attach, detach, registry, retained, switch};

const BOTH: [Fixture; 2] = [Fixture::Types, Fixture::TypesLlvm];

/// The number of events of each type, and the type's name.
fn types(trace: &Trace) -> Result<BTreeMap<u16, (u64, Option<String>)>> {
    let mut types = BTreeMap::<u16, (u64, Option<String>)>::new();
    for block in trace.blocks() {
        for event in block.events() {
            if let EventBody::Data {
                kind: DataKind::Typed(number),
                ..
            } = event?.body
            {
                let name = trace.event_type(block.thread, number).map(str::to_owned);
                types.entry(number).or_insert((0, name)).0 += 1;
            }
        }
    }
    Ok(types)
}

/// This many types with names, each with this many events, and one type without a name.
fn expected(named: u16, events: u64) -> BTreeMap<u16, (u64, Option<String>)> {
    let named = (0..named).map(|number| (number, (events, Some(format!("type {number}")))));
    named.chain([(60_000, (1, None))]).collect()
}

/// Three types before the attach, then fifty, which are more than the buckets of LLVM's table have
/// room for.
#[test]
fn types_have_the_names_that_they_were_registered_under() -> Result<()> {
    for fixture in BOTH {
        let mut target = Target::spawn(fixture, [""; 0])?;
        target.ask("say 3", "said 3")?;
        let registry = registry();
        let session = attach(&registry, &target)?.session;
        switch(&session, Switch::On)?;
        target.ask("more 60000", "said")?;
        target.ask("say 3", "said 3")?;
        let found = types(&retained(&session)?)?;
        ensure!(found == expected(3, 1), "{fixture:?}: {found:?}");
        target.ask("say 50", "said 50")?;
        detach(&registry, &target)?;
        let mut wanted = expected(50, 1);
        for number in 0..3 {
            wanted.entry(number).and_modify(|(events, _)| *events = 2);
        }
        let found = types(&retained(&session)?)?;
        ensure!(found == wanted, "{fixture:?}: {found:?}");
    }
    Ok(())
}

/// A second session starts with the types that are registered already.
#[test]
fn names_are_there_before_the_first_event() -> Result<()> {
    for fixture in BOTH {
        let mut target = Target::spawn(fixture, [""; 0])?;
        target.ask("say 50", "said 50")?;
        let registry = registry();
        for _ in 0..2 {
            let session = attach(&registry, &target)?.session;
            detach(&registry, &target)?;
            let trace = retained(&session)?;
            let names = trace.event_types().iter();
            let names: Vec<_> = names.map(|known| (known.number, &known.name)).collect();
            ensure!(names.len() == 50, "{fixture:?}: {names:?}");
        }
    }
    Ok(())
}

/// LLVM's table is found by its symbol, ours by its section.
#[test]
fn a_stripped_program_has_the_names_of_its_section() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for (fixture, named) in BOTH.into_iter().zip([true, false]) {
        let program = stripped_into(fixture, dir.path())?;
        let mut target = Target::spawn_command(Command::new(&program))?;
        let registry = registry();
        let session = attach(&registry, &target)?.session;
        switch(&session, Switch::On)?;
        target.ask("say 50", "said 50")?;
        target.ask("more 60000", "said")?;
        detach(&registry, &target)?;
        let mut wanted = expected(50, 1);
        if !named {
            wanted.values_mut().for_each(|(_, name)| *name = None);
        }
        let found = types(&retained(&session)?)?;
        ensure!(found == wanted, "{fixture:?}: {found:?}");
    }
    Ok(())
}

/// Garbage in place of the names gives no name, and damages no event.
#[test]
fn a_table_of_garbage_has_no_names() -> Result<()> {
    for fixture in BOTH {
        for byte in [0, 0x01, 0x41, 0x7f, 0xff] {
            let mut target = Target::spawn(fixture, [""; 0])?;
            target.ask("say 50", "said 50")?;
            target.ask(&format!("spoil {byte}"), "spoilt")?;
            let registry = registry();
            let session = attach(&registry, &target)?.session;
            switch(&session, Switch::On)?;
            target.ask("more 60000", "said")?;
            detach(&registry, &target)?;
            let trace = retained(&session)?;
            let found = types(&trace)?;
            ensure!(found == expected(0, 0), "{fixture:?} {byte:#x}: {found:?}");
            ensure!(trace.event_types().is_empty(), "{fixture:?} {byte:#x}");
        }
    }
    Ok(())
}
