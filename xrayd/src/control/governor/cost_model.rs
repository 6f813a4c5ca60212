//! The cost of functions, and the choice of functions that are worth it.
//!
//! A *load* is the cost of recording a function in a thread, as a share of the time that the thread
//! runs for itself. The sum of all loads must stay within the budget in each thread that works, and
//! in the process. The worth of a function is the mean duration of its calls: the part of the
//! program's time that one event explains.

use std::collections::{HashMap, HashSet};

use xray_trace::model::{FunctionId, ThreadId};

/// The bearer of a cost: a thread, or all threads of the process together.
pub(super) type Whose = Option<ThreadId>;
pub(super) const ALL: Whose = None;
/// Share of the budget for the cheapest functions. They stay on as long as their sum is within it.
const FOR_THE_CHEAP: f64 = 0.1;
/// Ratio of call rates at which a function counts as changed, and the factor by which its earlier
/// measurements lose weight then.
const CHANGED: f64 = 3.0;
const FADE_CHANGED: f64 = 0.35;
/// Factors by which earlier measurements lose weight at each look and at each trial. Trials are
/// short, and nothing else shows the cost of suppressed functions, so their measurements last
/// longer.
const FADE_LOOK: f64 = 0.6;
pub(super) const FADE_TRIAL: f64 = 0.85;
/// Processor time of the process after which a measurement counts in full, in nanoseconds. A
/// shorter one changes the weights less, since a program that waits shows nothing.
const WHOLE_NS: f64 = 5e6;
/// Loads and calls per second below this count as none.
const LEAST: f64 = 1e-9;

/// How an interval was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Source {
    /// By the newest events of the rings. They have too much of what was called last.
    #[default]
    Look,
    /// By all events.
    Trial,
}

/// The cost of one function: sums in which older parts count less. Ratios are made of sums, since
/// in a short time they vary wildly.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct FunctionCost {
    /// Cost by thread.
    costs: HashMap<Whose, Cost>,
    calls: f64,
    /// Mean duration of a call, in nanoseconds. `None` while no call was seen.
    mean: Option<f64>,
    /// The source of the latest measurement.
    source: Source,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cost {
    cost_ns: f64,
    time: Time,
}

/// Processor time in an interval, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Time {
    /// Processor time. The kernel updates it at the scheduler's tick, so only sums of it are exact.
    pub(super) cpu_ns: f64,
    /// The part of it that tracing took.
    pub(super) spent_ns: f64,
}

/// The costs of all functions.
#[derive(Debug, Default)]
pub(super) struct CostModel(HashMap<FunctionId, FunctionCost>);

/// The measurements of an interval.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Measured {
    /// Time of each thread that works, and of all threads together.
    pub(super) threads: HashMap<Whose, Time>,
    /// Threads that exist, whether they work or not.
    pub(super) living: HashSet<ThreadId>,
    pub(super) functions: HashMap<FunctionId, Share>,
}

/// The part of one function in an interval.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Share {
    /// Cost in each thread, in nanoseconds.
    pub(super) costs_ns: HashMap<Whose, f64>,
    pub(super) calls: f64,
    /// Mean duration of a call, in nanoseconds.
    pub(super) mean: Option<f64>,
}

// === impl Source ===

impl Source {
    const fn fade(self) -> f64 {
        match self {
            Self::Look => FADE_LOOK,
            Self::Trial => FADE_TRIAL,
        }
    }
}

// === impl Time ===

impl Time {
    /// The time without tracing. It is at least a tenth of the processor time, since the event cost
    /// is not exact. It is also at least a tenth of the cost, since the kernel may not have updated
    /// the processor time yet.
    pub(super) fn useful_ns(self) -> f64 {
        (self.cpu_ns - self.spent_ns).max(self.cpu_ns.max(self.spent_ns) / 10.0)
    }

