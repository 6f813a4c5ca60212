//! Custom and typed events of libraries: linked, loaded and unloaded, with signal handlers, and
//! with tables of types that name the same numbers differently.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use xray_trace::instr_map::{Rule, Selection};
use xray_trace::model::{DataKind, EventBody, Trace};
use xrayd::{
    process::Session,
    types::{Run, Switch},
};

use crate::support::{
    attach, detach, registry, retained, soak, switch, tally, text_is_as_compiled,
};

/// The number of events, by function.
fn said(trace: &Trace) -> Result<BTreeMap<String, u64>> {
    let mut said = BTreeMap::new();
    for block in trace.blocks() {
        let mut events = block.events();
        while let Some(event) = events.next() {
            let EventBody::Data { kind, data } = event?.body else {
                continue;
            };
            let function = data.function().context("where was that?")?;
            let name = trace.function_name(function).into_owned();
            let bytes = events.data(data);
            let letter = name.chars().next();
            let steady = bytes[1..]
                .windows(2)
                .all(|pair| pair[1] == pair[0].wrapping_add(13));
            let kind_fits = match name.split_once('_') {
                Some((_, "says")) => kind == DataKind::Custom,
                Some((_, "tells")) => kind == DataKind::Typed(0),
                _ => false,
            };
            ensure!(
                kind_fits && steady && bytes.len() == 8 && letter == Some(char::from(bytes[0])),
                "{name} {kind:?} {bytes:?}"
            );
            *said.entry(name).or_insert(0) += 1;
        }
    }
    Ok(said)
}

fn numbers<const N: usize>(said: &BTreeMap<String, u64>, names: [&str; N]) -> [u64; N] {
    names.map(|name| said.get(name).copied().unwrap_or(0))
}

/// Each of the names that the type 0 has in a trace.
fn names_of_type_0(trace: &Trace) -> Result<BTreeSet<String>> {
    let types = trace.event_types();
    ensure!(types.iter().all(|known| known.number == 0), "{types:?}");
    let names = types.iter().flat_map(|known| known.name.split(" | "));
    Ok(names.map(str::to_owned).collect())
}

fn everywhere() -> Selection {
    Selection {
        include: vec![
            Rule::Glob("*_says".to_owned()),
            Rule::Glob("*_tells".to_owned()),
        ],
        exclude: Vec::new(),
    }
}

/// Waits until both functions of the library are on.
fn armed(session: &Session, file: &str) -> Result<()> {
    wait_until(DEADLINE, "the library is armed", || {
        let status = session.status();
        let mut modules = status.modules.iter();
        let on = modules.any(|module| {
            module.path.ends_with(file) && module.armed.is_some() && module.functions_on == 2
        });
        Ok(on.then_some(()))
    })
}

#[test]
fn a_linked_library_has_events_of_its_own() -> Result<()> {
    let mut target = Target::spawn(Fixture::Saying, [""; 0])?;
    let registry = registry();
    let attached = attach(&registry, &target)?;
    ensure!(attached.report.skipped.is_empty(), "{:?}", attached.report);
    let session = attached.session;
    switch(&session, Switch::On)?;
    target.ask("linked 1000", "done")?;
    detach(&registry, &target)?;
    for file in [
        target.program().to_path_buf(),
        target.program().with_file_name("libsaid.so"),
    ] {
        text_is_as_compiled(&target, &file, &file)?;
    }
    let trace = retained(&session)?;
    let said = said(&trace)?;
    let names = ["linked_says", "linked_tells", "host_says", "host_tells"];
    ensure!(
        numbers(&said, names) == [1000; 4] && said.len() == 4,
        "{said:?}"
    );
    // Both tables begin with number 0.
    let names = names_of_type_0(&trace)?;
    let expected = ["type of host", "type of linked"].map(str::to_owned);
    ensure!(names == BTreeSet::from(expected), "{names:?}");
    Ok(())
}

