//! `xrayctl record PID`: by itself and through a daemon, with every end of a recording.

use std::{
    fs,
    fs::File,
    io::Read as _,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, ProcessState, Target, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use xray_trace::container::Completeness;

use crate::scene::{
    Cli, Running, Scene, all_on, ensure_as_compiled, ensure_nothing_left, rows, sleds_on,
};
use crate::trace::{ensure_counted, ensure_exact, ensure_reported, read, seen};

const COUNTED: [&str; 4] = ["--threads", "3", "--calls", "300"];

/// Records everything. Returns when all functions are on.
fn record(cli: &Cli, target: &Target, more: &[&str]) -> Result<Running> {
    let pid = target.pid().to_string();
    let mut running = cli.start([&["record", &pid, "-o", "f.xtrace"], more].concat())?;
    running.until("everything is on", || all_on(target))?;
    Ok(running)
}

/// Ctrl-C in the middle: the file is complete, the summary agrees with it, and the process is as it
/// was.
fn interrupted(scene: &Scene, cli: &Cli) -> Result<()> {
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let before = ProcessState::of(target.pid())?;
    let running = record(cli, &target, &[])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
    let summary = ran.out.lines().next().context("no summary")?;
    for part in [" events, ", " calls, 3 threads in ", ", 0 lost, "] {
        ensure!(summary.contains(part), "no {part:?}: {summary}");
    }
    ensure!(
        ran.out.contains("open it: xrayctl view f.xtrace")
            && ran.out.contains("     or: xrayctl report f.xtrace\n"),
        "{ran:?}"
    );
    let file = scene.path("f.xtrace");
    ensure_exact(&file, &truth)?;
    ensure_reported(cli, &file, &truth)?;
    ensure_as_compiled(&target)?;
    ensure_nothing_left(&before, target.pid())?;
    target.still_running()
}

#[test]
fn ctrl_c_ends_a_recording_without_a_daemon() -> Result<()> {
    let scene = Scene::new()?;
    interrupted(&scene, &scene.alone()?)
}

#[test]
fn ctrl_c_ends_a_recording_with_a_daemon() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    interrupted(&scene, &cli)?;
    ensure!(cli.json(["status"])?["processes"] == Value::Array(Vec::new()));
    Ok(())
}

#[test]
fn a_recording_ends_when_its_time_is_up() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.alone()?, scene.with(&daemon)?] {
        let mut target = Target::spawn(Fixture::Demo, [""; 0])?;
        let pid = target.pid().to_string();
        let recorded = cli.json(["record", &pid, "--duration", "300ms", "-o", "d", "--force"])?;
        ensure!(
            recorded["outcome"] == "stopped" && recorded["lost"] == 0,
            "{recorded}"
        );
        ensure!(recorded["events"].as_u64() > Some(0), "{recorded}");
        let report = cli.json(["report", "d"])?;
        ensure!(report["trace"]["completeness"] == "complete", "{report}");
        ensure!(report["trace"]["events"] == recorded["events"], "{report}");
        ensure_as_compiled(&target)?;
        target.skip_lines();
        target.line_with("beat ", integration::DEADLINE)?;
    }
    Ok(())
}

/// Only the selection is recorded, into the default file if no file is given.
#[test]
fn a_selection_is_recorded_into_the_default_file() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    let mut running = cli.start(["record", &pid, "--function", "work::intake", "--json"])?;
    running.until("intake is on", || {
        Ok((sleds_on(&target)? >= 2).then_some(()))
    })?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGTERM)?;
    let ran = running.wait()?;
    let recorded: Value = serde_json::from_str(&ran.out)?;
    let calls = truth.calls()[truth.function("work::intake").context("no intake")?];
    ensure!(
        recorded["calls"] == calls && recorded["events"] == 2 * calls,
        "{recorded}"
    );
    ensure!(
        recorded["file"] == format!("xray-counted-{pid}.xtrace"),
        "{recorded}"
    );
    cli.ok(["report", &format!("xray-counted-{pid}.xtrace")])?;
    // Again: an existing file stays.
    let name = scene.path(&format!("xray-counted-{pid}.xtrace"));
    let bytes = fs::read(&name)?;
    let ran = cli.run(["record", &pid, "--duration", "10ms"])?;
    ran.failed(1, &["already exists"])?;
    ensure!(fs::read(&name)? == bytes);
    ensure_as_compiled(&target)
}