    /// The time in which the program does only this share of what the event cost lets expect.
    /// Tracing took the rest.
    pub(super) fn at_pace(self, share: f64) -> Self {
        Self {
            spent_ns: self.cpu_ns - self.useful_ns() * share,
            ..self
        }
    }

    /// Adds a later interval, after the weight of this one is multiplied by `fade`.
    pub(super) fn add(&mut self, later: Self, fade: f64) {
        self.cpu_ns = self.cpu_ns * fade + later.cpu_ns;
        self.spent_ns = self.spent_ns * fade + later.spent_ns;
    }
}

// === impl Cost ===

impl Cost {
    fn load(self) -> f64 {
        self.cost_ns / self.time.useful_ns().max(1.0)
    }

    fn add(&mut self, later: Self, fade: f64) {
        self.cost_ns = self.cost_ns * fade + later.cost_ns;
        self.time.add(later.time, fade);
    }
}

/// The reason for which a function stays on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Importance {
    /// The user keeps it, whatever it costs.
    Kept,
    /// A trigger waits for its calls.
    Awaited,
    Other,
}

// === impl FunctionCost ===

impl FunctionCost {
    /// Loads by thread.
    fn loads(&self) -> impl Iterator<Item = (Whose, f64)> {
        self.costs
            .iter()
            .map(|(thread, cost)| (*thread, cost.load()))
    }

    fn highest_load(&self) -> f64 {
        self.loads().map(|(_, load)| load).fold(0.0, f64::max)
    }

    /// Calls per second of the process's time without tracing.
    pub(super) fn calls_per_second(&self) -> f64 {
        let all = self.costs.get(&ALL);
        let useful_ns = all.map_or(0.0, |cost| cost.time.useful_ns());
        self.calls * 1e9 / useful_ns.max(1.0)
    }

    fn learn(&mut self, share: &Share, measured: &Measured, source: Source) {
        if std::mem::replace(&mut self.source, source) != source && source == Source::Trial {
            self.limit_looks();
        }
        let all = measured.threads.get(&ALL).copied().unwrap_or_default();
        let before = self.calls_per_second();
        let now = share.calls * 1e9 / all.useful_ns().max(1.0);
        let fade = match now * CHANGED < before || before * CHANGED < now {
            // The program behaves differently now, so earlier measurements lose more weight.
            true => FADE_CHANGED,
            false => source.fade(),
        };
        let fade = fade.powf((all.cpu_ns / WHOLE_NS).clamp(0.0, 1.0));
        let threads = &measured.threads;
        // A thread that does not work in this interval shows nothing.
        for (&thread, &time) in threads {
            let cost_ns = share.costs_ns.get(&thread).copied().unwrap_or(0.0);
            let cost = self.costs.entry(thread).or_default();
            cost.add(Cost { cost_ns, time }, fade);
        }
        // Costs in threads that have ended are dropped.
        let living = |thread| measured.living.contains(&thread);
        self.costs.retain(|whose, cost| {
            whose.is_none_or(living) && (*whose == ALL || cost.load() > LEAST)
        });
        self.calls = self.calls * fade + share.calls;
        self.mean = share.mean.or(self.mean);
    }

    /// Looks measure for far longer than trials, and less exactly. So before the first trial, all
    /// looks together get the weight of one trial.
    fn limit_looks(&mut self) {
        let all = self.costs.get(&ALL).copied().unwrap_or_default();
        let fade = (WHOLE_NS / all.time.cpu_ns.max(1.0)).min(1.0);
        for cost in self.costs.values_mut() {
            cost.add(Cost::default(), fade);
        }
        self.calls *= fade;
    }
}

// === impl CostModel ===

