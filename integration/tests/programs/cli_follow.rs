//! `--follow`: processes that come from a traced process, through the command line and a daemon.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;
use xray_trace::model::{CallKind, EventBody};

use crate::scene::{Cli, Running, Scene, ensure_as_compiled, row_of, rows, send, sleds_on_in};
use crate::trace::read;

pub(crate) fn child_of(target: &mut Target) -> Result<u32> {
    let line = target.ask("child", "child ")?;
    Ok(line.trim_start_matches("child ").parse()?)
}

/// Waits until functions of the first process are on.
fn is_on(running: &mut Running, target: &Target) -> Result<()> {
    running.until("it is on", || {
        let on = sleds_on_in(target.pid(), target.program())?;
        Ok((on > 0).then_some(()))
    })
}

/// Lets a child make a thousand calls more.
pub(crate) fn work(target: &mut Target, child: u32) -> Result<()> {
    send(child, Signal::SIGUSR1)?;
    target.line_with(&format!("tally {child} "), DEADLINE)?;
    Ok(())
}

/// Waits until a child is traced. The sleds of a forked child are on from its begin, but its events
/// are recorded only once it is found.
pub(crate) fn is_traced(cli: &Cli, child: u32) -> Result<()> {
    wait_until(DEADLINE, "it is traced", || {
        let status = cli.json(["status"])?;
        let rows = rows(&status, "processes")?;
        let row = rows.iter().find(|row| row["pid"] == child);
        Ok(row
            .is_some_and(|row| row["kinship"].is_object() && row["functions_on"] == 2)
            .then_some(()))
    })
}

/// Entries of `work` by process.
pub(crate) fn works(file: &Path) -> Result<BTreeMap<u32, u64>> {
    let trace = read(file)?;
    ensure!(trace.totals().lost == 0, "{:?}", trace.totals());
    let mut works = BTreeMap::new();
    for (id, blocks) in trace.blocks_by_thread() {
        let thread = trace.thread(id).context("a thread without a row")?;
        let process = trace.process(thread.process).context("no process")?;
        for event in blocks.iter().flat_map(|block| block.events()) {
            if let EventBody::Call { function, kind, .. } = event?.body
                && kind == CallKind::Enter
                && trace.function_name(function).starts_with("work")
            {
                *works.entry(process.pid).or_default() += 1;
            }
        }
    }
    Ok(works)
}

/// Ctrl-C ends the recording of all processes, and all run on.
#[test]
fn a_group_is_recorded_into_one_file_until_ctrl_c() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let root = u32::try_from(target.pid())?;
    let mut running = cli.start([
        "record",
        &root.to_string(),
        "--follow",
        "fork",
        "-o",
        "f",
        "--json",
    ])?;
    is_on(&mut running, &target)?;
    let children = [child_of(&mut target)?, child_of(&mut target)?];
    for child in children {
        is_traced(&cli, child)?;
        work(&mut target, child)?;
    }
    ensure!(target.ask("calls 500", "done ")? == "done 500");
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
    let recorded: Value = serde_json::from_str(&ran.out)?;
    ensure!(
        recorded["outcome"] == "stopped" && recorded["processes"] == 3,
        "{recorded}"
    );
    ensure!(
        recorded["group"]["followed"] == 2 && recorded["group"]["traced"] == 3,
        "{recorded}"
    );
    let expected = [(root, 500), (children[0], 1000), (children[1], 1000)];
    let found = works(&scene.path("f"))?;
    ensure!(found == BTreeMap::from(expected), "{found:?}");
    ensure!(cli.json(["status"])?["processes"] == Value::Array(Vec::new()));
    ensure_as_compiled(&target)?;
    work(&mut target, children[0])?;

    // One row for each function in all processes, or one for each process.
    let by = |subject| cli.ok(["account", "f", "--by", subject, "-f", "csv"]);
    ensure!(by("function")?.lines().count() == 3);
    ensure!(by("process")?.lines().count() == 4);
    for format in ["chrome", "perfetto", "csv"] {
        cli.ok(["convert", "f", "--to", format, "-o", format, "--force"])?;
    }
    let chrome: Value = serde_json::from_slice(&std::fs::read(scene.path("chrome"))?)?;
    let events = chrome["traceEvents"].as_array().or(chrome.as_array());
    let events = events.context("no events")?;
    for (pid, calls) in expected {
        let named = |event: &&Value| event["name"] == "process_name" && event["pid"] == pid;
        let name = events.iter().find(named).context("no name")?;
        ensure!(name["args"]["name"] == "group", "{name}");
        let its = events.iter().filter(|event| event["pid"] == pid);
        let begun = its.filter(|event| event["ph"] == "B" || event["ph"] == "X");
        ensure!(begun.count() as u64 == 2 * calls, "{pid}");
    }
    Ok(())
}

