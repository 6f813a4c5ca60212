//! A trial of suppressed functions, and the comparison before it: windows in which all events
//! count.
//!
//! ```text
//!  ├─ comparison ─┤ switch on ├──── window ────┤ switch off │
//!   the others are on           all are on
//! ```
//!
//! The calls of the others in both windows show the program's [`Pace`](super::pace::Pace).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use xray_trace::model::{FunctionId, ThreadId, Ticks};

use super::measure::{Interval, Reading, float, given};
use crate::{
    collect::{Edge, Look, Sample, Window},
    control::patching::Patching,
    target::{MOST_CLOCKS, RunClocks},
};

/// The share of a window by which its clocks may be read too late. Later ones show nothing.
const MOST_LATE: f64 = 0.05;

/// The clocks of the threads that work.
#[derive(Debug, Clone)]
pub(super) struct Clocks {
    clocks: Arc<RunClocks>,
    /// Processor use of threads without a clock, as a share of one processor.
    unclocked: f64,
}

/// A window under way.
#[derive(Debug)]
pub(super) struct OpenWindow {
    window: Arc<Window>,
    /// True if calls are added up in the program. Then the samples are taken at both ends of the
    /// window. Otherwise events have times, and the samples are taken before and after it.
    adds_up: bool,
    /// The first sample; `None` before it was taken.
    before: Option<Sample>,
    clocks: Clocks,
    /// `None` before its begin.
    began: Option<Edge>,
    /// The time that the samples at its ends took.
    pub(super) sampling: Duration,
    /// The sample at its end, where calls are added up.
    after: Option<Sample>,
}

/// The comparison before a trial: the functions of the trial are still suppressed.
#[derive(Debug)]
pub(super) struct Comparison {
    /// The functions of the trial, in ascending order.
    pub(super) ids: Vec<FunctionId>,
    /// The duration of the comparison, and of the trial.
    pub(super) time: Duration,
    pub(super) clocks: Clocks,
    /// `None` if the drain has ended.
    pub(super) window: Option<OpenWindow>,
}

/// A trial: suppressed functions that are on for a moment.
#[derive(Debug)]
pub(super) struct Trial {
    /// In ascending order.
    pub(super) ids: Vec<FunctionId>,
    /// The load of these functions before the trial.
    pub(super) load: f64,
    /// Processor time of the process at the last look.
    pub(super) ran: Option<Duration>,
    /// The time at which switching on began. Sleds are switched off in the same order. So each is
    /// on for as long as from here to the begin of switching off, which is after the sample.
    pub(super) since: Ticks,
    pub(super) clocks: Clocks,
    /// What the clocks showed at `since`, in nanoseconds. `None` if the process had ended.
    pub(super) began: Option<f64>,
    /// The longest stop of the target's threads while sleds were switched on.
    pub(super) stopped: Duration,
    /// The window, from whose begin on all these functions are on. `None` if there is none.
    pub(super) window: Option<OpenWindow>,
    /// The calls of functions that are on all the time, in the comparison. `None` if they were not
    /// seen, or if functions were switched since the begin of the comparison.
    pub(super) others: Option<Calls>,
}

/// Calls in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Calls {
    pub(super) calls: f64,
    /// The time of the program without tracing, in nanoseconds.
    pub(super) useful_ns: f64,
}

// === impl Clocks ===

impl Clocks {
    /// The clocks of the threads that work the most by the last reading.
    pub(super) fn of(patching: &Patching, last: Option<&Reading>) -> Self {
        let nothing = Reading::default();
        let last = last.unwrap_or(&nothing);
        let running = last.threads_running.iter();
        let mut working: Vec<(f64, ThreadId)> = running
            .map(|(thread, running)| (*running, *thread))
            .filter(|(running, _)| *running > 0.0)
            .collect();
        working.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        working.truncate(MOST_CLOCKS);
        let tids: Vec<u32> = working
            .iter()
            .filter_map(|(_, thread)| {
                let output = &patching.output;
                output.with_retained(|retained| Some(retained.thread(*thread)?.tid))
            })
            .collect();
        let clocks = RunClocks::of(patching.target.pid(), &tids);
        let clocked: f64 = working.iter().map(|(running, _)| running).sum();
        let unclocked = match clocks.are_of_threads() {
            true => (last.running - clocked).max(0.0),
            false => 0.0,
        };
        Self {
            clocks: Arc::new(clocks),
            unclocked,
        }
    }

