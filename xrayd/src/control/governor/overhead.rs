//! A limit on the overhead: functions are suppressed while the program would exceed it.
//!
//! ```text
//!            over the limit: suppress the costly
//!            ┌───────┐
//!  looking ──┴───────┴── now and then ──► trying: suppressed functions are on for milliseconds ──┐
//!     ▲                                                                                          │
//!     └───────────── weighed anew: some are suppressed, some are resumed ◄───────────────────────┘
//! ```

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use xray_trace::model::FunctionId;

use super::{
    cost_model::{CostModel, FADE_TRIAL, Importance, Source, Time},
    event_cost::EventCosts,
    history::History,
    kept::KeptFunctions,
    measure::{Costs, Interval, Reading, WORKING, float, whole},
    pace::Pace,
    switching,
    tick_rate::TickRate,
    trial::{Calls, Clocks, Comparison, OpenWindow, Trial, sample},
};
use crate::{
    collect::{Edge, Look, Sample},
    control::patching::Patching,
    refusal::Result,
    sys::ticks_now,
    triggers::Awaited,
    types::Overhead,
};

/// Delay of the first look after functions were switched on, and the interval of later looks.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A look that takes long is followed by a longer pause: so many times as long, up to a limit.
const LOOK_PART: u32 = 25;
const LOOK_EVERY_AT_LEAST: Duration = Duration::from_secs(1);
/// Limits that are in force, in all processes.
static IN_FORCE: AtomicU32 = AtomicU32::new(0);
/// The number of limits up to which all processes are looked at as often as a busy one.
const FEW: u32 = 4;
/// The processors that a busy program uses.
const BUSY: f64 = 0.5;
/// The most times that looks and trials are as far apart where a program uses less.
const MOST_RARE: f64 = 10.0;
/// Shares of the budget. If the load is above the first, functions are suppressed until it is at
/// most the second. The distance between them allows for the variation of measurements. The third
/// is the limit on the cost of trials.
const TOO_MUCH: f64 = 0.75;
const ENOUGH: f64 = 0.6;
const FOR_TRYING: f64 = 0.2;
/// Shortest and longest trial, shortest and longest interval between trials, and the most functions
/// in one trial.
const SHORTEST_TRIAL: Duration = Duration::from_millis(1);
const LONGEST_TRIAL: Duration = Duration::from_millis(50);
const TRIAL_EVERY: Duration = Duration::from_secs(1);
const TRIAL_EVERY_AT_LEAST: Duration = Duration::from_secs(60);
const MOST_TRIED: usize = 256;
/// The share of lost events from which on a trial shows nothing. The next one is shorter, so that
/// the rings have room for it.
const MOST_LOST: f64 = 0.02;
/// Factor by which earlier looks lose weight in the reported overhead.
const FADE: f64 = 0.9;

/// A limit on the overhead that is in force.
#[derive(Debug)]
pub(super) struct OverheadLimit {
    _in_force: InForce,
    /// The limit, as a share of the time that the program runs without tracing.
    limit: f64,
    /// Time of the next step.
    pub(super) due: Instant,
    stage: Stage,
    /// Functions that are switched on and suppressed.
    suppressed: BTreeSet<FunctionId>,
    model: CostModel,
    /// How fast the program works during trials.
    pace: Pace,
    /// Functions that are never suppressed.
    pub(super) kept: KeptFunctions,
    event_costs: EventCosts,
    tick_rate: TickRate,
    last: Option<Reading>,
    /// Recent cost of tracing, and recent processor time of the program.
    spent: Time,
    next_trial: Option<Instant>,
    /// The limit on the duration of the next trial.
    longest_trial: Duration,
    /// The last function of the previous trial.
    tried: Option<FunctionId>,
}

/// A limit among those that are in force, until it is dropped.
#[derive(Debug)]
struct InForce;

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Looking,
    /// The events of the functions that are on are counted, for comparison with a trial.
    Comparing(Comparison),
    /// Some suppressed functions are on.
    Trying(Trial),
}

// === impl InForce ===

impl InForce {
    fn begin() -> Self {
        IN_FORCE.fetch_add(1, Relaxed);
        Self
    }
}

impl Drop for InForce {
    fn drop(&mut self) {
        IN_FORCE.fetch_sub(1, Relaxed);
    }
}

// === impl OverheadLimit ===

