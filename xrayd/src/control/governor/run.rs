//! The control thread's part of the governor: it samples the rings, suppresses functions, tries
//! suppressed functions again, and opens the windows of a duty cycle.
//!
//! ```text
//!            over the budget: suppress the costly
//!            ┌───────┐
//!  looking ──┴───────┴── now and then ──► trying: suppressed functions are on for milliseconds ──┐
//!     ▲                                                                                          │
//!     └───────────── weighed anew: some are suppressed, some are resumed ◄───────────────────────┘
//!
//!  off: sleds off, disabled ──► sleds on ──► enabled: record ──► disabled ──► sleds off
//! ```
//!
//! A window of a duty cycle begins and ends for all functions and threads at once, however long it
//! takes to switch sleds. Enabling and disabling the trampolines does that.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use xray_trace::model::{FunctionId, ThreadId, Ticks};

use super::{
    cost_model::{CostModel, Time},
    event_cost,
    history::History,
    kept::KeptFunctions,
    measure::{Interval, Reading, WORKING, float, given},
    run_clocks::{MOST_CLOCKS, RunClocks},
};
use crate::{
    collect::{Look, RingId, Sample},
    control::patching::Patching,
    inject::{DispatchMode, Enable},
    refusal::Result,
    sys::ticks_now,
    types::{Budget, Duty, Overhead, Wanted},
};

/// Delay of the first look after functions were switched on, and the interval of later looks.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Shares of the budget. If the load is above the first, functions are suppressed until it is at
/// most the second. The distance between them allows for the variation of measurements. The third
/// is the limit on the cost of tries.
const TOO_MUCH: f64 = 0.75;
const ENOUGH: f64 = 0.6;
const FOR_TRYING: f64 = 0.2;
/// Shortest and longest try, shortest and longest interval between tries, and the most functions in
/// one try.
const SHORTEST_TRY: Duration = Duration::from_millis(1);
const LONGEST_TRY: Duration = Duration::from_millis(50);
const TRY_EVERY: Duration = Duration::from_secs(1);
const TRY_EVERY_AT_LEAST: Duration = Duration::from_secs(60);
const MOST_TRIED: usize = 256;
/// Factors by which earlier measurements lose weight at each look and at each try. Tries are short,
/// and nothing else shows the cost of suppressed functions, so their measurements last longer.
const FADE_LOOK: f64 = 0.6;
const FADE_TRY: f64 = 0.85;
/// Factor by which earlier looks lose weight in the reported overhead.
const FADE: f64 = 0.9;

/// The control thread's state of a limit on the cost of tracing.
#[derive(Debug, Default)]
pub(crate) struct Governor {
    /// Time of the next step. `None` if there is never one.
    due: Option<Instant>,
    stage: Stage,
    /// Functions that are switched on and suppressed.
    suppressed: BTreeSet<FunctionId>,
    model: CostModel,
    /// Functions that are never suppressed.
    kept: KeptFunctions,
    /// Cost of an event, in ticks.
    event_cost: f64,
    /// Both clocks at the begin of the limit. They give the frequency of the counter.
    begun: Option<(Instant, Ticks)>,
    last: Option<Reading>,
    /// Recent cost of tracing, and recent processor time of the program.
    spent: Time,
    next_try: Option<Instant>,
    /// The last function of the previous try.
    tried: Option<FunctionId>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Looking,
    /// Some suppressed functions are on.
    Trying(Try),
    /// Nothing is recorded until the next window.
    Off,
    /// Everything is recorded.
    Open { since: Ticks, next: Instant },
}

/// A try: suppressed functions that are on for a moment.
#[derive(Debug)]
struct Try {
    /// In ascending order.
    ids: Vec<FunctionId>,
    /// Words that each ring had been given before.
    given: HashMap<RingId, u64>,
    /// Processor time of the process at the last look.
    ran: Option<Duration>,
    /// The time at which switching on began. Sleds are switched off in the same order. So each is
    /// on for as long as from here to the begin of switching off.
    since: Ticks,
    clocks: RunClocks,
    /// Processor time of the threads at `since`, in nanoseconds. `None` if the process had ended.
    began: Option<f64>,
    /// Processor use of threads without a clock, as a share of one processor.
    unclocked: f64,
}

// === impl Governor ===

