//! Limits on what tracing costs: suppressed functions, and duty cycles.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use xray_trace::model::{CallKind, EventBody, Suppression, Ticks, Trace};
use xrayd::{
    Reason,
    process::{AttachOptions, Session},
    types::{
        Budget, CallFilter, Duty, Filter, FunctionRow, Mode, Overhead, Settings, SettingsUpdate,
        Switch,
    },
};

use crate::support::{attach_with, detach, registry, retained, switch, write_snapshot};

const BUDGET: Budget = Budget::overhead(20_000);

fn options(mode: Mode, budget: Budget) -> AttachOptions {
    AttachOptions {
        mode,
        budget,
        ..AttachOptions::default()
    }
}

/// Numbers of calls of the functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Calls {
    tiny: u64,
    requests: u64,
    steps: u64,
    brief: u64,
}

/// The numbers by the program's own count.
fn truth(target: &mut Target) -> Result<Calls> {
    let line = target.ask("count", "calls ")?;
    let mut numbers = line.split(' ').skip(1).map(str::parse);
    let mut next = || anyhow::Ok(numbers.next().context("a number is missing")??);
    Ok(Calls {
        tiny: next()?,
        requests: next()?,
        steps: next()?,
        brief: next()?,
    })
}

fn row(session: &Session, name: &str) -> Result<FunctionRow> {
    let rows = session.functions(None)?.into_iter();
    let mut rows = rows.filter(|row| row.name.starts_with(name));
    rows.next().context("no such function")
}

/// The recorded numbers so far, while events are still being read.
fn recorded(session: &Session) -> Result<Calls> {
    let calls = |name| anyhow::Ok(row(session, name)?.calls);
    Ok(Calls {
        tiny: calls("tiny")?,
        requests: calls("request")?,
        steps: calls("step")?,
        brief: calls("brief")?,
    })
}

/// The recorded numbers when all events are read. The program stands still.
fn settled(session: &Session) -> Result<Calls> {
    // A snapshot has all events that were recorded before it.
    write_snapshot(session, &mut std::io::sink())?;
    recorded(session)
}

fn is_suppressed(session: &Session, name: &str) -> bool {
    let top = session.status().budget.top;
    let mut named = top.iter().filter(|row| row.name.starts_with(name));
    named.any(|row| row.suppressed)
}

fn until_suppressed(session: &Session, name: &str, wanted: bool) -> Result<()> {
    let what = format!("{name} is suppressed: {wanted}");
    wait_until(DEADLINE, &what, || {
        Ok((is_suppressed(session, name) == wanted).then_some(()))
    })
}

/// Lets a standing program serve some requests and stand still again. Returns the calls of that
/// time.
fn serve(target: &mut Target) -> Result<Calls> {
    let before = truth(target)?;
    target.ask("go", "go")?;
    wait_until(DEADLINE, "some requests", || {
        Ok((truth(target)?.requests > before.requests + 20).then_some(()))
    })?;
    target.ask("stop", "stop")?;
    Ok(minus(truth(target)?, before))
}

/// The same. Each of these calls is recorded.
fn ensure_exact(session: &Session, target: &mut Target) -> Result<()> {
    let seen = settled(session)?;
    let called = serve(target)?;
    wait_until(DEADLINE, "all calls are read", || {
        let seen = minus(settled(session)?, seen);
        Ok((seen == called).then_some(()))
    })
}

fn minus(later: Calls, earlier: Calls) -> Calls {
    Calls {
        tiny: later.tiny - earlier.tiny,
        requests: later.requests - earlier.requests,
        steps: later.steps - earlier.steps,
        brief: later.brief - earlier.brief,
    }
}