impl CostModel {
    /// Adds a measurement of all `measurable` functions. Those without a share were not called.
    /// Earlier measurements lose weight.
    pub(super) fn learn(
        &mut self,
        measured: &Measured,
        source: Source,
        measurable: impl Fn(FunctionId) -> bool,
    ) {
        let nothing = Share::default();
        let functions = &measured.functions;
        for id in functions.keys().filter(|id| measurable(**id)) {
            self.0.entry(*id).or_default();
        }
        for (id, function_cost) in self.0.iter_mut().filter(|(id, _)| measurable(**id)) {
            function_cost.learn(functions.get(id).unwrap_or(&nothing), measured, source);
        }
        self.0.retain(|_, function_cost| {
            function_cost.calls_per_second() > LEAST || function_cost.highest_load() > LEAST
        });
    }

    pub(super) fn get(&self, id: FunctionId) -> Option<&FunctionCost> {
        self.0.get(&id)
    }

    /// The greatest load of these functions together, in one thread or in the process.
    pub(super) fn load(&self, of: impl Fn(FunctionId) -> bool) -> f64 {
        let mut sums = HashMap::<Whose, f64>::new();
        for (_, function_cost) in self.0.iter().filter(|(id, _)| of(**id)) {
            for (thread, load) in function_cost.loads() {
                *sums.entry(thread).or_default() += load;
            }
        }
        sums.into_values().fold(0.0, f64::max)
    }

    /// The functions that do not fit into the budget, which is the first of these loads. What the
    /// more important functions cost is missing for the others. Those that a trigger waits for may
    /// take up to the second load.
    pub(super) fn over_budget(
        &self,
        (budget, most): (f64, f64),
        among: impl Fn(FunctionId) -> bool,
        importance: impl Fn(FunctionId) -> Importance,
    ) -> HashSet<FunctionId> {
        type Candidate<'a> = (FunctionId, &'a FunctionCost, f64);
        let mut sums = HashMap::new();
        let (mut awaited, mut candidates) = (Vec::<Candidate<'_>>::new(), Vec::new());
        for (&id, function_cost) in self.0.iter().filter(|(id, _)| among(**id)) {
            let candidate = (id, function_cost, function_cost.highest_load());
            match importance(id) {
                Importance::Kept => {
                    admit(function_cost, f64::INFINITY, &mut sums);
                }
                Importance::Awaited => awaited.push(candidate),
                Importance::Other => candidates.push(candidate),
            }
        }
        awaited.sort_by(|(a, _, one), (b, _, other)| one.total_cmp(other).then(a.cmp(b)));
        awaited.retain(|(_, function_cost, _)| !admit(function_cost, most, &mut sums));
        // The id decides between equals, so that the choice is stable.
        candidates.sort_by(|(a, _, one), (b, _, other)| one.total_cmp(other).then(a.cmp(b)));
        candidates.retain(|(_, function_cost, _)| {
            !admit(function_cost, budget * FOR_THE_CHEAP, &mut sums)
        });
        let worth = |function_cost: &FunctionCost| function_cost.mean.unwrap_or(0.0);
        candidates.sort_by(|(a, one, _), (b, other, _)| {
            worth(other).total_cmp(&worth(one)).then(a.cmp(b))
        });
        candidates.retain(|(_, function_cost, _)| !admit(function_cost, budget, &mut sums));
        candidates.extend(awaited);
        candidates.into_iter().map(|(id, _, _)| id).collect()
    }
}