impl Governor {
    /// Time until the next step.
    pub(crate) fn until_due(&self) -> Duration {
        self.due.map_or(Duration::MAX, |due| {
            due.saturating_duration_since(Instant::now())
        })
    }

    /// Nanoseconds of a tick.
    fn tick_ns(&self) -> f64 {
        let Some((begun, ticks)) = self.begun else {
            return 1.0;
        };
        let ns = begun.elapsed().as_secs_f64() * 1e9;
        let ticks = ticks_now().0.saturating_sub(ticks.0);
        ns / float(ticks).max(1.0)
    }

    fn event_ns(&self) -> f64 {
        self.event_cost * self.tick_ns()
    }

    /// The overhead, if the program ran at all.
    fn overhead(&self) -> Option<f64> {
        let useful_ns = self.spent.useful_ns();
        (useful_ns > 0.0).then(|| self.spent.spent_ns / useful_ns)
    }

    /// Puts a limit on the cost of tracing into force.
    ///
    /// # Errors
    /// Sleds cannot be written. The previous limit or none is in force.
    pub(crate) fn set_budget(
        &mut self,
        patching: &mut Patching,
        budget: Budget,
        kept: KeptFunctions,
    ) -> Result<()> {
        self.end_budget(patching)?;
        let now = Instant::now();
        *self = Self {
            due: (budget != Budget::None).then_some(now),
            kept,
            event_cost: event_cost::of_event(),
            begun: Some((now, ticks_now())),
            ..Self::default()
        };
        let has_windows = matches!(budget, Budget::Duty(_));
        patching.shared.history.begin(budget);
        if has_windows {
            if let Err(error) = close_window(patching) {
                // The client gets an error, so the limit must not stay in force.
                if self.end_budget(patching).is_ok() {
                    patching.shared.history.begin(Budget::None);
                }
                return Err(error);
            }
            self.stage = Stage::Off;
        }
        Ok(())
    }

    /// Resumes all suppressed functions. After an error the limit is still in force, and the call
    /// can be repeated.
    fn end_budget(&mut self, patching: &mut Patching) -> Result<()> {
        let suppressed: Vec<FunctionId> = self.suppressed.iter().copied().collect();
        resume_sleds(patching, &suppressed)?;
        if let Budget::Duty(_) = patching.shared.history.budget() {
            patching.patch_as_wanted(&patching.all_on())?;
            let since = ticks_now();
            enable_trampolines(patching)?;
            // A window that is open has no end: everything is recorded from its begin on.
            patching.shared.history.end_cycle(match self.stage {
                Stage::Open { since, .. } => since,
                _ => since,
            });
        }
        if let Stage::Trying(_) = self.stage {
            // Ends the counting for the try.
            sample(patching, Look::Newest(HashMap::new()));
        }
        patching.shared.history.wake_all(ticks_now());
        *self = Self::default();
        Ok(())
    }

    /// Ends the limit of a process that is being detached from, or is gone. Sleds are not touched.
    pub(crate) fn forget(&mut self, history: &History) {
        *self = Self::default();
        history.wake_all(ticks_now());
    }

    /// Ends the suppression of functions that are being switched. The switch decides their state.
    pub(crate) fn end_suppression_of(&mut self, history: &History, ids: &[FunctionId]) {
        if let Budget::Overhead(_) = history.budget() {
            let soon = Instant::now() + FIRST_LOOK;
            self.due = self.due.map(|due| due.min(soon));
            let resumed: Vec<FunctionId> = ids
                .iter()
                .copied()
                .filter(|id| self.suppressed.remove(id))
                .collect();
            history.resume(resumed, ticks_now());
        }
    }

    /// Does the next step if it is due.
    pub(crate) fn tend(&mut self, patching: &mut Patching) {
        if !self.until_due().is_zero() {
            return;
        }
        let budget = patching.shared.history.budget();
        let done = match (budget, std::mem::take(&mut self.stage)) {
            (Budget::None, _) => {
                self.due = None;
                Ok(())
            }
            (Budget::Overhead(Overhead { ppm, .. }), Stage::Trying(tried)) => {
                self.end_try(patching, share(ppm), tried)
            }
            (Budget::Overhead(Overhead { ppm, .. }), _) => self.look_at_costs(patching, share(ppm)),
            (Budget::Duty(duty), Stage::Open { since, next }) => {
                self.end_window(patching, duty, since, next)
            }
            (Budget::Duty(duty), _) => self.begin_window(patching, duty),
        };
        if let Err(error) = done {
            tracing::warn!(
                pid = patching.target.pid().as_raw(),
                %error,
                "cannot keep the overhead budget or the duty cycle"
            );
            self.due = Some(Instant::now() + TRY_EVERY);
        }
    }

