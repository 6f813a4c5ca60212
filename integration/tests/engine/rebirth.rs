//! Threads that reuse the ids of threads that have just ended.

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, MemoryGroup, Target, build, is_root_for, not_run};
use shm_ring::Geometry;
use xrayd::{process::AttachOptions, types::Switch};

use crate::{
    confined::spawn_unshared,
    support::{pid, registry, retained, switch},
};

/// Many threads end at once, again and again. Other threads have their ids within a few
/// milliseconds: about the time in which that many rings are taken back.
const ARGUMENTS: [&str; 6] = ["--numbers", "64", "--births", "150", "--calls", "20"];
const THREADS: u64 = 64 * 150;

/// Checks that every event of a program's threads is recorded or counted as lost, and that the
/// trace has no more threads than there were. `traced` is the process's id in this namespace.
fn nothing_vanishes(
    test: &str,
    target: &mut Target,
    traced: i32,
    options: AttachOptions,
) -> Result<()> {
    let registry = registry();
    let session = registry.attach(pid(traced)?, options)?.session;
    switch(&session, Switch::On)?;
    let answer = target.ask("go", "born ")?;
    let words: Vec<&str> = answer.split(' ').collect();
    let number = |at: usize| -> Result<u64> {
        let word = words.get(at).context("a number")?;
        Ok(word.parse()?)
    };
    let (born, calls, again) = (number(1)?, number(3)?, number(5)?);
    if born == 0 {
        return not_run(test, "thread ids cannot be chosen here");
    }
    ensure!(born == THREADS, "{answer}");
    // Other programs take ids as well.
    ensure!(again > born / 2, "{answer}");
    let report = registry.detach(pid(traced)?)?;
    ensure!(
        report.events + report.lost == 2 * calls,
        "{answer}: {report:?}"
    );
    let trace = retained(&session)?;
    let totals = trace.totals();
    ensure!(
        (totals.calls, totals.lost) == (report.events, report.lost),
        "{totals:?}, but {report:?}"
    );
    let threads = trace.threads().len() as u64;
    ensure!(threads <= born, "{threads} threads of {born}");
    target.send("quit")
}

/// Few slots, so that the tracer looks for ended threads all the time.
fn few_slots() -> AttachOptions {
    AttachOptions {
        max_threads: 64,
        ..AttachOptions::default()
    }
}

#[test]
fn events_of_threads_with_used_numbers_do_not_vanish() -> Result<()> {
    const TEST: &str = "events_of_threads_with_used_numbers_do_not_vanish";
    let mut target = Target::spawn(Fixture::Reborn, ARGUMENTS)?;
    let traced = target.pid();
    nothing_vanishes(TEST, &mut target, traced, few_slots())
}

#[test]
fn events_of_threads_with_used_numbers_do_not_vanish_in_another_pid_namespace() -> Result<()> {
    const TEST: &str = "events_of_threads_with_used_numbers_do_not_vanish_in_another_pid_namespace";
    if !is_root_for(TEST)? {
        return Ok(());
    }
    let program = build(Fixture::Reborn)?;
    let (mut target, inside) = spawn_unshared(&[], &program, &ARGUMENTS)?;
    nothing_vanishes(TEST, &mut target, inside, few_slots())
}

/// Slots are opened and closed all the time, because there is less memory than requested.
#[test]
fn events_of_threads_with_used_numbers_do_not_vanish_in_a_limited_group() -> Result<()> {
    const TEST: &str = "events_of_threads_with_used_numbers_do_not_vanish_in_a_limited_group";
    let Some(group) = MemoryGroup::new("rebirth")? else {
        return Ok(());
    };
    let mut target = Target::spawn(Fixture::Reborn, ARGUMENTS)?;
    group.take(target.pid())?;
    group.limit(&(24_u64 << 20).to_string())?;
    let options = AttachOptions {
        ring_bytes: Geometry::MIN_RING_BYTES,
        ..AttachOptions::default()
    };
    let traced = target.pid();
    nothing_vanishes(TEST, &mut target, traced, options)
}
