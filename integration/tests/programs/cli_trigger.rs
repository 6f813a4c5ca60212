//! `xrayctl trigger`: conditions and actions.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, ProcessState, Target, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use xray_trace::model::{CallKind, EventBody, FunctionId, Trace};

use crate::scene::{
    Cli, Daemon, NOBODY, Running, Scene, ensure_as_compiled, row_of, rows, sleds_on,
};
use crate::trace::read;

/// A daemon, and a program that it has attached.
struct Stage {
    scene: Scene,
    _daemon: Daemon,
    cli: Cli,
    target: Target,
    pid: String,
}

/// The reports of a trigger, in JSON.
#[derive(Debug)]
struct Told(Vec<Value>);

/// A call in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call {
    tid: u32,
    begun: u64,
    ended: Option<u64>,
}

// === impl Stage ===

impl Stage {
    fn new(threads: &str) -> Result<Self> {
        let scene = Scene::new()?;
        let daemon = scene.daemon()?;
        let cli = scene.with(&daemon)?;
        let target = Target::spawn(Fixture::Triggers, ["--threads", threads])?;
        let pid = target.pid().to_string();
        cli.ok(["attach", &pid])?;
        Ok(Self {
            scene,
            _daemon: daemon,
            cli,
            target,
            pid,
        })
    }

    /// Starts a trigger, and waits until it is armed.
    fn trigger(&self, arguments: &[&str]) -> Result<Running> {
        let arguments = [&["trigger", "--json"][..], arguments].concat();
        let mut running = self.cli.start(arguments)?;
        running.until("it is armed", || Ok((self.armed()? > 0).then_some(())))?;
        Ok(running)
    }

    /// The number of triggers that are armed in the process.
    fn armed(&self) -> Result<u64> {
        let status = self.cli.json(["status"])?;
        let row = row_of(&status, self.target.pid())?.context("no row")?;
        row["triggers"].as_u64().context("no number of triggers")
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.scene.path(name)
    }

    /// Checks that nothing is left of a trigger: no function is on because of it, and the rings
    /// keep the newest events by themselves.
    fn ensure_nothing_left(&self) -> Result<()> {
        wait_until(DEADLINE, "the trigger has let go", || {
            let status = self.cli.json(["status"])?;
            let row = row_of(&status, self.target.pid())?.context("no row")?;
            let clean = row["triggers"] == 0 && row["functions_on"] == 0;
            Ok(clean.then_some(()))
        })?;
        ensure!(sleds_on(&self.target)? == 0);
        Ok(())
    }
}

// === impl Told ===

impl Told {
    fn of(running: Running) -> Result<(Option<i32>, Self)> {
        let ran = running.wait()?;
        let lines = ran.out.lines();
        let reported = lines.map(|line| serde_json::from_str(line).context("a line is no JSON"));
        let reported = reported.collect::<Result<_>>();
        Ok((
            ran.code,
            Self(reported.with_context(|| format!("{ran:?}"))?),
        ))
    }

    /// Checks that the trigger succeeded.
    fn ok(running: Running) -> Result<Self> {
        let (code, reported) = Self::of(running)?;
        ensure!(code == Some(0), "{code:?}: {reported:?}");
        Ok(reported)
    }

    fn all(&self, event: &str) -> Vec<&Value> {
        self.0
            .iter()
            .filter(|reported| reported["event"] == event)
            .collect()
    }

    /// The only report of this kind.
    fn one(&self, event: &str) -> Result<&Value> {
        match &self.all(event)[..] {
            [one] => Ok(one),
            other => anyhow::bail!("{event}: {other:?} in {self:?}"),
        }
    }

    /// The report of the end, which must have this reason.
    fn over(&self, why: &str) -> Result<&Value> {
        let over = self.one("over")?;
        ensure!(over["why"] == why, "{self:?}");
        Ok(over)
    }
}

/// All calls of a function, by its name without parameters.
fn calls_of(trace: &Trace, name: &str) -> Result<Vec<Call>> {
    let of = |id: FunctionId| trace.function_name(id) == name;
    let mut calls = Vec::new();
    for (thread, blocks) in trace.blocks_by_thread() {
        let tid = trace.thread(thread).context("a thread without a row")?.tid;
        let mut open: Vec<usize> = Vec::new();
        for event in blocks.iter().flat_map(|block| block.events()) {
            let event = event?;
            let at = trace.clock().monotonic_ns(event.ticks);
            match event.body {
                EventBody::Call {
                    function,
                    kind: CallKind::Enter,
                    ..
                } if of(function) => {
                    open.push(calls.len());
                    calls.push(Call {
                        tid,
                        begun: at,
                        ended: None,
                    });
                }
                EventBody::Call { function, .. } if of(function) => {
                    if let Some(index) = open.pop() {
                        calls[index].ended = Some(at);
                    }
                }
                _ => {}
            }
        }
    }
    Ok(calls)
}

