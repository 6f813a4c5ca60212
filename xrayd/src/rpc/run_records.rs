//! When the threads of a live stream have a processor, and the events of kernel tracepoints. The
//! stream itself records them, so only streams that want them cost anything, and they end with it.
//!
//! Recording begins with all threads of a process. Those that trace nothing in the first second are
//! dropped. A thread that begins to trace later is recorded from the moment at which the stream
//! meets it, some milliseconds after its first event.
//!
//! The kernel writes a ring for each thread. A reader that is too slow loses records. The run times
//! of the thread are then unknown from the last switch before to the next one, and the trace has
//! the number of kernel events that are missing at most.

use std::{
    collections::HashMap,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use xray_trace::{
    container::{KernelEncoder, KernelPart, RunsEncoder, RunsPart},
    model::{Thread, ThreadId},
};

use super::admission::{Admission, Admitted};
use crate::{
    pid::{Pid, Tid},
    store::{Source, TracedProcess},
    sys::{DescriptorRoom, monotonic_now},
    target::{KernelTracepoint, RunRecord, RunRecorder, Threads, tracepoint_of},
};

/// Perf events of all streams and triggers of a user: one for each thread whose run times are
/// recorded, and one for each tracepoint of each of these threads.
pub(super) const PERF_EVENTS_OF_USER: u32 = 1024;
/// The time between two looks at the rings. It is the shorter the faster they fill up.
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(200);
/// After a loss, all looks are made after the shortest time for so long. Often another burst of
/// switches follows, and the first one came as a surprise.
const HURRY_TIME: Duration = Duration::from_secs(10);
/// A look should find this part of a ring at most.
const WANTED_PART: u32 = 4;
/// Switches of a thread are written once there are so many bytes of them, or after so much time.
const PART_BYTES: usize = 4096;
/// The same of kernel events.
const KERNEL_PART_BYTES: usize = 64 * 1024;
const PART_TIME: Duration = Duration::from_secs(1);
/// The same with [`Delivery::Prompt`], also without switches.
const PROMPT_TIME: Duration = Duration::from_millis(200);
const LONGEST_PROMPT: Duration = Duration::from_millis(100);
/// A thread that traces nothing is dropped after so much time, or so many bytes of switches.
const SILENT_TIME: Duration = Duration::from_secs(1);
const SILENT_BYTES: usize = 64 * 1024;

/// When run times are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// Once there are many, or old ones.
    WhenMany,
    /// Up to the present, four times a second, for a client that shows them.
    Prompt,
}

/// The run times of the threads of a stream.
#[derive(Debug)]
pub(super) struct RunRecords {
    threads: HashMap<(Pid, Tid), ThreadRecord>,
    admission: Arc<Admission>,
    uid: u32,
    tracepoints: Vec<KernelTracepoint>,
    delivery: Delivery,
    pace: Pace,
    unrecorded: Unrecorded,
}

/// A part of what was recorded of a thread.
#[derive(Debug)]
pub(super) enum ThreadPart {
    Runs(RunsPart),
    Kernel(KernelPart),
}

/// When the kernel's rings are read next.
#[derive(Debug)]
pub(super) struct Pace {
    looked: Instant,
    pause: Duration,
    longest: Duration,
    hurries_until: Option<Instant>,
}

/// The threads whose run times are not recorded.
#[derive(Debug, Clone, Default)]
pub(super) struct Unrecorded {
    pub(super) threads: u32,
    /// The reason why the first of them is not.
    pub(super) reason: String,
}

#[derive(Debug)]
struct ThreadRecord {
    recorder: RunRecorder,
    /// The thread in the trace; `None` until it traces something.
    thread: Option<(Source, ThreadId)>,
    /// `None` from a loss to the next switch.
    encoder: Option<RunsEncoder>,
    kernel_events: KernelEncoder,
    written: Instant,
    /// When the kernel was asked whether the thread has ended.
    polled: Instant,
    _places: Vec<Admitted>,
}

// === impl RunRecords ===

impl RunRecords {
    /// Records nothing so far. Threads take places of the user.
    pub(super) fn new(
        (admission, uid): (Arc<Admission>, u32),
        tracepoints: Vec<KernelTracepoint>,
        delivery: Delivery,
    ) -> Self {
        Self {
            threads: HashMap::new(),
            admission,
            uid,
            tracepoints,
            delivery,
            pace: Pace::new(match delivery {
                Delivery::WhenMany => LONGEST,
                Delivery::Prompt => LONGEST_PROMPT,
            }),
            unrecorded: Unrecorded::default(),
        }
    }

