//! Calls that the program itself leaves out: exactly the calls that the filter excludes, and
//! counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, wait_until};
use xray_trace::analysis::{Filter as All, Siblings, Side, StackRoots, StackTrie};
use xray_trace::model::Trace;
use xrayd::{
    process::{AttachOptions, Session},
    types::{CallFilter, Filter, Mode, Switch},
};

use crate::support::{assert_exact, attach_with, detach, registry, retained, switch};

/// Long enough for a thread that other programs delay on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn options() -> AttachOptions {
    AttachOptions {
        ring_bytes: 16 << 20,
        mode: Mode::Stream,
        ..AttachOptions::default()
    }
}

fn calls(calls: CallFilter) -> Filter {
    Filter {
        calls,
        ..Filter::default()
    }
}

fn inside(names: &[&str]) -> CallFilter {
    CallFilter {
        inside: names.iter().map(|name| (*name).to_owned()).collect(),
        ..CallFilter::default()
    }
}

/// The calls of each stack, in all threads together.
fn by_stack(trace: &Trace) -> BTreeMap<Vec<String>, u64> {
    let mut stacks = StackTrie::default();
    let (roots, side) = (StackRoots::Together, Side::Before);
    stacks.add(trace, &All::default(), Siblings::Closed, roots, side);
    let nodes = stacks.nodes().iter().enumerate();
    let paths = nodes.filter(|(_, node)| node.counts[0].calls > 0);
    let paths = paths.map(|(at, node)| {
        let path = stacks.path(at).into_iter().map(str::to_owned).collect();
        (path, node.counts[0].calls)
    });
    paths.collect()
}

/// A run of a program that makes the same calls each time, with a filter.
struct Ran {
    truth: GroundTruth,
    trace: Trace,
    left_out: u64,
}

fn run(filter: &Filter) -> Result<Ran> {
    let arguments = ["--threads", "3", "--calls", "3000", "--seed", "7"];
    let mut target = Target::spawn(Fixture::Counted, arguments)?;
    let registry = registry();
    let session = attach_with(&registry, &target, options())?.session;
    session.update(filter.clone())?;
    switch(&session, Switch::On)?;
    target.send("go")?;
    let truth = GroundTruth::parse(&target.line_with("result ", PATIENCE)?)?;
    let trace = retained(&session)?;
    ensure!(trace.totals().lost == 0);
    let left_out = session.status().left_out;
    detach(&registry, &target)?;
    target.still_running()?;
    Ok(Ran {
        truth,
        trace,
        left_out,
    })
}

fn sum(stacks: &BTreeMap<Vec<String>, u64>) -> u64 {
    stacks.values().sum()
}

/// The stacks of the whole trace that `keeps` selects, from the index that it returns.
fn expected(
    whole: &BTreeMap<Vec<String>, u64>,
    keeps: impl Fn(&[String]) -> Option<usize>,
) -> BTreeMap<Vec<String>, u64> {
    let mut expected = BTreeMap::new();
    for (path, calls) in whole {
        if let Some(from) = keeps(path) {
            *expected.entry(path[from..].to_vec()).or_default() += calls;
        }
    }
    expected
}

/// The filtered trace is compared with the whole trace of the same calls, stack by stack. Missing
/// calls are counted.
#[test]
fn a_filter_leaves_out_what_it_says_and_counts_it() -> Result<()> {
    let all = run(&Filter::default())?;
    assert_exact(&all.trace, &all.truth)?;
    ensure!(all.left_out == 0);
    let whole = by_stack(&all.trace);
    let total = all.truth.calls().iter().sum::<u64>();
    ensure!(sum(&whole) == total);
    let deepest = whole.keys().map(Vec::len).max().unwrap_or(0);
    ensure!(deepest >= 4, "{deepest}");
    let chosen = whole
        .keys()
        .find(|path| path.len() == 2)
        .map(|path| path[1].clone());
    let chosen = chosen.unwrap_or_default();

    let check = |what: &str, filter: CallFilter, expected: BTreeMap<Vec<String>, u64>| {
        let ran = run(&calls(filter))?;
        let found = by_stack(&ran.trace);
        ensure!(
            ran.truth.calls() == all.truth.calls(),
            "the program makes the same calls"
        );
        ensure!(found == expected, "{what}: {found:?}, not {expected:?}");
        ensure!(
            sum(&found) + ran.left_out == total,
            "{what}: {} and {} left out of {total}",
            sum(&found),
            ran.left_out
        );
        Ok(())
    };
    for depth in [1, 2, 3] {
        let filter = CallFilter {
            max_depth: depth,
            ..CallFilter::default()
        };
        let depth = depth as usize;
        let kept = expected(&whole, |path| (path.len() <= depth).then_some(0));
        check("depth", filter, kept)?;
    }
    let from = |path: &[String]| path.iter().position(|name| *name == chosen);
    check("inside", inside(&[&chosen]), expected(&whole, from))?;
    let filter = CallFilter {
        max_depth: 2,
        ..inside(&[&chosen])
    };
    let kept = expected(&whole, |path| {
        from(path).filter(|from| path.len() - from <= 2)
    });
    check("inside, to a depth", filter, kept)?;
    check("inside nothing", inside(&["nobody"]), BTreeMap::new())?;
    let hour = CallFilter {
        shortest: Duration::from_secs(3600),
        ..CallFilter::default()
    };
    check("an hour", hour, BTreeMap::new())?;
    // The set of calls that take 1 µs or longer differs from run to run.
    let ran = run(&calls(CallFilter {
        shortest: Duration::from_micros(1),
        ..CallFilter::default()
    }))?;
    let found = by_stack(&ran.trace);
    ensure!(sum(&found) + ran.left_out == total && ran.left_out > 0);
    ensure!(
        found
            .iter()
            .all(|(path, calls)| whole.get(path) >= Some(calls))
    );
    Ok(())
}

