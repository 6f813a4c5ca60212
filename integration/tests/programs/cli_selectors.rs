//! Every kind of selector, on a real program.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, GroundTruth, Target};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::scene::{Cli, Scene, all_on, rows};

/// The functions that are on, without `work::` and parameters.
fn enabled(cli: &Cli, pid: &str) -> Result<BTreeSet<String>> {
    let listed = cli.json(["functions", "--pid", pid])?;
    let names = rows(&listed, "functions")?
        .iter()
        .filter(|row| row["enabled"] == true)
        .map(bare_name);
    Ok(names.collect())
}

/// A program that is attached, and its pid.
fn attached(cli: &Cli, fixture: Fixture) -> Result<(Target, String)> {
    let target = Target::spawn(fixture, ["--threads", "1"])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid])?;
    Ok((target, pid))
}

/// The name of a function in a listing, without namespace and parameters.
fn bare_name(row: &Value) -> String {
    let name = row["name"].as_str().unwrap_or_default();
    let bare = name.split('(').next().unwrap_or_default();
    bare.rsplit("::").next().unwrap_or_default().to_owned()
}

fn check(cli: &Cli, pid: &str, selectors: &[&str], expected: &[&str]) -> Result<()> {
    let all = |word: &'static str| [&[word, "--pid", pid][..], selectors].concat();
    cli.ok(all("enable"))?;
    let found = enabled(cli, pid)?;
    let expected: BTreeSet<_> = expected.iter().map(|name| (*name).to_owned()).collect();
    ensure!(found == expected, "{selectors:?}: {found:?}");
    // The same selectors switch the same functions off.
    cli.ok(all("disable"))?;
    ensure!(enabled(cli, pid)?.is_empty(), "{selectors:?} left some on");
    Ok(())
}

#[test]
fn each_kind_of_selector_names_what_it_says() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let (_target, pid) = attached(&cli, Fixture::Counted)?;
    let listed = cli.json(["functions", "even"])?;
    let even = &rows(&listed, "functions")?[0];
    let id = even["id"].as_u64().context("no id")?.to_string();
    let mangled = even["symbol"].as_str().context("no symbol")?;
    ensure!(mangled.starts_with("_ZN4work4even"), "{even}");

    let but = |left_out: &[&'static str]| -> Vec<&'static str> {
        const ALL: [&str; 20] = [
            "intake",
            "parse",
            "tokenize",
            "number",
            "validate",
            "route",
            "price",
            "discount",
            "tax",
            "round_up",
            "fibonacci",
            "descend",
            "even",
            "odd",
            "relay",
            "handover",
            "finish",
            "settle",
            "journal",
            "checksum",
        ];
        ALL.into_iter()
            .filter(|name| !left_out.contains(name))
            .collect()
    };
    let rows: &[(&[&str], Vec<&str>)] = &[
        (&["--function", mangled], vec!["even"]),
        (&["--function", "work::even(unsigned long)"], vec!["even"]),
        (&["--function", "work::even"], vec!["even"]),
        (
            &["--function", "work::even", "--function", "work::odd"],
            vec!["even", "odd"],
        ),
        (&["--glob", "work::f*"], vec!["fibonacci", "finish"]),
        (&["--regex", r"::(even|odd)\("], vec!["even", "odd"]),
        (&["--module", "counted"], but(&[])),
        (&["--source", "*/counted.cpp"], but(&[])),
        (&["--source", "fixtures/*"], but(&[])),
        (&["--id", &id], vec!["even"]),
        (&["--all"], but(&[])),
        (&["--all", "--except-function", mangled], but(&["even"])),
        (
            &["--all", "--except-function", "work::even"],
            but(&["even"]),
        ),
        (
            &["--all", "--except-glob", "*::t*"],
            but(&["tax", "tokenize"]),
        ),
        (
            &["--all", "--except-regex", "even|odd"],
            but(&["even", "odd"]),
        ),
        (&["--all", "--except-id", &id], but(&["even"])),
        (
            &["--regex", "even|odd", "--except-function", "work::odd"],
            vec!["even"],
        ),
        (&["--all", "--except-module", "other.so"], but(&[])),
        (&["--all", "--except-source", "*.rs"], but(&[])),
    ];
    for (selectors, expected) in rows {
        check(&cli, &pid, selectors, expected)?;
    }
    for nothing in [
        &["--all", "--except-module", "counted"][..],
        &["--all", "--except-source", "*/counted.cpp"],
        &["--function", "even"],
        &["--glob", "even"],
        &["--id", "4000000"],
    ] {
        let enable = [&["enable", "--pid", &pid], nothing].concat();
        cli.run(enable)?.failed(3, &["nothing matched"])?;
    }
    ensure!(enabled(&cli, &pid)?.is_empty());
    Ok(())
}

