//! Records when one thread has a processor, and the events of tracepoints: perf events of the
//! thread, with one ring that the kernel fills.

use std::{fs::File, io, os::fd::AsFd as _};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use shm_ring::Mapping;
use xray_trace::model::ContextSwitch;

use super::{
    record::{DATA_BYTES, PerfRecord, Ring, SWITCH_BYTES, TRACEPOINT_DATA_BYTES, mapped_bytes},
    threads::Threads,
    tracepoint::KernelTracepoint,
};
use crate::{
    pid::{Pid, Tid},
    sys::{lost_records, monotonic_now, open_switch_event, open_tracepoint},
};

/// Bytes of a report of a loss, and of the longest record behind it.
const LARGEST_RECORDS: u64 = 48 + 56;
/// The same with the longest event of a tracepoint: `PERF_MAX_TRACE_SIZE` of the kernel.
const LARGEST_WITH_EVENTS: u64 = 48 + 64 + 8192;

/// The kernel's records of one thread's switches, and of its tracepoints. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct RunRecorder {
    pid: Pid,
    tid: Tid,
    event: File,
    /// The events of the tracepoints, which write to the same ring.
    tracepoints: Vec<File>,
    ring: Ring<Mapping>,
    data_bytes: u64,
    /// Lost records that the ring has reported.
    reported: u64,
    /// The ring was so full when it was read that the kernel may have dropped records after that.
    /// It reports a loss with the next record.
    may_miss: bool,
    /// Nothing more comes: the thread has ended, or has another id.
    is_over: bool,
}

/// A record that [`RunRecorder::take`] has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunRecord {
    /// The thread has got or given up a processor.
    Switch(ContextSwitch),
    /// A tracepoint has had an event.
    Event {
        /// The time, in nanoseconds of `CLOCK_MONOTONIC`.
        when: u64,
        /// The kernel's record of the event.
        record: Vec<u8>,
    },
    /// This number of switches and events is missing before the next one, or fewer.
    Lost(u64),
}

// === impl RunRecorder ===

impl RunRecorder {
    /// The most switches that wait to be taken.
    pub(crate) const ROOM: u64 = (DATA_BYTES - 1) / SWITCH_BYTES;

    /// Begins to record the switches of a thread of this process, which began at `start_time`, and
    /// the events of these tracepoints. Returns the nanoseconds of `CLOCK_MONOTONIC` since when all
    /// of them are recorded.
    ///
    /// # Errors
    /// The kernel does not allow it, there is no more memory that may be locked, or the thread has
    /// ended.
    pub(crate) fn begin(
        pid: Pid,
        start_time: u64,
        tid: Tid,
        tracepoints: &[KernelTracepoint],
    ) -> io::Result<(Self, u64)> {
        let event = open_switch_event(tid.as_raw())?;
        let data_bytes = match tracepoints {
            [] => DATA_BYTES,
            _ => TRACEPOINT_DATA_BYTES,
        };
        let memory = Mapping::new(&event, 0, mapped_bytes(data_bytes))?;
        let ring = Ring::new(memory, data_bytes);
        let tracepoints = tracepoints.iter();
        let opened =
            tracepoints.map(|tracepoint| open_tracepoint(tid.as_raw(), tracepoint.id, &event));
        let tracepoints = opened.collect::<io::Result<Vec<_>>>()?;
        // The kernel drops records silently until the ring is mapped.
        let since = monotonic_now()?;
        // The event belongs to the thread that had the id when it was opened. If the process has
        // such a thread now, it is the same one.
        if Threads::start_time(pid, tid).is_none() || !Threads::is_process(pid, start_time) {
            return Err(io::Error::from_raw_os_error(nix::libc::ESRCH));
        }
        let this = Self {
            pid,
            tid,
            event,
            tracepoints,
            ring,
            data_bytes,
            reported: 0,
            may_miss: false,
            is_over: false,
        };
        // An ended thread may have had the id.
        match this.has_ended() {
            true => Err(io::Error::from_raw_os_error(nix::libc::ESRCH)),
            false => Ok((this, since)),
        }
    }