/// The times of the first and of the last event of each process, by its pid.
fn spans(path: &Path) -> Result<Vec<(u32, u64, u64)>> {
    let trace = read(path)?;
    let mut spans = Vec::new();
    for process in trace.processes() {
        let its = |id| {
            trace
                .thread(id)
                .is_some_and(|thread| thread.process == process.id)
        };
        let blocks = trace.blocks().iter().filter(|block| its(block.thread));
        let mut span: Option<(u64, u64)> = None;
        for block in blocks {
            let clock = trace.clock();
            let (first, last) = (
                clock.monotonic_ns(block.first),
                clock.monotonic_ns(block.last),
            );
            let (begin, end) = span.unwrap_or((first, last));
            span = Some((begin.min(first), end.max(last)));
        }
        if let Some((begin, end)) = span {
            spans.push((process.pid, begin, end));
        }
    }
    Ok(spans)
}

/// The times of a call that the program printed.
fn times(line: &str) -> Result<(u64, u64)> {
    let mut numbers = line.split(' ').skip(1).map(str::parse);
    let mut next = || {
        numbers
            .next()
            .context("too few numbers")?
            .context("no number")
    };
    Ok((next()?, next()?))
}

/// The trigger fires once. The snapshot has the whole call, and the calls of other threads before
/// it, at the same time, and a little later.
#[test]
fn a_slow_call_is_whole_in_the_snapshot() -> Result<()> {
    let mut stage = Stage::new("2")?;
    stage.cli.ok(["enable", "--function", "tick"])?;
    let when = "duration(slow) > 20ms";
    let running = stage.trigger(&["--when", when, "--before", "300ms", "-o", "slow.xtrace"])?;
    // Too short at first, then long enough.
    stage.target.ask("slow 1", "slow ")?;
    let (begin, end) = times(&stage.target.ask("slow 120", "slow ")?)?;
    // Beyond the limit.
    stage.target.ask("slow 120", "slow ")?;
    let reported = Told::ok(running)?;
    reported.over("limit")?;

    let fired = reported.one("fired")?;
    ensure!(
        fired["condition"] == when && fired["function"] == "slow",
        "{fired}"
    );
    let pid = stage.target.pid();
    ensure!(fired["pid"] == pid && fired["tid"] == pid, "{fired}");
    let number = |key: &str| {
        let number = fired[key].as_u64();
        number.with_context(|| format!("no {key}: {fired}"))
    };
    let (at, duration) = (number("monotonic_ns")?, number("duration_ns")?);
    // The clock of a trace is right within microseconds. The program takes its own times just
    // outside of the call.
    const RIGHT: u64 = 100_000;
    ensure!(duration >= 120_000_000 - RIGHT && duration <= end - begin + RIGHT);
    ensure!((begin..=end + RIGHT).contains(&at), "{begin} {at} {end}");

    let trace = read(&stage.path("slow.xtrace"))?;
    let slow = calls_of(&trace, "slow")?;
    let within = |call: &&Call| {
        call.begun + RIGHT >= begin && call.ended.is_some_and(|ended| ended <= end + RIGHT)
    };
    let whole: Vec<&Call> = slow.iter().filter(within).collect();
    let [call] = whole[..] else {
        anyhow::bail!("{slow:?}, {begin} to {end}");
    };
    let took = call.ended.unwrap_or(0) - call.begun;
    ensure!(took.abs_diff(duration) < RIGHT, "{took} ns, {duration} ns");
    let tick = calls_of(&trace, "tick")?;
    let mut threads: Vec<u32> = tick.iter().map(|call| call.tid).collect();
    threads.sort_unstable();
    threads.dedup();
    ensure!(threads.len() == 2, "{threads:?}");
    for tid in threads {
        let its = || tick.iter().filter(|call| call.tid == tid);
        ensure!(its().any(|call| call.begun < begin), "none before the call");
        ensure!(
            its().any(|call| (begin..end).contains(&call.begun)),
            "none within it"
        );
        ensure!(its().any(|call| call.begun > at), "none after it");
        ensure!(
            its().all(|call| call.begun <= at + 100_000_000 + RIGHT),
            "later than asked for"
        );
    }
    // Functions that were on before stay on, and the others are off.
    stage.cli.ok(["disable", "--function", "tick"])?;
    stage.ensure_nothing_left()?;
    stage.cli.ok(["detach", &stage.pid])?;
    ensure_as_compiled(&stage.target)
}