/// A function that is called too often is suppressed, and no other one. It is resumed when it is
/// called less often. The reports have all of that.
#[test]
fn a_budget_holds_while_the_load_changes() -> Result<()> {
    for (mode, threads) in [
        (Mode::Stream, "1"),
        (Mode::Flight, "1"),
        (Mode::Stream, "3"),
        (Mode::Profile, "1"),
        (Mode::Profile, "3"),
    ] {
        let mut target = Target::spawn(Fixture::Budget, ["--threads", threads])?;
        let registry = registry();
        let options = match mode {
            // Room for the events that `tiny` records in a try that ends in time.
            Mode::Stream => AttachOptions {
                ring_bytes: 64 << 20,
                max_threads: 16,
                ..options(mode, BUDGET)
            },
            // Calls are added up in the program, so nothing is lost, however small the rings are.
            Mode::Profile => AttachOptions {
                ring_bytes: 64 << 10,
                ..options(mode, BUDGET)
            },
            _ => options(mode, BUDGET),
        };
        let session = attach_with(&registry, &target, options)?.session;
        ensure!(session.settings().budget == BUDGET);
        switch(&session, Switch::On)?;
        target.ask("go", "go")?;
        for _ in 0..2 {
            until_suppressed(&session, "tiny", true)?;
            // It stays suppressed, except for short tries.
            target.ask("stop", "stop")?;
            let (before, seen) = (truth(&mut target)?, settled(&session)?);
            let lost = session.status().lost;
            target.ask("go", "go")?;
            wait_until(DEADLINE, "some hundred requests", || {
                let now = truth(&mut target)?;
                Ok((now.requests > before.requests + 300).then_some(()))
            })?;
            target.ask("stop", "stop")?;
            if mode != Mode::Flight {
                let called = minus(truth(&mut target)?, before);
                let seen = minus(settled(&session)?, seen);
                // Of 5000 calls in half a millisecond, the budget has room for a few hundred.
                ensure!(seen.tiny < called.tiny / 5, "{seen:?} of {called:?}");
                // During a try, even rings of this size may be too small for `tiny`, and other
                // functions lose events. The less processor time is left for the drain, the
                // more events are lost. Lost events are counted. Without a loss, each call is
                // there.
                let lost = session.status().lost - lost;
                ensure!(mode != Mode::Profile || lost == 0, "{lost} lost");
                for (seen, called) in [(seen.steps, called.steps), (seen.requests, called.requests)]
                {
                    ensure!(
                        seen > 0 && seen <= called && seen + lost >= called,
                        "{seen} of {called}, and {lost} lost"
                    );
                }
            }
            target.ask("go", "go")?;
            ensure!(!is_suppressed(&session, "step") && !is_suppressed(&session, "request"));
            let status = session.status();
            ensure!(status.budget.unrecorded > 0, "{status:?}");
            ensure!(status.functions_on == status.functions, "{status:?}");
            ensure!(row(&session, "tiny")?.enabled);
            target.ask("calm", "calm")?;
            until_suppressed(&session, "tiny", false)?;
            if mode != Mode::Flight {
                // From now on, each call is recorded again.
                target.ask("stop", "stop")?;
                ensure_exact(&session, &mut target)?;
                target.ask("go", "go")?;
            }
            target.ask("hot", "hot")?;
        }
        until_suppressed(&session, "tiny", true)?;
        let trace = retained(&session)?;
        ensure_estimated(&session, &truth(&mut target)?)?;
        if mode != Mode::Profile {
            ensure_reported(&session, &trace)?;
        }
        if mode == Mode::Stream {
            ensure_whole(&trace)?;
        }
        detach(&registry, &target)?;
        target.still_running()?;
    }
    Ok(())
}

/// Checks that no request, no step and no part of one is missing between losses: each request has
/// its four steps, one after the other.
fn ensure_whole(trace: &Trace) -> Result<()> {
    let mut request = vec![("request", true)];
    request.extend([("step", true), ("step", false)].repeat(4));
    request.push(("request", false));
    let mut whole = 0;
    for (thread, blocks) in trace.blocks_by_thread() {
        // A request that was open when the trace begins, or during a loss, lacks events. This is
        // the place of the next event in a request; `None` up to the end of such a request.
        let mut next: Option<usize> = None;
        for event in blocks.iter().flat_map(|block| block.events()) {
            let (function, kind) = match event?.body {
                EventBody::Call { function, kind, .. } => (function, kind),
                EventBody::Lost { .. } => {
                    next = None;
                    continue;
                }
                _ => continue,
            };
            let name = trace.function_name(function).to_string();
            let Some(name) = ["request", "step"].iter().find(|it| name.starts_with(**it)) else {
                continue;
            };
            let now = (*name, kind == CallKind::Enter);
            let expected = next.and_then(|at| request.get(at));
            ensure!(
                expected.is_none_or(|expected| *expected == now),
                "{thread:?}: {now:?} instead of {expected:?}"
            );
            whole += u64::from(next.is_some() && now == ("request", false));
            next = match next {
                Some(at) => Some((at + 1) % request.len()),
                None => (now == ("request", false)).then_some(0),
            };
        }
    }
    ensure!(whole > 0, "no whole request");
    Ok(())
}

