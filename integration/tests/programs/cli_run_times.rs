//! When the threads of a recorded process have a processor: each call of a program has at least the
//! processor time that it takes, and lacks one for as long as it waits.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, ProcessState, Target, copy_into};
use nix::sys::signal::Signal;
use xray_trace::analysis::{Call, Step, Steps};
use xray_trace::model::{RunState, Trace};

use crate::scene::{
    Cli, NOBODY, Scene, all_on, ensure_as_compiled, ensure_nothing_left, rows, sleds_on,
};
use crate::trace::read;

const ROUNDS: u64 = 100;
/// The processor time of a call of `work`, less what reading clocks and switching may take.
const WORK_NS: u64 = 280_000;
/// The time for which a call of `doze` waits, likewise.
const DOZE_NS: u64 = 990_000;

/// Records a run of `scheduled` as `more` says.
fn recorded(scene: &Scene, cli: &Cli, target: &mut Target, more: &[&str]) -> Result<Trace> {
    let (pid, file) = (target.pid().to_string(), scene.path("f.xtrace"));
    let mut running = cli.start([&["record", &pid, "--force", "-o", "f.xtrace"], more].concat())?;
    running.until("everything is on", || all_on(target))?;
    target.send(&format!("go {ROUNDS}"))?;
    target.line_with("done", DEADLINE)?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
    read(&file)
}

/// The calls of each function that have ended.
fn calls(trace: &Trace) -> BTreeMap<String, Vec<Call>> {
    let mut calls = BTreeMap::<_, Vec<_>>::new();
    for steps in Steps::of_threads(trace) {
        let runs = trace.thread_runs(steps.thread());
        let steps = steps.with_runs(runs);
        for step in steps {
            if let Step::Leave(call) = step {
                let name = trace.function_name(call.open.function).into_owned();
                calls.entry(name).or_default().push(call);
            }
        }
    }
    calls
}

fn ensure_true(trace: &Trace) -> Result<()> {
    let calls = calls(trace);
    for (name, wanted) in [
        ("work", 4 * ROUNDS),
        ("doze", 4 * ROUNDS),
        ("mixed", 2 * ROUNDS),
    ] {
        let calls = calls
            .get(name)
            .with_context(|| format!("no calls of {name}"))?;
        ensure!(
            calls.len() as u64 == wanted,
            "{} calls of {name}",
            calls.len()
        );
        let known: Vec<_> = calls
            .iter()
            .filter_map(|call| Some((call, call.off_cpu?)))
            .collect();
        // The threads are new. Their first calls come before they are found.
        ensure!(
            known.len() as u64 >= wanted / 2,
            "{} of {wanted}: {name}",
            known.len()
        );
        let (least_on, least_off) = match name {
            "work" => (WORK_NS, 0),
            "doze" => (0, DOZE_NS),
            _ => (WORK_NS, DOZE_NS),
        };
        // A virtual machine may lose its processor at any moment, and its kernel takes the thread
        // to be running then. If that happens just before a thread waits, the wait may be over
        // already. So a few calls have other times.
        let others = known.iter().filter(|(call, off)| {
            let on = call.duration_ns() - off.total_ns;
            on < least_on || off.total_ns < least_off
        });
        let others: Vec<_> = others.collect();
        ensure!(others.len() <= known.len() / 4, "{name}: {others:?}");
    }
    // Both threads have one processor. Never do both run at a time, and sometimes each waits for
    // the other.
    let mut runs = Vec::new();
    let mut has_waited = false;
    for thread in trace.threads() {
        let thread_runs = trace
            .thread_runs(thread.id)
            .context("a thread without run times")?;
        for run in thread_runs.runs() {
            match run.state {
                Some(RunState::Running) => runs.push((run.from_ns, run.until_ns, run.processor)),
                Some(RunState::Ready) => has_waited = true,
                Some(RunState::Waiting) | None => {}
            }
        }
    }
    ensure!(has_waited, "no thread has lost its processor");
    runs.sort_unstable();
    for pair in runs.windows(2) {
        ensure!(pair[0].1 <= pair[1].0 && pair[0].2 == pair[1].2, "{pair:?}");
    }
    Ok(())
}