    /// Passes the records since the last call to `each`. Returns the number of switches that take
    /// the same part of a ring without tracepoints.
    pub(crate) fn take(&mut self, mut each: impl FnMut(RunRecord)) -> u64 {
        let own = (self.pid.as_u32(), self.tid.as_u32());
        let (mut lost, mut is_over) = (0_u64, self.is_over);
        let bytes = self.ring.take(&mut |record| match record {
            PerfRecord::Switched {
                process,
                thread,
                switch,
                ended,
            } => {
                // A thread that calls exec takes the id of the first one.
                is_over |= (process, thread) != own;
                if !is_over {
                    each(RunRecord::Switch(switch));
                }
                is_over |= ended;
            }
            PerfRecord::Event {
                process,
                thread,
                when,
                record,
            } => {
                is_over |= (process, thread) != own;
                if !is_over {
                    each(RunRecord::Event { when, record });
                }
            }
            PerfRecord::Lost(records) => {
                lost = lost.saturating_add(records);
                each(RunRecord::Lost(records));
            }
            PerfRecord::Mapped { .. } | PerfRecord::Turned { .. } => {}
        });
        self.is_over = is_over;
        if bytes > 0 {
            let largest = match self.tracepoints.as_slice() {
                [] => LARGEST_RECORDS,
                _ => LARGEST_WITH_EVENTS,
            };
            self.may_miss = self.data_bytes.saturating_sub(bytes) < largest;
        }
        self.reported = self.reported.saturating_add(lost);
        match lost {
            0 => (bytes * DATA_BYTES / self.data_bytes).div_ceil(SWITCH_BYTES),
            _ => Self::ROOM,
        }
    }

    /// True if it also records events of tracepoints.
    pub(crate) fn has_tracepoints(&self) -> bool {
        !self.tracepoints.is_empty()
    }

    /// The number of lost records that no record in the ring has reported so far. The kernel
    /// reports a loss with the next record, so it never reports the last one of a thread. 0 if the
    /// kernel does not count them.
    pub(crate) fn unreported_losses(&self) -> u64 {
        let events = self.tracepoints.iter().chain([&self.event]);
        let lost = events.filter_map(lost_records).fold(0, u64::saturating_add);
        lost.saturating_sub(self.reported)
    }

    /// True if records after the last one may be missing.
    pub(crate) fn may_miss(&self) -> bool {
        self.may_miss
    }

