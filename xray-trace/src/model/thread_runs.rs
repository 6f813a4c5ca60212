//! When a thread had a processor, by the kernel's records of its switches.

use super::context_switch::RunState;
use crate::container::RunsPart;

/// The time within a call for which its thread had no processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OffCpu {
    /// The whole of it, in nanoseconds.
    pub total_ns: u64,
    /// The part of it in which the thread was ready to run, in nanoseconds.
    pub ready_ns: u64,
    /// The whole of it without that in traced callees, in nanoseconds.
    pub self_ns: u64,
}

/// A time for which a thread had one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Its begin on `CLOCK_MONOTONIC`, in nanoseconds.
    pub from_ns: u64,
    /// Its end, likewise.
    pub until_ns: u64,
    /// The state; `None` if the thread had no processor for an unknown reason.
    pub state: Option<RunState>,
    /// The processor, while the thread runs. `None` if it is not known.
    pub processor: Option<u16>,
}

/// The states of a thread over time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadRuns {
    /// In order of time. Each lasts until the next one begins, the last one for ever.
    stretches: Vec<Stretch>,
}

/// What is known of the thread from a moment on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    from_ns: u64,
    state: State,
    /// The sums of all stretches before.
    before: Sums,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unknown,
    Running(Option<u16>),
    Ready,
    Waiting,
    /// Ready or waiting.
    Off,
}

/// Times in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    unknown: u64,
    off: u64,
    ready: u64,
}

// === impl ThreadRuns ===

impl ThreadRuns {
    /// The states that these parts of one thread show. A part that overlaps an earlier one is left
    /// out, and so is the rest of a damaged part.
    #[must_use]
    pub fn of(parts: &[RunsPart]) -> Self {
        let mut parts: Vec<&RunsPart> = parts.iter().collect();
        parts.sort_by_key(|part| part.from_ns);
        let mut this = Self::default();
        let mut until: Option<u64> = None;
        for part in parts {
            if until.is_some_and(|until| part.from_ns < until) {
                continue;
            }
            if until != Some(part.from_ns) {
                if let Some(until) = until {
                    this.push(until, State::Unknown);
                }
                // The first switch shows what the thread did before it. A thread without one has
                // not left its processor, if it has done anything at all.
                this.push(part.from_ns, State::Running(None));
            }
            until = Some(this.add(part));
        }
        if let Some(until) = until {
            this.push(until, State::Unknown);
        }
        this
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stretches.is_empty()
    }

    /// Adds the switches of a part that begins where the last stretch is still in force. Returns
    /// the end of what is known.
    fn add(&mut self, part: &RunsPart) -> u64 {
        let mut latest = part.from_ns;
        let read = part.each(|switch| {
            latest = switch.at_ns.min(part.until_ns);
            if let Some(last) = self.stretches.last_mut()
                && last.state == State::Running(None)
            {
                last.state = match switch.to {
                    RunState::Running => State::Off,
                    RunState::Ready | RunState::Waiting => State::Running(Some(switch.processor)),
                };
            }
            self.push(
                latest,
                match switch.to {
                    RunState::Running => State::Running(Some(switch.processor)),
                    RunState::Ready => State::Ready,
                    RunState::Waiting => State::Waiting,
                },
            );
        });
        match read {
            Ok(()) => part.until_ns,
            Err(_) => latest,
        }
    }

    fn push(&mut self, from_ns: u64, state: State) {
        let before = self
            .stretches
            .last()
            .map_or_else(Sums::default, |last| last.at(from_ns));
        self.stretches.push(Stretch {
            from_ns,
            state,
            before,
        });
    }

    /// The last stretch that begins at `ns` or before.
    fn stretch(&self, ns: u64) -> Option<&Stretch> {
        let after = self
            .stretches
            .partition_point(|stretch| stretch.from_ns <= ns);
        self.stretches.get(after.checked_sub(1)?)
    }

