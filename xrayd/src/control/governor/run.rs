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
//!  off: sleds off, door closed ──► sleds on ──► door open: record ──► door closed ──► sleds off
//! ```
//!
//! A window of a duty cycle begins and ends for all functions and threads at once, however long it
//! takes to switch sleds. The door of the trampolines does that.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

use xray_trace::model::{FunctionId, ThreadId, Ticks};

use super::{
    measure::{Interval, Reading, WORKING, float, given},
    run_clocks::{MOST_CLOCKS, RunClocks},
    weigh::{Time, Weights},
};
use crate::{
    collect::{Look, RingId, Sample},
    control::{controller::Controller, governor::price},
    inject::{DispatchMode, Enable},
    refusal::Result,
    sys::ticks_now,
    types::{Budget, Duty, Wanted},
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
    weights: Weights,
    /// Cost of an event, in ticks.
    price: f64,
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
        self.price * self.tick_ns()
    }

    /// The overhead, if the program ran at all.
    fn overhead(&self) -> Option<f64> {
        let useful_ns = self.spent.useful_ns();
        (useful_ns > 0.0).then(|| self.spent.spent_ns / useful_ns)
    }
}

impl Controller {
    /// Puts a limit on the cost of tracing into force, and returns the previous one.
    pub(crate) fn economize(&mut self, budget: Budget) -> Result<Budget> {
        let before = self.shared.history.budget();
        self.end_budget()?;
        self.shared.history.begin(budget);
        let now = Instant::now();
        self.governor = Governor {
            due: (budget != Budget::None).then_some(now),
            price: price::of_event(),
            begun: Some((now, ticks_now())),
            ..Governor::default()
        };
        if let Budget::Duty(_) = budget {
            if let Err(error) = self.close_window() {
                // The client gets an error, so the limit must not stay in force.
                if self.end_budget().is_ok() {
                    self.shared.history.begin(Budget::None);
                }
                return Err(error);
            }
            self.governor.stage = Stage::Off;
        }
        Ok(before)
    }

    /// Resumes all suppressed functions. After an error the limit is still in force, and the call
    /// can be repeated.
    fn end_budget(&mut self) -> Result<()> {
        let suppressed: Vec<FunctionId> = self.governor.suppressed.iter().copied().collect();
        self.wake_sleds(&suppressed)?;
        if let Budget::Duty(_) = self.shared.history.budget() {
            self.patch_as_wanted(&self.all_on())?;
            let since = ticks_now();
            self.open_door()?;
            // A window that is open has no end: everything is recorded from its begin on.
            self.shared.history.end_cycle(match self.governor.stage {
                Stage::Open { since, .. } => since,
                _ => since,
            });
        }
        if let Stage::Trying(_) = self.governor.stage {
            // Ends the counting for the try.
            self.sample(Look::Newest(HashMap::new()));
        }
        self.shared.history.wake_all(ticks_now());
        self.governor = Governor::default();
        Ok(())
    }

    /// Ends the limit of a process that is being detached from, or is gone. Sleds are not touched.
    pub(crate) fn forget_budget(&mut self) {
        self.governor = Governor::default();
        self.shared.history.wake_all(ticks_now());
    }

    /// Ends the suppression of functions that are being switched. The switch decides their state.
    pub(crate) fn no_rest_for(&mut self, ids: &[FunctionId]) {
        if let Budget::Overhead(_) = self.shared.history.budget() {
            let soon = Instant::now() + FIRST_LOOK;
            self.governor.due = self.governor.due.map(|due| due.min(soon));
            let woken: Vec<FunctionId> = ids
                .iter()
                .copied()
                .filter(|id| self.governor.suppressed.remove(id))
                .collect();
            self.shared.history.wake(woken, ticks_now());
        }
    }

    /// Does the next step if it is due.
    pub(crate) fn tend_budget(&mut self) {
        if !self.governor.until_due().is_zero() {
            return;
        }
        let budget = self.shared.history.budget();
        let done = match (budget, std::mem::take(&mut self.governor.stage)) {
            (Budget::None, _) => {
                self.governor.due = None;
                Ok(())
            }
            (Budget::Overhead(ppm), Stage::Trying(tried)) => self.end_try(share(ppm), tried),
            (Budget::Overhead(ppm), _) => self.look_at_costs(share(ppm)),
            (Budget::Duty(duty), Stage::Open { since, next }) => self.end_window(duty, since, next),
            (Budget::Duty(duty), _) => self.begin_window(duty),
        };
        if let Err(error) = done {
            tracing::warn!(
                pid = self.target.pid().as_raw(),
                %error,
                "cannot keep the overhead budget or the duty cycle"
            );
            self.governor.due = Some(Instant::now() + TRY_EVERY);
        }
    }

