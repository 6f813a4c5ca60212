//! The cost of an event for the program, derived from the cost of reading the counter.
//!
//! Reading the counter is most of the work of a trampoline. How much the rest adds depends on the
//! processor: some read the counter while earlier instructions are still under way, others wait for
//! those. So the readings are measured with a chain of multiplications between them that takes
//! about as long as the chain of instructions in a trampoline (`docs/benchmarks.md`).
//!
//! Measured with the processor time of Redis with every function on, an event that is recorded
//! costs 0.98 times a reading on a processor of the first kind, and 1.42 times on one of the second
//! kind. One that is added up costs 1.76 times a reading there.

use crate::{inject::DispatchMode, sys::ticks_of_readings};

/// Multiplications that take as long as an event that is recorded, and one that is added up.
const RECORDED: u32 = 5;
const ADDED_UP: u32 = 9;
/// The least cost of such events, as a multiple of the cost of reading the counter.
const LEAST_RECORDED: f64 = 1.1;
const LEAST_ADDED_UP: f64 = 1.3;
/// Readings in a timed round, and the number of rounds. The fastest round counts, because other
/// threads run on the processor, too.
const READINGS: u32 = 200;
const ROUNDS: u32 = 20;

/// Costs of an event on this machine, in ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventCosts {
    recorded: f64,
    added_up: f64,
}

// === impl EventCosts ===

impl EventCosts {
    pub(super) fn measure() -> Self {
        let reading = ticks_of_reading(0);
        let of = |chain, least: f64| ticks_of_reading(chain).max(reading * least).max(1.0);
        Self {
            recorded: of(RECORDED, LEAST_RECORDED),
            added_up: of(ADDED_UP, LEAST_ADDED_UP),
        }
    }

    /// The cost in a dispatch mode.
    pub(super) fn of(self, dispatch_mode: DispatchMode) -> f64 {
        match dispatch_mode {
            DispatchMode::Profile => self.added_up,
            DispatchMode::ProfileAndRecord => self.added_up + self.recorded,
            DispatchMode::None | DispatchMode::Filter | DispatchMode::Count => self.recorded,
        }
    }
}

/// The ticks between two readings of the counter with a chain of multiplications in between.
fn ticks_of_reading(chain: u32) -> f64 {
    let rounds = (0..ROUNDS).map(|_| ticks_of_readings(READINGS, chain));
    let least = rounds.min().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    let least = least as f64;
    least / f64::from(READINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_costs_of_events_are_plausible() {
        let costs = EventCosts::measure();
        let [recorded, added_up] =
            [DispatchMode::None, DispatchMode::Profile].map(|mode| costs.of(mode));
        assert!((1.0..1_000_000.0).contains(&recorded), "{costs:?}");
        assert!((1.0..1_000_000.0).contains(&added_up), "{costs:?}");
    }
}