    /// The time until the next look.
    pub(super) fn pause(&self) -> Duration {
        self.pace.pause()
    }

    pub(super) fn unrecorded(&self) -> &Unrecorded {
        &self.unrecorded
    }

    /// The tracepoints. In the trace, their numbers are their places here.
    pub(super) fn tracepoints(&self) -> &[KernelTracepoint] {
        &self.tracepoints
    }

    /// The number of perf events of each thread.
    fn events_of_thread(&self) -> usize {
        1 + self.tracepoints.len()
    }

    /// Begins to record all threads of a process, before they trace anything. They take half of the
    /// user's places at most.
    pub(super) fn begin_process(&mut self, process: &dyn TracedProcess) {
        let pid = process.pid();
        for tid in Threads::of(pid) {
            if self.threads.contains_key(&(pid, tid)) {
                continue;
            }
            let taken = (self.threads.len() + 1) * self.events_of_thread();
            if taken > PERF_EVENTS_OF_USER as usize / 2 {
                return;
            }
            match self.begin_thread(process, tid, None) {
                Ok(record) => {
                    self.threads.insert((pid, tid), record);
                }
                Err(error) if is_gone(&error) => {}
                // What cannot be recorded shows when the thread traces something.
                Err(_) => return,
            }
        }
    }

    /// Begins to record a thread, unless it is recorded already. Passes what is to be written of an
    /// ended thread to `write`.
    pub(super) fn begin(
        &mut self,
        source: Source,
        process: &dyn TracedProcess,
        thread: &Thread,
        mut write: impl FnMut(Source, ThreadPart) -> io::Result<()>,
    ) -> io::Result<()> {
        // Without an id it stands for the losses of several threads.
        let Ok(tid) = Tid::try_from(thread.tid) else {
            return Ok(());
        };
        let (key, own) = ((process.pid(), tid), (source, thread.id));
        let mut former = None;
        if let Some(record) = self.threads.get_mut(&key) {
            // The thread has another name, or it is seen for the first time.
            if record.thread.is_none_or(|of| of == own) && !record.recorder.has_ended() {
                record.thread = Some(own);
                return Ok(());
            }
            former = self.threads.remove(&key);
        }
        let begun = match self.begin_thread(process, tid, Some(own)) {
            Err(error) if !is_gone(&error) && self.drop_silent() => {
                self.begin_thread(process, tid, Some(own))
            }
            begun => begun,
        };
        if let Some(mut former) = former {
            // It has ended before the stream met it, unless another thread has its id now.
            if begun.as_ref().is_err_and(is_gone) {
                former.thread.get_or_insert(own);
            }
            former.read(&self.tracepoints, &mut write)?;
            former.finish(None, &mut write)?;
        }
        match begun {
            Ok(record) => {
                self.threads.insert(key, record);
            }
            // It has ended meanwhile.
            Err(error) if is_gone(&error) => {}
            Err(error) => self.unrecorded.add(&error),
        }
        Ok(())
    }

    /// Drops a thread that has traced nothing. Returns false if there is none.
    fn drop_silent(&mut self) -> bool {
        let mut threads = self.threads.iter();
        let silent = threads.find(|(_, record)| record.thread.is_none());
        let silent = silent.map(|(key, _)| *key);
        silent.is_some_and(|key| self.threads.remove(&key).is_some())
    }

    fn begin_thread(
        &self,
        process: &dyn TracedProcess,
        tid: Tid,
        thread: Option<(Source, ThreadId)>,
    ) -> io::Result<ThreadRecord> {
        let places = (0..self.events_of_thread()).map(|_| admit(&self.admission, self.uid));
        let places = places.collect::<io::Result<_>>()?;
        let start_time = process.process().start_time_ticks;
        let (pid, tracepoints) = (process.pid(), &self.tracepoints[..]);
        let (recorder, since) = RunRecorder::begin(pid, start_time, tid, tracepoints)?;
        let now = Instant::now();
        Ok(ThreadRecord {
            recorder,
            thread,
            encoder: Some(RunsEncoder::new(since)),
            kernel_events: KernelEncoder::new(since),
            written: now,
            polled: now,
            _places: places,
        })
    }