    // --- budget

    fn look_at_costs(&mut self, patching: &mut Patching, budget: f64) -> Result<()> {
        self.kept.match_new(&patching.traced.functions);
        let states = &patching.shared.states;
        self.suppressed.retain(|id| states.recorded(*id).is_some());
        let before = self.last.take().unwrap_or_default();
        let sample = sample(patching, Look::Newest(before.given.clone()));
        let now = Instant::now();
        self.due = Some(now + LOOK_EVERY);
        let Some(mut sample) = sample else {
            return Ok(());
        };
        let mut reading = Reading::of(&sample);
        let interval = before.at.map(|(at, since)| {
            let elapsed = reading.run_since(&before, at);
            let tallies = sample.tallies(&(since..=sample.taken.1));
            let cpu_ns = reading.running * elapsed;
            Interval::new(&sample, &before.given, tallies, (elapsed, cpu_ns), &reading)
        });
        self.last = Some(reading);
        let Some(interval) = interval else {
            self.due = Some(now + FIRST_LOOK);
            return Ok(());
        };
        let (event_ns, tick_ns) = (self.event_ns(), self.tick_ns());
        let costs = interval.costs(event_ns, tick_ns);
        let governor = &mut *self;
        governor.spent.add(costs.time, FADE);
        let suppressed = &governor.suppressed;
        if interval.is_seen() {
            governor
                .model
                .learn(&costs.measured, FADE_LOOK, |id| !suppressed.contains(&id));
        }
        let useful_ns = costs.time.useful_ns();
        self.count_unrecorded(patching, |_| useful_ns);
        let governor = &*self;
        let (suppressed, model) = (&governor.suppressed, &governor.model);
        patching.shared.history.cost(governor.overhead(), event_ns);
        let on = |id| states.recorded(id).is_some() && !suppressed.contains(&id);
        if model.load(on) > budget * TOO_MUCH {
            let kept = |id| governor.kept.contains(id);
            let over_budget = model.over_budget(budget * ENOUGH, on, kept);
            // Functions that are kept may cost more than the budget by themselves.
            if !over_budget.is_empty() {
                self.suppress(patching, over_budget.into_iter().collect())?;
                self.begin_anew(patching);
            }
        }
        match self.next_try {
            _ if self.suppressed.is_empty() => self.next_try = None,
            None => self.next_try = Some(now + TRY_EVERY),
            Some(next) if next <= now => return self.begin_try(patching, budget),
            Some(_) => {}
        }
        Ok(())
    }