    /// True if the ring has shown that nothing more comes.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// True once the thread has ended. Its last switches can still be taken.
    pub(crate) fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(self.event.as_fd(), PollFlags::POLLIN)];
        let polls = poll(&mut polled, PollTimeout::ZERO);
        let events = polls.ok().and_then(|_| polled[0].revents());
        events.is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::sync_channel,
        thread,
        time::{Duration, Instant},
    };

    use nix::unistd;
    use xray_trace::model::RunState;

    use super::*;

    /// The recorder of another thread of this process, and what has it sleep `times` times.
    fn sleeper() -> (
        Tid,
        std::sync::mpsc::SyncSender<u32>,
        thread::JoinHandle<()>,
    ) {
        let (ids, id) = sync_channel(0);
        let (orders, received) = sync_channel::<u32>(0);
        let thread = thread::spawn(move || {
            ids.send(unistd::gettid().as_raw().cast_unsigned()).unwrap();
            for times in received {
                for _ in 0..times {
                    thread::sleep(Duration::from_micros(20));
                }
            }
        });
        (Tid::try_from(id.recv().unwrap()).unwrap(), orders, thread)
    }

    fn own_start() -> (Pid, u64) {
        let pid = Pid::try_from(std::process::id()).unwrap();
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        (pid, fields.clone().nth(19).unwrap().parse().unwrap())
    }

    #[test]
    fn a_thread_that_sleeps_gives_up_its_processor_and_gets_one_again() {
        let (pid, start) = own_start();
        let (tid, orders, thread) = sleeper();
        let (mut recorder, since) = RunRecorder::begin(pid, start, tid, &[]).unwrap();
        orders.send(100).unwrap();
        drop(orders);
        thread.join().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !recorder.has_ended() {
            assert!(Instant::now() < deadline, "the event shows no end");
        }
        let until = monotonic_now().unwrap();
        let mut switches = Vec::new();
        recorder.take(|record| match record {
            RunRecord::Switch(switch) => switches.push(switch),
            RunRecord::Event { .. } | RunRecord::Lost(_) => panic!("{record:?}"),
        });
        assert!(recorder.is_over() && !recorder.may_miss());
        let waits = switches
            .iter()
            .filter(|switch| switch.to == RunState::Waiting);
        assert!(waits.count() >= 100, "{switches:?}");
        for pair in switches.windows(2) {
            let [one, next] = pair else { unreachable!() };
            assert!(one.at_ns <= next.at_ns);
            let runs = [one, next].map(|switch| switch.to == RunState::Running);
            assert_ne!(runs[0], runs[1], "{switches:?}");
        }
        assert!(switches[0].at_ns >= since && switches.last().unwrap().at_ns <= until);
        assert_eq!(
            switches.last().unwrap().to,
            RunState::Waiting,
            "it has ended"
        );
    }

    #[test]
    fn switches_without_room_are_lost_and_reported() {
        let (pid, start) = own_start();
        let (tid, orders, thread) = sleeper();
        let (mut recorder, _) = RunRecorder::begin(pid, start, tid, &[]).unwrap();
        orders
            .send(u32::try_from(RunRecorder::ROOM).unwrap())
            .unwrap();
        orders.send(0).unwrap();
        let mut records = Vec::new();
        recorder.take(|record| records.push(record));
        let is_loss = |record: &RunRecord| matches!(record, RunRecord::Lost(_));
        assert!(!records.iter().any(is_loss));
        assert!(recorder.may_miss(), "the ring is full");
        // The kernel reports the loss with the next record.
        orders.send(1).unwrap();
        drop(orders);
        thread.join().unwrap();
        records.clear();
        recorder.take(|record| records.push(record));
        assert!(is_loss(&records[0]), "{records:?}");
        assert!(!recorder.may_miss() && recorder.is_over());
    }

    /// The kernel reports a loss with the next record, and after the last loss there is none.
    #[test]
    fn each_event_of_a_tracepoint_is_taken_or_counted() {
        const CALLS: u64 = 100_000;
        let tracepoint = match KernelTracepoint::find("syscalls:sys_enter_getppid") {
            Ok(tracepoint) => tracepoint,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "{error}");
                eprintln!("NOT RUN: each_event_of_a_tracepoint_is_taken_or_counted: {error}");
                return;
            }
        };
        let (pid, start) = own_start();
        let (ids, id) = sync_channel(0);
        let (orders, received) = sync_channel::<()>(0);
        let thread = thread::spawn(move || {
            ids.send(unistd::gettid().as_raw().cast_unsigned()).unwrap();
            received.recv().unwrap();
            for _ in 0..CALLS {
                unistd::getppid();
            }
        });
        let tid = Tid::try_from(id.recv().unwrap()).unwrap();
        let (mut recorder, _) = RunRecorder::begin(pid, start, tid, &[tracepoint]).unwrap();
        orders.send(()).unwrap();
        thread.join().unwrap();
        let (mut events, mut switches, mut lost) = (0, 0, 0);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !recorder.has_ended() {
            assert!(Instant::now() < deadline, "the event shows no end");
        }
        recorder.take(|record| match record {
            RunRecord::Event { .. } => events += 1,
            RunRecord::Switch(_) => switches += 1,
            RunRecord::Lost(records) => lost += records,
        });
        lost += recorder.unreported_losses();
        assert!(events > 100 && lost > 0, "{events} {switches} {lost}");
        let all = events + lost;
        // Some of the lost records were switches.
        assert!(
            (CALLS..CALLS + CALLS / 10).contains(&all),
            "{events} {switches} {lost}"
        );
    }

    #[test]
    fn a_thread_of_another_process_is_refused() {
        let (pid, start) = own_start();
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let tid = Tid::try_from(other.id()).unwrap();
        assert!(RunRecorder::begin(pid, start, tid, &[]).is_err());
        let own = Tid::try_from(unistd::gettid().as_raw().cast_unsigned()).unwrap();
        assert!(RunRecorder::begin(pid, start + 1, own, &[]).is_err());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
