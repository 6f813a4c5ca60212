//! Events that fire a trigger, and events that do not.

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Call, Stage, Told, calls_of, now_monotonic, times};
use crate::scene::{ensure_as_compiled, rows};
use crate::trace::read;

/// The trigger fires once. The snapshot has the whole call, and the calls of other threads before
/// it, at the same time, and a little later.
#[test]
fn a_slow_call_is_whole_in_the_snapshot() -> Result<()> {
    a_slow_call_fires("flight")
}

/// The same where the program adds calls up. It goes on with that, and notes the long ones.
#[test]
fn a_slow_call_is_whole_in_the_snapshot_in_mode_profile() -> Result<()> {
    a_slow_call_fires("profile")
}

fn a_slow_call_fires(mode: &str) -> Result<()> {
    let mut stage = Stage::new("2")?;
    stage.cli.ok(["mode", mode])?;
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

/// A call that waits has no time on the processor, and a call that works has.
#[test]
fn conditions_about_the_processor_separate_work_from_waiting() -> Result<()> {
    let mut stage = Stage::new("1")?;
    for (condition, other, its, key) in [
        ("on_cpu(*) >= 50ms", "slow 200", "mixed 60", "on_cpu_ns"),
        ("off_cpu(*) > 50ms", "quick 9", "mixed 60", "off_cpu_ns"),
    ] {
        let limits = ["--do", "exec true", "--expire", "100s"];
        let running = stage.trigger(&[&["--when", condition], &limits[..]].concat())?;
        let (word, _) = other.split_once(' ').context("no word")?;
        stage.target.ask(other, word)?;
        let (function, _) = its.split_once(' ').context("no word")?;
        let mut took = Vec::new();
        // Under load, the kernel may lose switches. Such calls are counted, and do not fire.
        while stage.armed()? > 0 {
            let (begin, end) = times(&stage.target.ask(its, function)?)?;
            took.push(end - begin);
            wait_a_moment();
        }
        let reported = Told::ok(running)?;
        let armed = reported.one("armed")?;
        ensure!(armed["threads_without_run_times"] == 0, "{armed}");
        let fired = reported.one("fired")?;
        ensure!(fired["function"] == function, "{fired}");
        let ns = fired[key].as_u64();
        let ns = ns.with_context(|| format!("no {key}: {fired}"))?;
        // The clock of events is right within microseconds. A sleep begins shortly before the
        // thread gives up its processor. Half of the call is work, and half is sleep.
        const RIGHT: u64 = 1_000_000;
        let most = took.into_iter().max().context("no call")?;
        let expected = 60_000_000 - RIGHT..=most - 60_000_000 + RIGHT;
        ensure!(expected.contains(&ns), "{fired}, {expected:?}");
        stage.ensure_nothing_left()?;
    }
    stage.target.still_running()
}

/// A call that began before its thread was observed is counted, and does not fire.
#[test]
fn a_call_of_unknown_time_on_the_processor_is_counted() -> Result<()> {
    let mut stage = Stage::new("0")?;
    stage.cli.ok(["enable", "--function", "hold"])?;
    stage.target.ask("hold", "held")?;
    let limits = ["--do", "exec true", "--expire", "100s"];
    let running = stage.trigger(&[&["--when", "off_cpu(hold) >= 20ms"], &limits[..]].concat())?;
    wait_a_moment();
    stage.target.ask("go", "let go")?;
    while stage.armed()? > 0 {
        stage.target.ask("hold", "held")?;
        wait_a_moment();
        stage.target.ask("go", "let go")?;
        wait_a_moment();
    }
    let reported = Told::ok(running)?;
    let fired = reported.one("fired")?;
    let mut unjudged = 0;
    for report in reported.all("unjudged").into_iter().chain([fired]) {
        unjudged += report["unjudged"].as_u64().context("no number")?;
    }
    ensure!(unjudged >= 1, "{reported:?}");
    let ns = fired["off_cpu_ns"].as_u64().context("no time")?;
    ensure!(ns >= 20_000_000, "{fired}");
    Ok(())
}

/// Waits for a moment, in which the daemon can judge a call.
fn wait_a_moment() {
    std::thread::sleep(std::time::Duration::from_millis(100));
}

/// Lets the program do other things first, and then the one that the condition fires for, in this
/// function. The condition has further options of the command.
fn ensure_fires_for(
    stage: &mut Stage,
    (condition, options): (&str, &[&str]),
    others: &[&str],
    (its, function): (&str, &str),
) -> Result<()> {
    let answer = |line: &str| {
        let word = line.split(' ').next().unwrap_or_default();
        word.replace("say", "said")
    };
    let arguments = ["--when", condition, "--do", "exec true"];
    let running = stage.trigger(&[&arguments[..], options].concat())?;
    for other in others {
        stage.target.ask(other, &answer(other))?;
    }
    // Longer than the inaccuracy of the time that is compared below.
    wait_a_moment();
    let before = now_monotonic()?;
    stage.target.ask(its, &answer(its))?;
    let reported = Told::ok(running)?;
    let fired = reported.one("fired")?;
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
    stage.ensure_nothing_left()
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
        ensure_fires_for(&mut stage, (condition, &[]), &others, (its, function))
            .context(condition)?;
    }
    stage.target.still_running()
}

/// A condition on a field fires for events whose data meets it, also for the first event of a type
/// whose name the daemon has not found yet.
#[test]
fn a_condition_on_a_field_fires_for_data_that_meets_it() -> Result<()> {
    let mut stage = Stage::new("1")?;
    // The data is the text: `d` is 100, and `e` is 101.
    for (condition, format, others, its) in [
        (
            "event(order).price > 100",
            "order=price:u8",
            vec!["say", "say order d", "say 7 e", "say trade e"],
            "say order e",
        ),
        // The first event of its type.
        (
            "event(offer).price > 100",
            "offer=pad1,price:u8",
            vec!["say trade ee"],
            "say offer de",
        ),
        (
            "event(request).symbol == \"AB\"",
            "request=symbol:str2",
            vec!["say request A", "say request AC", "say reply AB"],
            "say request ABC",
        ),
        (
            "event(7).key != \"0x61\"",
            "7=key:bytes1",
            vec!["say 7 a", "say 8 b"],
            "say 7 b",
        ),
    ] {
        let condition = (condition, &["--event-format", format][..]);
        ensure_fires_for(&mut stage, condition, &others, (its, "say_typed"))
            .context(condition.0)?;
    }
    stage.target.still_running()
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
