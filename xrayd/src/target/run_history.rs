//! When one thread had a processor lately.

use std::{collections::VecDeque, io};

use xray_trace::{
    container::{RunsEncoder, RunsPart},
    model::{ThreadId, ThreadRuns},
};

use super::run_recorder::{RunRecord, RunRecorder};
use crate::{
    pid::{Pid, Tid},
    sys::monotonic_now,
};

/// Bytes of packed switches in a finished part. Most switches take 4 or 5 bytes.
const PART_BYTES: usize = 4096;

/// The latest switches of a thread. It grows until [`Self::drop_oldest`] is called.
#[derive(Debug)]
pub(crate) struct RunHistory {
    /// `None` after [`Self::close`].
    recorder: Option<RunRecorder>,
    /// Finished parts, in order of time.
    parts: VecDeque<Part>,
    /// `None` from a loss to the next switch.
    encoder: Option<RunsEncoder>,
    /// The end of the time of which all switches are known, on `CLOCK_MONOTONIC`.
    until_ns: u64,
}

/// The switches of a time.
#[derive(Debug)]
struct Part {
    runs: RunsPart,
    bytes: usize,
    /// The time without a processor in it, in nanoseconds.
    off_ns: u64,
}

// === impl RunHistory ===

impl RunHistory {
    /// Begins to record the switches of a thread of this process, which began at `start_time`.
    ///
    /// # Errors
    /// As [`RunRecorder::begin`].
    pub(crate) fn begin(pid: Pid, start_time: u64, tid: Tid) -> io::Result<Self> {
        let (recorder, since) = RunRecorder::begin(pid, start_time, tid, &[])?;
        Ok(Self {
            recorder: Some(recorder),
            parts: VecDeque::new(),
            encoder: Some(RunsEncoder::new(since)),
            until_ns: since,
        })
    }

    /// Reads the kernel's ring. Returns the number of switches in it.
    pub(crate) fn read(&mut self) -> u64 {
        let Self {
            recorder,
            parts,
            encoder,
            until_ns,
        } = self;
        let Some(recorder) = recorder else { return 0 };
        recorder.take(|record| match record {
            RunRecord::Switch(switch) => {
                let encoder = encoder.get_or_insert_with(|| RunsEncoder::new(switch.at_ns));
                encoder.push(switch);
                *until_ns = encoder.last_ns();
                if encoder.len() >= PART_BYTES {
                    parts.push_back(Part::of(encoder));
                }
            }
            // There are no tracepoints.
            RunRecord::Event { .. } => {}
            RunRecord::Lost(_) => {
                if let Some(mut encoder) = encoder.take()
                    && !encoder.is_empty()
                {
                    parts.push_back(Part::of(&mut encoder));
                }
            }
        })
    }

    /// Reads the ring. What is known of the thread extends up to now, or up to its end.
    ///
    /// # Errors
    /// The clock cannot be read.
    pub(crate) fn update(&mut self) -> io::Result<()> {
        // All switches before that are in the ring then.
        let now = monotonic_now()?;
        self.read();
        let mut recorder = self.recorder.iter();
        if recorder.any(|recorder| !recorder.is_over() && !recorder.may_miss()) {
            self.until_ns = now;
        }
        Ok(())
    }

    /// Reads the ring for the last time, and gives the kernel's memory back. What is known stays.
    pub(crate) fn close(&mut self) {
        self.read();
        self.recorder = None;
    }

    /// The time between two moments for which the thread had no processor, in nanoseconds. The
    /// thread ran at both moments. `None` if it is not known for all of the time between them.
    pub(crate) fn off_between(&self, from_ns: u64, until_ns: u64) -> Option<u64> {
        let current = self.encoder.clone().map(|mut encoder| {
            let until_ns = self.until_ns.max(encoder.last_ns());
            encoder.take(ThreadId(0), until_ns)
        });
        let first = self
            .parts
            .partition_point(|part| part.runs.until_ns <= from_ns);
        let (mut at_ns, mut off_ns) = (from_ns, 0_u64);
        for part in self.parts.range(first..) {
            let Part {
                runs, off_ns: off, ..
            } = part;
            off_ns =
                off_ns.saturating_add(match at_ns == runs.from_ns && runs.until_ns <= until_ns {
                    true => *off,
                    false => off_within(runs, at_ns, until_ns)?,
                });
            at_ns = runs.until_ns;
            if until_ns <= at_ns {
                return Some(off_ns);
            }
        }
        let current = current.filter(|current| until_ns <= current.until_ns)?;
        Some(off_ns.saturating_add(off_within(&current, at_ns, until_ns)?))
    }

    /// The begin of the oldest finished part, and its size in bytes.
    pub(crate) fn oldest(&self) -> Option<(u64, usize)> {
        let oldest = self.parts.front()?;
        Some((oldest.runs.from_ns, oldest.bytes))
    }

    /// Forgets the oldest finished part.
    pub(crate) fn drop_oldest(&mut self) {
        self.parts.pop_front();
    }

    /// The size of all finished parts, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// True if the ring has shown that the thread has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.recorder.as_ref().is_none_or(RunRecorder::is_over)
    }

    /// True once the thread has ended. Asks the kernel.
    pub(crate) fn has_ended(&self) -> bool {
        self.recorder.as_ref().is_none_or(RunRecorder::has_ended)
    }
}

// === impl Part ===

impl Part {
    /// The switches up to the latest one. The encoder goes on there.
    fn of(encoder: &mut RunsEncoder) -> Self {
        let bytes = encoder.len();
        let runs = encoder.take(ThreadId(0), encoder.last_ns());
        Self {
            off_ns: off_within(&runs, runs.from_ns, runs.until_ns).unwrap_or(0),
            bytes,
            runs,
        }
    }
}

