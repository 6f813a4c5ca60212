//! What is waited for.

use std::time::Duration;

use xray_trace::{
    event_format::EventCondition,
    instr_map::{CompiledSelection, Selection},
};

use crate::{
    refusal::{Reason, Refusal, Result},
    target::Ending,
    types::compile,
};

/// Of one trigger; each has a bit.
pub const MOST_CONDITIONS: usize = 8;

/// One thing that is waited for.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// A call of one of these functions has ended and took at least so long.
    Duration {
        /// Which.
        of: Selection,
        /// The measured time of the call.
        time: CallTime,
        /// How long.
        at_least: Duration,
    },
    /// A call of one of these functions begins.
    Call(Selection),
    /// The program emits such a custom or typed event.
    Event(EventCondition),
    /// Calls of these functions are frequent.
    Rate {
        /// Which.
        of: Selection,
        /// So many within a second.
        at_least: u64,
    },
    /// The process ends.
    Death(DeathWanted),
}

/// A time of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallTime {
    /// From its begin to its end.
    Duration,
    /// The part of it in which the thread had a processor.
    OnCpu,
    /// The part of it in which the thread had none.
    OffCpu,
}

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeathWanted {
    /// By any signal.
    AnySignal,
    /// By this one.
    Signal(i32),
    /// However, also if that is not known.
    AnyEnd,
}

// === impl Condition ===

impl Condition {
    /// The functions that it is about.
    pub fn selection(&self) -> Option<&Selection> {
        match self {
            Self::Duration { of, .. } | Self::Rate { of, .. } | Self::Call(of) => Some(of),
            Self::Event(_) | Self::Death(_) => None,
        }
    }

    /// True if it compares the data of events.
    pub fn reads_data(&self) -> bool {
        matches!(self, Self::Event(event) if event.compares_data())
    }

    /// True if it needs to be known when threads have a processor.
    pub fn needs_run_times(&self) -> bool {
        let Self::Duration { time, .. } = self else {
            return false;
        };
        *time != CallTime::Duration
    }

    /// Whether it makes sense.
    pub(crate) fn check(&self) -> Result<()> {
        if let Self::Rate { at_least: 0, .. } = self {
            let message = "a rate condition needs at least 1 call";
            return Err(Refusal::new(Reason::Limit, message));
        }
        self.compile().map(drop)
    }

    pub(crate) fn compile(&self) -> Result<Option<CompiledSelection>> {
        self.selection().map(compile).transpose()
    }
}

// === impl CallTime ===

impl CallTime {
    /// As conditions write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Duration => "duration",
            Self::OnCpu => "on_cpu",
            Self::OffCpu => "off_cpu",
        }
    }
}

// === impl DeathWanted ===

impl DeathWanted {
    pub(super) fn is_met_by(self, ending: Ending) -> bool {
        match (self, ending) {
            (Self::AnyEnd, _) | (Self::AnySignal, Ending::Signal(_)) => true,
            (Self::Signal(wanted), Ending::Signal(signal)) => wanted == signal,
            (Self::AnySignal | Self::Signal(_), _) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_ending_counts_as_no_signal() {
        let (segv, kill) = (Ending::Signal(11), Ending::Signal(9));
        for (wanted, met, not_met) in [
            (
                DeathWanted::AnySignal,
                vec![segv, kill],
                vec![Ending::Code(0), Ending::Code(139), Ending::Unknown],
            ),
            (
                DeathWanted::Signal(11),
                vec![segv],
                vec![kill, Ending::Code(11), Ending::Unknown],
            ),
            (
                DeathWanted::AnyEnd,
                vec![segv, Ending::Code(0), Ending::Unknown],
                vec![],
            ),
        ] {
            for ending in met {
                assert!(wanted.is_met_by(ending), "{wanted:?} {ending:?}");
            }
            for ending in not_met {
                assert!(!wanted.is_met_by(ending), "{wanted:?} {ending:?}");
            }
        }
    }
}