    /// Suppresses functions.
    fn suppress(&mut self, patching: &mut Patching, ids: Vec<FunctionId>) -> Result<()> {
        let suppressed = suppress_sleds(patching, &ids);
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

    /// Switches suppressed functions on for a moment, to measure what they cost now.
    fn begin_try(&mut self, patching: &mut Patching, budget: f64) -> Result<()> {
        let running = self.last.as_ref().map_or(0.0, |last| last.running);
        let now = Instant::now();
        if running < WORKING / 10.0 {
            // The program is idle, so there is nothing to measure.
            self.next_try = Some(now + TRY_EVERY);
            return Ok(());
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
        let share = budget * FOR_TRYING;
        let time = Duration::from_secs_f64((share / load).min(1.0) * TRY_EVERY.as_secs_f64());
        let time = time.clamp(SHORTEST_TRY, LONGEST_TRY);
        let Some(sample) = sample(patching, Look::Begin) else {
            return Ok(());
        };
        let ids: Vec<FunctionId> = ids.into_iter().collect();
        let (clocks, unclocked) = self.run_clocks(patching);
        let (began, since) = (clocks.read(), ticks_now());
        let waking = Instant::now();
        let resumed = resume_sleds(patching, &ids);
        let begun = Instant::now();
        self.due = Some(begun + time);
        self.stage = Stage::Trying(Try {
            ids,
            given: given(&sample),
            ran: self.last.as_ref().map(|last| last.cpu),
            since,
            began,
            clocks,
            unclocked,
        });
        // The stage is set after a failure, too: some of them may be on, and have to be suppressed
        // again.
        let stopped = resumed?;
        // Sleds are switched on and off one after the other. So each is on for `time` plus about
        // the duration of one switch of all.
        let on = time + begun.duration_since(waking);
        let cost = on.as_secs_f64() * load + 2.0 * stopped.as_secs_f64();
        let pause = Duration::from_secs_f64((cost / share).min(1e6));
        self.next_try = Some(begun + pause.clamp(TRY_EVERY, TRY_EVERY_AT_LEAST));
        Ok(())
    }

    /// Clocks of the threads that work, and the processor use of the other threads.
    fn run_clocks(&self, patching: &Patching) -> (RunClocks, f64) {
        let pid = patching.target.pid();
        let Some(last) = &self.last else {
            return (RunClocks::of(pid, &[]), 0.0);
        };
        let running = last.threads_running.iter();
        let mut working: Vec<(f64, ThreadId)> = running
            .map(|(thread, running)| (*running, *thread))
            .filter(|(running, _)| *running > 0.0)
            .collect();
        working.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        working.truncate(MOST_CLOCKS);
        let tids: Vec<u32> = working
            .iter()
            .filter_map(|(_, thread)| Some(patching.output.thread(*thread)?.0))
            .collect();
        let clocks = RunClocks::of(pid, &tids);
        let clocked: f64 = working.iter().map(|(running, _)| running).sum();
        let unclocked = match clocks.are_of_threads() {
            true => (last.running - clocked).max(0.0),
            false => 0.0,
        };
        (clocks, unclocked)
    }

    fn end_try(&mut self, patching: &mut Patching, budget: f64, mut tried: Try) -> Result<()> {
        let until = ticks_now();
        let ended = tried.clocks.read();
        // Functions that were switched meanwhile do not belong to the try any more.
        tried.ids.retain(|id| self.suppressed.contains(id));
        if let Err(error) = suppress_sleds(patching, &tried.ids) {
            // They are still on. The try goes on until switching off succeeds.
            self.stage = Stage::Trying(tried);
            return Err(error);
        }
        self.due = Some(Instant::now() + LOOK_EVERY);
        let Some(mut sample) = sample(patching, Look::All(tried.given.clone())) else {
            return Ok(());
        };
        let Try {
            ids,
            given: before,
            ran: tried_ran,
            since,
            clocks: _,
            began,
            unclocked,
        } = tried;
        let ticks = until.0.saturating_sub(since.0);
        patching.shared.history.recorded(&ids, ticks);
        let (event_ns, tick_ns) = (self.event_ns(), self.tick_ns());
        let last = self.last.take().unwrap_or_default();
        let elapsed_ns = float(ticks) * tick_ns;
        let ran_ns = began.zip(ended).map(|(began, ended)| ended - began);
        let cpu_ns = ran_ns.map_or(0.0, |ran_ns| ran_ns + unclocked * elapsed_ns);
        let tallies = sample.tallies(&(since..=Ticks(u64::MAX)));
        let interval = Interval::new(&sample, &before, tallies, (elapsed_ns, cpu_ns), &last);
        let costs = interval.costs(event_ns, tick_ns);
        let governor = &mut *self;
        governor.last = Some(last);
        let (suppressed, states) = (&governor.suppressed, &patching.shared.states);
        // Their cost until they were off again counts, too.
        let ran = tried_ran.zip(sample.ran);
        let ran = ran.map(|(before, now)| now.saturating_sub(before));
        let spent = Time {
            cpu_ns: ran.map_or(0.0, |ran| ran.as_secs_f64() * 1e9),
            ..costs.time
        };
        governor.spent.add(spent, 1.0);
        if interval.is_seen() {
            governor.model.learn(&costs.measured, FADE_TRY, |id| {
                ids.binary_search(&id).is_ok()
            });
        }
        let on = |id| states.recorded(id).is_some();
        let kept = |id| governor.kept.contains(id);
        let over_budget = governor.model.over_budget(budget * ENOUGH, on, kept);
        let resume: Vec<FunctionId> = suppressed
            .iter()
            .copied()
            .filter(|id| !over_budget.contains(id))
            .collect();
        let suppressed: Vec<FunctionId> = over_budget
            .difference(&suppressed.iter().copied().collect())
            .copied()
            .collect();
        resume_sleds(patching, &resume)?;
        self.suppressed.retain(|id| over_budget.contains(id));
        patching.shared.history.resume(resume, ticks_now());
        self.suppress(patching, suppressed)?;
        self.begin_anew(patching);
        // Since the last look, functions outside the try were suppressed all the time, and the
        // others all the time but the try.
        let now = self.last.as_ref().map(|last| last.cpu);
        let ran = tried_ran.zip(now);
        let ran_ns = ran.map_or(0.0, |(before, now)| {
            now.saturating_sub(before).as_secs_f64() * 1e9
        });
        self.count_unrecorded(patching, |id| match ids.binary_search(&id) {
            Ok(_) => (ran_ns - cpu_ns).max(0.0),
            Err(_) => ran_ns,
        });
        Ok(())
    }

    /// Adds the calls that suppressed functions would have recorded in this much processor time of
    /// the process, in nanoseconds.
    fn count_unrecorded(&self, patching: &Patching, useful_ns: impl Fn(FunctionId) -> f64) {
        let suppressed = self.suppressed.iter();
        let unrecorded = suppressed.filter_map(|id| {
            let rate = self.model.get(*id)?.calls_per_second();
            Some((*id, rate * useful_ns(*id) / 1e9))
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

    // --- duty

    /// Begins a window, in which everything is recorded.
    fn begin_window(&mut self, patching: &mut Patching, duty: Duty) -> Result<()> {
        let begun = Instant::now();
        let on = patching.all_on();
        patching.patch_as_wanted(&on)?;
        // Flavours open one after the other, within microseconds.
        let since = ticks_now();
        enable_trampolines(patching)?;
        let opened = Instant::now();
        self.stage = Stage::Open {
            since,
            next: begun + duty.every,
        };
        self.due = Some(opened + duty.on);
        Ok(())
    }

    /// Ends a window. Nothing is recorded until the next one.
    fn end_window(
        &mut self,
        patching: &mut Patching,
        duty: Duty,
        since: Ticks,
        next: Instant,
    ) -> Result<()> {
        let until = close_window(patching)?;
        let every = duty.every.as_secs_f64() * 1e9 / self.tick_ns();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an hour's ticks"
        )]
        patching.shared.history.window(since, until, every as u64);
        self.stage = Stage::Off;
        self.due = Some(next);
        Ok(())
    }
}

fn sample(patching: &Patching, look: Look) -> Option<Sample> {
    patching.shared.drain()?.sample(look)
}

/// Disables the trampolines, then switches all sleds off. Returns the time from which on nothing
/// was recorded.
fn close_window(patching: &mut Patching) -> Result<Ticks> {
    patching.patcher.set_enable(&patching.memory, Enable::Off)?;
    let until = ticks_now();
    let on = patching.all_on();
    patching.switches().mark(&on);
    let sites = patching.traced.functions.sites(&on);
    patching.patch(&sites, Wanted::Off)?;
    Ok(until)
}

/// Enables the trampolines. Functions that are on record again.
fn enable_trampolines(patching: &mut Patching) -> Result<()> {
    if patching.patcher.dispatch_mode() == DispatchMode::Filter {
        // Calls that were open when the trampolines were disabled are long over.
        patching.renew_filters()?;
    }
    patching.switches().mark(&patching.all_on());
    patching.patcher.set_enable(&patching.memory, Enable::On)
}

fn suppress_sleds(patching: &mut Patching, ids: &[FunctionId]) -> Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let sites = patching.traced.functions.sites(ids);
    let suppressed = patching.patch(&sites, Wanted::Off);
    patching.switches().mark(ids);
    suppressed.map(drop)
}

/// Switches sleds of suppressed functions on. Returns the longest stop of the target's threads.
fn resume_sleds(patching: &mut Patching, ids: &[FunctionId]) -> Result<Duration> {
    if ids.is_empty() {
        return Ok(Duration::ZERO);
    }
    patching.switches().mark(ids);
    patching.patch_as_wanted(ids)
}

fn share(ppm: u32) -> f64 {
    f64::from(ppm) / 1e6
}
