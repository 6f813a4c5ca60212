//! What tracing may cost: functions that rest, and duty cycles.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use xray_trace::model::{CallKind, EventBody, Rest, Trace};
use xrayd::{
    Reason,
    process::{AttachOptions, Session},
    types::{CallFilter, Duty, Economy, Filter, FunctionRow, Mode, Switch},
};

use crate::support::{attach_with, detach, registry, retained, switch};

const BUDGET: Economy = Economy::Budget(20_000);

fn options(mode: Mode, economy: Economy) -> AttachOptions {
    AttachOptions {
        mode,
        economy,
        ..AttachOptions::default()
    }
}

/// How often the functions were called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Calls {
    tiny: u64,
    requests: u64,
    steps: u64,
    brief: u64,
}

/// By the program's own account.
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

/// As they were recorded, while they are read.
fn recorded(session: &Session) -> Result<Calls> {
    let calls = |name| anyhow::Ok(row(session, name)?.calls);
    Ok(Calls {
        tiny: calls("tiny")?,
        requests: calls("request")?,
        steps: calls("step")?,
        brief: calls("brief")?,
    })
}

/// The same, once everything is read; the program stands still.
fn settled(session: &Session) -> Result<Calls> {
    // Whatever was recorded before a snapshot is in it.
    session.write_snapshot(None, &mut std::io::sink())?;
    recorded(session)
}

fn rests(session: &Session, name: &str) -> bool {
    let top = session.status().economy.top;
    let mut named = top.iter().filter(|row| row.name.starts_with(name));
    named.any(|row| row.rests)
}

fn until_rests(session: &Session, name: &str, wanted: bool) -> Result<()> {
    let what = format!("{name} rests: {wanted}");
    wait_until(DEADLINE, &what, || {
        Ok((rests(session, name) == wanted).then_some(()))
    })
}

/// A program that stands still serves some requests, and stands still again: how often that called what.
fn serve(target: &mut Target) -> Result<Calls> {
    let before = truth(target)?;
    target.ask("go", "go")?;
    wait_until(DEADLINE, "some requests", || {
        Ok((truth(target)?.requests > before.requests + 20).then_some(()))
    })?;
    target.ask("stop", "stop")?;
    Ok(minus(truth(target)?, before))
}