/// Checks that the trace has the times in which `tiny` was suppressed, and an estimate of its
/// unrecorded calls.
fn ensure_reported(session: &Session, trace: &Trace) -> Result<()> {
    let all = trace.coverage().suppressions.iter();
    let (tiny, others): (Vec<&Suppression>, Vec<&Suppression>) = all.partition(|rest| {
        trace
            .function_name(rest.function)
            .to_string()
            .starts_with("tiny")
    });
    ensure!(others.is_empty(), "{others:?}");
    ensure!(
        !tiny.is_empty() && tiny.iter().any(|rest| rest.until.is_none()),
        "{tiny:?}"
    );
    let of_trace: u64 = tiny.iter().map(|rest| rest.calls).sum();
    let estimated = session.status().budget.unrecorded;
    // The trace covers only the time that it has events of.
    ensure!(of_trace <= estimated, "{of_trace} of {estimated}");
    Ok(())
}

/// Checks that `status` estimates the unrecorded calls of `tiny`.
fn ensure_estimated(session: &Session, truth: &Calls) -> Result<()> {
    let status = session.status().budget;
    let estimated = status.unrecorded;
    // It takes some tries to find out that the program does something else now. Until then the
    // estimate uses the old load, so only the order of magnitude has to be right.
    ensure!(
        estimated > truth.tiny / 10 && estimated < truth.tiny * 10,
        "{estimated} of {truth:?}"
    );
    ensure!(
        status.overhead.is_some() && status.event_ns > 0.0,
        "{status:?}"
    );
    Ok(())
}

/// The estimated numbers of unrecorded calls of two functions, right after an update, and the
/// program's own counts.
fn just_estimated(session: &Session, target: &mut Target) -> Result<([u64; 2], Calls)> {
    let of = || {
        let top = session.status().budget.top;
        ["tiny", "brief"].map(|name| {
            let named = top.iter().find(|row| row.name.starts_with(name));
            named.map_or(0, |row| row.unrecorded)
        })
    };
    let before = of();
    let answer = wait_until(DEADLINE, "a look", || {
        let now = of();
        let both = now.iter().zip(before).all(|(now, before)| *now > before);
        Ok(both.then_some(now))
    })?;
    Ok((answer, truth(target)?))
}

/// At a steady load, the estimate comes within 15 % of the program's own count, for functions with
/// and without work of their own. The program's share of a processor does not matter, nor do its
/// sleeps. A window has about two tries, which other programs can disturb. So windows are added up:
/// what disturbs them evens out, and an error of the estimate does not.
#[test]
fn estimates_at_a_steady_load_are_right() -> Result<()> {
    const LEAST_WINDOWS: u32 = 2;
    const MOST_WINDOWS: u32 = 10;
    for (mode, threads, pause) in [
        (Mode::Stream, "1", "0"),
        (Mode::Flight, "2", "0"),
        (Mode::Stream, "3", "0"),
        (Mode::Flight, "1", "100"),
        (Mode::Profile, "2", "0"),
    ] {
        let arguments = ["--threads", threads, "--pause", pause];
        let mut target = Target::spawn(Fixture::Budget, arguments)?;
        let registry = registry();
        let session = attach_with(&registry, &target, options(mode, BUDGET))?.session;
        switch(&session, Switch::On)?;
        target.ask("warm", "warm")?;
        target.ask("go", "go")?;
        until_suppressed(&session, "tiny", true)?;
        until_suppressed(&session, "brief", true)?;
        // The first window serves to find out the load.
        a_window(&session, &mut target)?;
        let (mut tiny, mut brief) = ((0, 0), (0, 0));
        for window in 1.. {
            let [of_tiny, of_brief] = a_window(&session, &mut target)?;
            tiny = (tiny.0 + of_tiny.0, tiny.1 + of_tiny.1);
            brief = (brief.0 + of_brief.0, brief.1 + of_brief.1);
            let ratios = [tiny, brief].map(|(answer, missing)| answer as f64 / missing as f64);
            let is_right = ratios.iter().all(|ratio| (0.85..=1.15).contains(ratio));
            if is_right && window >= LEAST_WINDOWS {
                break;
            }
            ensure!(
                window < MOST_WINDOWS,
                "{mode:?}, {threads} threads, pause {pause}: tiny {tiny:?}, brief {brief:?}: {ratios:?}"
            );
        }
        detach(&registry, &target)?;
    }
    Ok(())
}

