//! How fast the program works while suppressed functions are tried.
//!
//! An event costs the program more than [`super::event_cost`] says where neighbours slow its
//! processor or its memory. Then the program gets less done in the time of a trial than the
//! processor time and the number of events let expect. The calls of functions that are on all the
//! time show by how much: the comparison before the trial has their rate without the functions of
//! the trial. Where no function is on all the time, nothing shows it.

use super::trial::Calls;

/// Calls that count as made, and as expected, before any is seen. They make up for the chance in
/// small numbers.
const ASSUMED: f64 = 50.0;
/// The least and the greatest pace. Beyond them, the program does something else than before.
const SLOWEST: f64 = 0.25;
const FASTEST: f64 = 1.5;

/// Calls of functions that are on all the time: sums in which older trials count less.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Pace {
    compared: Calls,
    tried: Calls,
}

// === impl Pace ===

impl Pace {
    /// Adds a trial and the comparison before it, after the weight of earlier ones is multiplied by
    /// `fade`.
    pub(super) fn learn(&mut self, compared: Calls, tried: Calls, fade: f64) {
        self.compared = self.compared.later(compared, fade);
        self.tried = self.tried.later(tried, fade);
    }

    /// The work of the program in a trial, as a share of what it does in the same time otherwise.
    pub(super) fn share(self) -> f64 {
        let expected =
            self.compared.calls * self.tried.useful_ns / self.compared.useful_ns.max(1.0);
        ((self.tried.calls + ASSUMED) / (expected + ASSUMED)).clamp(SLOWEST, FASTEST)
    }
}

// === impl Calls ===

impl Calls {
    fn later(self, later: Self, fade: f64) -> Self {
        Self {
            calls: self.calls * fade + later.calls,
            useful_ns: self.useful_ns * fade + later.useful_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn calls(calls: f64, useful_ns: f64) -> Calls {
        Calls { calls, useful_ns }
    }

    #[test]
    fn the_pace_is_the_ratio_of_rates() {
        let mut pace = Pace::default();
        assert!((pace.share() - 1.0).abs() < 1e-9);
        // A few calls prove little.
        pace.learn(calls(4.0, 1e6), calls(0.0, 1e6), 0.8);
        assert!((0.9..1.0).contains(&pace.share()), "{pace:?}");
        for _ in 0..20 {
            pace.learn(calls(1000.0, 1e6), calls(1600.0, 2e6), 0.8);
        }
        assert!((0.79..0.82).contains(&pace.share()), "{pace:?}");
        for _ in 0..20 {
            pace.learn(calls(1000.0, 1e6), calls(500.0, 5e5), 0.8);
        }
        assert!((0.95..1.01).contains(&pace.share()), "{pace:?}");
    }

    #[test]
    fn a_program_that_does_something_else_does_not_stop_the_estimates() {
        let mut pace = Pace::default();
        pace.learn(calls(1e6, 1e6), calls(0.0, 1e6), 0.8);
        assert!((pace.share() - SLOWEST).abs() < 1e-9);
        pace.learn(calls(0.0, 1e6), calls(1e9, 1e6), 0.8);
        assert!((pace.share() - FASTEST).abs() < 1e-9);
    }
}