/// Events of a flight from before the trigger was armed are in its snapshot, and do not fire it.
#[test]
fn earlier_events_fire_nothing_and_are_shown() -> Result<()> {
    let mut stage = Stage::new("0")?;
    stage.cli.ok(["enable", "--all"])?;
    stage.target.ask("slow 30", "slow ")?;
    let running = stage.trigger(&["--when", "duration(slow) > 10ms", "-o", "f.xtrace"])?;
    stage.target.ask("quick 7", "quick")?;
    stage.target.ask("slow 40", "slow ")?;
    let reported = Told::ok(running)?;
    let fired = reported.one("fired")?;
    ensure!(fired["duration_ns"].as_u64() > Some(40_000_000), "{fired}");
    let trace = read(&stage.path("f.xtrace"))?;
    ensure!(calls_of(&trace, "slow")?.len() == 2);
    ensure!(calls_of(&trace, "quick")?.len() == 7);
    Ok(())
}

/// Each condition fires for its own event, and for no other one.
#[test]
fn each_condition_fires_for_what_it_says() -> Result<()> {
    let mut stage = Stage::new("1")?;
    for (condition, others, its, function) in [
        ("call(quick)", vec!["slow 1", "say"], "quick 1", "quick"),
        ("call(qu?ck)", vec!["slow 1"], "quick 100", "quick"),
        (
            "duration(slow) >= 15ms",
            vec!["slow 5", "left 20"],
            "slow 15",
            "slow",
        ),
        ("event(custom)", vec!["quick 1", "say 7"], "say", "say"),
        ("event(7)", vec!["say", "say 8"], "say 7", "say_typed"),
        (
            "event(request)",
            vec!["say", "say reply"],
            "say request",
            "say_typed",
        ),
        (
            "rate(quick) > 100/s",
            vec!["quick 100"],
            "quick 200",
            "quick",
        ),
    ] {
        let what = || condition.to_owned();
        let running = stage.trigger(&["--when", condition, "--do", "exec true"])?;
        for other in others {
            let answer = other
                .split(' ')
                .next()
                .unwrap_or_default()
                .replace("say", "said");
            stage.target.ask(other, &answer)?;
        }
        let before = now_monotonic()?;
        let answer = its
            .split(' ')
            .next()
            .unwrap_or_default()
            .replace("say", "said");
        stage.target.ask(its, &answer)?;
        let reported = Told::ok(running).with_context(what)?;
        let fired = reported.one("fired").with_context(what)?;
        ensure!(
            fired["condition"] == condition && fired["function"] == function,
            "{fired}"
        );
        // Not for an earlier event.
        ensure!(
            fired["monotonic_ns"].as_u64() >= Some(before - 1_000_000),
            "{before}: {fired}"
        );
        reported.over("limit")?;
        stage.ensure_nothing_left().with_context(what)?;
    }
    stage.target.still_running()
}

fn now_monotonic() -> Result<u64> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    Ok(u64::try_from(now.tv_sec())? * 1_000_000_000 + u64::try_from(now.tv_nsec())?)
}

/// The trigger fires when the rate is reached, not while it stays, and again after it was lower.
#[test]
fn a_rate_fires_when_it_is_reached() -> Result<()> {
    let mut stage = Stage::new("0")?;
    let when = "rate(quick) >= 100/s";
    let arguments = ["--when", when, "--do", "exec true", "--limit", "10"];
    let running = stage.trigger(&arguments)?;
    for calls in ["99", "300", "1"] {
        stage.target.ask(&format!("quick {calls}"), "quick")?;
        // Longer than the window.
        let begun = now_monotonic()?;
        wait_until(DEADLINE, "a second is over", || {
            Ok((now_monotonic()? > begun + 1_100_000_000).then_some(()))
        })?;
    }
    stage.target.ask("quick 100", "quick")?;
    // The same number again.
    stage.target.ask("quick 100", "quick")?;
    kill(Pid::from_raw(stage.target.pid()), Signal::SIGKILL)?;
    let reported = Told::ok(running)?;
    let fired = reported.all("fired");
    ensure!(fired.len() == 2, "{reported:?}");
    for firing in fired {
        ensure!(firing["calls"] == 100, "{firing}");
    }
    Ok(())
}