/// The calls of `tiny` and of `brief` that were not recorded within a thousand requests: the
/// estimate and the true number.
fn a_window(session: &Session, target: &mut Target) -> Result<[(u64, u64); 2]> {
    let counted = |session: &Session| match session.settings().mode {
        // The sums are read when somebody asks.
        Mode::Profile => settled(session),
        _ => recorded(session),
    };
    let (answer, called) = just_estimated(session, target)?;
    let seen = counted(session)?;
    for part in 1..=10 {
        wait_until(DEADLINE, "a hundred requests", || {
            let now = truth(target)?;
            Ok((now.requests > called.requests + part * 100).then_some(()))
        })?;
    }
    let (said_then, called_then) = just_estimated(session, target)?;
    let called = minus(called_then, called);
    let seen = minus(counted(session)?, seen);
    Ok([
        (said_then[0] - answer[0], called.tiny - seen.tiny),
        (said_then[1] - answer[1], called.brief - seen.brief),
    ])
}

/// A user switches suppressed functions off and on, and removes the budget.
#[test]
fn a_suppressed_function_is_switched_like_any_other() -> Result<()> {
    let mut target = Target::spawn(Fixture::Budget, [""; 0])?;
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Stream, BUDGET))?.session;
    switch(&session, Switch::On)?;
    target.ask("go", "go")?;
    until_suppressed(&session, "tiny", true)?;
    switch(&session, Switch::Off)?;
    ensure!(!is_suppressed(&session, "tiny") && session.status().functions_on == 0);
    switch(&session, Switch::On)?;
    until_suppressed(&session, "tiny", true)?;
    target.ask("stop", "stop")?;
    ensure!(session.update(Budget::None)?.budget == BUDGET);
    ensure!(!is_suppressed(&session, "tiny"));
    target.ask("calm", "calm")?;
    ensure_exact(&session, &mut target)?;
    detach(&registry, &target)?;
    Ok(())
}

/// The recorded events lie in the windows of the trace. The weight of each window makes up for the
/// time outside.
#[test]
fn a_duty_cycle_records_everything_for_a_while() -> Result<()> {
    for mode in [Mode::Stream, Mode::Flight] {
        let mut target = Target::spawn(Fixture::Budget, ["--threads", "2"])?;
        let registry = registry();
        let duty = Budget::Duty(Duty {
            on: Duration::from_millis(5),
            every: Duration::from_millis(50),
        });
        let session = attach_with(&registry, &target, options(mode, duty.clone()))?.session;
        switch(&session, Switch::On)?;
        target.ask("go", "go")?;
        wait_until(DEADLINE, "ten windows", || {
            Ok((session.status().budget.windows > 10).then_some(()))
        })?;
        target.ask("stop", "stop")?;
        let called = truth(&mut target)?;
        ensure!(session.update(Budget::None)?.budget == duty);
        let trace = retained(&session)?;
        let windows = &trace.coverage().duty;
        // The cycle may have ended while a window was open. Everything is recorded from the begin
        // of that window on.
        let last = windows.last().context("no window")?;
        let ended = Ticks(last.from.0 + last.stands_for);
        let in_one = |at| {
            let mut all = windows.iter();
            at >= ended || all.any(|window| (window.from..=window.until).contains(&at))
        };
        let (mut inside, mut outside) = (0, 0);
        for block in trace.blocks() {
            for event in block.events() {
                let event = event?;
                if let EventBody::Call { .. } = event.body {
                    match in_one(event.ticks) {
                        true => inside += 1,
                        false => outside += 1,
                    }
                }
            }
        }
        ensure!(inside > 0, "nothing was recorded");
        // A thread that is in a trampoline when recording ends still finishes its event.
        ensure!(
            outside <= 4 * windows.len(),
            "{outside} events are in no window, {inside} are"
        );
        if mode == Mode::Stream {
            let seen = recorded(&session)?;
            ensure!(
                seen.steps > 0 && seen.steps < called.steps / 2,
                "{seen:?} of {called:?}"
            );
            let weight = windows.iter().map(|window| {
                let length = window.until.0 - window.from.0;
                ensure!(window.stands_for > length, "{window:?}");
                Ok(window.stands_for as f64 / length as f64)
            });
            let weights = weight.collect::<Result<Vec<f64>>>()?;
            let mean = weights.iter().sum::<f64>() / weights.len() as f64;
            // Windows begin and end when the machine lets them.
            ensure!(mean > 1.0 && mean < 100.0, "{weights:?}");
        }
        // Without the duty cycle, all calls are recorded.
        target.ask("calm", "calm")?;
        match mode {
            Mode::Stream => ensure_exact(&session, &mut target)?,
            _ => drop(serve(&mut target)?),
        }
        // With the duty cycle again, a detach leaves nothing.
        session.update(duty)?;
        detach(&registry, &target)?;
        target.still_running()?;
    }
    Ok(())
}