/// Sizes are the symbol table's.
#[test]
fn functions_are_selected_by_their_size() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let (_target, pid) = attached(&cli, Fixture::Counted)?;
    let sizes = symbol_sizes(Path::new(&format!("/proc/{pid}/exe")))?;
    let listed = cli.json(["functions", "--pid", &pid])?;
    let mut by_size = Vec::new();
    for row in rows(&listed, "functions")? {
        let size = row["size"].as_u64().context("no size")?;
        let symbol = row["symbol"].as_str().context("no symbol")?;
        ensure!(sizes.get(symbol) == Some(&size), "{row}");
        by_size.push((size, bare_name(row)));
    }
    by_size.sort();
    let limit = by_size[by_size.len() / 2].0;
    let (small, large): (Vec<_>, Vec<_>) = by_size.iter().partition(|(size, _)| *size < limit);
    ensure!(!small.is_empty() && !large.is_empty(), "{by_size:?}");
    fn names<'a>(rows: &[&'a (u64, String)]) -> Vec<&'a str> {
        rows.iter().map(|(_, name)| name.as_str()).collect()
    }
    let limit = limit.to_string();
    check(&cli, &pid, &["--smaller-than", &limit], &names(&small))?;
    let but_small = ["--all", "--except-smaller-than", &limit];
    check(&cli, &pid, &but_small, &names(&large))?;
    let nothing = ["enable", "--pid", &pid, "--smaller-than", "1"];
    cli.run(nothing)?.failed(3, &["nothing matched"])?;
    let refused = cli.run(["enable", "--pid", &pid, "--smaller-than", "0"])?;
    let reports_range = refused.err.contains("0 is not in 1..=1073741824");
    ensure!(refused.code == Some(2) && reports_range, "{refused:?}");
    Ok(())
}

/// The sizes of the functions of an object file, by symbol.
fn symbol_sizes(path: &Path) -> Result<HashMap<String, u64>> {
    let bytes = std::fs::read(path)?;
    let file = goblin::elf::Elf::parse(&bytes)?;
    let sized = file.syms.iter().filter_map(|symbol| {
        let name = file.strtab.get_at(symbol.st_name)?;
        Some((name.to_owned(), symbol.st_size))
    });
    Ok(sized.collect())
}

/// All functions of one program have the attribute, and no function of the other one has it.
#[test]
fn functions_are_selected_by_their_attribute() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let marked: &[&str] = &["--always-instrumented"];
    let unmarked: &[&str] = &["--all", "--except-always-instrumented"];
    for (fixture, selectors, others) in [
        (Fixture::Counted, marked, unmarked),
        (Fixture::Values, unmarked, marked),
    ] {
        let (_target, pid) = attached(&cli, fixture)?;
        let enable = |selectors: &[&str]| cli.run([&["enable", "--pid", &pid], selectors].concat());
        enable(others)?.failed(3, &["nothing matched"])?;
        ensure!(enabled(&cli, &pid)?.is_empty());
        ensure!(enable(selectors)?.code == Some(0));
        let selected = enabled(&cli, &pid)?;
        ensure!(enable(&["--all"])?.code == Some(0));
        ensure!(!selected.is_empty() && enabled(&cli, &pid)? == selected);
    }
    Ok(())
}

