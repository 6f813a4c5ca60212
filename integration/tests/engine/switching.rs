//! Handlers that switch to another fiber in the midst of a trampoline, where the thread goes on.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target};
use xrayd::types::Switch;

use crate::{
    adoption::wait_for_events,
    arguments::firsts,
    hostile::SMALL,
    support::{attach_with, detach, registry, retained, switch},
};

/// Instructions at the end of a call's entry behind which the event is reserved: what is to come there is one store, as on
/// the hot path, and to leave.
const LAST: u64 = 40;
/// Events of the other fiber: more than a ring holds.
const MORE_THAN_A_RING: u64 = 8000;

/// How many instructions the entry of a call takes that comes late.
fn steps_of_a_late_entry(target: &mut Target) -> Result<u64> {
    target.ask("call", "called")?;
    let steps = number(&target.ask("steps", "steps ")?)?;
    ensure!(steps > 2 * LAST, "{steps} instructions");
    Ok(steps)
}

/// Switches to another fiber in the midst of the slow path, for good.
pub(crate) fn leave_the_slow_path(target: &mut Target) -> Result<()> {
    let middle = steps_of_a_late_entry(target)? / 2;
    target.ask(&format!("away {middle}"), "away")?;
    Ok(())
}

/// The number at a line's end.
fn number(line: &str) -> Result<u64> {
    let word = line.rsplit(' ').next().context("nothing was said")?;
    Ok(word.parse()?)
}

/// A fiber stays away from the slow path until the collector has freed the ring, and others have come
/// around the ring. Then it goes on. Each event is recorded once, or counted once.
#[test]
fn a_fiber_that_comes_back_to_the_slow_path_harms_no_event() -> Result<()> {
    let mut target = Target::spawn(Fixture::Switching, [""; 0])?;
    let registry = registry();
    let session = attach_with(&registry, &target, SMALL)?.session;
    switch(&session, Switch::On)?;
    let steps = steps_of_a_late_entry(&mut target)?;
    for step in (0..steps - LAST).step_by(6) {
        target.ask(&format!("away {step}"), "away")?;
        // None is counted before the ring is free.
        wait_for_events(&session, MORE_THAN_A_RING)?;
        target.ask("back", "back")?;
    }
    let made = number(&target.ask("made", "made ")?)?;
    switch(&session, Switch::Off)?;
    let report = detach(&registry, &target)?;
    let all = report.events + report.lost;
    ensure!(all == 2 * made, "{report:?} of {made} calls");
    ensure!(report.lost > 0, "{report:?}");
    let numbers = firsts(&retained(&session)?, "numbered")?;
    let different: BTreeSet<u64> = numbers.iter().copied().collect();
    ensure!(different.len() == numbers.len(), "calls come twice");
    ensure!(different.iter().all(|number| *number < made));
    target.still_running()
}