/// A trace on standard output is written from its beginning to its end, and nothing else is.
#[test]
fn a_recording_goes_into_a_pipe() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.alone()?, scene.with(&daemon)?] {
        let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid().to_string();
        let notes = scene.path("notes");
        let mut child = cli
            .command(["record", &pid, "-o", "-"])
            .stdout(Stdio::piped())
            .stderr(File::create(&notes)?)
            .spawn()?;
        let mut pipe = child.stdout.take().context("no pipe")?;
        let reader = thread::spawn(move || {
            let mut trace = Vec::new();
            pipe.read_to_end(&mut trace).map(|_| trace)
        });
        wait_until(DEADLINE, "everything is on", || all_on(&target))?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT)?;
        let status = child.wait()?;
        let notes = fs::read_to_string(&notes)?;
        ensure!(status.success(), "{status}: {notes}");
        ensure!(
            notes.contains(" events, 0 lost, ") && !notes.contains("open it"),
            "{notes}"
        );
        let trace = reader.join().expect("the reader does not panic")?;
        ensure!(!scene.path("-").exists());
        let file = scene.path("piped.xtrace");
        fs::write(&file, trace)?;
        ensure!(read(&file)?.completeness() == Completeness::Complete);
        ensure_exact(&file, &truth)?;
        ensure_as_compiled(&target)?;
        target.still_running()?;
        cli.run(["record", &pid, "-o", "-", "--json"])?
            .failed(2, &["both write to standard output"])?;
    }
    Ok(())
}

#[test]
fn a_selection_without_a_match_leaves_no_file() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    fs::write(scene.path("old"), "old")?;
    for file in ["new", "old"] {
        let ran = cli.run([
            "record",
            &pid,
            "--function",
            "nonesuch",
            "--force",
            "-o",
            file,
        ])?;
        ran.failed(3, &["nothing matched"])?;
    }
    ensure!(!scene.path("new").exists());
    ensure!(fs::read(scene.path("old"))? == b"old");
    ensure_as_compiled(&target)
}

/// The number of functions that are on in a library that a process has loaded by now. `None` until
/// it is armed: `functions_on` alone also counts functions that are still being switched on.
fn on_in(cli: &Cli, file: &str) -> Result<Option<u64>> {
    let status = cli.json(["status"])?;
    let modules = status["processes"].as_array().into_iter().flatten();
    let mut modules = modules.flat_map(|process| rows(process, "modules").into_iter().flatten());
    let module = modules.find(|module| {
        module["path"]
            .as_str()
            .is_some_and(|path| path.ends_with(file))
    });
    let armed = module.filter(|module| module["armed_within_ns"].as_u64() > Some(0));
    Ok(armed.and_then(|module| module["functions_on"].as_u64()))
}

/// A library that is loaded later is recorded. A selector that could be a typing error needs
/// `--pending` for that.
#[test]
fn a_selection_without_a_match_waits_for_libraries() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let pid = target.pid().to_string();
    let record = [
        "record",
        &pid,
        "--glob",
        "plugin_a*",
        "--pending",
        "-o",
        "f",
    ];
    let mut running = cli.start(record)?;
    running.until("the rule is in force", || {
        let status = cli.json(["status"])?;
        let detection = &status["processes"][0]["detection"];
        Ok((detection == "perf" || detection == "polling").then_some(()))
    })?;
    target.ask("load 0 plugin_a.so", "loaded")?;
    running.until("it is on", || {
        Ok((on_in(&cli, "plugin_a.so")? == Some(3)).then_some(()))
    })?;
    target.ask("call 0 5", "done")?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    ensure!(ran.err.contains("waiting for libraries"), "{ran:?}");
    let trace = read(&scene.path("f"))?;
    let totals = trace.totals();
    ensure!(totals.calls == 2 * 15, "{totals:?}");

    cli.ok(["attach", &pid])?;
    cli.run(["enable", "--glob", "plugin_b*"])?
        .failed(3, &["nothing matched"])?;
    cli.ok(["disable", "--all"])?;
    let enabled = cli.run(["enable", "--module", "plugin_b.so", "--json"])?;
    ensure!(enabled.code == Some(0), "{enabled:?}");
    ensure!(enabled.err.contains("waiting for libraries"), "{enabled:?}");
    target.ask("load 1 plugin_b.so", "loaded")?;
    wait_until(DEADLINE, "it is on", || {
        Ok((on_in(&cli, "plugin_b.so")? == Some(3)).then_some(()))
    })?;
    cli.ok(["detach", &pid])?;
    ensure_as_compiled(&target)
}