    // --- budget

    fn look_at_costs(&mut self, budget: f64) -> Result<()> {
        let states = &self.shared.states;
        self.governor
            .suppressed
            .retain(|id| states.recorded(*id).is_some());
        let before = self.governor.last.take().unwrap_or_default();
        let sample = self.sample(Look::Newest(before.given.clone()));
        let now = Instant::now();
        self.governor.due = Some(now + LOOK_EVERY);
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
        self.governor.last = Some(reading);
        let Some(interval) = interval else {
            self.governor.due = Some(now + FIRST_LOOK);
            return Ok(());
        };
        let (event_ns, tick_ns) = (self.governor.event_ns(), self.governor.tick_ns());
        let costs = interval.weigh(event_ns, tick_ns);
        let governor = &mut self.governor;
        governor.spent.add(costs.time, FADE);
        let suppressed = &governor.suppressed;
        if interval.is_seen() {
            governor
                .weights
                .learn(&costs.measured, FADE_LOOK, |id| !suppressed.contains(&id));
        }
        let useful_ns = costs.time.useful_ns();
        self.count_unrecorded(|_| useful_ns);
        let governor = &self.governor;
        let (suppressed, weights) = (&governor.suppressed, &governor.weights);
        self.shared.history.cost(governor.overhead(), event_ns);
        let on = |id| states.recorded(id).is_some() && !suppressed.contains(&id);
        if weights.load(on) > budget * TOO_MUCH {
            let dear = weights.too_dear(budget * ENOUGH, on);
            self.suppress(dear.into_iter().collect())?;
            self.begin_anew();
        }
        match self.governor.next_try {
            _ if self.governor.suppressed.is_empty() => self.governor.next_try = None,
            None => self.governor.next_try = Some(now + TRY_EVERY),
            Some(next) if next <= now => return self.begin_try(budget),
            Some(_) => {}
        }
        Ok(())
    }

    /// Suppresses functions.
    fn suppress(&mut self, ids: Vec<FunctionId>) -> Result<()> {
        let suppressed = self.suppress_sleds(&ids);
        // Noted after a failure, too: some of them may be off, and have to be resumed later.
        self.shared.history.suppress(&ids, ticks_now());
        tracing::debug!(
            pid = self.target.pid().as_raw(),
            functions = ids.len(),
            "suppressed functions"
        );
        self.governor.suppressed.extend(ids);
        suppressed
    }

    /// Switches suppressed functions on for a moment, to measure what they cost now.
    fn begin_try(&mut self, budget: f64) -> Result<()> {
        let running = self.governor.last.as_ref().map_or(0.0, |last| last.running);
        let now = Instant::now();
        if running < WORKING / 10.0 {
            // The program is idle, so there is nothing to measure.
            self.governor.next_try = Some(now + TRY_EVERY);
            return Ok(());
        }
        let suppressed = &self.governor.suppressed;
        let after = suppressed
            .iter()
            .filter(|id| self.governor.tried.is_none_or(|tried| **id > tried));
        let ids: Vec<FunctionId> = after
            .chain(suppressed)
            .copied()
            .take(MOST_TRIED.min(suppressed.len()))
            .collect();
        self.governor.tried = ids.last().copied();
        let ids: BTreeSet<FunctionId> = ids.into_iter().collect();
        let load = self
            .governor
            .weights
            .load(|id| ids.contains(&id))
            .max(0.001);
        let share = budget * FOR_TRYING;
        let time = Duration::from_secs_f64((share / load).min(1.0) * TRY_EVERY.as_secs_f64());
        let time = time.clamp(SHORTEST_TRY, LONGEST_TRY);
        let Some(sample) = self.sample(Look::Begin) else {
            return Ok(());
        };
        let ids: Vec<FunctionId> = ids.into_iter().collect();
        let (clocks, unclocked) = self.run_clocks();
        let (began, since) = (clocks.read(), ticks_now());
        let waking = Instant::now();
        let woken = self.wake_sleds(&ids);
        let begun = Instant::now();
        self.governor.due = Some(begun + time);
        self.governor.stage = Stage::Trying(Try {
            ids,
            given: given(&sample),
            ran: self.governor.last.as_ref().map(|last| last.cpu),
            since,
            began,
            clocks,
            unclocked,
        });
        // The stage is set after a failure, too: some of them may be on, and have to be suppressed
        // again.
        let stopped = woken?;
        // Sleds are switched on and off one after the other. So each is on for `time` plus about
        // the duration of one switch of all.
        let on = time + begun.duration_since(waking);
        let cost = on.as_secs_f64() * load + 2.0 * stopped.as_secs_f64();
        let pause = Duration::from_secs_f64((cost / share).min(1e6));
        self.governor.next_try = Some(begun + pause.clamp(TRY_EVERY, TRY_EVERY_AT_LEAST));
        Ok(())
    }

