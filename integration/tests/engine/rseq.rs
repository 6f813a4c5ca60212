//! Restartable sequences of the target are restarted when they must be, whichever thread is
//! borrowed.

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, ProcessState, Target};
use xrayd::{
    Reason,
    process::{AttachOptions, Registry, Session},
    types::Switch,
};

use crate::support::{attach, detach, pid_of, registry, soak, switch, tid};

fn sums_are_right(target: &mut Target) -> Result<()> {
    let answer = target.ask("stop", "sum ")?;
    let numbers = answer
        .split(' ')
        .skip(1)
        .map(str::parse)
        .collect::<Result<Vec<i64>, _>>()?;
    let [added, counted, _] = numbers[..] else {
        anyhow::bail!("{answer}");
    };
    ensure!(added == counted && added > 0, "{answer}");
    Ok(())
}

fn whole_session(registry: &Registry, target: &Target, session: &Session) -> Result<()> {
    switch(session, Switch::On)?;
    switch(session, Switch::Off)?;
    switch(session, Switch::On)?;
    detach(registry, target)?;
    Ok(())
}

/// Borrows a worker. By default, the sleeping main thread would come first.
fn borrowing_a_worker(target: &Target) -> Result<AttachOptions> {
    let state = ProcessState::of(target.pid())?;
    let worker = state.threads.keys().find(|&&thread| thread != target.pid());
    Ok(AttachOptions {
        thread: Some(tid(*worker.context("no worker")?)?),
        ..AttachOptions::default()
    })
}

/// The thread has left the address of its last sequence behind, which means nothing.
#[test]
fn a_thread_between_restartable_sequences_is_borrowed() -> Result<()> {
    for _ in 0..soak(10, 500) {
        let mut target = Target::spawn(Fixture::Rseq, ["--threads", "4", "--apart", "500"])?;
        let registry = registry();
        let options = borrowing_a_worker(&target)?;
        // The thread may be in a sequence by chance.
        let first =
            (0..5).find_map(|_| registry.attach(pid_of(&target).ok()?, options.clone()).ok());
        let attached = first.context("it was never between two of them")?;
        whole_session(&registry, &target, &attached.session)?;
        for _ in 0..3 {
            let session = attach(&registry, &target)?.session;
            whole_session(&registry, &target, &session)?;
        }
        sums_are_right(&mut target)?;
    }
    Ok(())
}

/// A thread that is in a sequence at each stop is left alone, or borrowed between two sequences.
#[test]
fn a_thread_in_a_restartable_sequence_is_left_alone() -> Result<()> {
    for _ in 0..soak(5, 200) {
        let mut target = Target::spawn(Fixture::Rseq, ["--threads", "4", "--dwell", "2000"])?;
        let registry = registry();
        match registry.attach(pid_of(&target)?, borrowing_a_worker(&target)?) {
            Ok(attached) => whole_session(&registry, &target, &attached.session)?,
            Err(refusal) => ensure!(refusal.reason == Reason::StopTimeout, "{refusal}"),
        }
        // Another thread sleeps, and can be borrowed.
        let session = attach(&registry, &target)?.session;
        whole_session(&registry, &target, &session)?;
        sums_are_right(&mut target)?;
    }
    Ok(())
}