/// With a limit per time, the trigger can fire again later. Further matches are counted. Each
/// snapshot has a file of its own.
#[test]
fn a_limit_holds_and_what_is_beyond_is_counted() -> Result<()> {
    let mut stage = Stage::new("0")?;
    let arguments = ["--when", "call(quick)", "--after", "0s", "-o", "shots"];
    let limit = ["--limit", "3/1h", "--before", "1s"];
    let mut running = stage.trigger(&[&arguments[..], &limit].concat())?;
    stage.target.ask("quick 10", "quick")?;
    let shots = stage.path("shots");
    let files = || -> Result<Vec<_>> {
        let mut files: Vec<_> = fs::read_dir(&shots)?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        files.sort();
        Ok(files)
    };
    running.until("three were written", || {
        Ok((files()?.len() == 3).then_some(()))
    })?;
    stage.target.ask("quick 5", "quick")?;
    kill(Pid::from_raw(stage.target.pid()), Signal::SIGKILL)?;
    let reported = Told::ok(running)?;
    ensure!(reported.all("fired").len() == 3, "{reported:?}");
    // The next firing or the end reports the matches beyond the limit.
    let skipped: u64 = reported
        .0
        .iter()
        .filter_map(|reported| reported["skipped"].as_u64())
        .sum();
    ensure!(skipped == 12, "{skipped} in {reported:?}");
    reported.over("ended")?;
    for (file, number) in files()?.iter().zip(1..) {
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        ensure!(
            name.starts_with(&format!("{number}-20")) && name.ends_with("Z.xtrace"),
            "{name}"
        );
        ensure!(!calls_of(&read(file)?, "quick")?.is_empty());
    }
    Ok(())
}

/// After the time of its limit is over, the trigger fires again.
#[test]
fn a_limit_for_a_time_is_over_after_it() -> Result<()> {
    let mut stage = Stage::new("0")?;
    let arguments = [
        "--when",
        "call(quick)",
        "--do",
        "exec true",
        "--limit",
        "1/200ms",
    ];
    let mut running = stage.trigger(&arguments)?;
    let begun = now_monotonic()?;
    let mut calls = 0;
    running.until("its time was over a few times", || {
        stage.target.ask("quick 1", "quick")?;
        calls += 1;
        Ok((now_monotonic()? > begun + 700_000_000).then_some(()))
    })?;
    kill(Pid::from_raw(stage.target.pid()), Signal::SIGKILL)?;
    let reported = Told::ok(running)?;
    let fired = reported.all("fired");
    let times = fired
        .iter()
        .filter_map(|fired| fired["monotonic_ns"].as_u64());
    let times: Vec<u64> = times.collect();
    ensure!(
        times.len() >= 2 && calls > times.len(),
        "{calls}: {reported:?}"
    );
    for pair in times.windows(2) {
        // The time counts from the moment at which the match was noticed, which takes a moment.
        ensure!(pair[1] - pair[0] >= 150_000_000, "{times:?}");
    }
    Ok(())
}

/// A trigger whose time is up reports that, has an exit code for that, and leaves no empty file and
/// no directory.
#[test]
fn a_trigger_expires() -> Result<()> {
    let stage = Stage::new("0")?;
    for limit in ["1", "2"] {
        let arguments = ["--when", "call(slow)", "--expire", "300ms", "-o", "x"];
        let arguments = [&["trigger", "--json"], &arguments[..], &["--limit", limit]];
        let running = stage.cli.start(arguments.concat())?;
        let (code, reported) = Told::of(running)?;
        ensure!(code == Some(3), "{code:?}");
        reported.over("expired")?;
        ensure!(!stage.path("x").exists(), "with limit {limit}");
        stage.ensure_nothing_left()?;
    }
    Ok(())
}

/// For a request to end and for a kill.
#[test]
fn nothing_is_left_of_a_trigger_that_ends() -> Result<()> {
    let stage = Stage::new("1")?;
    let before = ProcessState::of(stage.target.pid())?;
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let running =
            stage.trigger(&["--when", "duration(*) > 10s", "-o", "x.xtrace", "--force"])?;
        ensure!(sleds_on(&stage.target)? > 0);
        running.signal(signal)?;
        let ran = running.wait()?;
        ensure!(
            (ran.code == Some(0)) == (signal != Signal::SIGKILL),
            "{ran:?}"
        );
        stage.ensure_nothing_left()?;
        if signal != Signal::SIGKILL {
            ensure!(!stage.path("x.xtrace").exists());
        }
    }
    ensure!(ProcessState::of(stage.target.pid())?.descriptors == before.descriptors);
    stage.cli.ok(["detach", &stage.pid])?;
    ensure_as_compiled(&stage.target)
}