/// An attached process stays attached, and functions that other clients have enabled stay on.
#[test]
fn a_process_that_was_attached_stays_so() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid])?;
    cli.ok(["enable", "--function", "work::even"])?;
    let running = record(&cli, &target, &["--json"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    let recorded: Value = serde_json::from_str(&ran.out)?;
    ensure!(recorded["outcome"] == "still-attached", "{recorded}");
    ensure_counted(&recorded, &truth)?;
    ensure_exact(&scene.path("f.xtrace"), &truth)?;
    let status = cli.json(["status"])?;
    ensure!(status["processes"][0]["functions_on"] == 1, "{status}");
    Ok(())
}

/// A thread may lose its processor in a trampoline while a recording ends. The recording waits for
/// the thread's event: the events of all files, and those that the files exclude, are together all
/// that the daemon counted.
#[test]
fn recordings_on_a_busy_machine_have_their_last_events() -> Result<()> {
    const RECORDINGS: usize = 20;
    const BUSY: usize = 8;

    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Leaf, [""; 0])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid, "--mode", "stream", "--ring-size", "64KiB"])?;
    target.send("loop")?;
    let is_over = AtomicBool::new(false);
    let recorded = thread::scope(|scope| {
        for _ in 0..BUSY {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let record = || {
            let file = ["record", &pid, "--all", "--force", "-o", "f.xtrace"];
            let recorded = cli.json([&file[..], &["--duration", "50ms"]].concat())?;
            let excluded = &recorded["excluded"];
            let fields = [
                &recorded["events"],
                &recorded["lost"],
                &excluded["earlier_exits"],
                &excluded["later_events"],
                &excluded["later_lost"],
            ];
            let numbers = fields.map(Value::as_u64).into_iter().sum::<Option<u64>>();
            numbers.with_context(|| format!("no numbers in {recorded}"))
        };
        let recorded: Result<Vec<u64>> = (0..RECORDINGS).map(|_| record()).collect();
        is_over.store(true, Ordering::Relaxed);
        recorded
    })?;
    target.ask("stop", "stopped")?;
    let detached = cli.json(["detach", &pid])?;
    let row = &rows(&detached, "processes")?[0];
    let counted = row["events"].as_u64().zip(row["lost"].as_u64());
    let counted = counted.map(|(events, lost)| events + lost);
    ensure!(
        counted == Some(recorded.iter().sum()),
        "{recorded:?} in the files of {row}"
    );
    Ok(())
}

