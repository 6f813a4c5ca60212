//! Handlers that switch to another fiber in the middle of a trampoline. The thread goes on there.

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

/// Instructions at the end of a call's entry, behind the reservation of the event. Only one store,
/// as on the hot path, and the return follow there.
const LAST: u64 = 40;
/// Events of the other fiber: more than a ring holds.
const MORE_THAN_A_RING: u64 = 8000;

/// Instructions in the entry of a call that comes so late that it takes the slow path.
fn steps_of_a_late_entry(target: &mut Target) -> Result<u64> {
    target.ask("call", "called")?;
    let steps = number(&target.ask("steps", "steps ")?)?;
    ensure!(steps > 2 * LAST, "{steps} instructions");
    Ok(steps)
}

/// Switches to another fiber in the middle of the slow path, for good.
pub(crate) fn leave_the_slow_path(target: &mut Target) -> Result<()> {
    let middle = steps_of_a_late_entry(target)? / 2;
    target.ask(&format!("away {middle}"), "away")?;
    Ok(())
}

/// The number at the end of a line.
fn number(line: &str) -> Result<u64> {
    let word = line.rsplit(' ').next().context("nothing was said")?;
    Ok(word.parse()?)
}

/// A fiber stays away from the slow path until the collector has freed the ring, and other events
/// have gone around the ring. Then the fiber goes on. Each event is recorded once, or counted once.
#[test]
fn a_fiber_that_comes_back_to_the_slow_path_harms_no_event() -> Result<()> {
    let mut target = Target::spawn(Fixture::Switching, [""; 0])?;
    let registry = registry();
    let session = attach_with(&registry, &target, SMALL)?.session;
    switch(&session, Switch::On)?;
    let steps = steps_of_a_late_entry(&mut target)?;
    for step in (0..steps - LAST).step_by(6) {
        target.ask(&format!("away {step}"), "away")?;
        // No event is counted before the ring is free.
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