/// The root stands for all processes of its group. Each of the others stands for itself.
#[test]
fn a_group_is_switched_shown_fetched_and_let_go_by_its_root() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let root = target.pid().to_string();
    cli.ok(["attach", &root, "--follow", "fork"])?;
    cli.ok(["enable", "--pid", &root, "--all"])?;
    let child = child_of(&mut target)?;
    is_traced(&cli, child)?;
    work(&mut target, child)?;

    let status = cli.json(["status", "--pid", &root])?;
    let both = rows(&status, "processes")?;
    ensure!(both.len() == 2, "{status}");
    ensure!(both[0]["group"]["follow"] == "fork", "{status}");
    let how = &both[0]["group"]["detection"];
    ensure!(how == "perf" || how == "polling", "{status}");
    ensure!(
        both[1]["kinship"]["parent"] == target.pid() && both[1]["kinship"]["by_exec"] == false,
        "{status}"
    );
    // `--follow` can be changed only for the root.
    let follow = |pid: &str, what| cli.run(["attach", pid, "--follow", what]);
    let one = child.to_string();
    ensure!(follow(&one, "fork")?.code == Some(0));
    follow(&one, "all")?.refused("followed")?;
    follow(&one, "exec")?.refused("followed")?;
    let status = cli.json(["status", "--pid", &root])?;
    ensure!(
        status["processes"][0]["group"]["follow"] == "fork",
        "{status}"
    );

    let shown = cli.ok(["status"])?;
    ensure!(shown.contains("its forks are followed"), "{shown}");
    ensure!(shown.contains("\n  new processes are detected "), "{shown}");
    let listed = cli.ok(["ps"])?;
    ensure!(listed.contains(&format!("traced, from {root}")), "{listed}");

    let fetched = cli.json(["snapshot", "-o", "all"])?;
    ensure!(rows(&fetched, "files")?.len() == 1, "{fetched}");
    ensure!(works(&scene.path("all"))? == BTreeMap::from([(child, 1000)]));
    cli.ok(["snapshot", "--pid", &child.to_string(), "-o", "one"])?;
    ensure!(works(&scene.path("one"))? == BTreeMap::from([(child, 1000)]));

    let off = cli.json(["disable", "--pid", &root, "--all"])?;
    ensure!(rows(&off, "processes")?.len() == 2, "{off}");
    let detached = cli.json(["detach", &root])?;
    ensure!(rows(&detached, "processes")?.len() == 2, "{detached}");
    ensure!(cli.json(["status"])?["processes"] == Value::Array(Vec::new()));
    work(&mut target, child)
}

/// A forked process has its parent's functions on. If it is not followed, the end of its parent's
/// session ends that, too.
#[test]
fn forked_processes_that_are_not_followed_are_detached_from_as_well() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let root = target.pid().to_string();
    for leave in [true, false] {
        cli.ok(["attach", &root])?;
        cli.ok(["enable", "--all"])?;
        let child = child_of(&mut target)?;
        let on = |pid: u32| sleds_on_in(pid.cast_signed(), target.program());
        ensure!(on(child)? > 0);
        let words: &[&str] = match leave {
            true => &["detach", &root, "--leave-children"],
            false => &["detach", &root],
        };
        let detached = cli.json(words)?;
        ensure_as_compiled(&target)?;
        let report = row_of(&detached, child.cast_signed())?;
        if leave {
            ensure!(report.is_none() && on(child)? > 0, "{detached}");
            let listed = cli.json(["ps"])?;
            let row = row_of(&listed, child.cast_signed())?.context("not listed")?;
            ensure!(row["state"] == "inherited", "{row}");
            let off = cli.json(["off", &child.to_string()])?;
            ensure!(on(child)? == 0, "{off}");
        } else {
            let report = report.context("the child is not reported")?;
            ensure!(
                report["inherited"] == true
                    && report["sleds_on"] == 0
                    && report["text_bytes_different"] == 0,
                "{report}"
            );
            ensure!(on(child)? == 0);
        }
        work(&mut target, child)?;
    }
    // The daemon does the same when it ends.
    cli.ok(["attach", &root])?;
    cli.ok(["enable", "--all"])?;
    let child = child_of(&mut target)?;
    let mut daemon = daemon;
    daemon.signal(Signal::SIGTERM)?;
    daemon.wait()?;
    ensure!(sleds_on_in(child.cast_signed(), target.program())? == 0);
    work(&mut target, child)
}