    /// Clocks of the threads that work, and the processor use of the other threads.
    fn run_clocks(&self) -> (RunClocks, f64) {
        let pid = self.target.pid();
        let Some(last) = &self.governor.last else {
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
            .filter_map(|(_, thread)| Some(self.output.thread(*thread)?.0))
            .collect();
        let clocks = RunClocks::of(pid, &tids);
        let clocked: f64 = working.iter().map(|(running, _)| running).sum();
        let unclocked = match clocks.are_of_threads() {
            true => (last.running - clocked).max(0.0),
            false => 0.0,
        };
        (clocks, unclocked)
    }

    fn end_try(&mut self, budget: f64, mut tried: Try) -> Result<()> {
        let until = ticks_now();
        let ended = tried.clocks.read();
        // Functions that were switched meanwhile do not belong to the try any more.
        tried.ids.retain(|id| self.governor.suppressed.contains(id));
        if let Err(error) = self.suppress_sleds(&tried.ids) {
            // They are still on. The try goes on until switching off succeeds.
            self.governor.stage = Stage::Trying(tried);
            return Err(error);
        }
        self.governor.due = Some(Instant::now() + LOOK_EVERY);
        let Some(mut sample) = self.sample(Look::All(tried.given.clone())) else {
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
        self.shared.history.recorded(&ids, ticks);
        let (event_ns, tick_ns) = (self.governor.event_ns(), self.governor.tick_ns());
        let last = self.governor.last.take().unwrap_or_default();
        let elapsed_ns = float(ticks) * tick_ns;
        let ran_ns = began.zip(ended).map(|(began, ended)| ended - began);
        let cpu_ns = ran_ns.map_or(0.0, |ran_ns| ran_ns + unclocked * elapsed_ns);
        let tallies = sample.tallies(&(since..=Ticks(u64::MAX)));
        let interval = Interval::new(&sample, &before, tallies, (elapsed_ns, cpu_ns), &last);
        let costs = interval.weigh(event_ns, tick_ns);
        let governor = &mut self.governor;
        governor.last = Some(last);
        let (suppressed, states) = (&governor.suppressed, &self.shared.states);
        // Their cost until they were off again counts, too.
        let ran = tried_ran.zip(sample.ran);
        let ran = ran.map(|(before, now)| now.saturating_sub(before));
        let spent = Time {
            cpu_ns: ran.map_or(0.0, |ran| ran.as_secs_f64() * 1e9),
            ..costs.time
        };
        governor.spent.add(spent, 1.0);
        if interval.is_seen() {
            governor.weights.learn(&costs.measured, FADE_TRY, |id| {
                ids.binary_search(&id).is_ok()
            });
        }
        let on = |id| states.recorded(id).is_some();
        let dear = governor.weights.too_dear(budget * ENOUGH, on);
        let wake: Vec<FunctionId> = suppressed
            .iter()
            .copied()
            .filter(|id| !dear.contains(id))
            .collect();
        let suppressed: Vec<FunctionId> = dear
            .difference(&suppressed.iter().copied().collect())
            .copied()
            .collect();
        self.wake_sleds(&wake)?;
        self.governor.suppressed.retain(|id| dear.contains(id));
        self.shared.history.wake(wake, ticks_now());
        self.suppress(suppressed)?;
        self.begin_anew();
        // Since the last look, functions outside the try were suppressed all the time, and the
        // others all the time but the try.
        let now = self.governor.last.as_ref().map(|last| last.cpu);
        let ran = tried_ran.zip(now);
        let ran_ns = ran.map_or(0.0, |(before, now)| {
            now.saturating_sub(before).as_secs_f64() * 1e9
        });
        self.count_unrecorded(|id| match ids.binary_search(&id) {
            Ok(_) => (ran_ns - cpu_ns).max(0.0),
            Err(_) => ran_ns,
        });
        Ok(())
    }

    /// Adds the calls that suppressed functions would have recorded in this much processor time of
    /// the process, in nanoseconds.
    fn count_unrecorded(&self, useful_ns: impl Fn(FunctionId) -> f64) {
        let suppressed = self.governor.suppressed.iter();
        let unrecorded = suppressed.filter_map(|id| {
            let rate = self.governor.weights.get(*id)?.calls_per_second();
            Some((*id, rate * useful_ns(*id) / 1e9))
        });
        self.shared.history.unrecorded(unrecorded);
    }

    /// Begins the next look with a new reading. Events so far are of functions that are suppressed
    /// by now.
    fn begin_anew(&mut self) {
        let last = self.governor.last.take().unwrap_or_default();
        self.governor.last = self
            .sample(Look::Newest(HashMap::new()))
            .map(|sample| Reading {
                running: last.running,
                threads_running: last.threads_running,
                ..Reading::of(&sample)
            });
    }

    fn sample(&self, look: Look) -> Option<Sample> {
        self.shared.drain()?.sample(look)
    }

    // --- duty

    /// Begins a window, in which everything is recorded.
    fn begin_window(&mut self, duty: Duty) -> Result<()> {
        let begun = Instant::now();
        let on = self.all_on();
        self.patch_as_wanted(&on)?;
        // Flavours open one after the other, within microseconds.
        let since = ticks_now();
        self.open_door()?;
        let opened = Instant::now();
        self.governor.stage = Stage::Open {
            since,
            next: begun + duty.every,
        };
        self.governor.due = Some(opened + duty.on);
        Ok(())
    }

    /// Ends a window. Nothing is recorded until the next one.
    fn end_window(&mut self, duty: Duty, since: Ticks, next: Instant) -> Result<()> {
        let until = self.close_window()?;
        let every = duty.every.as_secs_f64() * 1e9 / self.governor.tick_ns();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an hour's ticks"
        )]
        self.shared.history.window(since, until, every as u64);
        self.governor.stage = Stage::Off;
        self.governor.due = Some(next);
        Ok(())
    }