/// The first call tree of each thread and every tenth after it are recorded whole.
#[test]
fn one_tree_in_ten_is_recorded_whole() -> Result<()> {
    let all = run(&Filter::default())?;
    let one_in = CallFilter {
        one_in: 10,
        ..CallFilter::default()
    };
    let ran = run(&calls(one_in))?;
    let roots = |trace: &Trace| -> u64 {
        let stacks = by_stack(trace);
        let roots = stacks.iter().filter(|(path, _)| path.len() == 1);
        roots.map(|(_, calls)| calls).sum()
    };
    let (of_all, found) = (roots(&all.trace), roots(&ran.trace));
    // The last group of ten may be incomplete in each thread.
    ensure!(
        (of_all / 10..=of_all / 10 + 4).contains(&found),
        "{found} of {of_all}"
    );
    let total = all.truth.calls().iter().sum::<u64>();
    ensure!(sum(&by_stack(&ran.trace)) + ran.left_out == total);
    Ok(())
}

fn slow(target: &mut Target, ms: u32) -> Result<()> {
    target.ask(&format!("slow {ms}"), "slow ")?;
    Ok(())
}

/// Slow calls are recorded with the calls around them, and quick calls are not. The filter changes
/// while the program runs.
#[test]
fn only_slow_calls_are_recorded_while_that_is_wanted() -> Result<()> {
    let mut target = Target::spawn(Fixture::Triggers, ["--threads", "2"])?;
    let registry = registry();
    let session = attach_with(&registry, &target, options())?.session;
    let filter = calls(CallFilter {
        shortest: Duration::from_millis(20),
        ..CallFilter::default()
    });
    session.update(filter.clone())?;
    switch(&session, Switch::On)?;
    target.ask("quick 1000", "quick")?;
    slow(&mut target, 50)?;
    target.ask("quick 1000", "quick")?;
    let recorded = |session: &Arc<Session>| -> Result<BTreeMap<String, u64>> {
        let mut calls = BTreeMap::new();
        for (path, count) in by_stack(&retained(session)?) {
            *calls
                .entry(path.last().cloned().unwrap_or_default())
                .or_default() += count;
        }
        Ok(calls)
    };
    let found = recorded(&session)?;
    ensure!(found.get("slow") == Some(&1), "{found:?}");
    ensure!(
        !found.contains_key("quick") && !found.contains_key("inner"),
        "{found:?}"
    );
    ensure!(session.status().left_out >= 2001, "{:?}", session.status());
    // Without the filter, all calls are recorded again. With the filter, they are left out again.
    session.update(Filter::default())?;
    target.ask("quick 10", "quick")?;
    ensure!(recorded(&session)?.get("quick") == Some(&10));
    session.update(filter.clone())?;
    target.ask("quick 10", "quick")?;
    slow(&mut target, 50)?;
    let found = recorded(&session)?;
    ensure!(found.get("quick") == Some(&10), "{found:?}");
    ensure!(found.get("slow") == Some(&2), "{found:?}");
    ensure!(session.settings().filter == filter && session.status().lost == 0);
    detach(&registry, &target)?;
    target.still_running()?;
    Ok(())
}

/// Threads are chosen by id and by name, running ones and later ones.
#[test]
fn only_the_chosen_threads_are_recorded() -> Result<()> {
    let mut target = Target::spawn(Fixture::Triggers, ["--threads", "2"])?;
    let main = u32::try_from(target.pid())?;
    let registry = registry();
    let session = attach_with(&registry, &target, options())?.session;
    session.update(calls(CallFilter {
        threads: vec![main.to_string()],
        ..CallFilter::default()
    }))?;
    switch(&session, Switch::On)?;
    target.ask("quick 100", "quick")?;
    // The program leaves out the calls of the other threads, which tick all the time, once these
    // threads are known.
    wait_until(DEADLINE, "calls to be left out", || {
        Ok((session.status().left_out > 100).then_some(()))
    })?;
    let trace = retained(&session)?;
    let stacks = by_stack(&trace);
    ensure!(stacks.values().sum::<u64>() == 100, "{stacks:?}");
    session.update(calls(CallFilter {
        threads: vec!["*".to_owned()],
        ..CallFilter::default()
    }))?;
    wait_until(DEADLINE, "the others", || {
        let stacks = by_stack(&retained(&session)?);
        Ok(stacks
            .keys()
            .any(|path| path.last().is_some_and(|name| name.starts_with("tick")))
            .then_some(()))
    })?;
    detach(&registry, &target)?;
    target.still_running()?;
    Ok(())
}
