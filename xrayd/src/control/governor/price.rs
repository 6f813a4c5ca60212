//! What an event costs the program: about the price of reading the counter, which is most of what a trampoline does. Measured by the processor time of Redis with every function
//! on in flight, 179 events a request: 0.98 times that (9.35 ns); of a function that does nothing: 1.00 to 1.16 times (`docs/benchmarks.md`).

use crate::sys::ticks_now;

/// How many times what reading the counter costs.
const TIMES: f64 = 1.1;
/// Readings of which the time is taken, and how often; the least counts, since others run on the processor, too.
const READINGS: u32 = 200;
const ROUNDS: u32 = 20;

/// Ticks that an event costs on this machine.
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
    fn an_event_costs_something_and_not_the_earth() {
        let price = super::of_event();
        assert!((1.0..1_000_000.0).contains(&price), "{price}");
    }
}
