//! Runs of the program `counted` once more, untraced, to compare.

use anyhow::{Context as _, Result, ensure};

use crate::{Fixture, GroundTruth, Target, ThreadTruth};

/// The events of thread number `index` of a program with this seed after this many calls, from an
/// untraced run.
fn replay(seed: u64, index: u64, calls: u64) -> Result<ThreadTruth> {
    // The program makes a thread's seed like this. Here it is inverted for a program of one thread.
    const FACTOR: u64 = 1_000_003;
    let inverse = (0..6).fold(FACTOR, |inverse, _| {
        inverse.wrapping_mul(2u64.wrapping_sub(FACTOR.wrapping_mul(inverse)))
    });
    let seed = seed
        .wrapping_mul(FACTOR)
        .wrapping_add(index)
        .wrapping_mul(inverse)
        .cast_signed()
        .to_string();
    let calls = calls.to_string();
    let arguments = ["--threads", "1", "--calls", &calls, "--seed", &seed];
    let mut target = Target::spawn(Fixture::Counted, arguments)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    truth.threads.into_iter().next().context("no thread")
}

/// Checks that `counted` did the same with this seed as untraced, call by call.
///
/// # Errors
/// A thread did something else.
pub fn ran_right(truth: &GroundTruth, seed: u64) -> Result<()> {
    for (index, thread) in (0..).zip(&truth.threads) {
        let calls = thread.calls[0];
        ensure!(calls > 0, "thread {} did nothing", thread.tid);
        let plain = replay(seed, index, calls)?;
        ensure!(
            (plain.events, plain.hash, &plain.calls) == (thread.events, thread.hash, &thread.calls),
            "thread {} ran differently",
            thread.tid
        );
    }
    Ok(())
}