/// A library whose sleds clang 22 has made with `-fxray-shared`.
#[test]
fn a_library_of_a_newer_clang_is_traced() -> Result<()> {
    let mut target = Target::spawn(Fixture::DsoShared, [""; 0])?;
    let registry = registry();
    let attached = attach(&registry, &target)?;
    ensure!(attached.report.skipped.is_empty(), "{:?}", attached.report);
    let session = attached.session;
    switch(&session, Switch::On)?;
    for _ in 0..7 {
        let answer = target.ask("go", "done")?;
        ensure!(answer == "done 1032", "{answer}");
    }
    detach(&registry, &target)?;
    let library = target.program().with_file_name("libtraced.so");
    text_is_as_compiled(&target, &library, &library)?;
    let trace = retained(&session)?;
    // Entries, exits and tail exits.
    let expected = [
        ("library_call", [7, 7, 0]),
        ("program_call", [7, 7, 0]),
        ("shared_inner", [14, 14, 0]),
        ("shared_says", [7, 7, 0]),
        ("shared_tail", [14, 7, 7]),
        ("shared_tells", [7, 7, 0]),
    ];
    let expected = expected.map(|(name, counts)| (name.to_owned(), counts));
    let counts = tally(&trace)?;
    ensure!(counts == BTreeMap::from(expected), "{counts:?}");
    let mut said = BTreeMap::new();
    for block in trace.blocks() {
        let mut events = block.events();
        while let Some(event) = events.next() {
            if let EventBody::Data { kind, data } = event?.body {
                let bytes = String::from_utf8_lossy(events.data(data)).into_owned();
                *said.entry((format!("{kind:?}"), bytes)).or_insert(0) += 1;
            }
        }
    }
    let expected = [("Custom", "said"), ("Typed(7)", "told")];
    let expected = expected.map(|(kind, bytes)| ((kind.to_owned(), bytes.to_owned()), 7));
    ensure!(said == BTreeMap::from(expected), "{said:?}");
    Ok(())
}

#[test]
fn libraries_with_clashing_tables_come_and_go() -> Result<()> {
    let mut target = Target::spawn(Fixture::Saying, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    session.toggle(&everywhere(), Switch::On, Run::Real)?;
    for (file, calls) in [("said_a.so", 30), ("said_b.so", 40), ("said_a.so", 50)] {
        target.ask(&format!("load {file}"), "loaded")?;
        armed(&session, file)?;
        target.ask(&format!("call {calls}"), "done")?;
        // The names are read when an event asks for them.
        let name = format!("type of {}", &file[5..6]);
        wait_until(DEADLINE, "the type has its name", || {
            Ok(names_of_type_0(&retained(&session)?)?
                .contains(&name)
                .then_some(()))
        })?;
        target.ask("unload", "unloaded")?;
    }
    detach(&registry, &target)?;
    let trace = retained(&session)?;
    let said = said(&trace)?;
    let names = ["a_says", "a_tells", "b_says", "b_tells"];
    ensure!(
        numbers(&said, names) == [80, 80, 40, 40] && said.len() == 4,
        "{said:?}"
    );
    let names = names_of_type_0(&trace)?;
    let expected = ["type of a", "type of b"].map(str::to_owned);
    ensure!(names == BTreeSet::from(expected), "{names:?}");
    Ok(())
}

/// Threads emit events of a library that comes and goes. Handlers emit further ones of the same
/// library, and of the program, at any instruction.
#[test]
fn libraries_come_and_go_while_handlers_emit_events() -> Result<()> {
    let mut target = Target::spawn(Fixture::Saying, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    session.toggle(&everywhere(), Switch::On, Run::Real)?;
    let rounds = soak(200, 10_000);
    let [mut of_a, mut of_b, mut signals] = [0; 3];
    // On a busy machine, a library may be gone each time before it is on.
    for _ in 0..50 {
        target.send(&format!("storm {rounds} 3 2000"))?;
        let line = target.line_with("stormed", 60 * DEADLINE)?;
        let counted: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        let [a, b, handled] = counted[..] else {
            anyhow::bail!("{line}");
        };
        (of_a, of_b, signals) = (a, b, handled);
        let said = said(&retained(&session)?)?;
        if !numbers(&said, ["a_says", "b_says"]).contains(&0) {
            break;
        }
    }
    let report = detach(&registry, &target)?;
    let trace = retained(&session)?;
    ensure!(
        trace.coverage().overwritten.is_empty(),
        "all events are there"
    );
    let said = said(&trace)?;
    let [host, a_says, a_tells, b_says, b_tells] = numbers(
        &said,
        ["host_says", "a_says", "a_tells", "b_says", "b_tells"],
    );
    ensure!(
        host <= signals && host + report.lost >= signals,
        "{signals} signals: {said:?}, {report:?}"
    );
    for (calls, says, tells) in [(of_a, a_says, a_tells), (of_b, b_says, b_tells)] {
        let possible = tells > 0 && tells <= calls && says > 0 && says <= calls + signals;
        ensure!(possible, "{calls} calls, {signals} signals: {said:?}");
    }
    Ok(())
}
