//! `xrayctl record -- CMD`: programs that are recorded from their begin.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, build, sleds_of, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;
use xray_trace::model::{CallKind, EventBody};

use crate::scene::{Scene, rows, send, sleds_on_in};
use crate::trace::{ensure_counted, ensure_exact, ensure_reported, read};

/// Starts `xrayctl record … -- PROGRAM …`. The guard has the program's standard input and output.
fn launch(scene: &Scene, options: &[&str], program: &OsStr, args: &[&str]) -> Result<Target> {
    let words = ["record", "--json", "-o", "f.xtrace"];
    let words = words.iter().chain(options).chain(&["--"]).map(OsStr::new);
    let words = words.chain([program]).chain(args.iter().map(OsStr::new));
    Target::spawn_unready(scene.alone()?.command(words))
}

/// The summary, which is printed in the end.
fn summary(recorder: &mut Target) -> Result<Value> {
    let mut text = recorder.line_with("{", DEADLINE)?;
    while let Ok(line) = recorder.line(DEADLINE) {
        text += &line;
    }
    let status = recorder.wait(DEADLINE)?;
    ensure!(status.success(), "{status}: {text}");
    serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
}

#[test]
fn a_program_is_recorded_from_its_beginning_to_its_end() -> Result<()> {
    let scene = Scene::new()?;
    let program = build(Fixture::Counted)?;
    let args = ["--threads", "3", "--calls", "300"];
    let mut recorder = launch(&scene, &[], program.as_os_str(), &args)?;
    let truth = GroundTruth::parse(&recorder.ask("go", "result ")?)?;
    recorder.send("quit")?;
    let recorded = summary(&mut recorder)?;
    ensure!(recorded["outcome"] == "process-ended", "{recorded}");
    ensure!(recorded["program"] == "exit status: 0", "{recorded}");
    ensure_counted(&recorded, &truth)?;
    let file = scene.path("f.xtrace");
    ensure_exact(&file, &truth)?;
    ensure_reported(&scene.alone()?, &file, &truth)
}

/// A selector names a library that a program will load. The library is recorded once it is loaded.
#[test]
fn a_library_that_is_still_to_be_loaded_is_recorded() -> Result<()> {
    let host = build(Fixture::Plugins)?;
    // Also in a program without sleds of its own.
    for host in [host.clone(), host.with_file_name("bare_host")] {
        let scene = Scene::new()?;
        let of_it = ["--module", "plugin_a.so"];
        let mut recorder = launch(&scene, &of_it, host.as_os_str(), &[])?;
        recorder.ask("load 0 plugin_a.so", "loaded")?;
        let file = scene.path("f.xtrace");
        wait_until(DEADLINE, "calls are recorded", || {
            recorder.ask("call 0 10000", "done")?;
            Ok((fs::metadata(&file)?.len() > 50_000).then_some(()))
        })?;
        recorder.send("quit")?;
        let recorded = summary(&mut recorder)?;
        ensure!(recorded["outcome"] == "process-ended", "{recorded}");
        for function in read(&file)?.functions() {
            ensure!(function.name.starts_with("plugin_a_"), "{function:?}");
        }
    }
    Ok(())
}

#[test]
fn the_trace_of_a_rust_program_begins_with_its_main() -> Result<()> {
    let scene = Scene::new()?;
    let program = build(Fixture::Demo)?;
    let mut recorder = launch(
        &scene,
        &["--glob", "demo::*"],
        program.as_os_str(),
        &["--seconds", "1"],
    )?;
    let recorded = summary(&mut recorder)?;
    ensure!(recorded["lost"] == 0, "{recorded}");
    let pid = u32::try_from(recorded["pid"].as_u64().context("no pid")?)?;
    let trace = read(&scene.path("f.xtrace"))?;
    let threads = trace.blocks_by_thread();
    let (_, blocks) = threads
        .iter()
        .find(|(id, _)| trace.thread(**id).is_some_and(|thread| thread.tid == pid))
        .context("no main thread")?;
    let first = blocks
        .first()
        .context("no block")?
        .events()
        .next()
        .context("no event")??;
    let EventBody::Call {
        function,
        kind: CallKind::Enter,
        ..
    } = first.body
    else {
        anyhow::bail!("it begins with {first:?}");
    };
    let name = trace.function_name(function);
    ensure!(name == "demo::main", "it begins with {name}");
    Ok(())
}

#[test]
fn a_static_program_is_recorded() -> Result<()> {
    let scene = Scene::new()?;
    let program = build(Fixture::Static)?;
    let mut recorder = launch(&scene, &[], program.as_os_str(), &[])?;
    recorder.ask("go", "done ")?;
    recorder.close_stdin();
    let recorded = summary(&mut recorder)?;
    // Ten calls of the loop, five odd ones, and one through the tail call; the tail call itself;
    // `plain`.
    ensure!(recorded["calls"] == 16 + 1 + 1, "{recorded}");
    let report = scene.alone()?.json(["report", "f.xtrace", "--table"])?;
    let calls = rows(&report["table"], "rows")?;
    let logged = calls.iter().find(|row| row["function"] == "logged");
    ensure!(logged.is_some_and(|row| row["calls"] == 16), "{report}");
    Ok(())
}

#[test]
fn the_end_of_the_program_is_reported() -> Result<()> {
    let scene = Scene::new()?;
    let program = build(Fixture::Counted)?;
    // Too many threads: the program reports that and ends with 2.
    let mut recorder = launch(&scene, &[], program.as_os_str(), &["--threads", "9999"])?;
    let recorded = summary(&mut recorder)?;
    ensure!(
        recorded["program"] == "exit status: 2" && recorded["events"] == 0,
        "{recorded}"
    );
    Ok(())
}

