//! The part of a live subscription that belongs to one recording with a lease: calls of its
//! functions that begin in its time, and the events in them up to its end.
//!
//! The recording ends when its lease ends, or after the requested duration if that is earlier. Both
//! times are readings of the target's counter, as the times of events are.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use xray_trace::{
    container::{Chosen, ClosedBlock, ClosedPart, Excluded, RecordedTime},
    instr_map::Selection,
    model::{ClockAnchor, FunctionId, ProcessId, RecordingWindow, ThreadId, Ticks},
};

use crate::{
    store::{Source, TracedProcess},
    sys::{now_anchor, ticks_now},
};

/// Threads with remembered open calls. If there are more, exits of other recordings' calls that
/// extend over the end of a block count as exits of calls that began earlier.
const MOST_THREADS: usize = 1 << 16;

/// The last part of the duration: one sixteenth. The frequency of the counter is measured at the
/// first event in it, because a longer measurement is more exact.
const NEAR_END: u32 = 16;

/// A recording with a lease.
#[derive(Debug)]
pub(super) struct Recorded {
    /// The functions. `None`: all functions.
    selection: Option<Selection>,
    /// The requested duration, if any.
    duration: Option<Duration>,
    /// The first known reading of counter and clock. Set by the first process, at its begin at the
    /// latest.
    anchor: Option<ClockAnchor>,
    /// The begin in the first process.
    first: Option<Ticks>,
    /// The end of the requested duration. Set once events come near to it.
    time_up: Option<Ticks>,
    /// The processes in which it has begun.
    parts: BTreeMap<Source, ProcessPart>,
    /// By process: the number of functions that were matched, and the functions of the recording.
    functions: HashMap<Source, (usize, HashSet<FunctionId>)>,
    /// Threads that have open calls, or whose events extend over the end.
    threads: HashMap<(Source, ThreadId), Chosen>,
}

/// The part of a recording in one process.
#[derive(Debug, Clone, Copy, Default)]
struct ProcessPart {
    /// `None`: the begin of the process.
    since: Option<Ticks>,
    /// The time at which the lease ended.
    taken_back: Option<Ticks>,
    excluded: Excluded,
}

// === impl Recorded ===

impl Recorded {
    /// A recording of these functions, or of all. It ends with `duration`, or with its lease.
    pub(super) fn of(selection: Option<Selection>, duration: Option<Duration>) -> Self {
        Self {
            selection,
            duration,
            anchor: None,
            first: None,
            time_up: None,
            parts: BTreeMap::new(),
            functions: HashMap::new(),
            threads: HashMap::new(),
        }
    }

    /// Adds a process, with the first reading of its clocks. If the process was not there when the
    /// lease began, the recording has it from its begin on.
    pub(super) fn come(&mut self, source: Source, anchor: Option<&ClockAnchor>) {
        self.anchor = self.anchor.or(anchor.copied());
        if !self.parts.is_empty() {
            self.parts.entry(source).or_default();
        }
    }

    /// Begins the lease in a process.
    pub(super) fn begin(&mut self, source: Source, at: Ticks) {
        self.first.get_or_insert(at);
        self.anchor = self.anchor.or_else(|| now_anchor().ok());
        self.parts.entry(source).or_insert(ProcessPart {
            since: Some(at),
            ..ProcessPart::default()
        });
    }

    /// Ends the lease in a process.
    pub(super) fn end(&mut self, source: Source, at: Ticks) {
        if let Some(part) = self.parts.get_mut(&source) {
            part.taken_back.get_or_insert(at);
        }
    }

    /// Removes a process. Returns the time for which the recording has it, if it has begun there.
    pub(super) fn leave(&mut self, source: Source) -> Option<RecordingWindow> {
        self.functions.remove(&source);
        self.threads.retain(|(its, _), _| *its != source);
        let part = self.parts.remove(&source)?;
        // It is only needed now if no event came near the end.
        let now = ticks_now();
        self.meet(part.taken_back.unwrap_or(now));
        let until = self.until(&part).filter(|until| *until <= now);
        let Excluded {
            earlier_exits,
            later_events,
            later_lost,
        } = part.excluded;
        Some(RecordingWindow {
            process: ProcessId(0),
            since: part.since,
            until,
            earlier_exits,
            later_events,
            later_lost,
        })
    }

    /// The part of a block that is in the recording.
    pub(super) fn part(
        &mut self,
        source: Source,
        session: &dyn TracedProcess,
        closed: &ClosedBlock,
    ) -> ClosedPart {
        let block = &closed.block;
        self.meet(block.last);
        let Some(part) = self.parts.get(&source) else {
            return ClosedPart::default();
        };
        let time = RecordedTime {
            since: part.since.unwrap_or(Ticks(0)),
            until: self.until(part),
        };
        if block.last < time.since {
            return ClosedPart::default();
        }
        let key = (source, block.thread);
        let mut chosen = self.threads.remove(&key).unwrap_or_default();
        let kept = match &self.selection {
            None => chosen.of_closed(closed, time, |_| true),
            Some(selection) => {
                let known = self.functions.entry(source).or_default();
                chosen.of_closed(closed, time, |id| {
                    let (looked_at, functions) = &mut *known;
                    if usize::try_from(id.0).is_ok_and(|id| id >= *looked_at) {
                        *looked_at = session.functions_known();
                        // An invalid selection was refused before.
                        let rows = session.functions(Some(selection)).unwrap_or_default();
                        *functions = rows.into_iter().map(|row| row.id).collect();
                    }
                    functions.contains(&id)
                })
            }
        };
        if let Some(part) = self.parts.get_mut(&source) {
            part.excluded.add(chosen.take_excluded());
        }
        if !chosen.is_idle() && self.threads.len() < MOST_THREADS {
            self.threads.insert(key, chosen);
        }
        kept
    }