/// Only an end by a signal fires. The snapshot reaches up to the last event.
#[test]
fn a_death_fires_and_an_end_does_not() -> Result<()> {
    for (command, condition, signal) in [
        (None, "death", Some(9)),
        (Some("segv"), "death", Some(11)),
        (Some("abort"), "death(SIGABRT)", Some(6)),
        (Some("segv"), "death(any)", Some(11)),
        (Some("exit 3"), "death(any)", None),
        (Some("exit 3"), "death", None),
        (Some("quit"), "death", None),
        (Some("segv"), "death(SIGKILL)", Some(11)),
    ] {
        let what = || format!("{command:?} {condition}");
        let mut stage = Stage::new("1")?;
        stage.cli.ok(["enable", "--all"])?;
        let running = stage.trigger(&["--when", condition, "-o", "end.xtrace"])?;
        stage.target.ask("quick 3", "quick")?;
        match command {
            Some(command) => stage.target.send(command)?,
            None => kill(Pid::from_raw(stage.target.pid()), Signal::SIGKILL)?,
        }
        stage.target.wait(DEADLINE)?;
        let (code, reported) = Told::of(running).with_context(what)?;
        let ended = reported.one("ended").with_context(what)?;
        ensure!(ended["pid"] == stage.target.pid(), "{ended}");
        ensure!(ended["signal"].as_i64() == signal, "{}: {ended}", what());
        let expected = condition == "death(any)"
            || condition == "death" && signal.is_some()
            || condition == "death(SIGABRT)";
        ensure!((code == Some(0)) == expected, "{}: {reported:?}", what());
        if !expected {
            ensure!(
                code == Some(3) && reported.all("fired").is_empty(),
                "{reported:?}"
            );
            reported.over("ended")?;
            ensure!(!stage.path("end.xtrace").exists());
            continue;
        }
        reported.one("fired")?;
        let trace = read(&stage.path("end.xtrace"))?;
        ensure!(calls_of(&trace, "quick")?.len() == 3, "{}", what());
        ensure!(!calls_of(&trace, "tick")?.is_empty(), "{}", what());
        // The last events are the ones before the end of the process, however long ago that was.
        let last = ["snapshot", "--pid", &stage.pid, "--last", "1us", "-o", "l"];
        let taken = stage.cli.json(last)?;
        let file = &rows(&taken, "files")?[0];
        ensure!(file["events"].as_u64() > Some(0), "{}: {file}", what());
    }
    Ok(())
}

/// Two independent programs, up to the same moment.
#[test]
fn all_processes_are_shown_at_the_same_moment() -> Result<()> {
    let mut stage = Stage::new("1")?;
    let other = Target::spawn(Fixture::Triggers, ["--threads", "1"])?;
    stage.cli.ok(["attach", &other.pid().to_string()])?;
    // The functions are on in both programs. At first, neither program's rings are read.
    stage.cli.ok(["enable", "--function", "tick"])?;
    let both = [stage.target.pid(), other.pid()].map(i64::from);
    let ensure_both = |path: &Path, moment: Option<u64>| -> Result<()> {
        let spans = spans(path)?;
        let mut pids: Vec<i64> = spans.iter().map(|(pid, ..)| i64::from(*pid)).collect();
        pids.sort_unstable();
        let mut expected = both;
        expected.sort_unstable();
        ensure!(pids == expected, "{spans:?}");
        let [(_, begin, end), (_, other_begin, other_end)] = spans[..] else {
            anyhow::bail!("{spans:?}");
        };
        ensure!(
            begin < other_end && other_begin < end,
            "they overlap: {spans:?}"
        );
        // Both are busy all the time. Other programs use the machine, too.
        ensure!(
            end.abs_diff(other_end) < 100_000_000,
            "they end together: {spans:?}"
        );
        if let Some(moment) = moment {
            ensure!(end <= moment && other_end <= moment, "{moment}: {spans:?}");
        }
        Ok(())
    };
    let taken = stage
        .cli
        .json(["snapshot", "--all-processes", "-o", "all.xtrace"])?;
    let file = &rows(&taken, "files")?[0];
    ensure!(file["processes"] == 2 && file["pid"] == 0, "{file}");
    ensure!(file["copied_within_ns"].as_u64() > Some(0), "{file}");
    ensure_both(&stage.path("all.xtrace"), None)?;
    let answer = stage.cli.ok([
        "snapshot",
        "--all-processes",
        "--last",
        "20ms",
        "-o",
        "last.xtrace",
    ])?;
    ensure!(
        answer.contains("of 2 processes, copied within "),
        "{answer}"
    );
    for (_, begin, end) in spans(&stage.path("last.xtrace"))? {
        // A snapshot of rings that are not read also begins at its time.
        ensure!(end - begin <= 21_000_000, "{begin} {end}");
    }

    let when = [
        "--pid",
        &stage.pid,
        "--when",
        "call(quick)",
        "--after",
        "30ms",
    ];
    let shot = ["--all-processes", "-o", "both.xtrace"];
    let running = stage.trigger(&[&when[..], &shot].concat())?;
    stage.target.ask("quick 1", "quick")?;
    let reported = Told::ok(running)?;
    let at = reported.one("fired")?["monotonic_ns"]
        .as_u64()
        .context("no time")?;
    ensure_both(&stage.path("both.xtrace"), Some(at + 31_000_000))?;
    let trace = read(&stage.path("both.xtrace"))?;
    ensure!(calls_of(&trace, "quick")?.len() == 1);
    ensure!(!calls_of(&trace, "tick")?.is_empty());
    Ok(())
}