/// If the recording ends first, the program goes on without it.
#[test]
fn a_program_outlives_its_recording() -> Result<()> {
    let scene = Scene::new()?;
    let program = build(Fixture::Demo)?;
    let mut recorder = launch(
        &scene,
        &["--duration", "200ms"],
        program.as_os_str(),
        &["--seconds", "30"],
    )?;
    let text = recorder.line_with("{", DEADLINE)?;
    let mut text = text;
    // The program's lines may be in between.
    while serde_json::from_str::<Value>(&text).is_err() {
        let line = recorder.line(DEADLINE)?;
        if !line.starts_with("beat ") {
            text += &line;
        }
    }
    let recorded: Value = serde_json::from_str(&text)?;
    ensure!(
        recorded["outcome"] == "stopped" && recorded["program"] == Value::Null,
        "{recorded}"
    );
    ensure!(recorder.wait(DEADLINE)?.success());
    let pid = u32::try_from(recorded["pid"].as_u64().context("no pid")?)?;
    recorder.skip_lines();
    let beats = recorder.line_with("beat ", DEADLINE);
    send(pid, Signal::SIGKILL)?;
    beats?;
    Ok(())
}

#[test]
fn a_program_that_cannot_be_started_or_traced_is_refused_and_leaves_nothing() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let marker = scene.path("marker");
    let script = scene.path("script");
    fs::write(&script, "#!/bin/sh\ntouch marker\n")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let plain = build(Fixture::Plain)?;
    let plain = plain.to_str().context("not UTF-8")?;
    for (follow, command, reason) in [
        ("all", &["/no/such/program"][..], "launch"),
        ("all", &["no-such-program"], "launch"),
        ("all", &["/etc/passwd"], "launch"),
        ("all", &["/"], "launch"),
        ("none", &[plain], "no-sleds"),
        ("none", &["/bin/true"], "no-sleds"),
        ("fork", &["touch", "marker"], "no-sleds"),
        ("none", &["./script"], "no-sleds"),
    ] {
        let ran = cli.run([&["record", "--follow", follow, "-o", "f", "--"], command].concat())?;
        ran.refused(reason)
            .with_context(|| format!("{command:?}"))?;
        ensure!(!scene.path("f").exists(), "{command:?}: a file was left");
        // A program that cannot be recorded does not run.
        ensure!(!marker.exists(), "{command:?} ran");
    }
    Ok(())
}

/// The program runs, because its children may have sleds. If none has, that is reported.
#[test]
fn a_program_of_which_nothing_has_sleds_leaves_an_empty_trace() -> Result<()> {
    let scene = Scene::new()?;
    let ran = scene
        .alone()?
        .run(["record", "-o", "f", "--", "touch", "marker"])?;
    ensure!(ran.code == Some(3), "{ran:?}");
    ensure!(ran.err.contains("the program has no sleds"), "{ran:?}");
    ensure!(scene.path("marker").exists(), "it did not run");
    ensure!(read(&scene.path("f"))?.totals().calls == 0);
    Ok(())
}

/// A shell has no sleds, and the programs that it starts have some. The trace has each of them with
/// all calls after it was found.
#[test]
fn everything_that_a_shell_starts_is_recorded() -> Result<()> {
    let scene = Scene::new()?;
    let program = build(Fixture::Counted)?;
    let program = program.to_str().context("not UTF-8")?;
    // The second is a child of the first shell's child.
    let script = "mkfifo in1 in2; $0 --threads 2 --calls 300 < in1 > out1 & echo pid $!; \
                  (exec $0 --threads 2 --calls 300 < in2 > out2) & echo pid $!; \
                  exec 3> in1 4> in2; read line; echo go >&3; echo go >&4; \
                  read line; echo quit >&3; echo quit >&4; wait";
    let mut recorder = launch(&scene, &[], OsStr::new("/bin/sh"), &["-c", script, program])?;
    let sleds = sleds_of(Path::new(program))?.len();
    for _ in 0..2 {
        let line = recorder.line_with("pid ", DEADLINE)?;
        let pid: i32 = line.trim_start_matches("pid ").parse()?;
        wait_until(DEADLINE, "it is traced", || {
            // It may still be the shell.
            let on = sleds_on_in(pid, Path::new(program)).unwrap_or(0);
            Ok((on == sleds).then_some(()))
        })?;
    }
    recorder.send("go")?;
    let mut events = 0;
    for n in 1..=2 {
        let truth = wait_until(DEADLINE, "it has a result", || {
            let out = fs::read_to_string(scene.path(&format!("out{n}")))?;
            let whole = out
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            let mut results = whole.filter(|line| line.starts_with("result "));
            results
                .next()
                .map(|line| GroundTruth::parse(line.trim_end()))
                .transpose()
        })?;
        events += truth.events();
    }
    recorder.send("quit")?;
    let recorded = summary(&mut recorder)?;
    ensure!(recorded["outcome"] == "process-ended", "{recorded}");
    ensure!(recorded["program"] == "exit status: 0", "{recorded}");
    ensure!(
        recorded["processes"] == 2 && recorded["lost"] == 0,
        "{recorded}"
    );
    ensure!(recorded["group"]["followed"] == 2 && recorded["group"]["missed"] == 0);
    ensure!(recorded["events"] == events, "{events}: {recorded}");
    let by = scene
        .alone()?
        .run(["account", "f.xtrace", "--by", "process", "-f", "csv"])?;
    ensure!(by.out.lines().count() == 3, "{by:?}");
    Ok(())
}