/// The same, and each of these calls is recorded.
fn ensure_exact(session: &Session, target: &mut Target) -> Result<()> {
    let seen = settled(session)?;
    let called = serve(target)?;
    wait_until(DEADLINE, "all calls are read", || {
        Ok((minus(recorded(session)?, seen) == called).then_some(()))
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

/// What is called too often rests, and nothing else; when it is called less, it is on again; and all that is told.
#[test]
fn a_budget_holds_while_the_load_changes() -> Result<()> {
    for (mode, threads) in [
        (Mode::Stream, "1"),
        (Mode::Flight, "1"),
        (Mode::Stream, "3"),
    ] {
        let mut target = Target::spawn(Fixture::Budget, ["--threads", threads])?;
        let registry = registry();
        let options = match mode {
            // As much as `tiny` records in a try that ends in time.
            Mode::Stream => AttachOptions {
                ring_bytes: 64 << 20,
                max_threads: 16,
                ..options(mode, BUDGET)
            },
            _ => options(mode, BUDGET),
        };
        let session = attach_with(&registry, &target, options)?.session;
        ensure!(session.economy() == BUDGET);
        switch(&session, Switch::On)?;
        target.ask("go", "go")?;
        for _ in 0..2 {
            until_rests(&session, "tiny", true)?;
            // So it stays, but for moments.
            target.ask("stop", "stop")?;
            let (before, seen) = (truth(&mut target)?, settled(&session)?);
            let lost = session.status().lost;
            target.ask("go", "go")?;
            wait_until(DEADLINE, "some hundred requests", || {
                let now = truth(&mut target)?;
                Ok((now.requests > before.requests + 300).then_some(()))
            })?;
            target.ask("stop", "stop")?;
            if mode == Mode::Stream {
                let called = minus(truth(&mut target)?, before);
                let seen = minus(settled(&session)?, seen);
                // Of 5000 calls in half a millisecond, the budget has room for a few hundred.
                ensure!(seen.tiny < called.tiny / 5, "{seen:?} of {called:?}");
                // In the moments in which it is on, even rings of this size may be too small for
                // it, and lose others' events: the more so, the less of a processor is left for the
                // drain. What is lost is counted. Where nothing was, each call is there.
                let lost = session.status().lost - lost;
                for (seen, called) in [(seen.steps, called.steps), (seen.requests, called.requests)]
                {
                    ensure!(
                        seen > 0 && seen <= called && seen + lost >= called,
                        "{seen} of {called}, and {lost} lost"
                    );
                }
            }
            target.ask("go", "go")?;
            ensure!(!rests(&session, "step") && !rests(&session, "request"));
            let status = session.status();
            ensure!(status.economy.unrecorded > 0, "{status:?}");
            ensure!(status.functions_on == status.functions, "{status:?}");
            ensure!(row(&session, "tiny")?.enabled);
            target.ask("calm", "calm")?;
            until_rests(&session, "tiny", false)?;
            if mode == Mode::Stream {
                // From now on each call is recorded again.
                target.ask("stop", "stop")?;
                ensure_exact(&session, &mut target)?;
                target.ask("go", "go")?;
            }
            target.ask("hot", "hot")?;
        }
        until_rests(&session, "tiny", true)?;
        let trace = retained(&session)?;
        ensure_told(&session, &trace, &truth(&mut target)?)?;
        if mode == Mode::Stream {
            ensure_whole(&trace)?;
        }
        detach(&registry, &target)?;
        target.still_running()?;
    }
    Ok(())
}

/// Between losses no request and no step is missing, nor part of one: each request has its four
/// steps, one after the other.
fn ensure_whole(trace: &Trace) -> Result<()> {
    let mut request = vec![("request", true)];
    request.extend([("step", true), ("step", false)].repeat(4));
    request.push(("request", false));
    let mut whole = 0;
    for (thread, blocks) in trace.blocks_by_thread() {
        // Of a request that was open when the trace begins, or while something was lost, events are
        // missing. The place of the next event in a request; `None` up to the end of that one.
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

/// The trace has when `tiny` rested, and about how many calls of it nobody saw.
fn ensure_told(session: &Session, trace: &Trace, truth: &Calls) -> Result<()> {
    let all = trace.rests().iter();
    let (tiny, others): (Vec<&Rest>, Vec<&Rest>) = all.partition(|rest| {
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
    let status = session.status().economy;
    let estimated = status.unrecorded;
    // After some tries it is known that the program does something else. Until then the estimate is of
    // what it did before: only the order has to be right.
    ensure!(
        estimated > truth.tiny / 10 && estimated < truth.tiny * 10,
        "{estimated} of {truth:?}"
    );
    ensure!(
        status.overhead.is_some() && status.event_ns > 0.0,
        "{status:?}"
    );
    let of_trace: u64 = tiny.iter().map(|rest| rest.calls).sum();
    // It tells of the time that it has events of.
    ensure!(of_trace <= estimated, "{of_trace} of {estimated}");
    Ok(())
}

/// About how many calls of two functions were not recorded, right after that was added up, and what
/// the program says.
fn just_estimated(session: &Session, target: &mut Target) -> Result<([u64; 2], Calls)> {
    let of = || {
        let top = session.status().economy.top;
        ["tiny", "brief"].map(|name| {
            let named = top.iter().find(|row| row.name.starts_with(name));
            named.map_or(0, |row| row.unrecorded)
        })
    };
    let before = of();
    let said = wait_until(DEADLINE, "a look", || {
        let now = of();
        let both = now.iter().zip(before).all(|(now, before)| *now > before);
        Ok(both.then_some(now))
    })?;
    Ok((said, truth(target)?))
}

/// At a steady load, what was not recorded is estimated within 15 % of what the program says, over
/// several windows and for functions that work for a moment and for none. How much of a processor
/// the program gets does not matter, nor whether it sleeps at times.
#[test]
fn estimates_at_a_steady_load_are_right() -> Result<()> {
    for (mode, threads, pause) in [
        (Mode::Stream, "1", "0"),
        (Mode::Flight, "2", "0"),
        (Mode::Stream, "3", "0"),
        (Mode::Flight, "1", "100"),
    ] {
        let arguments = ["--threads", threads, "--pause", pause];
        let mut target = Target::spawn(Fixture::Budget, arguments)?;
        let registry = registry();
        let session = attach_with(&registry, &target, options(mode, BUDGET))?.session;
        switch(&session, Switch::On)?;
        target.ask("warm", "warm")?;
        target.ask("go", "go")?;
        until_rests(&session, "tiny", true)?;
        until_rests(&session, "brief", true)?;
        // The first window is there to find out what the load is.
        for window in 0..3 {
            let (said, called) = just_estimated(&session, &mut target)?;
            let seen = recorded(&session)?;
            for part in 1..=10 {
                wait_until(DEADLINE, "a hundred requests", || {
                    let now = truth(&mut target)?;
                    Ok((now.requests > called.requests + part * 100).then_some(()))
                })?;
            }
            let (said_then, called_then) = just_estimated(&session, &mut target)?;
            let called = minus(called_then, called);
            let seen = minus(recorded(&session)?, seen);
            for (name, called, seen, said) in [
                ("tiny", called.tiny, seen.tiny, said_then[0] - said[0]),
                ("brief", called.brief, seen.brief, said_then[1] - said[1]),
            ] {
                let ratio = said as f64 / (called - seen) as f64;
                ensure!(
                    window == 0 || (0.85..=1.15).contains(&ratio),
                    "{mode:?}, {threads} threads, pause {pause}, window {window}: {name}: {said} of {called}, \
                     {seen} recorded: {ratio:.3}"
                );
            }
        }
        detach(&registry, &target)?;
    }
    Ok(())
}

/// Somebody switches what rests off and on, and takes the budget away.
#[test]
fn what_rests_is_switched_like_everything_else() -> Result<()> {
    let mut target = Target::spawn(Fixture::Budget, [""; 0])?;
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Stream, BUDGET))?.session;
    switch(&session, Switch::On)?;
    target.ask("go", "go")?;
    until_rests(&session, "tiny", true)?;
    switch(&session, Switch::Off)?;
    ensure!(!rests(&session, "tiny") && session.status().functions_on == 0);
    switch(&session, Switch::On)?;
    until_rests(&session, "tiny", true)?;
    target.ask("stop", "stop")?;
    ensure!(session.set_economy(Economy::None)? == BUDGET);
    ensure!(!rests(&session, "tiny"));
    target.ask("calm", "calm")?;
    ensure_exact(&session, &mut target)?;
    detach(&registry, &target)?;
    Ok(())
}

/// What is recorded lies in the windows, which the trace has; what each stands for makes up for the rest.
#[test]
fn a_duty_cycle_records_everything_for_a_while() -> Result<()> {
    for mode in [Mode::Stream, Mode::Flight] {
        let mut target = Target::spawn(Fixture::Budget, ["--threads", "2"])?;
        let registry = registry();
        let duty = Economy::Duty(Duty {
            on: Duration::from_millis(5),
            every: Duration::from_millis(50),
        });
        let session = attach_with(&registry, &target, options(mode, duty))?.session;
        switch(&session, Switch::On)?;
        target.ask("go", "go")?;
        wait_until(DEADLINE, "ten windows", || {
            Ok((session.status().economy.windows > 10).then_some(()))
        })?;
        target.ask("stop", "stop")?;
        let called = truth(&mut target)?;
        ensure!(session.set_economy(Economy::None)? == duty);
        let trace = retained(&session)?;
        let windows = trace.duty();
        ensure!(!windows.is_empty(), "no window");
        let in_one = |at| {
            windows
                .iter()
                .any(|window| (window.from..=window.until).contains(&at))
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
        // Who was in a trampoline when the door was closed is done when it is.
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
        // Without it, everything is recorded.
        target.ask("calm", "calm")?;
        match mode {
            Mode::Stream => ensure_exact(&session, &mut target)?,
            _ => drop(serve(&mut target)?),
        }
        // And with it again, detaching leaves nothing.
        session.set_economy(duty)?;
        detach(&registry, &target)?;
        target.still_running()?;
    }
    Ok(())
}

#[test]
fn what_cannot_be_kept_to_is_refused() -> Result<()> {
    let target = Target::spawn(Fixture::Budget, [""; 0])?;
    let registry = registry();
    let refused = attach_with(&registry, &target, options(Mode::Count, BUDGET));
    ensure!(refused.is_err());
    let session = attach_with(&registry, &target, options(Mode::Flight, Economy::None))?.session;
    let reason = |economy| {
        session
            .set_economy(economy)
            .map_err(|refusal| refusal.reason)
    };
    for (economy, expected) in [
        (Economy::Budget(0), Err(Reason::Limit)),
        (Economy::Budget(1_000_001), Err(Reason::Limit)),
        (BUDGET, Ok(Economy::None)),
    ] {
        ensure!(reason(economy) == expected, "{economy:?}");
    }
    let short = Filter {
        calls: CallFilter {
            shortest: Duration::from_micros(10),
            ..CallFilter::default()
        },
        ..Filter::default()
    };
    let refused = session
        .set_mode(Mode::Count)
        .map_err(|refusal| refusal.reason);
    ensure!(refused == Err(Reason::Mode), "{refused:?}");
    let refused = session.set_filter(&short).map_err(|refusal| refusal.reason);
    ensure!(refused == Err(Reason::Mode), "{refused:?}");
    session.set_economy(Economy::None)?;
    session.set_filter(&short)?;
    ensure!(reason(BUDGET) == Err(Reason::Mode));
    detach(&registry, &target)?;
    Ok(())
}