/// Adds the loads of a function, unless a sum would exceed the limit.
fn admit(function_cost: &FunctionCost, limit: f64, sums: &mut HashMap<Whose, f64>) -> bool {
    let fits = function_cost.loads().all(|(thread, load)| {
        let sum = sums.get(&thread).copied().unwrap_or(0.0);
        sum + load <= limit
    });
    if fits {
        for (thread, load) in function_cost.loads() {
            *sums.entry(thread).or_default() += load;
        }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: f64 = 1e9;

    /// A function, its loads, and the duration of its calls.
    type Function<'a> = (u32, &'a [(Whose, f64)], f64);

    const fn thread(id: u32) -> Whose {
        Some(ThreadId(id))
    }

    /// Measurements of one second.
    fn measured(functions: &[Function<'_>]) -> Measured {
        let mut measured = Measured::default();
        let time = Time {
            cpu_ns: SECOND,
            spent_ns: 0.0,
        };
        measured.threads.insert(ALL, time);
        for &(id, loads, mean) in functions {
            let mut share = Share {
                calls: 1000.0,
                mean: Some(mean),
                ..Share::default()
            };
            for &(thread, load) in loads {
                measured.threads.insert(thread, time);
                measured.living.extend(thread);
                share.costs_ns.insert(thread, load * SECOND);
            }
            measured.functions.insert(FunctionId(id), share);
        }
        measured
    }

    fn costs(functions: &[Function<'_>]) -> CostModel {
        let mut costs = CostModel::default();
        costs.learn(&measured(functions), Source::Look, |_| true);
        costs
    }

    fn over_budget(costs: &CostModel, budget: f64) -> Vec<u32> {
        let ids = costs.over_budget((budget, budget), |_| true, |_| Importance::Other);
        let mut ids: Vec<u32> = ids.into_iter().map(|id| id.0).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn hot_and_short_functions_are_suppressed_first() {
        let costs = costs(&[
            (1, &[(ALL, 0.30)], 20.0),
            (2, &[(ALL, 0.01)], 100_000.0),
            (3, &[(ALL, 0.008)], 5_000.0),
            (4, &[(ALL, 0.0001)], 10.0),
            (5, &[(ALL, 0.004)], 50.0),
        ]);
        assert!(over_budget(&costs, 1.0).is_empty());
        assert_eq!(over_budget(&costs, 0.02), [1, 5]);
        assert_eq!(over_budget(&costs, 0.012), [1, 3, 5]);
        // Cheap functions stay on, however short their calls are.
        assert_eq!(over_budget(&costs, 0.001), [1, 2, 3, 5]);
    }

    #[test]
    fn kept_functions_leave_less_of_the_budget_for_others() {
        let costs = costs(&[
            (1, &[(ALL, 0.30)], 20.0),
            (2, &[(ALL, 0.01)], 100_000.0),
            (3, &[(ALL, 0.008)], 5_000.0),
            (4, &[(ALL, 0.0001)], 10.0),
        ]);
        let over_budget = |budget, kept: &[u32]| {
            let ids = costs.over_budget(
                (budget, budget),
                |_| true,
                |id| match kept.contains(&id.0) {
                    true => Importance::Kept,
                    false => Importance::Other,
                },
            );
            let mut ids: Vec<u32> = ids.into_iter().map(|id| id.0).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(over_budget(0.02, &[]), [1]);
        assert_eq!(over_budget(0.012, &[3]), [1, 2]);
        // A kept function may cost more than the budget.
        assert_eq!(over_budget(0.02, &[1]), [2, 3, 4]);
    }

    #[test]
    fn functions_of_triggers_come_before_others_as_long_as_they_fit() {
        let costs = costs(&[
            (1, &[(ALL, 0.30)], 20.0),
            (2, &[(ALL, 0.01)], 100_000.0),
            (3, &[(ALL, 0.015)], 5_000.0),
            (4, &[(ALL, 0.0001)], 10.0),
        ]);
        let over_budget = |awaited: &[u32]| {
            let ids = costs.over_budget(
                (0.012, 0.02),
                |_| true,
                |id| match awaited.contains(&id.0) {
                    true => Importance::Awaited,
                    false => Importance::Other,
                },
            );
            let mut ids: Vec<u32> = ids.into_iter().map(|id| id.0).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(over_budget(&[]), [1, 3]);
        assert_eq!(over_budget(&[3]), [1, 2, 4]);
        assert_eq!(over_budget(&[1]), [1, 3]);
        // The cheaper one.
        assert_eq!(over_budget(&[2, 3]), [1, 3]);
    }

    #[test]
    fn no_thread_is_over_its_budget_because_others_are_idle() {
        let costs = costs(&[
            (1, &[(thread(7), 0.05), (ALL, 0.01)], 10.0),
            (2, &[(thread(8), 0.018), (ALL, 0.004)], 10.0),
            (3, &[(thread(9), 0.018), (ALL, 0.004)], 10.0),
        ]);
        assert_eq!(over_budget(&costs, 0.02), [1]);
        assert!((costs.load(|id| id.0 > 1) - 0.018).abs() < 1e-9);
    }

    /// Threads come and go. The costs of threads that have ended take no memory, and suppress no
    /// function.
    #[test]
    fn a_thread_that_has_ended_costs_nothing() {
        let mut costs = costs(&[(1, &[(thread(7), 0.5), (ALL, 0.01)], 10.0)]);
        assert_eq!(over_budget(&costs, 0.02), [1]);
        let mut later = measured(&[(1, &[(ALL, 0.01)], 10.0)]);
        later.living.insert(ThreadId(7));
        costs.learn(&later, Source::Look, |_| true);
        assert_eq!(over_budget(&costs, 0.02), [1], "it only does not work now");
        later.living.clear();
        costs.learn(&later, Source::Look, |_| true);
        assert!(over_budget(&costs, 0.02).is_empty());
        assert_eq!(costs.get(FunctionId(1)).unwrap().costs.len(), 1);
    }

    /// A look may see a function twice as often as it is called.
    #[test]
    fn trials_soon_count_more_than_looks() {
        let mut costs = CostModel::default();
        let of = |cpu_ns, calls| {
            let mut measured = measured(&[(1, &[(ALL, 0.01)], 10.0)]);
            measured.threads.entry(ALL).or_default().cpu_ns = cpu_ns;
            measured.functions.entry(FunctionId(1)).or_default().calls = calls;
            measured
        };
        for _ in 0..10 {
            costs.learn(&of(0.2 * SECOND, 400.0), Source::Look, |_| true);
        }
        let rate = |costs: &CostModel| costs.get(FunctionId(1)).unwrap().calls_per_second();
        assert!((rate(&costs) - 2000.0).abs() < 1e-6);
        costs.learn(&of(0.015 * SECOND, 15.0), Source::Trial, |_| true);
        assert!((1000.0..1250.0).contains(&rate(&costs)), "{}", rate(&costs));
        for _ in 0..10 {
            costs.learn(&of(0.015 * SECOND, 15.0), Source::Trial, |_| true);
        }
        assert!((1000.0..1020.0).contains(&rate(&costs)), "{}", rate(&costs));
    }

    #[test]
    fn older_measurements_count_less() {
        let mut costs = costs(&[(1, &[(ALL, 0.4)], 10.0), (2, &[(ALL, 0.4)], 10.0)]);
        let calmer = measured(&[(1, &[(ALL, 0.2)], 10.0)]);
        // The other function is suppressed, so its missing share means nothing.
        costs.learn(&calmer, Source::Look, |id| id == FunctionId(1));
        let expected = (0.4 * FADE_LOOK + 0.2) / (FADE_LOOK + 1.0);
        assert!((costs.load(|id| id.0 == 1) - expected).abs() < 1e-9);
        assert!((costs.load(|id| id.0 == 2) - 0.4).abs() < 1e-9);
        let calls = costs.get(FunctionId(1)).unwrap().calls_per_second();
        assert!((calls - 1000.0).abs() < 1e-6);
        // A program that waits shows next to nothing, however often it is measured.
        let mut waiting = measured(&[]);
        waiting.threads.entry(ALL).or_default().cpu_ns = WHOLE_NS / 1e5;
        for _ in 0..1000 {
            costs.learn(&waiting, Source::Look, |_| true);
        }
        let calls = costs.get(FunctionId(1)).unwrap().calls_per_second();
        assert!((calls - 1000.0).abs() < 50.0, "{calls}");
        for _ in 0..80 {
            costs.learn(&measured(&[]), Source::Look, |_| true);
        }
        assert!(costs.get(FunctionId(1)).is_none(), "nothing is left of it");
    }
}
