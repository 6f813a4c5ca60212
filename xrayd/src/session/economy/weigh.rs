//! What functions cost, and which of them are worth it.
//!
//! A *load* is what recording a function costs a thread, as a share of the time that the thread runs for itself. All together must keep within the budget, in each
//! thread that works, and in the process. What a function is worth is how long its calls take: that is how much of the program's time an event of it explains.

use std::collections::{HashMap, HashSet};

use xray_trace::model::FunctionId;

/// Stands for all threads of a process together.
pub(super) const ALL: u32 = 0;
/// Functions that cost next to nothing stay, as long as all of them together take no more than so much of the budget.
const FOR_THE_CHEAP: f64 = 0.1;
/// How much the latest measurement counts against those before.
const NEWEST: f64 = 0.5;
/// A load below this is none.
const LEAST: f64 = 1e-9;

/// What is known of one function.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Weight {
    /// Loads by thread.
    loads: HashMap<u32, f64>,
    /// Calls in a second for which the process runs for itself.
    pub(super) calls: f64,
    /// Ticks of a call; `None` while none was seen.
    pub(super) mean: Option<f64>,
}

/// What is known of all.
#[derive(Debug, Default)]
pub(super) struct Weights(HashMap<FunctionId, Weight>);

/// What was measured of one function in a while.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Measured {
    pub(super) loads: HashMap<u32, f64>,
    pub(super) calls: f64,
    pub(super) mean: Option<f64>,
}

// === impl Weight ===

impl Weight {
    fn dearest(&self) -> f64 {
        self.loads.values().copied().fold(0.0, f64::max)
    }

    /// `first`: what was known does not count.
    fn learn(&mut self, measured: &Measured, first: bool) {
        let newest = if first { 1.0 } else { NEWEST };
        for load in self.loads.values_mut() {
            *load *= 1.0 - newest;
        }
        for (&thread, load) in &measured.loads {
            *self.loads.entry(thread).or_default() += load * newest;
        }
        self.loads.retain(|_, load| *load > LEAST);
        self.calls = self.calls * (1.0 - newest) + measured.calls * newest;
        self.mean = measured.mean.or(self.mean);
    }
}

// === impl Weights ===

impl Weights {
    /// All functions of `measurable` were measured, and of those that are not in `measured` nothing was seen.
    pub(super) fn learn(
        &mut self,
        measured: &HashMap<FunctionId, Measured>,
        measurable: impl Fn(FunctionId) -> bool,
    ) {
        let nothing = Measured::default();
        for (id, weight) in &mut self.0 {
            if !measured.contains_key(id) && measurable(*id) {
                weight.learn(&nothing, false);
            }
        }
        for (&id, measured) in measured.iter().filter(|(id, _)| measurable(**id)) {
            let first = !self.0.contains_key(&id);
            self.0.entry(id).or_default().learn(measured, first);
        }
        self.0
            .retain(|_, weight| weight.calls > LEAST || !weight.loads.is_empty());
    }

    pub(super) fn get(&self, id: FunctionId) -> Option<&Weight> {
        self.0.get(&id)
    }

    /// The greatest load that these functions are together: of a thread, or of all.
    pub(super) fn load(&self, of: impl Fn(FunctionId) -> bool) -> f64 {
        let mut sums = HashMap::<u32, f64>::new();
        for (_, weight) in self.0.iter().filter(|(id, _)| of(**id)) {
            for (&thread, load) in &weight.loads {
                *sums.entry(thread).or_default() += load;
            }
        }
        sums.into_values().fold(0.0, f64::max)
    }

