//! P31: calls that end without an exit. However they end, each later call is shown within its true
//! caller. The program reports the callers.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use xray_trace::analysis::{Notes, Step, Steps};
use xray_trace::model::{Missing, Trace};
use xrayd::{
    process::{AttachOptions, Session},
    types::{Mode, Phase, Switch},
};

use crate::support::{attach_with, detach, notes, read_profile, registry, retained, switch};

/// Caller, callee, and the number of calls. "-" is the caller of outermost calls.
type Edges = BTreeMap<(String, String), u64>;

/// The edges that the program reports: "done CALLER>CALLEE=COUNT …".
fn answer(line: &str) -> Result<Edges> {
    let edges = line.strip_prefix("done ").context("no answer")?.split(' ');
    edges
        .map(|edge| {
            let (callers, count) = edge.split_once('=').context("no count")?;
            let (caller, callee) = callers.split_once('>').context("no callee")?;
            Ok(((caller.to_owned(), callee.to_owned()), count.parse()?))
        })
        .collect()
}

/// The edges of the trace.
fn traced(trace: &Trace) -> Edges {
    let mut edges = Edges::new();
    for steps in Steps::of_threads(trace) {
        let mut open = Vec::<String>::new();
        for step in steps {
            let Step::Enter(call) = step else { continue };
            open.truncate(call.depth);
            let name = trace.function_name(call.function).into_owned();
            let caller = open.last().map_or("-", String::as_str).to_owned();
            *edges.entry((caller, name.clone())).or_default() += 1;
            open.push(name);
        }
    }
    edges
}

/// Runs a scenario. Returns the program's edges, and the session, which is over.
fn run(scenario: &str, options: AttachOptions) -> Result<(Edges, Arc<Session>)> {
    let mut target = Target::spawn(Fixture::Unwinding, [""; 0])?;
    let registry = registry();
    let session = attach_with(&registry, &target, options)?.session;
    switch(&session, Switch::On)?;
    let answer = answer(&target.ask(scenario, "done ")?)?;
    if ["exit", "abort"].contains(&scenario) {
        target.wait(DEADLINE)?;
        wait_until(DEADLINE, "the session noticed", || {
            Ok((session.status().phase == Phase::Exited).then_some(()))
        })?;
    } else {
        detach(&registry, &target)?;
    }
    Ok((answer, session))
}

/// Runs a scenario. Returns the program's edges, and the trace.
fn record(scenario: &str) -> Result<(Edges, Trace)> {
    // Room for all events, so that a slow drain loses nothing.
    let options = AttachOptions {
        ring_bytes: 8 << 20,
        ..AttachOptions::default()
    };
    let (answer, session) = run(scenario, options)?;
    Ok((answer, retained(&session)?))
}

/// Runs a scenario whose calls are added up in the program. Returns the edges of the program, the
/// edges of the profile, and the number of calls without an exit.
fn add_up(scenario: &str) -> Result<(Edges, Edges, u64)> {
    let options = AttachOptions {
        mode: Mode::Profile,
        ..AttachOptions::default()
    };
    let (answer, session) = run(scenario, options)?;
    let kept = session.kept_profile()?.context("nothing is kept")?;
    let profile = read_profile(&session, kept)?;
    let missing = profile.missing();
    ensure!(missing == Missing::default(), "{scenario}: {missing:?}");
    let (mut edges, mut unfinished) = (Edges::new(), 0);
    let name = |at: usize| {
        let function = profile.stacks()[at].function;
        profile.tables().function_name(function).into_owned()
    };
    for (at, stack) in profile.stacks().iter().enumerate() {
        let times = profile.times(at).context("no times")?;
        unfinished += times.unfinished;
        if stack.calls > 0 {
            let caller = stack.caller.map_or_else(|| "-".to_owned(), name);
            *edges.entry((caller, name(at))).or_default() += stack.calls;
        }
    }
    Ok((answer, edges, unfinished))
}

/// What is added up in the program is what a full trace shows.
#[test]
fn calls_that_are_added_up_are_within_their_callers() -> Result<()> {
    for (scenario, left) in [
        ("throw", 101..=101),
        ("again", 13..=13),
        ("longjmp", 101..=101),
        ("cancel", 1..=3),
        ("pthread_exit", 1..=3),
        ("exit", 21..=21),
        ("abort", 21..=21),
    ] {
        let (answer, profiled, unfinished) = add_up(scenario)?;
        ensure!(
            profiled == answer && left.contains(&unfinished),
            "{scenario}: {profiled:?} instead of {answer:?}, {unfinished} unfinished"
        );
    }
    Ok(())
}

/// Checks that every call is within its caller, and that this many calls ended without an exit.
fn check(scenario: &str, unwound: u64) -> Result<Notes> {
    let notes = check_edges(scenario)?;
    ensure!(notes.unwound == unwound, "{scenario}: {notes:?}");
    Ok(notes)
}