#[test]
fn calls_have_the_time_for_which_their_thread_had_a_processor() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.alone()?, scene.with(&daemon)?] {
        let mut target = Target::spawn(Fixture::Scheduled, [""; 0])?;
        ensure_true(&recorded(&scene, &cli, &mut target, &[])?)?;
        ensure_shown(&scene, &cli)?;
        target.still_running()?;
    }
    Ok(())
}

/// The reports show what the trace has.
fn ensure_shown(scene: &Scene, cli: &Cli) -> Result<()> {
    let report = cli.json([
        "report",
        "f.xtrace",
        "--table",
        "--slowest",
        "5",
        "--sort",
        "off-cpu",
    ])?;
    let table = rows(&report["table"], "rows")?;
    ensure!(table[0]["function"] != "work", "it waits least: {report}");
    for row in table {
        let (on, of) = (row["on_cpu_ns"].as_u64(), row["on_cpu_of_ns"].as_u64());
        ensure!(
            on > Some(0) && on < of && of <= row["total_ns"].as_u64(),
            "{row}"
        );
    }
    let slowest = rows(&report, "slowest")?;
    ensure!(
        slowest
            .iter()
            .any(|call| call["off_cpu_ns"].as_u64() > Some(0)),
        "{report}"
    );
    let text = cli.ok(["report", "f.xtrace", "--table", "--slowest", "3"])?;
    ensure!(
        text.contains("ON-CPU") && text.contains(" of it without a processor"),
        "{text}"
    );
    let account = cli.ok([
        "account",
        "f.xtrace",
        "--sort",
        "on-cpu",
        "-f",
        "csv",
        "--columns",
        "all",
    ])?;
    ensure!(
        account
            .lines()
            .next()
            .is_some_and(|line| line.contains(",on_cpu_ns,")),
        "{account}"
    );
    // Most calls of `doze` wait for a millisecond, and most of `work` have a processor for 300 µs.
    let waits = cli.ok(["tree", "f.xtrace", "--min-off-cpu", "200us"])?;
    ensure!(
        waits.contains("doze") && waits.contains(" off-CPU"),
        "{waits}"
    );
    for (option, function) in [("--min-off-cpu", "doze"), ("--min-on-cpu", "work")] {
        let tree = cli.json(["tree", "f.xtrace", option, "200us"])?;
        let lines = rows(&tree["tree"], "lines")?;
        let leaves = lines.iter().filter(|line| line["kind"] == "leaf");
        let leaves: Vec<_> = leaves.collect();
        ensure!(
            leaves.iter().any(|leaf| leaf["function"] == function),
            "{tree}"
        );
        for leaf in leaves {
            let times = leaf["duration_ns"]
                .as_u64()
                .zip(leaf["off_cpu_ns"].as_u64());
            let (duration, off) = times.with_context(|| format!("no times: {leaf}"))?;
            let selected = match option {
                "--min-off-cpu" => off,
                _ => duration - off,
            };
            ensure!(selected >= 200_000, "{option}: {leaf}");
        }
    }
    let nothing = cli.ok(["tree", "f.xtrace", "--min-off-cpu", "1h"])?;
    ensure!(!nothing.contains("doze"), "{nothing}");
    let slow = cli.json([
        "report",
        "f.xtrace",
        "--slowest",
        "5",
        "--min-off-cpu",
        "1h",
    ])?;
    ensure!(rows(&slow, "slowest")?.is_empty(), "{slow}");
    // Threads spend most of their time without a processor in `doze`.
    let drawn = cli.ok(["flame", "f.xtrace", "--off-cpu", "-o", "f.svg"])?;
    ensure!(drawn.contains(" without a processor"), "{drawn}");
    let svg = fs::read_to_string(scene.path("f.svg"))?;
    ensure!(svg.contains("doze") && svg.contains(": time without a processor"));
    Ok(())
}