/// The daemon enables and disables functions for good. Commands run on the client's side, when the
/// snapshot is complete.
#[test]
fn actions_are_done_in_their_order() -> Result<()> {
    let mut stage = Stage::new("1")?;
    let command = r#"exec echo "$XRAY_NUMBER $XRAY_WHEN $XRAY_PID $XRAY_FUNCTION $XRAY_FILE" > told; test -s "$XRAY_FILE""#;
    let actions = [
        "--do",
        command,
        "--do",
        "snapshot",
        "--do",
        "enable t?ck",
        "--do",
        "disable slow",
    ];
    let when = [
        "--when",
        "call(quick)",
        "-o",
        "shot.xtrace",
        "--after",
        "50ms",
    ];
    stage.cli.ok(["enable", "--function", "slow"])?;
    let running = stage.trigger(&[&when[..], &actions].concat())?;
    stage.target.ask("quick 1", "quick")?;
    let reported = Told::ok(running)?;
    let order: Vec<&str> = reported
        .0
        .iter()
        .filter_map(|reported| reported["event"].as_str())
        .collect();
    ensure!(
        order
            == [
                "armed", "fired", "switched", "switched", "snapshot", "command", "over"
            ],
        "{reported:?}"
    );
    for (switched, action) in reported
        .all("switched")
        .iter()
        .zip(["enable t?ck", "disable slow"])
    {
        let its = switched["action"] == action && switched["changed"] == 1;
        ensure!(its && switched["pid"] == stage.target.pid(), "{switched}");
    }
    ensure!(
        reported.one("command")?["ended"] == "exit status: 0",
        "{reported:?}"
    );
    let expected = format!("1 call(quick) {} quick shot.xtrace\n", stage.pid);
    ensure!(fs::read_to_string(stage.path("told"))? == expected);
    // The function was on when the snapshot ended.
    ensure!(!calls_of(&read(&stage.path("shot.xtrace"))?, "tick")?.is_empty());
    let functions = stage.cli.json(["functions", "--pid", &stage.pid])?;
    for row in rows(&functions, "functions")? {
        ensure!((row["enabled"] == true) == (row["name"] == "tick"), "{row}");
    }
    Ok(())
}

/// A signal to the command fires it. Processes in flight mode stay in that mode.
#[test]
fn it_fires_on_demand() -> Result<()> {
    let mut stage = Stage::new("1")?;
    stage.cli.ok(["enable", "--function", "tick"])?;
    let running = stage.trigger(&["--when", "demand", "-o", "now.xtrace"])?;
    stage.target.ask("quick 1", "quick")?;
    running.signal(Signal::SIGUSR1)?;
    let reported = Told::ok(running)?;
    let fired = reported.one("fired")?;
    ensure!(
        fired["condition"].is_null() && fired["pid"].is_null(),
        "{fired}"
    );
    ensure!(!calls_of(&read(&stage.path("now.xtrace"))?, "tick")?.is_empty());
    Ok(())
}

/// A followed process is watched as soon as it is found.
#[test]
fn a_later_process_is_watched_too() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let first = Target::spawn(Fixture::Triggers, ["--threads", "0"])?;
    cli.ok(["attach", &first.pid().to_string()])?;
    let arguments = [
        "trigger",
        "--json",
        "--when",
        "call(quick)",
        "--do",
        "exec true",
    ];
    let mut running = cli.start(arguments)?;
    let armed = |pid: i32| -> Result<Option<()>> {
        let status = cli.json(["status"])?;
        let row = row_of(&status, pid)?;
        Ok(row.is_some_and(|row| row["triggers"] == 1).then_some(()))
    };
    running.until("it is armed", || armed(first.pid()))?;
    let mut second = Target::spawn(Fixture::Triggers, ["--threads", "0"])?;
    cli.ok(["attach", &second.pid().to_string()])?;
    running.until("it is armed there, too", || armed(second.pid()))?;
    second.ask("quick 1", "quick")?;
    let reported = Told::ok(running)?;
    ensure!(
        reported.one("fired")?["pid"] == second.pid(),
        "{reported:?}"
    );
    Ok(())
}