/// The functions of an earlier recording, in another process of the program.
#[test]
fn functions_of_a_trace_are_selected_by_what_it_shows() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut recorded = Target::spawn(Fixture::Counted, ["--threads", "1", "--calls", "300"])?;
    let pid = recorded.pid().to_string();
    let mut running = cli.start(["record", &pid, "-o", "f.xtrace"])?;
    running.until("everything is on", || all_on(&recorded))?;
    let truth = GroundTruth::parse(&recorded.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    ensure!(running.wait()?.code == Some(0));
    let mut by_calls: Vec<_> = truth.calls().into_iter().zip(&truth.functions).collect();
    by_calls.sort_by_key(|&(calls, _)| Reverse(calls));
    ensure!(
        by_calls[2].0 > by_calls[3].0,
        "no third place: {by_calls:?}"
    );
    let bare = |name: &String| name.rsplit("::").next().unwrap_or_default().to_owned();
    let names: Vec<_> = by_calls.iter().map(|(_, name)| bare(name)).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();

    let other = Target::spawn(Fixture::Counted, ["--threads", "1"])?;
    let pid = other.pid().to_string();
    cli.ok(["attach", &pid])?;
    let top = ["--from-top", "3", "--from-by", "calls"];
    check(
        &cli,
        &pid,
        &[&["--from-trace", "f.xtrace"], &top[..]].concat(),
        &names[..3],
    )?;
    let others = [&["--all", "--except-from-trace", "f.xtrace"], &top[..]].concat();
    check(&cli, &pid, &others, &names[3..])?;
    for (wrong, why) in [
        (&["--from-top", "3"][..], "need --from-trace"),
        (&["--from-trace", "absent"], "cannot read absent"),
    ] {
        let enable = [&["enable", "--pid", &pid, "--all"], wrong].concat();
        cli.run(enable)?.failed(2, &[why])?;
    }
    Ok(())
}

#[test]
fn modules_are_distinguished_and_no_pid_means_every_process() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let one = Target::spawn(Fixture::Dso, [""; 0])?;
    let two = Target::spawn(Fixture::Dso, [""; 0])?;
    let (first, second) = (one.pid().to_string(), two.pid().to_string());
    cli.ok(["attach", &first])?;
    cli.ok(["attach", &second])?;

    for library in ["libtraced.so", "libtraced", "*/libtraced.so"] {
        let on = cli.json(["enable", "--module", library])?;
        ensure!(rows(&on, "processes")?.len() == 2, "{on}");
        for pid in [&first, &second] {
            let enabled = enabled(&cli, pid)?;
            ensure!(enabled.contains("library_call"), "{library}: {enabled:?}");
            ensure!(!enabled.contains("program_call"), "{library}: {enabled:?}");
        }
        cli.ok(["disable", "--module", library])?;
    }
    cli.ok([
        "enable",
        "--pid",
        &first,
        "--all",
        "--except-module",
        "libtraced.so",
    ])?;
    ensure!(enabled(&cli, &first)? == BTreeSet::from(["program_call".to_owned()]));
    ensure!(enabled(&cli, &second)?.is_empty());

    // Each process gets a file of its own.
    let fetched = cli.json(["snapshot", "-o", "t.xtrace"])?;
    ensure!(rows(&fetched, "files")?.len() == 2, "{fetched}");
    for pid in [&first, &second] {
        ensure!(scene.path(&format!("t-{pid}.xtrace")).is_file());
    }
    let detached = cli.json(["detach", "--all"])?;
    ensure!(rows(&detached, "processes")?.len() == 2, "{detached}");
    Ok(())
}