impl OverheadLimit {
    /// A limit, and the functions that it never suppresses. Nothing is suppressed yet.
    pub(super) fn new(overhead: &Overhead, kept: KeptFunctions) -> Self {
        Self {
            _in_force: InForce::begin(),
            limit: f64::from(overhead.ppm) / 1e6,
            due: Instant::now(),
            stage: Stage::default(),
            suppressed: BTreeSet::new(),
            model: CostModel::default(),
            pace: Pace::default(),
            kept,
            event_costs: EventCosts::measure(),
            tick_rate: TickRate::begin(),
            last: None,
            spent: Time::default(),
            next_trial: None,
            longest_trial: LONGEST_TRIAL,
            tried: None,
        }
    }

    /// Resumes all suppressed functions, and ends a comparison or a trial. After an error the limit
    /// is still in force, and the call can be repeated.
    pub(super) fn end(&mut self, patching: &mut Patching) -> Result<()> {
        let suppressed: Vec<FunctionId> = self.suppressed.iter().copied().collect();
        switching::resume(patching, &suppressed)?;
        sample(patching, Look::Nothing);
        Ok(())
    }

    /// Ends the suppression of functions that are being switched.
    pub(super) fn end_suppression_of(&mut self, history: &History, ids: &[FunctionId]) {
        self.due = self.due.min(Instant::now() + FIRST_LOOK);
        let resumed: Vec<FunctionId> = ids
            .iter()
            .copied()
            .filter(|id| self.suppressed.remove(id))
            .collect();
        history.resume(resumed, ticks_now());
        // The program runs at another pace from now on.
        self.drop_comparison();
    }

    /// As [`Governor::drop_comparison`](super::Governor::drop_comparison).
    pub(super) fn drop_comparison(&mut self) {
        match &mut self.stage {
            Stage::Comparing(comparison) => comparison.window = None,
            Stage::Trying(trial) => trial.others = None,
            Stage::Looking => {}
        }
    }

    /// As [`Governor::measure_anew`](super::Governor::measure_anew).
    pub(super) fn measure_anew(&mut self) {
        if let Some(last) = &mut self.last {
            // The numbers of events mean something else from now on. The clocks go on.
            last.given.clear();
        }
        self.drop_comparison();
        if let Stage::Trying(trial) = &mut self.stage {
            trial.window = None;
        }
    }

    /// Does the next step.
    ///
    /// # Errors
    /// Sleds cannot be switched. The step can be repeated.
    pub(super) fn step(&mut self, patching: &mut Patching) -> Result<()> {
        match std::mem::take(&mut self.stage) {
            Stage::Looking => self.look_at_costs(patching),
            Stage::Comparing(comparison) => self.begin_trial(patching, comparison),
            Stage::Trying(trial) => self.end_trial(patching, trial),
        }
    }

    /// How many times as far apart measurements are as those of a few processes, or of a busy one.
    /// They cost the daemon as much for a program that runs little, and it has less to lose.
    fn rarity(&self) -> f64 {
        let running = self.last.as_ref().map_or(BUSY, |last| last.running);
        let crowd = f64::from(IN_FORCE.load(Relaxed)) / f64::from(FEW);
        (BUSY / running.max(f64::MIN_POSITIVE))
            .min(crowd)
            .clamp(1.0, MOST_RARE)
    }

    /// Cost of an event in the present mode, in nanoseconds.
    fn event_ns(&self, patching: &Patching) -> f64 {
        let ticks = self.event_costs.of(patching.patcher.dispatch_mode());
        ticks * self.tick_rate.tick_ns()
    }

    /// The overhead, if the program ran at all.
    fn overhead(&self) -> Option<f64> {
        let useful_ns = self.spent.useful_ns();
        (useful_ns > 0.0).then(|| self.spent.spent_ns / useful_ns)
    }

