//! The cost of an event for the program, derived from the cost of reading the counter.
//!
//! Reading the counter is most of the work of a trampoline. Measured with the processor time of
//! Redis with every function on in mode flight, 179 events a request, an event costs 0.98 times
//! that (9.35 ns). For a function that does nothing it costs 1.00 to 1.16 times that
//! (`docs/benchmarks.md`).

use crate::sys::ticks_now;

/// Cost of an event, as a multiple of the cost of reading the counter.
const TIMES: f64 = 1.1;
/// Readings in a timed round, and the number of rounds. The fastest round counts, because other
/// threads run on the processor, too.
const READINGS: u32 = 200;
const ROUNDS: u32 = 20;

/// Cost of an event on this machine, in ticks.
pub(super) fn of_event() -> f64 {
    let round = |_| {
        let begin = ticks_now().0;
        for _ in 1..READINGS {
            std::hint::black_box(ticks_now());
        }
        ticks_now().0.saturating_sub(begin)
    };
    let least = (0..ROUNDS).map(round).min().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    let one = least as f64 / f64::from(READINGS);
    (one * TIMES).max(1.0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_cost_of_an_event_is_plausible() {
        let event_cost = super::of_event();
        assert!((1.0..1_000_000.0).contains(&event_cost), "{event_cost}");
    }
}
