//! The program adds its calls up by stack, or records each of them. Both ways show the same calls
//! of the same work, stack by stack.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target};
use xray_trace::analysis::{Filter, Siblings, Side, StackRoots, StackTrie};
use xrayd::process::AttachOptions;
use xrayd::types::{Mode, Switch};

use crate::support::{attach_with, detach, read_profile, registry, retained, switch};

/// Calls of each stack, and calls among them without an exit.
type Stacks = BTreeMap<Vec<String>, (u64, u64)>;

const ROOTS: StackRoots = StackRoots::Together;

/// Work of a program that is the same in each run.
struct Work<'a> {
    fixture: Fixture,
    arguments: &'a [&'a str],
    /// A line for its standard input, and the begin of its answer.
    dialogue: (&'a str, &'a str),
}

/// The stacks of the work, recorded or added up.
fn stacks_of(work: &Work<'_>, mode: Mode) -> Result<Stacks> {
    let mut target = Target::spawn(work.fixture, work.arguments)?;
    let registry = registry();
    // Room for all events, so that a slow drain loses nothing.
    let options = AttachOptions {
        ring_bytes: 16 << 20,
        mode,
        ..AttachOptions::default()
    };
    let session = attach_with(&registry, &target, options)?.session;
    switch(&session, Switch::On)?;
    let (line, answer) = work.dialogue;
    target.send(line)?;
    target.line_with(answer, 4 * DEADLINE)?;
    detach(&registry, &target)?;
    let mut stacks = StackTrie::default();
    let filter = Filter::default();
    if mode == Mode::Profile {
        let kept = session.kept_profile()?.context("nothing is kept")?;
        let profile = read_profile(&session, kept)?;
        stacks.add_profile(&profile, &filter, ROOTS, Side::Before);
    } else {
        let trace = retained(&session)?;
        ensure!(trace.totals().lost == 0, "{} lost", trace.totals().lost);
        stacks.add(&trace, &filter, Siblings::Closed, ROOTS, Side::Before);
    }
    let nodes = stacks.nodes().iter().enumerate();
    let paths = nodes.map(|(at, node)| {
        let path = stacks.path(at).into_iter().map(str::to_owned).collect();
        let [counts, _] = node.counts;
        (path, (counts.calls, counts.unfinished))
    });
    Ok(paths.collect())
}

fn ensure_alike(work: &Work<'_>) -> Result<()> {
    let recorded = stacks_of(work, Mode::Stream)?;
    let added_up = stacks_of(work, Mode::Profile)?;
    ensure!(!recorded.is_empty());
    for (path, counts) in &recorded {
        let found = added_up.get(path);
        ensure!(
            found == Some(counts),
            "{:?}, {path:?}: {counts:?} recorded, {found:?} added up",
            work.dialogue
        );
    }
    ensure!(added_up.len() == recorded.len(), "{added_up:?}");
    Ok(())
}

/// Random trees of calls, with recursion and calls that are left by exceptions.
#[test]
fn random_calls_are_added_up_as_they_are_recorded() -> Result<()> {
    for seed in ["1", "20261128", "77", "4242"] {
        ensure_alike(&Work {
            fixture: Fixture::Counted,
            arguments: &["--threads", "3", "--calls", "3000", "--seed", seed],
            dialogue: ("go", "result "),
        })?;
    }
    Ok(())
}

/// Exceptions through a hundred frames, rethrown ones, and `longjmp`.
#[test]
fn calls_that_are_left_are_added_up_as_they_are_recorded() -> Result<()> {
    for scenario in ["throw", "again", "longjmp", "cancel", "pthread_exit"] {
        ensure_alike(&Work {
            fixture: Fixture::Unwinding,
            arguments: &[],
            dialogue: (scenario, "done "),
        })?;
    }
    Ok(())
}