/// In flight mode, a recording has the events while it runs, and none from before.
#[test]
fn a_recording_of_a_flight_is_a_stream() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    let attached = cli.json(["attach", &pid])?;
    ensure!(attached["status"]["mode"] == "flight", "{attached}");
    ensure!(cli.ok(["mode", "stream"])? == format!("{pid}: stream; before: flight\n"));
    ensure!(
        cli.ok(["mode", "flight", "--pid", &pid])? == format!("{pid}: flight; before: stream\n")
    );
    let running = record(&cli, &target, &["--json"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    let recorded: Value = serde_json::from_str(&ran.out)?;
    ensure!(recorded["outcome"] == "still-attached", "{recorded}");
    ensure_counted(&recorded, &truth)?;
    ensure_exact(&scene.path("f.xtrace"), &truth)?;
    wait_until(DEADLINE, "it flies again", || {
        let status = cli.json(["status"])?;
        let row = &status["processes"][0];
        ensure!(row["mode"] == "flight", "{row}");
        Ok((row["retained_events"] == 0).then_some(()))
    })?;
    // The rings have received no event since.
    let taken = cli.json(["snapshot", "--last", "10ms", "-o", "s.xtrace"])?;
    ensure!(taken["files"][0]["events"] == 0, "{taken}");
    cli.run(["mode", "flight", "--pid", "1"])?
        .failed(4, &["not attached"])?;
    Ok(())
}

/// A killed recording cannot clean up, so the daemon does it. An attached process stays attached,
/// with the functions that other clients have enabled.
#[test]
fn a_killed_recording_leaves_a_process_as_it_was() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    for (more, attached) in [
        (&["--force"][..], false),
        (&["--force", "--follow", "fork"], false),
        (&["--force"], true),
    ] {
        let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid().to_string();
        let before = ProcessState::of(target.pid())?;
        if attached {
            cli.ok(["attach", &pid])?;
            cli.ok(["enable", "--function", "work::even"])?;
        }
        let running = record(&cli, &target, more)?;
        running.signal(Signal::SIGKILL)?;
        let ran = running.wait()?;
        ensure!(ran.code.is_none(), "{ran:?}");
        wait_until(DEADLINE, "it was undone", || {
            let status = cli.json(["status"])?;
            let on: Vec<_> = rows(&status, "processes")?
                .iter()
                .map(|row| row["functions_on"].as_u64())
                .collect();
            let wanted = if attached { vec![Some(1)] } else { vec![] };
            Ok((on == wanted).then_some(()))
        })?;
        if attached {
            cli.ok(["detach", &pid])?;
        }
        ensure_as_compiled(&target)?;
        ensure_nothing_left(&before, target.pid())?;
        target.still_running()?;
    }
    Ok(())
}

/// After a recording, the rules of other clients still hold for libraries.
#[test]
fn a_recording_leaves_the_rules_of_others() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    for selector in [["--glob", "plugin_*"], ["--module", "plugin_?.so"]] {
        let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
        let pid = target.pid().to_string();
        cli.ok(["attach", &pid])?;
        let rule = ["enable", "--glob", "plugin_*", "--pending"];
        cli.ok(rule)?;
        let record = ["record", &pid, "--json", "--duration", "300ms"];
        let some = ["--pending", "-o", "some", "--force"];
        cli.ok([&record[..], &selector, &some].concat())?;
        cli.ok([&record[..], &["-o", "all", "--force"]].concat())?;
        let status = cli.json(["status"])?;
        ensure!(status["processes"][0]["functions_on"] == 0, "{status}");
        target.ask("load 0 plugin_a.so", "loaded")?;
        wait_until(DEADLINE, "it is on", || {
            Ok((on_in(&cli, "plugin_a.so")? == Some(3)).then_some(()))
        })?;
        cli.ok(["detach", &pid])?;
    }
    Ok(())
}

/// The file has all events that were in the rings when the process was killed.
#[test]
fn a_killed_process_leaves_all_that_it_did() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.alone()?, scene.with(&daemon)?] {
        let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid();
        let running = record(&cli, &target, &["--force"])?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        target.kill()?;
        let ran = running.wait()?;
        ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
        let end = format!(
            "process {pid} ended while it was recorded; the file holds all events up to its end"
        );
        ensure!(ran.out.contains(&end), "{ran:?}");
        let file = scene.path("f.xtrace");
        ensure_exact(&file, &truth)?;
        ensure_reported(&cli, &file, &truth)?;
    }
    Ok(())
}