/// The time without a processor from `from_ns` on until `until_ns` or the end of the part. `None`
/// if `from_ns` is before the part.
fn off_within(part: &RunsPart, from_ns: u64, until_ns: u64) -> Option<u64> {
    let until_ns = until_ns.min(part.until_ns);
    let runs = ThreadRuns::of(std::slice::from_ref(part));
    Some(runs.off_between(from_ns, until_ns)?.total_ns)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{SyncSender, sync_channel},
        thread,
        time::Duration,
    };

    use nix::unistd;

    use super::*;

    /// A thread of this process that sleeps for each time it receives, and confirms that.
    fn sleeper() -> (
        Tid,
        SyncSender<Duration>,
        std::sync::mpsc::Receiver<u32>,
        thread::JoinHandle<()>,
    ) {
        let (ids, id) = sync_channel(0);
        let (orders, received) = sync_channel::<Duration>(0);
        let thread = thread::spawn(move || {
            let own = unistd::gettid().as_raw().cast_unsigned();
            ids.send(own).unwrap();
            for time in received {
                thread::sleep(time);
                ids.send(own).unwrap();
            }
        });
        (
            Tid::try_from(id.recv().unwrap()).unwrap(),
            orders,
            id,
            thread,
        )
    }

    fn begun(tid: Tid) -> RunHistory {
        let pid = Pid::try_from(std::process::id()).unwrap();
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        let start = fields.clone().nth(19).unwrap().parse().unwrap();
        RunHistory::begin(pid, start, tid).unwrap()
    }

    #[test]
    fn a_sleep_is_time_without_a_processor() {
        let (tid, orders, slept, thread) = sleeper();
        let mut history = begun(tid);
        let slept_ns = 20_000_000;
        let from = monotonic_now().unwrap();
        orders.send(Duration::from_nanos(slept_ns)).unwrap();
        slept.recv().unwrap();
        let until = monotonic_now().unwrap();
        history.update().unwrap();
        let off = history.off_between(from, until).unwrap();
        // The sleep begins shortly before the thread gives up its processor.
        let expected = slept_ns / 2..=until - from;
        assert!(expected.contains(&off), "{off}");
        drop(orders);
        thread.join().unwrap();
        while !history.has_ended() {
            thread::yield_now();
        }
        history.update().unwrap();
        assert_eq!(
            history.off_between(from, until),
            Some(off),
            "it stays known"
        );
        history.close();
        assert_eq!(history.off_between(from, until), Some(off));
        history.update().unwrap();
        let later = monotonic_now().unwrap();
        assert_eq!(history.off_between(from, later), None, "after its end");
        assert_eq!(history.off_between(0, until), None, "before the record");
    }

    #[test]
    fn the_time_of_many_parts_is_their_sum() {
        let (tid, orders, slept, thread) = sleeper();
        let mut history = begun(tid);
        let mut moments = Vec::new();
        // Two switches for each sleep, of 3 bytes or more each, so a part has 700 sleeps at most.
        for _ in 0..3000 {
            moments.push(monotonic_now().unwrap());
            orders.send(Duration::from_micros(1)).unwrap();
            slept.recv().unwrap();
            history.read();
        }
        history.update().unwrap();
        let parts = history.parts.len();
        assert!(parts >= 4, "{parts} parts");
        let size = history.parts.iter().map(|part| part.bytes).sum::<usize>();
        assert_eq!(history.bytes(), size);
        assert!(size >= parts * PART_BYTES);
        // All of it at once, as a reader of the whole would.
        let mut all: Vec<_> = history.parts.iter().map(|part| part.runs.clone()).collect();
        let mut rest = history.encoder.clone().unwrap();
        all.push(rest.take(ThreadId(0), history.until_ns));
        let all = ThreadRuns::of(&all);
        let last = *moments.last().unwrap();
        let begins = history.parts.iter().map(|part| part.runs.from_ns);
        let some = moments.iter().step_by(97).copied();
        for from in begins.chain(some).filter(|from| *from < last) {
            for until in [from + 1, from + 10_000_000, last] {
                let expected = all.off_between(from, until).map(|off| off.total_ns);
                if until <= last {
                    assert!(expected.is_some());
                }
                assert_eq!(history.off_between(from, until), expected, "{from} {until}");
            }
        }
        // What is dropped is not known any more.
        let (oldest, bytes) = history.oldest().unwrap();
        history.drop_oldest();
        assert_eq!(history.bytes(), size - bytes);
        assert!(oldest < moments[0]);
        assert_eq!(history.off_between(moments[0], last), None);
        let (oldest, _) = history.oldest().unwrap();
        assert!(history.off_between(oldest, last).is_some());
        drop(orders);
        thread.join().unwrap();
    }

    #[test]
    fn a_loss_is_time_of_which_nothing_is_known() {
        let (tid, orders, slept, thread) = sleeper();
        let mut history = begun(tid);
        let first = monotonic_now().unwrap();
        for _ in 0..RunRecorder::ROOM {
            orders.send(Duration::from_micros(1)).unwrap();
            slept.recv().unwrap();
        }
        let full = monotonic_now().unwrap();
        history.update().unwrap();
        assert_eq!(history.off_between(first, full), None);
        for _ in 0..2 {
            orders.send(Duration::from_micros(1)).unwrap();
            slept.recv().unwrap();
        }
        history.read();
        let from = monotonic_now().unwrap();
        orders.send(Duration::from_micros(1)).unwrap();
        slept.recv().unwrap();
        let until = monotonic_now().unwrap();
        history.update().unwrap();
        assert!(history.off_between(from, until).is_some());
        assert_eq!(history.off_between(full, until), None);
        drop(orders);
        thread.join().unwrap();
    }
}