    /// Notes that blocks are missing here, of any thread.
    pub(super) fn miss_blocks(&mut self) {
        self.threads.values_mut().for_each(Chosen::miss_blocks);
    }

    /// The end of the recording in a process, as far as it is known.
    fn until(&self, part: &ProcessPart) -> Option<Ticks> {
        match (part.taken_back, self.time_up) {
            (Some(taken_back), Some(time_up)) => Some(taken_back.min(time_up)),
            (taken_back, time_up) => taken_back.or(time_up),
        }
    }

    /// Notes an event at `at`. If the end of the duration is near, its time is computed.
    fn meet(&mut self, at: Ticks) {
        let (None, Some(first), Some(duration)) = (self.time_up, self.first, self.duration) else {
            return;
        };
        let (Some(from), Ok(now)) = (self.anchor, now_anchor()) else {
            return;
        };
        let near = duration.saturating_sub(duration / NEAR_END);
        if ticks_of(near, (&from, &now)).is_some_and(|near| at.0 >= first.0.saturating_add(near)) {
            let ticks = ticks_of(duration, (&from, &now));
            self.time_up = ticks.map(|ticks| Ticks(first.0.saturating_add(ticks)));
        }
    }
}

/// Converts a duration to ticks at the frequency between two readings of the clocks. `None` if the
/// readings give none.
fn ticks_of(time: Duration, (from, to): (&ClockAnchor, &ClockAnchor)) -> Option<u64> {
    let ns = to.monotonic_ns.checked_sub(from.monotonic_ns)?;
    let ticks = u128::from(to.ticks.0.checked_sub(from.ticks.0)?);
    let ticks = ticks.checked_mul(time.as_nanos())?;
    u64::try_from(ticks.checked_div(u128::from(ns))?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(ticks: u64, monotonic_ns: u64) -> ClockAnchor {
        ClockAnchor {
            ticks: Ticks(ticks),
            monotonic_ns,
            wall_ns: 0,
        }
    }

    #[test]
    fn a_time_has_as_many_ticks_as_its_counters_rate_says() {
        let second = Duration::from_secs(1);
        let check = |from, to, expected| {
            assert_eq!(ticks_of(second, (&from, &to)), expected, "{from:?} {to:?}");
        };
        check(anchor(0, 0), anchor(30, 10), Some(3_000_000_000));
        check(anchor(7, 5), anchor(10, 7), Some(1_500_000_000));
        // No time passed, or the clock ran backwards.
        check(anchor(0, 5), anchor(9, 5), None);
        check(anchor(9, 0), anchor(0, 5), None);
        check(anchor(0, 5), anchor(9, 0), None);
        check(anchor(0, 0), anchor(u64::MAX, 1), None);
    }

    /// The end is the end of the duration or of the lease, whichever is earlier.
    #[test]
    fn a_recording_ends_with_its_time_or_when_its_lease_is_taken_back() {
        let now = now_anchor().unwrap();
        let source = Source::default();
        // More than a millisecond ago.
        let first = Ticks(now.ticks.0 - (1 << 24));
        let later = Ticks(now.ticks.0 - 1);
        let begun = |duration| {
            let mut recorded = Recorded::of(None, duration);
            recorded.come(source, Some(&now));
            recorded.begin(source, first);
            recorded
        };
        let mut without = begun(None);
        without.end(source, later);
        assert_eq!(without.leave(source).unwrap().until, Some(later));
        let mut timed = begun(Some(Duration::from_micros(1)));
        timed.end(source, later);
        let window = timed.leave(source).unwrap();
        assert_eq!(window.since, Some(first));
        assert!(window.until > window.since && window.until < Some(later));
        let mut stopped = begun(Some(Duration::from_secs(1 << 20)));
        let soon = Ticks(first.0 + 1);
        stopped.end(source, soon);
        assert_eq!(stopped.leave(source).unwrap().until, Some(soon));
        // The process has ended.
        assert_eq!(begun(None).leave(source).unwrap().until, None);
        assert_eq!(Recorded::of(None, None).leave(source), None);
    }

    #[test]
    fn a_later_process_is_recorded_from_its_beginning() {
        let mut recorded = Recorded::of(None, None);
        recorded.come(Source(0), None);
        recorded.begin(Source(0), Ticks(5));
        recorded.come(Source(1), None);
        let since = |recorded: &mut Recorded, source| recorded.leave(source).unwrap().since;
        assert_eq!(since(&mut recorded, Source(0)), Some(Ticks(5)));
        assert_eq!(since(&mut recorded, Source(1)), None);
    }
}