/// Checks that every call is within its caller.
fn check_edges(scenario: &str) -> Result<Notes> {
    let (answer, trace) = record(scenario)?;
    ensure!(trace.totals().lost == 0, "{} lost", trace.totals().lost);
    let traced = traced(&trace);
    ensure!(
        traced == answer,
        "{scenario}: {traced:?} instead of {answer:?}"
    );
    let notes = notes(&trace);
    ensure!(
        notes.closed_by_outer_exit == 0 && notes.exits_without_entry == 0,
        "{scenario}: {notes:?}"
    );
    Ok(notes)
}

#[test]
fn calls_after_an_exception_through_a_hundred_frames_are_within_their_callers() -> Result<()> {
    check("throw", 101)?;
    Ok(())
}

/// One function recurses all the way. Its name alone would end the wrong calls.
#[test]
fn a_recursion_that_catches_and_throws_on_ends_the_right_calls() -> Result<()> {
    // Of 40 levels, these catch and rethrow: three at the bottom, and the levels 5, 13, 21, 29, 37,
    // each with the next one.
    check("again", 3 + 5 * 2)?;
    Ok(())
}

#[test]
fn calls_after_a_longjmp_are_within_their_callers() -> Result<()> {
    check("longjmp", 101)?;
    Ok(())
}

#[test]
fn destructors_of_a_thread_that_is_cancelled_are_within_their_functions() -> Result<()> {
    for scenario in ["cancel", "pthread_exit"] {
        let notes = check_edges(scenario)?;
        // The end of the thread ended its first call, or the call is open if that end was not seen
        // before the detach.
        let ended = (notes.unwound, notes.closed_at_end);
        ensure!([(1, 1), (2, 0)].contains(&ended), "{notes:?}");
    }
    Ok(())
}

#[test]
fn calls_at_the_programs_end_are_within_their_caller() -> Result<()> {
    for scenario in ["exit", "abort"] {
        let notes = check(scenario, 0)?;
        ensure!(notes.closed_at_end == 21, "{notes:?}");
    }
    Ok(())
}

/// The program cannot report the calls that a handler interrupts. It reports all others.
#[test]
fn handlers_on_any_stack_disturb_nobody() -> Result<()> {
    for scenario in ["handlers here", "handlers below", "handlers above"] {
        // If a handler interrupts a slow path, its events are counted as lost, and the open calls
        // are not known any more. Then the test tries again.
        let recorded = (0..20).find_map(|_| match record(scenario) {
            Ok((_, trace)) if trace.totals().lost > 0 => None,
            recorded => Some(recorded),
        });
        let (mut answer, trace) = recorded.context("events were lost each time")??;
        let mut traced = traced(&trace);
        let samples = |edges: &mut Edges| -> u64 {
            let of_sampler = edges.extract_if(.., |(_, callee), _| callee == "sampler");
            of_sampler.map(|(_, count)| count).sum()
        };
        let (in_program, in_trace) = (samples(&mut answer), samples(&mut traced));
        ensure!(in_program >= 100 && in_program == in_trace, "{in_trace}");
        ensure!(
            traced == answer,
            "{scenario}: {traced:?} instead of {answer:?}"
        );
        let notes = notes(&trace);
        let exact = notes.closed_by_outer_exit == 0 && notes.exits_without_entry == 0;
        ensure!(exact && notes.closed_at_end == 0, "{scenario}: {notes:?}");
    }
    Ok(())
}

/// When a thread comes back to a stack, its calls are within the calls that are open then. Calls on
/// the thread's own stack are exact, and no exit on a fiber ends a call elsewhere.
#[test]
fn fibers_do_not_end_each_others_calls() -> Result<()> {
    let (answer, trace) = record("fibers")?;
    ensure!(trace.totals().lost == 0, "{} lost", trace.totals().lost);
    let traced = traced(&trace);
    let of = |edges: &Edges, by: &dyn Fn(&str) -> bool, callee: &str| -> u64 {
        let all = edges.iter();
        let all = all.filter(|((caller, what), _)| by(caller) && what == callee);
        all.map(|(_, count)| count).sum()
    };
    let anybody = |_: &str| true;
    for callee in ["work", "busy", "loop", "one", "two"] {
        let (program, trace) = (of(&answer, &anybody, callee), of(&traced, &anybody, callee));
        ensure!(program == trace, "{callee}: {trace} instead of {program}");
    }
    // `busy` makes two calls of `work` on every stack.
    let by_busy = |caller: &str| caller == "busy";
    ensure!(of(&traced, &by_busy, "work") == of(&answer, &by_busy, "work"));
    // The calls of the loop, and perhaps more.
    let by_loop = |caller: &str| caller == "loop";
    for callee in ["work", "busy"] {
        let (program, trace) = (of(&answer, &by_loop, callee), of(&traced, &by_loop, callee));
        ensure!(trace >= program, "{callee}: {trace} of {program}");
    }
    let notes = notes(&trace);
    ensure!(
        notes.closed_by_outer_exit == 0 && notes.closed_at_end == 0,
        "{notes:?}"
    );
    // `one` was left and came back, so its exit has no entry.
    ensure!(notes.exits_without_entry >= 1, "{notes:?}");
    Ok(())
}