    /// Which of these functions are too dear for that budget.
    pub(super) fn too_dear(
        &self,
        budget: f64,
        among: impl Fn(FunctionId) -> bool,
    ) -> HashSet<FunctionId> {
        let mut candidates: Vec<(FunctionId, &Weight, f64)> = self
            .0
            .iter()
            .filter(|(id, _)| among(**id))
            .map(|(id, weight)| (*id, weight, weight.dearest()))
            .collect();
        let mut sums = HashMap::new();
        // The id decides between equals, so that the same is chosen again.
        candidates.sort_by(|(a, _, one), (b, _, other)| one.total_cmp(other).then(a.cmp(b)));
        candidates.retain(|(_, weight, _)| !admit(weight, budget * FOR_THE_CHEAP, &mut sums));
        let worth = |weight: &Weight| weight.mean.unwrap_or(0.0);
        candidates.sort_by(|(a, one, _), (b, other, _)| {
            worth(other).total_cmp(&worth(one)).then(a.cmp(b))
        });
        candidates.retain(|(_, weight, _)| !admit(weight, budget, &mut sums));
        candidates.into_iter().map(|(id, _, _)| id).collect()
    }
}

/// Adds the loads of a function if nobody is over the limit then.
fn admit(weight: &Weight, limit: f64, sums: &mut HashMap<u32, f64>) -> bool {
    let fits = weight.loads.iter().all(|(thread, load)| {
        let sum = sums.get(thread).copied().unwrap_or(0.0);
        sum + load <= limit
    });
    if fits {
        for (&thread, load) in &weight.loads {
            *sums.entry(thread).or_default() += load;
        }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(loads: &[(u32, f64)], mean: f64) -> Measured {
        Measured {
            loads: loads.iter().copied().collect(),
            calls: 1000.0,
            mean: Some(mean),
        }
    }

    /// A function, its loads, and how long its calls take.
    type Function<'a> = (u32, &'a [(u32, f64)], f64);

    fn weights(functions: &[Function<'_>]) -> Weights {
        let mut weights = Weights::default();
        let all = functions.iter();
        let all = all.map(|(id, loads, mean)| (FunctionId(*id), measured(loads, *mean)));
        weights.learn(&all.collect(), |_| true);
        weights
    }

    fn too_dear(weights: &Weights, budget: f64) -> Vec<u32> {
        let ids = weights.too_dear(budget, |_| true);
        let mut ids: Vec<u32> = ids.into_iter().map(|id| id.0).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn the_hot_and_short_rest_first() {
        let weights = weights(&[
            (1, &[(ALL, 0.30)], 20.0),
            (2, &[(ALL, 0.01)], 100_000.0),
            (3, &[(ALL, 0.008)], 5_000.0),
            (4, &[(ALL, 0.0001)], 10.0),
            (5, &[(ALL, 0.004)], 50.0),
        ]);
        assert!(too_dear(&weights, 1.0).is_empty());
        assert_eq!(too_dear(&weights, 0.02), [1, 5]);
        assert_eq!(too_dear(&weights, 0.012), [1, 3, 5]);
        // What costs next to nothing stays, however short it is.
        assert_eq!(too_dear(&weights, 0.001), [1, 2, 3, 5]);
    }

    #[test]
    fn no_thread_is_over_its_budget_because_others_are_idle() {
        let weights = weights(&[
            (1, &[(7, 0.05), (ALL, 0.01)], 10.0),
            (2, &[(8, 0.018), (ALL, 0.004)], 10.0),
            (3, &[(9, 0.018), (ALL, 0.004)], 10.0),
        ]);
        assert_eq!(too_dear(&weights, 0.02), [1]);
        assert!((weights.load(|id| id.0 > 1) - 0.018).abs() < 1e-9);
    }

    #[test]
    fn what_was_measured_before_counts_less_and_less() {
        let mut weights = weights(&[(1, &[(ALL, 0.4)], 10.0), (2, &[(ALL, 0.4)], 10.0)]);
        let calmer = HashMap::from([(FunctionId(1), measured(&[(ALL, 0.2)], 10.0))]);
        // The other one rests, so that nothing was seen of it says nothing.
        weights.learn(&calmer, |id| id == FunctionId(1));
        assert!((weights.load(|id| id.0 == 1) - 0.3).abs() < 1e-9);
        assert!((weights.load(|id| id.0 == 2) - 0.4).abs() < 1e-9);
        for _ in 0..60 {
            weights.learn(&HashMap::new(), |_| true);
        }
        assert!(
            weights.get(FunctionId(1)).is_none(),
            "nothing is left of it"
        );
    }
}