/// Errors are found before the wait begins.
#[test]
fn contradictory_conditions_are_refused_at_once() -> Result<()> {
    let stage = Stage::new("0")?;
    for (arguments, code, expected) in [
        (
            vec!["--when", "duration(slow) < 1s", "-o", "x"],
            2,
            "column 16: expected > or >=",
        ),
        (
            vec!["--when", "duration(slow) > 10", "-o", "x"],
            2,
            "column 18: expected a unit behind the number: write `> 10ms`",
        ),
        (vec!["--when", "call(slow)"], 2, "a snapshot needs --output"),
        (
            vec!["--when", "call(slow)", "--do", "exec true", "-o", "x"],
            2,
            "is for snapshots",
        ),
        (
            vec!["--when", "call(nothing)", "-o", "x"],
            3,
            "call(nothing): nothing matched",
        ),
        (vec!["--when", "death", "-o", "no/such/x"], 1, "no/such/x"),
        (
            vec!["--when", "death", "--after", "61s", "-o", "x"],
            4,
            "at most 60s",
        ),
        (
            vec!["--when", "death", "--pid", "1", "-o", "x"],
            4,
            "not attached",
        ),
    ] {
        let ran = stage.cli.run([&["trigger"][..], &arguments].concat())?;
        ensure!(
            ran.code == Some(code) && ran.err.contains(expected),
            "{arguments:?}: {ran:?}"
        );
        ensure!(!stage.path("x").exists());
    }
    ensure!(stage.armed()? == 0);
    stage.cli.ok(["detach", "--all"])?;
    let ran = stage.cli.run(["trigger", "--when", "death", "-o", "x"])?;
    ran.failed(3, &["no process is attached"])?;
    let ran = stage.cli.run(["snapshot", "--all-processes", "-o", "x"])?;
    ran.failed(3, &["no process is attached"])
}

/// The daemon does not wait for a client that stands still. The process goes on, and its calls are
/// counted.
#[test]
fn a_client_that_does_not_read_holds_nothing_up() -> Result<()> {
    let mut stage = Stage::new("1")?;
    stage.cli.ok(["enable", "--function", "tick"])?;
    let arguments = [
        "--when",
        "call(quick)",
        "--limit",
        "1000",
        "--after",
        "0s",
        "-o",
        "many",
    ];
    let running = stage.trigger(&arguments)?;
    running.stand_still()?;
    stage.target.ask("quick 3000", "quick")?;
    stage.target.ask("quick 3000", "quick")?;
    ensure!(stage.armed()? == 1);
    running.signal(Signal::SIGKILL)?;
    wait_until(DEADLINE, "the trigger has let go", || {
        Ok((stage.armed()? == 0).then_some(()))
    })?;
    stage.target.still_running()
}

/// Functions of a library count as soon as it is loaded.
#[test]
fn libraries_that_come_later_count() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    cli.ok(["attach", &target.pid().to_string()])?;
    let when = ["trigger", "--json", "--when", "call(plugin_a_call)"];
    let what = ["--do", "exec true"];
    cli.run([&when[..], &what].concat())?
        .failed(3, &["call(plugin_a_call)", "nothing matched"])?;
    let mut running = cli.start([&when[..], &what, &["--pending"]].concat())?;
    running.until("it is armed", || {
        let status = cli.json(["status"])?;
        let row = row_of(&status, target.pid())?.context("no row")?;
        Ok((row["triggers"] == 1).then_some(()))
    })?;
    target.ask("load 0 plugin_b.so", "loaded")?;
    target.ask("call 0 10", "done")?;
    target.ask("load 1 plugin_a.so", "loaded")?;
    wait_until(DEADLINE, "it has fired", || {
        target.ask("call 1 1", "done")?;
        let status = cli.json(["status"])?;
        let row = row_of(&status, target.pid())?.context("no row")?;
        Ok((row["triggers"] == 0).then_some(()))
    })?;
    let reported = Told::ok(running)?;
    ensure!(
        reported.one("fired")?["function"] == "plugin_a_call",
        "{reported:?}"
    );
    Ok(())
}

/// A process that is detached while a trigger is armed in it is as compiled, and the trigger ends.
#[test]
fn a_detach_ends_it() -> Result<()> {
    let stage = Stage::new("1")?;
    let running = stage.trigger(&["--when", "duration(*) > 10s", "-o", "x"])?;
    stage.cli.ok(["detach", &stage.pid])?;
    let (code, reported) = Told::of(running)?;
    ensure!(code == Some(3), "{reported:?}");
    reported.over("ended")?;
    ensure!(
        reported.all("ended").is_empty(),
        "nobody has died: {reported:?}"
    );
    ensure_as_compiled(&stage.target)
}