    /// The time between two moments for which the thread had no processor. `None` if that is not
    /// known for all of the time between them.
    #[must_use]
    pub fn off_between(&self, from_ns: u64, until_ns: u64) -> Option<OffCpu> {
        let first = self.stretch(from_ns)?;
        // A moment at which the known time ends belongs to it.
        let last = match self.stretch(until_ns)? {
            last if last.from_ns > from_ns => last,
            _ => first,
        };
        if first.state == State::Unknown {
            return None;
        }
        let (from, until) = (first.at(from_ns), last.at(until_ns));
        (from.unknown == until.unknown).then(|| {
            let total_ns = until.off.saturating_sub(from.off);
            OffCpu {
                total_ns,
                ready_ns: until.ready.saturating_sub(from.ready),
                self_ns: total_ns,
            }
        })
    }

    /// The processor on which the thread ran at this moment. `None` if it is not known, or if the
    /// thread did not run.
    #[must_use]
    pub fn processor_at(&self, ns: u64) -> Option<u16> {
        match self.stretch(ns)?.state {
            State::Running(processor) => processor,
            State::Unknown | State::Ready | State::Waiting | State::Off => None,
        }
    }

    /// The known states, in order of time.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        let ends = self.stretches.iter().skip(1).map(|next| next.from_ns);
        let stretches = self.stretches.iter().zip(ends);
        stretches.filter_map(|(stretch, until_ns)| stretch.run(until_ns))
    }

    /// The time without a processor that contains this moment. `None` if the thread had a
    /// processor, or if that is not known.
    #[must_use]
    pub fn off_run_at(&self, ns: u64) -> Option<Run> {
        let after = self
            .stretches
            .partition_point(|stretch| stretch.from_ns <= ns);
        let stretch = self.stretches.get(after.checked_sub(1)?)?;
        let next = self.stretches.get(after)?;
        let run = stretch.run(next.from_ns)?;
        (run.state != Some(RunState::Running)).then_some(run)
    }

    /// The times without a processor between two moments, in order of time. Times that reach beyond
    /// the moments are cut there.
    pub fn off_runs(&self, from_ns: u64, until_ns: u64) -> impl Iterator<Item = Run> {
        let after = self
            .stretches
            .partition_point(|stretch| stretch.from_ns <= from_ns);
        let stretches = self.stretches.get(after.saturating_sub(1)..);
        let stretches = stretches.unwrap_or_default();
        let ends = stretches.iter().skip(1).map(|next| next.from_ns);
        let within = stretches.iter().zip(ends);
        let within = within.take_while(move |(stretch, _)| stretch.from_ns < until_ns);
        within
            .filter_map(|(stretch, until_ns)| stretch.run(until_ns))
            .filter(|run| run.state != Some(RunState::Running))
            .map(move |run| Run {
                from_ns: run.from_ns.max(from_ns),
                until_ns: run.until_ns.min(until_ns),
                ..run
            })
            .filter(|run| run.from_ns < run.until_ns)
    }
}

// === impl Stretch ===

impl Stretch {
    /// The time until a moment, if the state is known and the time is longer than 0.
    fn run(&self, until_ns: u64) -> Option<Run> {
        let (state, processor) = match self.state {
            // Without a switch, nothing shows that the thread ran.
            State::Unknown | State::Running(None) => return None,
            State::Running(processor) => (Some(RunState::Running), processor),
            State::Ready => (Some(RunState::Ready), None),
            State::Waiting => (Some(RunState::Waiting), None),
            State::Off => (None, None),
        };
        (self.from_ns < until_ns).then_some(Run {
            from_ns: self.from_ns,
            until_ns,
            state,
            processor,
        })
    }

    /// The sums up to a moment, if this stretch lasts until then.
    fn at(&self, ns: u64) -> Sums {
        let passed = ns.saturating_sub(self.from_ns);
        let mut sums = self.before;
        match self.state {
            State::Unknown => sums.unknown = sums.unknown.saturating_add(passed),
            State::Running(_) => {}
            State::Ready => {
                sums.ready = sums.ready.saturating_add(passed);
                sums.off = sums.off.saturating_add(passed);
            }
            State::Waiting | State::Off => sums.off = sums.off.saturating_add(passed),
        }
        sums
    }
}
