//! The control thread's part of an economy: it looks at what is recorded, has functions rest, tries again what rests, and opens the windows of a duty cycle.
//!
//! ```text
//!            over the budget: the too dear rest
//!            ┌───────┐
//!  looking ──┴───────┴── now and then ──► trying: what rests is on ── milliseconds ──► weighed anew: some rest, some wake ──► looking
//!
//!  off: sleds off, door closed ──► sleds on ──► door open: everything is recorded ──► door closed ──► sleds off
//! ```
//!
//! A window of a duty cycle begins and ends for all functions and threads at once, however long it takes to switch sleds: by the door of the trampolines.

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
    inject::{Door, Front},
    lock::lock,
    refusal::Result,
    sys::ticks_now,
    types::{Duty, Economy, Wanted},
};

/// How soon is looked after something was switched on, and then how often.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Where more than that part of the budget is spent, functions have to rest: so many that what is left takes this part, since measurements vary. And what is tried again may take
/// that part.
const TOO_MUCH: f64 = 0.75;
const ENOUGH: f64 = 0.6;
const FOR_TRYING: f64 = 0.2;
/// For how long what rests is tried, how often at most, and how many functions at once.
const SHORTEST_TRY: Duration = Duration::from_millis(1);
const LONGEST_TRY: Duration = Duration::from_millis(50);
const TRY_EVERY: Duration = Duration::from_secs(1);
const TRY_EVERY_AT_LEAST: Duration = Duration::from_secs(60);
const MOST_TRIED: usize = 256;
/// What was measured before counts so much less with each look, and with each try: these are short, and are about functions of which nothing else is known.
const FADE_LOOK: f64 = 0.6;
const FADE_TRY: f64 = 0.85;
/// What was spent in a look counts so much less with each later one, in what is told.
const FADE: f64 = 0.9;

/// What the control thread knows of an economy.
#[derive(Debug, Default)]
pub(crate) struct Governor {
    /// When there is something to do; `None` while there never is.
    due: Option<Instant>,
    stage: Stage,
    /// Switched on, and off.
    resting: BTreeSet<FunctionId>,
    weights: Weights,
    /// What an event costs, in ticks.
    price: f64,
    /// Both clocks when it began: they tell how fast the counter goes.
    begun: Option<(Instant, Ticks)>,
    last: Option<Reading>,
    /// What tracing took of late, and how long the program ran.
    spent: Time,
    next_try: Option<Instant>,
    /// The last function that was tried.
    tried: Option<FunctionId>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Looking,
    /// Some functions are on though they rest.
    Trying(Try),
    /// Nothing is recorded until the next window.
    Off,
    /// Everything is.
    Open { since: Ticks, next: Instant },
}

/// Functions that rest and are on for a moment.
#[derive(Debug)]
struct Try {
    /// In order of id.
    ids: Vec<FunctionId>,
    /// What rings had been given before.
    given: HashMap<RingId, u64>,
    /// For how long the process had run at the last look.
    ran: Option<Duration>,
    /// When they began to be switched on, and for how many nanoseconds threads had run by then;
    /// `None` if the process had ended. They are switched off in the same order, so each is on for
    /// as long as it is from here to when that begins.
    since: Ticks,
    clocks: RunClocks,
    began: Option<f64>,
    /// How much of a processor threads without a clock use.
    unclocked: f64,
}

// === impl Governor ===

impl Governor {
    /// When there is something to do.
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

    /// What tracing costs, if anything ran.
    fn overhead(&self) -> Option<f64> {
        let useful_ns = self.spent.useful_ns();
        (useful_ns > 0.0).then(|| self.spent.spent_ns / useful_ns)
    }
}

impl Controller {
    /// From now on tracing may cost so much; says how much it was before.
    pub(crate) fn economize(&mut self, economy: Economy) -> Result<Economy> {
        let before = self.shared.history.economy();
        self.end_economy()?;
        self.shared.history.begin(economy);
        let now = Instant::now();
        self.governor = Governor {
            due: (economy != Economy::None).then_some(now),
            price: price::of_event(),
            begun: Some((now, ticks_now())),
            ..Governor::default()
        };
        if let Economy::Duty(_) = economy {
            if let Err(error) = self.close_window() {
                // Else it would be in force, though whoever asked was told that it is not.
                if self.end_economy().is_ok() {
                    self.shared.history.begin(Economy::None);
                }
                return Err(error);
            }
            self.governor.stage = Stage::Off;
        }
        Ok(before)
    }