/// A user gets no events of other users' processes, and does not learn that they exist.
#[test]
fn a_user_waits_for_what_is_the_users_own() -> Result<()> {
    let scene = Scene::public()?;
    let daemon = scene.daemon()?;
    let (root, user) = (scene.with(&daemon)?, scene.with(&daemon)?.as_user(NOBODY));
    let mut target = Target::spawn(Fixture::Triggers, ["--threads", "0"])?;
    let pid = target.pid().to_string();
    root.ok(["attach", &pid])?;
    let when = ["trigger", "--when", "call(quick)", "--do", "exec true"];
    user.run([&when[..], &["--pid", &pid]].concat())?
        .refused("permission")?;
    user.run(when)?.failed(3, &["no process is attached"])?;
    user.run(["snapshot", "--all-processes", "-o", "/dev/null"])?
        .failed(3, &["no process is attached"])?;
    target.ask("quick 1", "quick")?;
    let status = root.json(["status"])?;
    let row = row_of(&status, target.pid())?.context("no row")?;
    ensure!(row["triggers"] == 0 && row["functions_on"] == 0, "{row}");
    Ok(())
}

/// All losses are counted while the rings are read. Events from before a snapshot are no losses in
/// it.
#[test]
fn lost_firings_are_counted_and_finished_firings_are_not_lost() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "30000"])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid, "--ring-size", "64KiB"])?;
    cli.ok(["enable", "--all"])?;
    let row = || -> Result<Value> {
        let status = cli.json(["status"])?;
        Ok(row_of(&status, target.pid())?.context("no row")?.clone())
    };
    let arguments = ["trigger", "--when", "duration(*) > 1h", "-o"];
    let mut running = cli.start([&arguments[..], &["x"]].concat())?;
    running.until(
        "it is armed",
        || Ok((row()?["triggers"] == 1).then_some(())),
    )?;
    target.send("go")?;
    let result = target.line_with("result ", DEADLINE)?;
    let truth = GroundTruth::parse(&result)?;
    let row = || -> Result<Value> {
        let status = cli.json(["status"])?;
        Ok(row_of(&status, target.pid())?.context("no row")?.clone())
    };
    wait_until(DEADLINE, "everything was read or is counted", || {
        let row = row()?;
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let all = number("events") + number("lost");
        ensure!(all <= truth.events(), "{row}");
        Ok((all == truth.events()).then_some(()))
    })?;
    running.signal(Signal::SIGINT)?;
    ensure!(running.wait()?.code == Some(0));
    wait_until(DEADLINE, "what was read has gone", || {
        Ok((row()?["retained_events"] == 0).then_some(()))
    })?;
    // All events were dropped, and were before the snapshot's time.
    let taken = |last: &[&str], file: &str| -> Result<Value> {
        let arguments = [&["snapshot", "-o", file], last].concat();
        let taken = cli.json(arguments)?;
        Ok(rows(&taken, "files")?[0].clone())
    };
    let all = taken(&[], "all.xtrace")?;
    ensure!(
        all["overwritten"]["events"].as_u64() > Some(0) && all["lost"] == 0 && all["events"] == 0,
        "{all}"
    );
    let last = taken(&["--last", "1ms"], "last.xtrace")?;
    ensure!(last["lost"] == 0, "{last}");
    Ok(())
}

/// A child is watched like its parent, from its begin.
#[test]
fn children_are_watched_too() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid, "--follow", "fork"])?;
    let arguments = ["trigger", "--json", "--pid", &pid, "--limit", "2/1h"];
    let what = ["--when", "call(work)", "--do", "exec true"];
    let mut running = cli.start([&arguments[..], &what].concat())?;
    let armed = |pid: i32| -> Result<Option<()>> {
        let status = cli.json(["status"])?;
        let row = row_of(&status, pid)?;
        Ok(row.is_some_and(|row| row["triggers"] == 1).then_some(()))
    };
    running.until("it is armed", || armed(target.pid()))?;
    let child = target.ask("child", "child ")?;
    let child: i32 = child.trim_start_matches("child ").parse()?;
    running.until("it is armed in the child", || armed(child))?;
    kill(Pid::from_raw(child), Signal::SIGUSR1)?;
    target.line_with("tally ", DEADLINE)?;
    target.kill()?;
    let reported = Told::ok(running)?;
    let fired = reported.all("fired");
    ensure!(fired.len() == 2, "{reported:?}");
    ensure!(
        fired.iter().all(|fired| fired["pid"] == child),
        "{reported:?}"
    );
    // Both have ended: the first was killed, and its children end with it.
    ensure!(reported.all("ended").len() == 2, "{reported:?}");
    Ok(())
}