/// Killed at work: the file has the begin of the events of the same program without a kill.
#[test]
fn a_process_killed_at_work_leaves_a_true_beginning() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut whole = Target::spawn(
        Fixture::Counted,
        [
            "--threads",
            "2",
            "--calls",
            "3000",
            "--seed",
            "7",
            "--first",
            "60000",
        ],
    )?;
    let truth = GroundTruth::parse(&whole.ask("go", "result ")?)?;
    let mut target = Target::spawn(
        Fixture::Counted,
        [
            "--threads",
            "2",
            "--calls",
            "0",
            "--seed",
            "7",
            "--first",
            "0",
        ],
    )?;
    let mut running = record(&cli, &target, &["--ring-size", "4MiB"])?;
    let file = scene.path("f.xtrace");
    target.send("go")?;
    running.until("events of both threads are in the file", || {
        let long = fs::metadata(&file)?.len() > 100_000;
        Ok((long && read(&file)?.blocks_by_thread().len() == 2).then_some(()))
    })?;
    target.kill()?;
    let ran = running.wait()?;
    ensure!(
        ran.code == Some(0) && ran.out.contains("ended while it was recorded"),
        "{ran:?}"
    );
    let report = cli.json(["report", "f.xtrace", "--table"])?;
    ensure!(report["trace"]["completeness"] == "complete", "{report}");
    let seen = seen(&file, &truth)?;
    ensure!(seen.threads.len() == 2, "{} threads", seen.threads.len());
    for (tid, events) in &seen.threads {
        // Up to the end of the shorter list.
        let same = truth.threads.iter().any(|thread| {
            let common = thread.first.len().min(events.len());
            common > 1000 && thread.first[..common] == events[..common]
        });
        ensure!(
            same,
            "thread {tid}: {} events, of which some are false",
            events.len()
        );
    }
    Ok(())
}

/// The calls of a tree in text, by the lines that begin calls or stand for several.
fn calls_in(tree: &str) -> Result<u64> {
    let mut calls = 0;
    for line in tree.lines() {
        if line.ends_with('{') || line.ends_with(';') {
            calls += 1;
        } else if let Some((_, figures)) = line.rsplit_once(";  × ") {
            let (number, _) = figures.split_once(", max ").context("no longest call")?;
            calls += number.replace(',', "").parse::<u64>()?;
        }
    }
    Ok(calls)
}

#[test]
fn a_tree_shows_one_thread_after_the_other_and_counts_every_call() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let running = record(&cli, &target, &[])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    ensure!(running.wait()?.code == Some(0));
    let calls: u64 = truth.calls().iter().sum();
    let tree = |options: &[&str]| cli.ok([&["tree", "f.xtrace"], options].concat());
    let headers = |tree: &str, tid: i32| {
        let header = format!(" ({tid})");
        let lines = tree.lines().filter(|line| !line.starts_with(' '));
        lines.filter(|line| line.ends_with(&header)).count()
    };
    for (options, each) in [
        (&[][..], 1),
        (&["--unfold"], 1),
        (&["--interleave"], 0),
        (&["--interleave", "--unfold"], 0),
    ] {
        let shown = tree(options)?;
        ensure!(calls_in(&shown)? == calls, "{options:?}: {shown}");
        ensure!(!options.contains(&"--unfold") || !shown.contains('×'));
        for thread in &truth.threads {
            let found = headers(&shown, thread.tid);
            ensure!(found == each, "{options:?}, {}: {shown}", thread.tid);
        }
    }
    Ok(())
}

/// The recorder itself is killed. The process goes on, and can be recorded again.
#[test]
fn a_killed_recorder_leaves_a_readable_file_and_a_process_that_goes_on() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let running = record(&cli, &target, &[])?;
    running.signal(Signal::SIGKILL)?;
    ensure!(running.wait()?.code.is_none());
    let report = cli.json(["report", "f.xtrace"])?;
    ensure!(report["trace"]["completeness"] != "complete", "{report}");
    // All functions are still on. A file with content shows that the recording has begun.
    let second = scene.path("second.xtrace");
    let mut running = cli.start(["record", &target.pid().to_string(), "-o", "second.xtrace"])?;
    running.until("the recording has begun", || {
        let begun = fs::metadata(&second).is_ok_and(|file| file.len() > 0);
        Ok(if begun { all_on(&target)? } else { None })
    })?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    ensure_exact(&second, &truth)?;
    ensure_as_compiled(&target)
}