/// A kept function costs more than the budget. It stays on, and others are suppressed for it.
#[test]
fn a_kept_function_is_never_suppressed() -> Result<()> {
    let mut target = Target::spawn(Fixture::Budget, ["--threads", "1"])?;
    let registry = registry();
    let keeping = Budget::Overhead(Overhead {
        ppm: 20_000,
        keep: vec!["ti?y".to_owned()],
    });
    let session = attach_with(&registry, &target, options(Mode::Flight, keeping.clone()))?.session;
    switch(&session, Switch::On)?;
    target.ask("go", "go")?;
    until_suppressed(&session, "step", true)?;
    ensure!(!is_suppressed(&session, "tiny"));
    // A budget that does not keep it suppresses it.
    ensure!(session.update(BUDGET)?.budget == keeping);
    until_suppressed(&session, "tiny", true)?;
    session.update(keeping.clone())?;
    ensure!(!is_suppressed(&session, "tiny"));
    until_suppressed(&session, "step", true)?;
    ensure!(!is_suppressed(&session, "tiny"));
    let invalid = Budget::Overhead(Overhead {
        ppm: 20_000,
        keep: vec!["a[".to_owned()],
    });
    let reason = session.update(invalid).map_err(|refusal| refusal.reason);
    ensure!(reason == Err(Reason::Selection), "{reason:?}");
    ensure!(session.settings().budget == keeping);
    detach(&registry, &target)?;
    target.still_running()
}

/// Settings that go together only as a whole are set by one change.
#[test]
fn settings_change_together_or_not_at_all() -> Result<()> {
    let mut target = Target::spawn(Fixture::Budget, [""; 0])?;
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Stream, BUDGET))?.session;
    let before = session.settings();
    let refused = session.update(SettingsUpdate {
        filter: Some(of_at_least(Duration::from_micros(10))),
        mode: Some(Mode::Flight),
        ..SettingsUpdate::default()
    });
    let reason = refused.map_err(|refusal| refusal.reason);
    ensure!(reason == Err(Reason::Mode), "{reason:?}");
    ensure!(session.settings() == before);
    // Counting and a budget exclude each other, in both directions.
    let counting = SettingsUpdate {
        mode: Some(Mode::Count),
        filter: Some(of_at_least(Duration::from_micros(10))),
        budget: Some(Budget::None),
    };
    ensure!(session.update(counting)? == before);
    let counting = session.settings();
    ensure!(counting.mode == Mode::Count && counting.budget == Budget::None);
    ensure!(session.update(before.clone())? == counting);
    ensure!(session.settings() == before);
    ensure!(session.update(SettingsUpdate::default())? == before);
    let default = session.update(Settings::default())?;
    ensure!(default == before && session.settings() == Settings::default());
    detach(&registry, &target)?;
    target.still_running()
}

fn of_at_least(shortest: Duration) -> Filter {
    Filter {
        calls: CallFilter {
            shortest,
            ..CallFilter::default()
        },
        ..Filter::default()
    }
}

#[test]
fn an_impossible_budget_is_refused() -> Result<()> {
    let target = Target::spawn(Fixture::Budget, [""; 0])?;
    let registry = registry();
    let refused = attach_with(&registry, &target, options(Mode::Count, BUDGET));
    ensure!(refused.is_err());
    let session = attach_with(&registry, &target, options(Mode::Flight, Budget::None))?.session;
    let set = |budget| {
        let before = session.update(budget).map_err(|refusal| refusal.reason)?;
        Ok(before.budget)
    };
    for (budget, expected) in [
        (Budget::overhead(0), Err(Reason::Limit)),
        (Budget::overhead(1_000_001), Err(Reason::Limit)),
        (BUDGET, Ok(Budget::None)),
    ] {
        ensure!(set(budget) == expected);
    }
    let short = of_at_least(Duration::from_micros(10));
    let refused = session
        .update(Mode::Count)
        .map_err(|refusal| refusal.reason);
    ensure!(refused == Err(Reason::Mode), "{refused:?}");
    let refused = session
        .update(short.clone())
        .map_err(|refusal| refusal.reason);
    ensure!(refused == Err(Reason::Mode), "{refused:?}");
    session.update(Budget::None)?;
    session.update(short.clone())?;
    ensure!(set(BUDGET) == Err(Reason::Mode));
    detach(&registry, &target)?;
    Ok(())
}