/// A vforked child runs in its parent's memory, and an ended child is still there for its parent.
/// Neither is a process to detach from.
#[test]
fn a_child_without_memory_of_its_own_does_not_trouble_a_detach() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let root = target.pid().to_string();
    let zombie = child_of(&mut target)?;
    send(zombie, Signal::SIGKILL)?;
    cli.ok(["attach", &root])?;
    cli.ok(["enable", "--all"])?;
    let held = target.ask("hold", "held ")?;
    let held: u32 = held.trim_start_matches("held ").parse()?;
    let detached = cli.json(["detach", &root])?;
    ensure!(rows(&detached, "processes")?.len() == 1, "{detached}");
    ensure_as_compiled(&target)?;
    send(held, Signal::SIGUSR1)?;
    target.line_with("done ", DEADLINE)?;
    Ok(())
}

/// The calls of `work` by pid, in the rows by process of an account.
fn works_of_processes(account: &Value) -> Result<BTreeMap<u64, u64>> {
    let mut works = BTreeMap::new();
    for row in rows(account, "rows")? {
        let pid = row["id"].as_u64().with_context(|| row.to_string())?;
        let calls = row["calls"].as_u64().with_context(|| row.to_string())?;
        // Each call of `work` makes one of `inner`.
        works.insert(pid, calls / 2);
    }
    Ok(works)
}

/// A profile has the calls of children that join it, of those that end meanwhile, too. The same
/// holds if the process was attached before, in another mode.
#[test]
fn a_profile_has_the_calls_of_later_children() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    for mode in [None, Some("profile"), Some("stream")] {
        let mut target = Target::spawn(Fixture::Group, [""; 0])?;
        let root = u32::try_from(target.pid())?;
        let pid = root.to_string();
        let mut arguments = vec!["profile", &pid, "-o", "p", "--force", "--json"];
        match mode {
            None => arguments.extend(["--follow", "fork"]),
            Some(mode) => {
                cli.ok(["attach", &pid, "--follow", "fork", "--mode", mode])?;
            }
        }
        let mut running = cli.start(arguments)?;
        is_on(&mut running, &target)?;
        let children = [child_of(&mut target)?, child_of(&mut target)?];
        for child in children {
            is_traced(&cli, child)?;
            work(&mut target, child)?;
        }
        send(children[0], Signal::SIGKILL)?;
        wait_until(DEADLINE, "it has ended", || {
            let status = cli.json(["status"])?;
            let mut rows = rows(&status, "processes")?.iter();
            let is_over = |row: &Value| row["pid"] != children[0] || row["state"] != "tracing";
            Ok(rows.all(is_over).then_some(()))
        })?;
        work(&mut target, children[1])?;
        ensure!(target.ask("calls 500", "done ")? == "done 500");
        running.signal(Signal::SIGINT)?;
        let ran = running.wait()?;
        ensure!(ran.code == Some(0), "{ran:?}");
        ensure!(ran.err.contains("2 processes were followed"), "{ran:?}");
        let account = cli.ok(["account", "p", "--by", "process", "-f", "json"])?;
        let found = works_of_processes(&serde_json::from_str(&account)?)?;
        let expected = [(root, 500), (children[0], 1000), (children[1], 2000)];
        let expected = expected.map(|(pid, calls)| (u64::from(pid), calls));
        ensure!(found == BTreeMap::from(expected), "{mode:?}: {found:?}");
        if mode.is_some() {
            cli.ok(["detach", &pid])?;
        }
        ensure!(cli.json(["status"])?["processes"] == Value::Array(Vec::new()));
        ensure_as_compiled(&target)?;
        work(&mut target, children[1])?;
    }
    Ok(())
}

/// The profile ends when the first process and all of its children have ended.
#[test]
fn a_profile_ends_with_the_last_process() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let root = u32::try_from(target.pid())?;
    let arguments = ["profile", &root.to_string(), "--follow", "fork", "-o", "p"];
    let mut running = cli.start(arguments)?;
    is_on(&mut running, &target)?;
    // Each child takes a while, so the search finds some of them.
    target.ask("brief 200", "done ")?;
    ensure!(target.ask("calls 500", "done ")? == "done 500");
    target.kill()?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    let account = cli.ok(["account", "p", "--by", "process", "-f", "json"])?;
    let found = works_of_processes(&serde_json::from_str(&account)?)?;
    ensure!(found.get(&u64::from(root)) == Some(&500), "{found:?}");
    ensure!(
        found.values().all(|calls| *calls <= 10 || *calls == 500),
        "{found:?}"
    );
    Ok(())
}