    fn look_at_costs(&mut self, patching: &mut Patching) -> Result<()> {
        self.kept.match_new(&patching.traced.functions);
        let states = &patching.shared.states;
        self.suppressed.retain(|id| states.recorded(*id).is_some());
        let before = self.last.take().unwrap_or_default();
        let begun = Instant::now();
        let sample = sample(patching, Look::Newest(before.given.clone()));
        let now = Instant::now();
        let pause = ((now - begun) * LOOK_PART).clamp(LOOK_EVERY, LOOK_EVERY_AT_LEAST);
        self.due = now + pause;
        let Some(mut sample) = sample else {
            return Ok(());
        };
        let mut reading = Reading::of(&sample);
        let interval = before.at.map(|(at, since)| {
            let elapsed = reading.run_since(&before, at);
            let tallies = sample.tallies(since, &(since..=sample.taken.1));
            let cpu_ns = reading.running * elapsed;
            Interval::new(&sample, &before.given, tallies, (elapsed, cpu_ns), &reading)
        });
        self.last = Some(reading);
        let pause = pause.max(LOOK_EVERY.mul_f64(self.rarity()));
        self.due = now + pause;
        let Some(interval) = interval else {
            self.due = now + FIRST_LOOK;
            return Ok(());
        };
        let (event_ns, tick_ns) = (self.event_ns(patching), self.tick_rate.tick_ns());
        let costs = interval.costs(event_ns, tick_ns);
        self.spent.add(costs.time, FADE);
        if interval.is_seen() && !before.given.is_empty() {
            let is_on = |id| !self.suppressed.contains(&id);
            self.model.learn(&costs.measured, Source::Look, is_on);
        }
        let useful_ns = costs.time.useful_ns();
        self.count_unrecorded(patching, |_| useful_ns);
        patching.shared.history.cost(self.overhead(), event_ns);
        let on = |id| states.recorded(id).is_some() && !self.suppressed.contains(&id);
        let awaited = patching.output.triggers.awaited();
        if self.model.load(on) > self.limit * TOO_MUCH {
            let over_budget = self.over_budget(on, &awaited);
            // Functions that are kept may cost more than the budget by themselves.
            if !over_budget.is_empty() {
                self.suppress(patching, over_budget.into_iter().collect())?;
                self.begin_anew(patching);
            }
        }
        match self.next_trial {
            _ if self.suppressed.is_empty() => self.next_trial = None,
            None => self.next_trial = Some(now + TRIAL_EVERY),
            Some(next) if next <= now => self.begin_comparison(patching),
            Some(_) => {}
        }
        Ok(())
    }

    /// The functions among those that are on which do not fit into the budget.
    fn over_budget(
        &self,
        on: impl Fn(FunctionId) -> bool,
        awaited: &Awaited,
    ) -> HashSet<FunctionId> {
        let importance = |id| match self.kept.contains(id) {
            true => Importance::Kept,
            false if awaited.contains(id) => Importance::Awaited,
            false => Importance::Other,
        };
        let loads = (self.limit * ENOUGH, self.limit);
        self.model.over_budget(loads, on, importance)
    }

    /// Suppresses functions.
    fn suppress(&mut self, patching: &mut Patching, ids: Vec<FunctionId>) -> Result<()> {
        let suppressed = switching::suppress(patching, &ids);
        // Noted after a failure, too: some of them may be off, and have to be resumed later.
        patching.shared.history.suppress(&ids, ticks_now());
        tracing::debug!(
            pid = patching.target.pid().as_raw(),
            functions = ids.len(),
            "suppressed functions"
        );
        self.suppressed.extend(ids);
        suppressed
    }

    /// Begins to count the events of the functions that are on, before suppressed functions are
    /// tried.
    fn begin_comparison(&mut self, patching: &Patching) {
        let running = self.last.as_ref().map_or(0.0, |last| last.running);
        let now = Instant::now();
        if running < WORKING / 10.0 {
            // The program is idle, so there is nothing to measure.
            self.next_trial = Some(now + TRIAL_EVERY);
            return;
        }
        let suppressed = &self.suppressed;
        let after = suppressed
            .iter()
            .filter(|id| self.tried.is_none_or(|tried| **id > tried));
        let ids: Vec<FunctionId> = after
            .chain(suppressed)
            .copied()
            .take(MOST_TRIED.min(suppressed.len()))
            .collect();
        self.tried = ids.last().copied();
        let ids: BTreeSet<FunctionId> = ids.into_iter().collect();
        let load = self.model.load(|id| ids.contains(&id)).max(0.001);
        let share = self.limit * FOR_TRYING;
        let time = Duration::from_secs_f64((share / load).min(1.0) * TRIAL_EVERY.as_secs_f64());
        let time = time.min(self.longest_trial).max(SHORTEST_TRIAL);
        let clocks = Clocks::of(patching, self.last.as_ref());
        let mut window = OpenWindow::open(patching, &clocks);
        if let Some(window) = &mut window {
            window.begin(patching);
        }
        self.stage = Stage::Comparing(Comparison {
            ids: ids.into_iter().collect(),
            time,
            window,
            clocks,
        });
        self.due = Instant::now() + time;
    }