    /// Reads all rings, if it is time, and passes what is to be written to `write`.
    pub(super) fn look(
        &mut self,
        mut write: impl FnMut(Source, ThreadPart) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(passed) = self.pace.begin_look() else {
            return Ok(());
        };
        let (mut most, mut over) = (0, Vec::new());
        let (until, part_time) = match self.delivery {
            Delivery::WhenMany => (None, PART_TIME),
            // All switches before that are in the rings.
            Delivery::Prompt => (Some(monotonic_now()?), PROMPT_TIME),
        };
        for (&key, record) in &mut self.threads {
            // First, so that nothing comes after what is read now.
            let has_ended = record.polls_ended();
            most = most.max(record.read(&self.tracepoints, &mut write)?);
            let has_ended = has_ended || record.recorder.is_over();
            // A thread that the stream has not met may still come.
            if has_ended && record.thread.is_some() {
                record.finish(None, &mut write)?;
                over.push(key);
            } else if record.is_silent() {
                over.push(key);
            } else if record.written.elapsed() >= part_time {
                record.write(until, &mut write)?;
            }
        }
        for thread in over {
            self.threads.remove(&thread);
        }
        self.pace.end_look(passed, most);
        Ok(())
    }

    /// Ends the recording of the threads of a process, or of all processes, and passes the rest to
    /// `write`.
    pub(super) fn end(
        &mut self,
        source: Option<Source>,
        mut write: impl FnMut(Source, ThreadPart) -> io::Result<()>,
    ) -> io::Result<()> {
        let over = self.threads.extract_if(|_, record| {
            source.is_none_or(|source| record.thread.is_some_and(|(of, _)| of == source))
        });
        for (_, mut record) in over {
            // All switches before that are in the ring then.
            let until = monotonic_now()?;
            record.read(&self.tracepoints, &mut write)?;
            record.finish(Some(until), &mut write)?;
        }
        Ok(())
    }
}

/// A place for the run times of one more thread of a user.
///
/// # Errors
/// The user has no place left, or the daemon has too few descriptors.
pub(super) fn admit(admission: &Arc<Admission>, uid: u32) -> io::Result<Admitted> {
    let place = admission.admit(uid).ok_or_else(|| {
        io::Error::other(format!(
            "a thread takes more perf events than are left of the {PERF_EVENTS_OF_USER} that you can have"
        ))
    })?;
    if !DescriptorRoom::look()?.is_enough {
        return Err(io::Error::other("the daemon has too few free descriptors"));
    }
    Ok(place)
}

/// True for the error of a thread that has ended.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::libc::ESRCH)
}

// === impl Pace ===

impl Pace {
    /// Pauses of this length at most.
    pub(super) fn new(longest: Duration) -> Self {
        Self {
            looked: Instant::now(),
            pause: SHORTEST,
            longest,
            hurries_until: None,
        }
    }

    /// The time until the next look.
    pub(super) fn pause(&self) -> Duration {
        self.pause.saturating_sub(self.looked.elapsed())
    }

    /// Begins a look, if it is time. Returns the time since the last one.
    pub(super) fn begin_look(&mut self) -> Option<Duration> {
        let passed = self.looked.elapsed();
        if passed < self.pause {
            return None;
        }
        self.looked = Instant::now();
        Some(passed)
    }

    /// Ends a look. `passed` is the time since the one before, and `most` the number of switches
    /// that would fill a ring as far as the fullest one was filled.
    pub(super) fn end_look(&mut self, passed: Duration, most: u64) {
        if most >= RunRecorder::ROOM {
            self.hurries_until = self.looked.checked_add(HURRY_TIME);
        }
        if self.hurries_until.is_some_and(|until| self.looked < until) {
            self.pause = SHORTEST;
            return;
        }
        self.pause = match u32::try_from(most) {
            Ok(0) => self.longest,
            most => {
                let wanted = u32::try_from(RunRecorder::ROOM).unwrap_or(u32::MAX) / WANTED_PART;
                (passed * wanted / most.unwrap_or(u32::MAX)).clamp(SHORTEST, self.longest)
            }
        };
    }
}

// === impl Unrecorded ===

impl Unrecorded {
    /// Counts a thread whose run times cannot be recorded.
    pub(super) fn add(&mut self, error: &io::Error) {
        if self.threads == 0 {
            self.reason = error.to_string();
        }
        self.threads = self.threads.saturating_add(1);
    }
}

// === impl ThreadRecord ===

