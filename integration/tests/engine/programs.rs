//! Programs of other compilers, with libraries, without symbols, and without their files.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};
use integration::{
    Fixture, Target, build, copy_into, opens_map_files, sectionless_into, stripped_into,
    text_differences,
};
use xrayd::{Reason, store::TracedProcess as _, types::Switch};

use crate::support::{
    attach, detach, pid_of, registry, retained, switch, tally, text_is_as_compiled,
};

/// Map entries of versions 0, 1 and 2, with an old function index and without one (P55).
#[test]
fn sleds_of_old_compilers_are_traced() -> Result<()> {
    for fixture in [Fixture::OldSledsPie, Fixture::OldSledsFixed] {
        let mut target = Target::spawn(fixture, [""; 0])?;
        let program = target.program().to_owned();
        let registry = registry();
        let session = attach(&registry, &target)?.session;
        let on = switch(&session, Switch::On)?;
        ensure!(on.matched == 3 && on.sleds == 6, "{on:?}");
        for _ in 0..5 {
            ensure!(target.ask("go", "done")? == "done 606");
        }
        detach(&registry, &target)?;
        let counts = tally(&retained(&session)?)?;
        for name in ["version0", "version1", "version2"] {
            ensure!(counts[name] == [5, 5, 0], "{fixture:?}: {counts:?}");
        }
        text_is_as_compiled(&target, &program, &program)?;
    }
    Ok(())
}

fn calls_of_both_modules(target: &mut Target) -> Result<()> {
    let registry = registry();
    let attached = attach(&registry, target)?;
    ensure!(attached.session.tables().modules().len() == 2);
    ensure!(
        attached.report.refused_modules.is_empty(),
        "{:?}",
        attached.report
    );
    switch(&attached.session, Switch::On)?;
    for _ in 0..7 {
        ensure!(target.ask("go", "done")? == "done 1016");
    }
    detach(&registry, target)?;
    let trace = retained(&attached.session)?;
    let counts = tally(&trace)?;
    for name in ["program_call", "library_call", "library_inner"] {
        ensure!(counts[name] == [7, 7, 0], "{counts:?}");
    }
    let module_of = |name: &str| {
        let function = trace.functions().iter().find(|row| row.name == name)?;
        Some(trace.module(function.module)?.path.clone())
    };
    ensure!(module_of("library_call").is_some_and(|path| path.contains("libtraced.so")));
    ensure!(module_of("program_call").is_some_and(|path| path.contains("dso")));
    Ok(())
}

#[test]
fn a_library_is_traced_with_its_program() -> Result<()> {
    let mut target = Target::spawn(Fixture::Dso, [""; 0])?;
    calls_of_both_modules(&mut target)?;
    let program = target.program().to_owned();
    let library = program.with_file_name("libtraced.so");
    for module in [&program, &library] {
        text_is_as_compiled(&target, module, module)?;
    }
    Ok(())
}

/// Only `map_files` leads to the library's file. Without it, the report has the library as
/// unreadable, and the library is left alone.
fn calls_of_the_program_alone(target: &mut Target, library: &Path) -> Result<()> {
    let registry = registry();
    let attached = attach(&registry, target)?;
    ensure!(attached.session.tables().modules().len() == 1);
    let [(path, refusal)] = attached.report.refused_modules.as_slice() else {
        bail!("{:?}", attached.report);
    };
    ensure!(
        Path::new(path) == library && refusal.reason == Reason::Permission,
        "{:?}",
        attached.report
    );
    switch(&attached.session, Switch::On)?;
    for _ in 0..7 {
        ensure!(target.ask("go", "done")? == "done 1016");
    }
    detach(&registry, target)?;
    let counts = tally(&retained(&attached.session)?)?;
    ensure!(
        counts.len() == 1 && counts["program_call"] == [7, 7, 0],
        "{counts:?}"
    );
    Ok(())
}

/// The files are deleted, or others have taken their place (P27, P65).
#[test]
fn deleted_and_replaced_files_are_those_that_run() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let program = copy_into(Fixture::Dso, dir.path())?;
    let library = program.with_file_name("libtraced.so");
    let mut target = Target::spawn_command(Command::new(&program))?;
    let kept = build(Fixture::Dso)?;
    let record = |target: &mut Target| {
        if opens_map_files()? {
            calls_of_both_modules(target)
        } else {
            calls_of_the_program_alone(target, &library)
        }
    };
    for file in [&program, &library] {
        std::fs::remove_file(file)?;
    }
    record(&mut target)?;
    text_is_as_compiled(&target, &program, &kept)?;
    // Other programs with the same names, whose sleds lie elsewhere.
    for file in [&program, &library] {
        std::fs::copy(build(Fixture::Siglots)?, file)?;
    }
    record(&mut target)?;
    text_is_as_compiled(&target, &program, &kept)?;
    text_is_as_compiled(&target, &library, &kept.with_file_name("libtraced.so"))
}

/// Without symbols, functions have addresses as names. The counts are the same.
#[test]
fn a_stripped_program_is_traced() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let program = stripped_into(Fixture::Arg1, dir.path())?;
    let mut target = Target::spawn_command(Command::new(&program))?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    let on = switch(&session, Switch::On)?;
    ensure!(on.matched == 3, "{on:?}");
    target.ask("go", "done")?;
    detach(&registry, &target)?;
    let mut calls: Vec<[u64; 3]> = tally(&retained(&session)?)?.into_values().collect();
    calls.sort_unstable();
    ensure!(calls == [[1, 0, 1], [1, 1, 0], [16, 16, 0]], "{calls:?}");
    Ok(())
}

/// Without section headers the place of the sleds is not known. The program is refused and left
/// alone (P55).
#[test]
fn a_program_without_sections_is_refused_or_traced_but_never_spoiled() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let program = sectionless_into(Fixture::Arg1, dir.path())?;
    let mut target = Target::spawn_command(Command::new(&program))?;
    let registry = registry();
    match registry.attach(pid_of(&target)?, Default::default()) {
        Err(refusal) => {
            ensure!(refusal.reason == Reason::NoSleds, "{refusal}");
            ensure!(text_differences(target.pid(), &program, &program)?.is_empty());
        }
        Ok(attached) => {
            switch(&attached.session, Switch::On)?;
            target.ask("go", "done")?;
            detach(&registry, &target)?;
            ensure!(tally(&retained(&attached.session)?)?.len() == 3);
        }
    }
    target.still_running()
}

/// Twenty thousand functions, each called once for each line of input.
#[test]
fn twenty_thousand_functions_are_traced() -> Result<()> {
    let mut target = Target::spawn(Fixture::Many20k, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    for round in 1..=2 {
        let on = switch(&session, Switch::On)?;
        ensure!(on.matched == 20_000 && on.changed == 20_000, "{on:?}");
        ensure!(on.copied_bytes > 0 || round == 2, "{on:?}");
        ensure!(target.ask("go", "done")? == "done 200050000");
        switch(&session, Switch::Off)?;
        ensure!(target.ask("go", "done")? == "done 200050000");
    }
    let rows = session.functions(None)?;
    ensure!(rows.len() == 20_000 && rows.iter().all(|row| row.calls <= 2));
    detach(&registry, &target)?;
    let counts = tally(&retained(&session)?)?;
    ensure!(counts.len() == 20_000 && counts.values().all(|counts| *counts == [2, 2, 0]));
    Ok(())
}