    /// What they show now, in nanoseconds. `None` if the process has ended.
    pub(super) fn read(&self) -> Option<f64> {
        self.clocks.read()
    }

    /// Processor time between two readings of the clocks. `elapsed_ns` is the time between them.
    pub(super) fn between(&self, began: Option<f64>, ended: Option<f64>, elapsed_ns: f64) -> f64 {
        let clocked = began.zip(ended).map(|(began, ended)| ended - began);
        clocked.map_or(0.0, |clocked| clocked + self.unclocked * elapsed_ns)
    }
}

// === impl OpenWindow ===

impl OpenWindow {
    /// Lets the drain count the events of a window. `None` if the drain has ended.
    pub(super) fn open(patching: &Patching, clocks: &Clocks) -> Option<Self> {
        let window = Arc::new(Window::new(Arc::clone(&clocks.clocks)));
        let adds_up = patching.patcher.dispatch_mode().adds_up();
        let before = match adds_up {
            true => None,
            false => Some(sample(patching, Look::Begin(Arc::clone(&window)))?),
        };
        Some(Self {
            window,
            adds_up,
            before,
            clocks: clocks.clone(),
            began: None,
            sampling: Duration::ZERO,
            after: None,
        })
    }

    /// Begins the window now.
    pub(super) fn begin(&mut self, patching: &Patching) {
        if self.adds_up {
            let asked = Instant::now();
            self.before = sample(patching, Look::Begin(Arc::clone(&self.window)));
            self.sampling += asked.elapsed();
            self.began = self.before.as_ref().and_then(|before| before.edge);
        } else {
            self.began = Some(self.window.begin());
        }
    }

    /// Ends the window now.
    pub(super) fn end(&mut self, patching: &Patching) -> Edge {
        if self.adds_up {
            let asked = Instant::now();
            self.after = self.last_sample(patching);
            self.sampling += asked.elapsed();
        }
        let ended = self.after.as_ref().and_then(|after| after.edge);
        ended.unwrap_or_else(|| self.window.end())
    }

    /// The sample that ends the counting. `None` if the drain has ended, or if there was none at
    /// the begin.
    fn last_sample(&self, patching: &Patching) -> Option<Sample> {
        let before = given(self.before.as_ref()?);
        sample(patching, Look::All(before, Arc::clone(&self.window)))
    }

    /// The events of the window, which ended at `ended`. `None` if the drain or the process has
    /// ended. `running` is the processor use of the threads, and a tick lasts `tick_ns`.
    pub(super) fn interval(
        mut self,
        patching: &Patching,
        ended: Edge,
        running: &Reading,
        tick_ns: f64,
    ) -> Option<(Interval, Sample)> {
        let mut sample = match self.after.take() {
            None => self.last_sample(patching)?,
            Some(after) => after,
        };
        let (before, began) = (self.before?, self.began?);
        let elapsed = float(ended.at.0.saturating_sub(began.at.0));
        let elapsed_ns = elapsed * tick_ns;
        let clocked = began.clocked.zip(ended.clocked)?;
        let cpu_ns = self
            .clocks
            .between(Some(clocked.0), Some(clocked.1), elapsed_ns);
        let tallies = sample.tallies(before.taken.1, &(began.at..=ended.at));
        let before = given(&before);
        let interval = Interval::new(&sample, &before, tallies, (elapsed_ns, cpu_ns), running);
        // Reading the clocks takes its time, at both ends.
        let is_late = float(began.late.abs_diff(ended.late)) > elapsed * MOST_LATE;
        Some((
            Interval {
                is_late,
                ..interval
            },
            sample,
        ))
    }
}

/// Asks the drain for a sample. `None` if the drain has ended.
pub(super) fn sample(patching: &Patching, look: Look) -> Option<Sample> {
    patching.shared.drain()?.sample(look)
}