impl ThreadRecord {
    /// Reads the ring. Returns the number of switches that fill the same part of a ring.
    fn read(
        &mut self,
        tracepoints: &[KernelTracepoint],
        mut write: impl FnMut(Source, ThreadPart) -> io::Result<()>,
    ) -> io::Result<u64> {
        let Self {
            encoder,
            thread,
            kernel_events,
            ..
        } = self;
        let (mut parts, mut packed, mut latest_ns) = (Vec::new(), Vec::new(), 0);
        let close = |encoder: &mut RunsEncoder, parts: &mut Vec<_>| {
            let last = encoder.last_ns();
            parts.extend(thread.map(|(of, id)| (of, ThreadPart::Runs(encoder.take(id, last)))));
        };
        let taken = self.recorder.take(|record| match record {
            RunRecord::Switch(switch) => {
                latest_ns = switch.at_ns;
                let encoder = encoder.get_or_insert_with(|| RunsEncoder::new(switch.at_ns));
                encoder.push(switch);
                if encoder.len() >= PART_BYTES {
                    close(encoder, &mut parts);
                }
            }
            RunRecord::Event { when, record } => {
                latest_ns = when;
                let id = tracepoint_of(&record);
                let known = (0..).zip(tracepoints);
                let of = known.into_iter().find(|(_, of)| Some(of.id) == id);
                let Some((number, tracepoint)) = of else {
                    return;
                };
                packed.clear();
                tracepoint.pack(&record, &mut packed);
                kernel_events.push(when, number, &packed);
                if kernel_events.len() < KERNEL_PART_BYTES {
                    return;
                }
                match *thread {
                    Some((of, id)) => {
                        parts.push((of, ThreadPart::Kernel(kernel_events.take(id, when))));
                    }
                    // The thread has traced nothing so far: nothing is claimed of its past.
                    None => *kernel_events = KernelEncoder::new(when),
                }
            }
            RunRecord::Lost(records) => {
                if let Some(mut encoder) = encoder.take()
                    && !encoder.is_empty()
                {
                    close(&mut encoder, &mut parts);
                }
                if !tracepoints.is_empty() {
                    kernel_events.push_lost(latest_ns, records);
                }
            }
        });
        if !parts.is_empty() {
            self.written = Instant::now();
        }
        for (source, part) in parts {
            write(source, part)?;
        }
        Ok(taken)
    }

    /// True if the thread has traced nothing for too long.
    fn is_silent(&self) -> bool {
        let bytes = self.encoder.as_ref().map_or(0, RunsEncoder::len);
        self.thread.is_none() && (self.written.elapsed() >= SILENT_TIME || bytes >= SILENT_BYTES)
    }

    /// Writes the records so far, if there are any. They reach up to `until` if nothing that
    /// happened until then can be missing.
    fn write(
        &mut self,
        until: Option<u64>,
        mut write: impl FnMut(Source, ThreadPart) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some((source, id)) = self.thread else {
            return Ok(());
        };
        let until = until.filter(|_| !self.recorder.may_miss());
        if let Some(encoder) = &mut self.encoder {
            let until = until.unwrap_or_else(|| encoder.last_ns());
            if !encoder.is_empty() || until > encoder.from_ns() {
                self.written = Instant::now();
                write(source, ThreadPart::Runs(encoder.take(id, until)))?;
            }
        }
        self.write_kernel_events(0, write)
    }

    /// Writes the kernel events so far, if there are any. All events before `until` are among them.
    fn write_kernel_events(
        &mut self,
        until: u64,
        mut write: impl FnMut(Source, ThreadPart) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.thread {
            Some((source, id)) if !self.kernel_events.is_empty() => {
                self.written = Instant::now();
                write(
                    source,
                    ThreadPart::Kernel(self.kernel_events.take(id, until)),
                )
            }
            _ => Ok(()),
        }
    }

    /// Writes the rest, up to `until` if nothing that happened until then can be missing.
    fn finish(
        &mut self,
        until: Option<u64>,
        mut write: impl FnMut(Source, ThreadPart) -> io::Result<()>,
    ) -> io::Result<()> {
        let until = until.filter(|_| !self.recorder.is_over() && !self.recorder.may_miss());
        if let (Some((source, id)), Some(encoder)) = (self.thread, &mut self.encoder) {
            let until = until.unwrap_or_else(|| encoder.last_ns());
            write(source, ThreadPart::Runs(encoder.take(id, until)))?;
        }
        if self.recorder.has_tracepoints() {
            match self.recorder.unreported_losses() {
                0 => {}
                lost => self.kernel_events.push_lost(0, lost),
            }
        }
        self.write_kernel_events(until.unwrap_or(0), write)
    }

    /// True if the thread has ended. It asks the kernel now and then: usually, the ring shows it.
    fn polls_ended(&mut self) -> bool {
        if self.polled.elapsed() < PART_TIME {
            return false;
        }
        self.polled = Instant::now();
        self.recorder.has_ended()
    }
}