    /// Everything that is switched on is on. After an error the economy is as it was, and this can be tried again.
    fn end_economy(&mut self) -> Result<()> {
        let resting: Vec<FunctionId> = self.governor.resting.iter().copied().collect();
        self.wake_sleds(&resting)?;
        if let Economy::Duty(_) = self.shared.history.economy() {
            self.patch_as_wanted(&self.all_on())?;
            self.open_door()?;
        }
        if let Stage::Trying(_) = self.governor.stage {
            // What was to be counted for the try is not any more.
            self.sample(Look::Newest(HashMap::new()));
        }
        self.shared.history.wake_all(ticks_now());
        self.governor = Governor::default();
        Ok(())
    }

    /// The process is let go, or gone.
    pub(crate) fn forget_economy(&mut self) {
        self.governor = Governor::default();
        self.shared.history.wake_all(ticks_now());
    }

    /// Somebody switches these: they are what they are switched to.
    pub(crate) fn no_rest_for(&mut self, ids: &[FunctionId]) {
        if let Economy::Budget(_) = self.shared.history.economy() {
            let soon = Instant::now() + FIRST_LOOK;
            self.governor.due = self.governor.due.map(|due| due.min(soon));
            let woken: Vec<FunctionId> = ids
                .iter()
                .copied()
                .filter(|id| self.governor.resting.remove(id))
                .collect();
            self.shared.history.wake(woken, ticks_now());
        }
    }

    /// Does what is due.
    pub(crate) fn tend_economy(&mut self) {
        if !self.governor.until_due().is_zero() {
            return;
        }
        let economy = self.shared.history.economy();
        let done = match (economy, std::mem::take(&mut self.governor.stage)) {
            (Economy::None, _) => {
                self.governor.due = None;
                Ok(())
            }
            (Economy::Budget(ppm), Stage::Trying(tried)) => self.end_try(budget(ppm), tried),
            (Economy::Budget(ppm), _) => self.look_at_costs(budget(ppm)),
            (Economy::Duty(duty), Stage::Open { since, next }) => {
                self.end_window(duty, since, next)
            }
            (Economy::Duty(duty), _) => self.begin_window(duty),
        };
        if let Err(error) = done {
            tracing::warn!(pid = self.target.pid().as_raw(), %error, "cannot keep to what tracing may cost");
            self.governor.due = Some(Instant::now() + TRY_EVERY);
        }
    }

    // --- budget

    fn look_at_costs(&mut self, budget: f64) -> Result<()> {
        let states = &self.shared.states;
        self.governor
            .resting
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
        let resting = &governor.resting;
        if interval.is_seen() {
            governor
                .weights
                .learn(&costs.measured, FADE_LOOK, |id| !resting.contains(&id));
        }
        let useful_ns = costs.time.useful_ns();
        self.count_unrecorded(|_| useful_ns);
        let governor = &self.governor;
        let (resting, weights) = (&governor.resting, &governor.weights);
        self.shared.history.cost(governor.overhead(), event_ns);
        let on = |id| states.recorded(id).is_some() && !resting.contains(&id);
        if weights.load(on) > budget * TOO_MUCH {
            let dear = weights.too_dear(budget * ENOUGH, on);
            self.rest(dear.into_iter().collect())?;
            self.begin_anew();
        }
        match self.governor.next_try {
            _ if self.governor.resting.is_empty() => self.governor.next_try = None,
            None => self.governor.next_try = Some(now + TRY_EVERY),
            Some(next) if next <= now => return self.begin_try(budget),
            Some(_) => {}
        }
        Ok(())
    }

    /// Has these rest.
    fn rest(&mut self, ids: Vec<FunctionId>) -> Result<()> {
        let rested = self.rest_sleds(&ids);
        // Also if that failed: some of them may be off, and are to be woken again.
        self.shared.history.rest(&ids, ticks_now());
        tracing::debug!(
            pid = self.target.pid().as_raw(),
            functions = ids.len(),
            "functions rest"
        );
        self.governor.resting.extend(ids);
        rested
    }