    /// Closes the door, then switches all sleds off. Returns the time from which on nothing was
    /// recorded.
    fn close_window(&mut self) -> Result<Ticks> {
        self.patcher.set_door(&self.memory, Enable::Closed)?;
        let until = ticks_now();
        let on = self.all_on();
        self.switches().mark(&on);
        let sites = self.loading.functions.sites(&on);
        self.patch(&sites, Wanted::Off)?;
        Ok(until)
    }

    /// Opens the door. Functions that are on record again.
    fn open_door(&mut self) -> Result<()> {
        if self.patcher.front() == DispatchMode::Filter {
            // Calls that were open when the door was closed are long over.
            self.renew_filters()?;
        }
        self.switches().mark(&self.all_on());
        self.patcher.set_door(&self.memory, Enable::Open)
    }

    // --- sleds

    fn suppress_sleds(&mut self, ids: &[FunctionId]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let sites = self.loading.functions.sites(ids);
        let suppressed = self.patch(&sites, Wanted::Off);
        self.switches().mark(ids);
        suppressed.map(drop)
    }

    /// Switches sleds of suppressed functions on. Returns the longest stop of the target's threads.
    fn wake_sleds(&mut self, ids: &[FunctionId]) -> Result<Duration> {
        if ids.is_empty() {
            return Ok(Duration::ZERO);
        }
        self.switches().mark(ids);
        self.patch_as_wanted(ids)
    }

    /// Brings the sleds of functions that are on to their wanted state. Returns the longest stop of
    /// the target's threads.
    pub(crate) fn patch_as_wanted(&mut self, ids: &[FunctionId]) -> Result<Duration> {
        let mut ways = BTreeMap::<_, Vec<FunctionId>>::new();
        for &id in ids {
            if let Some(capture) = self.shared.states.recorded(id) {
                ways.entry(capture).or_default().push(id);
            }
        }
        let mut stopped = Duration::ZERO;
        for (capture, ids) in ways {
            let sites = self.loading.functions.sites(&ids);
            let patched = self.patch(&sites, Wanted::On(capture))?;
            stopped = stopped.max(patched.stopped);
        }
        Ok(stopped)
    }
}

fn share(ppm: u32) -> f64 {
    f64::from(ppm) / 1e6
}