    /// Switches suppressed functions on for a moment, to measure what they cost now.
    fn begin_trial(&mut self, patching: &mut Patching, comparison: Comparison) -> Result<()> {
        let Comparison {
            mut ids,
            time,
            clocks,
            window,
        } = comparison;
        // Functions that were switched meanwhile do not belong to the trial.
        ids.retain(|id| self.suppressed.contains(id));
        let others = window.and_then(|mut window| {
            let ended = window.end(patching);
            let (interval, _) = self.interval(patching, window, ended)?;
            let shows = interval.is_seen() && interval.lost_share() <= MOST_LOST;
            let costs = interval.costs(self.event_ns(patching), self.tick_rate.tick_ns());
            // The next look or trial adds the processor time.
            let spent = Time {
                cpu_ns: 0.0,
                ..costs.time
            };
            self.spent.add(spent, 1.0);
            shows.then(|| self.calls_of_others(patching, &costs))
        });
        let mut window = OpenWindow::open(patching, &clocks);
        let (began, since) = (clocks.read(), ticks_now());
        let resumed = switching::resume(patching, &ids);
        match (&resumed, &mut window) {
            (Ok(_), Some(window)) => window.begin(patching),
            _ => window = None,
        }
        self.due = Instant::now() + time;
        // The stage is set after a failure, too: some of them may be on, and have to be suppressed
        // again.
        self.stage = Stage::Trying(Trial {
            load: self.model.load(|id| ids.binary_search(&id).is_ok()),
            ids,
            ran: self.last.as_ref().map(|last| last.cpu),
            since,
            clocks,
            began,
            stopped: *resumed.as_ref().unwrap_or(&Duration::ZERO),
            window,
            others,
        });
        resumed.map(drop)
    }

    /// The events of a window.
    fn interval(
        &self,
        patching: &Patching,
        window: OpenWindow,
        ended: Edge,
    ) -> Option<(Interval, Sample)> {
        let nothing = Reading::default();
        let running = self.last.as_ref().unwrap_or(&nothing);
        window.interval(patching, ended, running, self.tick_rate.tick_ns())
    }

    /// The calls of functions that are on all the time.
    fn calls_of_others(&self, patching: &Patching, costs: &Costs) -> Calls {
        let states = &patching.shared.states;
        let functions = costs.measured.functions.iter();
        let others = functions
            .filter(|(id, _)| states.recorded(**id).is_some() && !self.suppressed.contains(id));
        Calls {
            calls: others.map(|(_, share)| share.calls).sum(),
            useful_ns: costs.time.useful_ns(),
        }
    }

    fn end_trial(&mut self, patching: &mut Patching, mut tried: Trial) -> Result<()> {
        // Functions that were switched meanwhile do not belong to the trial any more.
        tried.ids.retain(|id| self.suppressed.contains(id));
        let mut window = tried.window.take();
        let ended = match &mut window {
            Some(window) => window.end(patching),
            None => Edge {
                at: ticks_now(),
                clocked: tried.clocks.read(),
                late: 0,
            },
        };
        // The functions are on until here, also while the numbers of calls were read.
        let (over, clocked) = (ticks_now(), tried.clocks.read());
        if let Err(error) = switching::suppress(patching, &tried.ids) {
            // They are still on. The trial goes on until switching off succeeds, but its window is
            // over.
            self.stage = Stage::Trying(tried);
            return Err(error);
        }
        let now = Instant::now();
        let sampling = window.as_ref().map_or(Duration::ZERO, |it| it.sampling);
        let pause_after = sampling * LOOK_PART;
        self.due = now + pause_after.clamp(LOOK_EVERY, LOOK_EVERY_AT_LEAST);
        let ticks = over.0.saturating_sub(tried.since.0);
        patching.shared.history.recorded(&tried.ids, ticks);
        let on_ns = float(ticks) * self.tick_rate.tick_ns();
        let cost_ns = on_ns * tried.load + 2e9 * tried.stopped.as_secs_f64();
        let pause = Duration::from_secs_f64((cost_ns / 1e9 / (self.limit * FOR_TRYING)).min(1e6));
        let pause = pause.max(pause_after);
        let least = TRIAL_EVERY.mul_f64(self.rarity());
        self.next_trial = Some(now + pause.clamp(least, TRIAL_EVERY_AT_LEAST));
        let cpu_ns = tried.clocks.between(tried.began, clocked, on_ns);
        if let Some(window) = window {
            self.learn_from_trial(patching, &tried, window, ended, cpu_ns);
        }
        let (suppressed, states) = (&self.suppressed, &patching.shared.states);
        let on = |id| states.recorded(id).is_some();
        let awaited = patching.output.triggers.awaited();
        let over_budget = self.over_budget(on, &awaited);
        let resume: Vec<FunctionId> = suppressed
            .iter()
            .copied()
            .filter(|id| !over_budget.contains(id))
            .collect();
        let suppressed: Vec<FunctionId> = over_budget
            .difference(&suppressed.iter().copied().collect())
            .copied()
            .collect();
        switching::resume(patching, &resume)?;
        self.suppressed.retain(|id| over_budget.contains(id));
        patching.shared.history.resume(resume, ticks_now());
        self.suppress(patching, suppressed.clone())?;
        self.begin_anew(patching);
        // Since the last look, functions of the trial were suppressed all the time but the trial,
        // and others all the time, unless they are suppressed only now.
        let now = self.last.as_ref().map(|last| last.cpu);
        let ran = tried.ran.zip(now);
        let ran_ns = ran.map_or(0.0, |(before, now)| {
            now.saturating_sub(before).as_secs_f64() * 1e9
        });
        // Calls are counted by the time of the program without tracing.
        let useful = (self.spent.useful_ns() / self.spent.cpu_ns.max(1.0)).min(1.0);
        self.count_unrecorded(patching, |id| match tried.ids.binary_search(&id) {
            Ok(_) => (ran_ns - cpu_ns).max(0.0) * useful,
            Err(_) if suppressed.contains(&id) => 0.0,
            Err(_) => ran_ns * useful,
        });
        Ok(())
    }