#[test]
fn without_a_wish_nothing_about_processors_is_recorded() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Scheduled, [""; 0])?;
    let trace = recorded(&scene, &cli, &mut target, &["--no-sched"])?;
    ensure!(!trace.has_runs() && calls(&trace).len() == 3);
    let text = cli.ok(["report", "f.xtrace", "--table"])?;
    ensure!(!text.contains("ON-CPU"), "{text}");
    let drawn = cli.run(["flame", "f.xtrace", "--off-cpu", "-o", "f.svg"])?;
    let refused = ["f.xtrace does not have when threads had a processor"];
    drawn.failed(2, &refused)?;
    for command in ["report", "account"] {
        let sorted = cli.run([command, "f.xtrace", "--sort", "off-cpu"])?;
        sorted.failed(2, &refused)?;
    }
    for options in [["tree", "--min-off-cpu"], ["report", "--min-on-cpu"]] {
        let bounded = cli.run([&options[..], &["1ms", "f.xtrace"]].concat())?;
        bounded.failed(2, &refused)?;
    }
    Ok(())
}

/// `top --on-cpu` shows functions with the time that they work, and functions that wait without it.
#[test]
fn top_shows_for_how_long_functions_had_a_processor() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Scheduled, [""; 0])?;
    let pid = target.pid().to_string();
    let before = ProcessState::of(target.pid())?;
    let top = [
        "top",
        &pid,
        "--on-cpu",
        "--once",
        "--interval",
        "5s",
        "--json",
    ];
    let mut running = cli.start(top)?;
    running.until("everything is on", || all_on(&target))?;
    target.send(&format!("go {ROUNDS}"))?;
    target.line_with("done", DEADLINE)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
    let interval: serde_json::Value = serde_json::from_str(&ran.out)?;
    let seconds = interval["seconds"].as_f64().context("no seconds")?;
    let whole = |row: &serde_json::Value, name: &str| row[name].as_f64().unwrap_or(0.0) * seconds;
    for row in rows(&interval, "rows")? {
        let name = row["name"].as_str().context("no name")?;
        let [calls, own, on, unknown] = [
            "calls_per_second",
            "self_ns_per_second",
            "on_cpu_ns_per_second",
            "unknown_ns_per_second",
        ]
        .map(|field| whole(row, field));
        // The threads are new. Their first calls come before they are found. The interval of the
        // sums begins and ends some milliseconds apart from that of the run times.
        ensure!(on + unknown <= own + 5e7, "{row}");
        let works = calls * WORK_NS as f64;
        match name {
            "work" => ensure!(
                on + unknown >= works * 3.0 / 4.0 && on > works / 4.0,
                "{row}"
            ),
            "doze" => ensure!(on < own / 4.0, "{row}"),
            _ => ensure!(own < works, "{row}"),
        }
    }
    ensure!(rows(&interval, "rows")?.len() == 3, "{interval}");
    ensure_as_compiled(&target)?;
    ensure_nothing_left(&before, target.pid())?;
    let text = cli.ok(["top", &pid, "--on-cpu", "--once", "--interval", "100ms"])?;
    ensure!(text.contains("ON-CPU/S"), "{text}");
    // In a process that is attached, it leaves what it has found.
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    cli.ok(["attach", &pid])?;
    cli.ok(["top", &pid, "--on-cpu", "--once", "--interval", "100ms"])?;
    ensure!(sleds_on(&target)? == 0);
    cli.ok(["detach", &pid])?;
    ensure_as_compiled(&target)
}

/// A user needs no rights to see when threads of own programs run.
#[test]
fn users_see_when_their_threads_run() -> Result<()> {
    if !integration::is_root_for("users_see_when_their_threads_run")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let dir = scene.path("programs");
    fs::create_dir(&dir)?;
    let mut command = Command::new(copy_into(Fixture::Scheduled, &dir)?);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let mut target = Target::spawn_command(command)?;
    let cli = scene.alone()?.as_user(NOBODY);
    fs::set_permissions(scene.path("."), Permissions::from_mode(0o777))?;
    match paranoia()? {
        ..=2 => ensure_true(&recorded(&scene, &cli, &mut target, &[])?),
        level => {
            eprintln!("users_see_when_their_threads_run: perf_event_paranoid is {level}");
            ensure!(
                std::env::var_os("CI").is_none(),
                "the kernel forbids perf events to users"
            );
            Ok(())
        }
    }
}

fn paranoia() -> Result<i32> {
    let level = fs::read_to_string(Path::new("/proc/sys/kernel/perf_event_paranoid"))?;
    Ok(level.trim().parse()?)
}