    /// What rests is on for a moment, to see what it costs now.
    fn begin_try(&mut self, budget: f64) -> Result<()> {
        let running = self.governor.last.as_ref().map_or(0.0, |last| last.running);
        let now = Instant::now();
        if running < WORKING / 10.0 {
            // There is nothing to see.
            self.governor.next_try = Some(now + TRY_EVERY);
            return Ok(());
        }
        let resting = &self.governor.resting;
        let after = resting
            .iter()
            .filter(|id| self.governor.tried.is_none_or(|tried| **id > tried));
        let ids: Vec<FunctionId> = after
            .chain(resting)
            .copied()
            .take(MOST_TRIED.min(resting.len()))
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
        // Also if that failed: some of them may be on, and are to rest again.
        let stopped = woken?;
        // They are switched on and off one after the other: each is on for about as long as one of the two takes.
        let on = time + begun.duration_since(waking);
        let cost = on.as_secs_f64() * load + 2.0 * stopped.as_secs_f64();
        let pause = Duration::from_secs_f64((cost / share).min(1e6));
        self.governor.next_try = Some(begun + pause.clamp(TRY_EVERY, TRY_EVERY_AT_LEAST));
        Ok(())
    }

    /// Clocks of the threads that work, and how much of a processor others use.
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
        // What somebody has switched since is not tried any more.
        tried.ids.retain(|id| self.governor.resting.contains(id));
        if let Err(error) = self.rest_sleds(&tried.ids) {
            // They are on still, and tried on until that succeeds.
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
        let (resting, states) = (&governor.resting, &self.shared.states);
        // What they cost until they were off again is spent, too.
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
        let wake: Vec<FunctionId> = resting
            .iter()
            .copied()
            .filter(|id| !dear.contains(id))
            .collect();
        let rest: Vec<FunctionId> = dear
            .difference(&resting.iter().copied().collect())
            .copied()
            .collect();
        self.wake_sleds(&wake)?;
        self.governor.resting.retain(|id| dear.contains(id));
        self.shared.history.wake(wake, ticks_now());
        self.rest(rest)?;
        self.begin_anew();
        // Since the last look, those that were not on have rested all the time, and the others but
        // for the try.
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

    /// Notes what functions that rest would have recorded while the process ran for so many
    /// nanoseconds.
    fn count_unrecorded(&self, useful_ns: impl Fn(FunctionId) -> f64) {
        let resting = self.governor.resting.iter();
        let unrecorded = resting.filter_map(|id| {
            let rate = self.governor.weights.get(*id)?.calls_per_second();
            Some((*id, rate * useful_ns(*id) / 1e9))
        });
        self.shared.history.unrecorded(unrecorded);
    }

    /// What was recorded so far is no matter of the next look: it was of functions that rest by now.
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
        lock(&self.shared.drain).as_ref()?.sample(look)
    }

    // --- duty

    /// Everything is on from here on.
    fn begin_window(&mut self, duty: Duty) -> Result<()> {
        let begun = Instant::now();
        let on = self.all_on();
        self.patch_as_wanted(&on)?;
        // Flavours open one after the other, in microseconds.
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

    /// Nothing is, until the next one.
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

    /// Returns the moment from which on nothing was recorded.
    fn close_window(&mut self) -> Result<Ticks> {
        self.patcher.set_door(&self.memory, Door::Closed)?;
        let until = ticks_now();
        let on = self.all_on();
        self.switches().mark(&on);
        let sites = self.loading.functions.sites(&on);
        self.patch(&sites, Wanted::Off)?;
        Ok(until)
    }

    /// What is on is recorded again.
    fn open_door(&mut self) -> Result<()> {
        if self.patcher.front() == Front::Filter {
            // What was open when the door was closed is long over.
            self.renew_filters();
        }
        self.switches().mark(&self.all_on());
        self.patcher.set_door(&self.memory, Door::Open)
    }

    // --- sleds

    fn rest_sleds(&mut self, ids: &[FunctionId]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let sites = self.loading.functions.sites(ids);
        let rested = self.patch(&sites, Wanted::Off);
        self.switches().mark(ids);
        rested.map(drop)
    }

    /// For how long threads stood still for it.
    fn wake_sleds(&mut self, ids: &[FunctionId]) -> Result<Duration> {
        if ids.is_empty() {
            return Ok(Duration::ZERO);
        }
        self.switches().mark(ids);
        self.patch_as_wanted(ids)
    }

    /// Brings the sleds of functions that are switched on to what they are to record.
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

fn budget(ppm: u32) -> f64 {
    f64::from(ppm) / 1e6
}