    /// Learns the cost of the functions in a trial from its window, in which all of them were on.
    /// `on_ns` is the processor time of the whole trial, with switching.
    fn learn_from_trial(
        &mut self,
        patching: &Patching,
        tried: &Trial,
        window: OpenWindow,
        ended: Edge,
        on_ns: f64,
    ) {
        let Some((interval, sample)) = self.interval(patching, window, ended) else {
            return;
        };
        let mut costs = interval.costs(self.event_ns(patching), self.tick_rate.tick_ns());
        // The functions cost as much while they were switched on and off.
        let ran = tried.ran.zip(sample.ran);
        let ran = ran.map(|(before, now)| now.saturating_sub(before));
        self.spent.add(
            Time {
                cpu_ns: ran.map_or(0.0, |ran| ran.as_secs_f64() * 1e9),
                spent_ns: costs.time.spent_ns * (on_ns / interval.cpu_ns.max(1.0)).max(1.0),
            },
            1.0,
        );
        if interval.lost_share() > MOST_LOST {
            self.longest_trial = (self.longest_trial / 2).max(SHORTEST_TRIAL);
            return;
        }
        if interval.is_late {
            return;
        }
        if !interval.is_seen() {
            // The rings were overwritten before they were copied, or the threads that were read did
            // nothing.
            self.longest_trial = (self.longest_trial / 2).max(SHORTEST_TRIAL);
            return;
        }
        self.longest_trial = (self.longest_trial * 5 / 4).min(LONGEST_TRIAL);
        if let Some(compared) = tried.others {
            let others = self.calls_of_others(patching, &costs);
            self.pace.learn(compared, others, FADE_TRIAL);
        }
        for time in costs.measured.threads.values_mut() {
            *time = time.at_pace(self.pace.share());
        }
        let is_tried = |id| tried.ids.binary_search(&id).is_ok();
        self.model.learn(&costs.measured, Source::Trial, is_tried);
    }

    /// Adds the calls that suppressed functions would have recorded in this much processor time of
    /// the process, in nanoseconds.
    fn count_unrecorded(&self, patching: &Patching, useful_ns: impl Fn(FunctionId) -> f64) {
        let awaited = patching.output.triggers.awaited();
        let suppressed = self.suppressed.iter();
        let unrecorded = suppressed.filter_map(|id| {
            let rate = self.model.get(*id)?.calls_per_second();
            let calls = rate * useful_ns(*id) / 1e9;
            if awaited.contains(*id) {
                awaited.miss(*id, whole(calls));
            }
            Some((*id, calls))
        });
        patching.shared.history.unrecorded(unrecorded);
    }

    /// Begins the next look with a new reading. Events so far are of functions that are suppressed
    /// by now.
    fn begin_anew(&mut self, patching: &Patching) {
        let last = self.last.take().unwrap_or_default();
        self.last = sample(patching, Look::Newest(HashMap::new())).map(|sample| Reading {
            running: last.running,
            threads_running: last.threads_running,
            ..Reading::of(&sample)
        });
    }
}
