//! Perfetto's protobuf trace: track events on a track for each thread, with names interned.
//!
//! ```text
//! sequence 1      clocks, then descriptors of all tracks
//! sequence 2…     one for each thread: its track, then its events in order;
//!                 a packet with the first use of a name also has the name
//! further ones    one for each thread with run times: its states, on a track within the thread's
//! ```
//!
//! Times are `CLOCK_MONOTONIC`. The snapshot of clocks declares it as the trace's own clock,
//! because a trace has no relation to `CLOCK_BOOTTIME`. The messages are those of
//! <https://github.com/google/perfetto/tree/v50.1/protos/perfetto/trace> (`trace_packet.proto`,
//! `clock_snapshot.proto`, `interned_data/interned_data.proto`, `track_event/*.proto`). Only the
//! fields that are written are declared here.

use std::collections::BTreeMap;
use std::io::{self, Write};

use prost::Message;

use super::fields;
use super::kernel_ids::KernelIds;
use super::records::{self, DataEvents, Record, What, each_record};
use super::text::readable;
use super::unpack_thread::Bytes;
use super::wording::user_event_name;
use super::{EventSink, Report, Sink};
use crate::analysis::{Ending, Order};
use crate::container::varint;
use crate::event_format::{DecodedFields, EventOptions, FieldValue};
use crate::function_map::FunctionMap;
use crate::model::{
    DataKind, DataRef, Function, FunctionId, Module, ModuleId, RunState, ThreadId, ThreadRuns,
    Trace,
};

/// Perfetto's protobuf trace.
#[derive(Debug, Clone, Copy)]
pub struct Perfetto;

/// `Trace.packet`, a message with its length before it.
const PACKET: u8 = 1 << 3 | 2;
/// `TracePacket.timestamp`, a number.
const TIMESTAMP: u8 = 8 << 3;
const REALTIME: u32 = 1;
const MONOTONIC: u32 = 3;
/// `TracePacket.SequenceFlags`.
const STATE_CLEARED: u32 = 1;
const NEEDS_STATE: u32 = 2;
/// `TrackEvent.Type`.
const BEGIN: i32 = 1;
const END: i32 = 2;
const INSTANT: i32 = 3;
/// The first track numbers of processes and of threads.
const PROCESSES: u64 = 1 << 32;
const THREADS: u64 = 2 << 32;
/// The first track number of threads' states.
const STATES: u64 = 3 << 32;
/// The greatest length of a call's begin without its time, if its name is a number. The sequence,
/// the category and the name take 6 bytes each at most, the event's head, its type and the flags 2
/// each.
const PREPARED: usize = 24;
/// Bytes after which the buffer is passed on.
const ENOUGH: usize = 1 << 16;

/// `TracePacket` with the fields of events, without its first field: its timestamp.
#[derive(Clone, PartialEq, Message)]
struct EventPacket {
    #[prost(uint32, tag = "10")]
    trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    interned_data: Option<InternedData>,
    #[prost(uint32, tag = "13")]
    sequence_flags: u32,
}

/// `TracePacket` with the fields of other packets.
#[derive(Clone, PartialEq, Message)]
struct TablePacket {
    #[prost(message, optional, tag = "6")]
    clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint32, tag = "10")]
    trusted_packet_sequence_id: u32,
    #[prost(uint32, tag = "13")]
    sequence_flags: u32,
    #[prost(message, optional, tag = "59")]
    trace_packet_defaults: Option<TracePacketDefaults>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    clocks: Vec<SnapshotClock>,
    #[prost(uint32, tag = "2")]
    primary_trace_clock: u32,
}

#[derive(Clone, PartialEq, Message)]
struct SnapshotClock {
    #[prost(uint32, tag = "1")]
    clock_id: u32,
    #[prost(uint64, optional, tag = "2")]
    timestamp: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct TracePacketDefaults {
    #[prost(message, optional, tag = "11")]
    track_event_defaults: Option<TrackEventDefaults>,
    #[prost(uint32, tag = "58")]
    timestamp_clock_id: u32,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEventDefaults {
    #[prost(uint64, tag = "11")]
    track_uuid: u64,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    uuid: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessDescriptor {
    #[prost(int32, tag = "1")]
    pid: i32,
    #[prost(string, repeated, tag = "2")]
    cmdline: Vec<String>,
    #[prost(string, tag = "6")]
    process_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct ThreadDescriptor {
    #[prost(int32, tag = "1")]
    pid: i32,
    #[prost(int64, tag = "2")]
    tid: i64,
    #[prost(string, tag = "5")]
    thread_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct InternedData {
    #[prost(message, repeated, tag = "1")]
    event_categories: Vec<InternedName>,
    #[prost(message, repeated, tag = "2")]
    event_names: Vec<InternedName>,
}

#[derive(Clone, PartialEq, Message)]
struct InternedName {
    #[prost(uint64, tag = "1")]
    iid: u64,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    /// Repeated in the original; here it occurs at most once.
    #[prost(uint64, optional, tag = "3")]
    category_iid: Option<u64>,
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, tag = "9")]
    kind: i32,
    #[prost(uint64, tag = "10")]
    name_iid: u64,
    #[prost(string, tag = "23")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    uint_value: Option<u64>,
    #[prost(int64, optional, tag = "4")]
    int_value: Option<i64>,
    #[prost(double, optional, tag = "5")]
    double_value: Option<f64>,
    #[prost(string, optional, tag = "6")]
    string_value: Option<String>,
    #[prost(string, tag = "10")]
    name: String,
    #[prost(message, repeated, tag = "11")]
    dict_entries: Vec<DebugAnnotation>,
}

struct Output<'a> {
    trace: &'a Trace,
    options: &'a EventOptions,
    to: &'a mut dyn Write,
    buffer: Vec<u8>,
    /// The sequence of the current thread.
    sequence: u32,
    /// The prepared begin packets of each function.
    begins: FunctionMap<Begin>,
    /// The prepared end packet of the current sequence, without its time.
    end: Vec<u8>,
    /// The last sequence in which each module's name was written.
    categories: BTreeMap<ModuleId, u32>,
    /// The current thread.
    of: ThreadId,
}

/// The prepared begin of a function's calls, in the last sequence that contains its name.
#[derive(Debug, Clone, Copy, Default)]
struct Begin {
    /// The sequence; 0 for none.
    sequence: u32,
    /// A packet without its time.
    packet: [u8; PREPARED],
    len: u8,
}

// === impl Perfetto ===

impl Sink for Perfetto {
    fn name(&self) -> &'static str {
        "perfetto"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["perfetto-trace", "pftrace"]
    }

    fn about(&self) -> &'static str {
        "track events, for ui.perfetto.dev and its trace processor"
    }

    fn is_text(&self) -> bool {
        false
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        EventSink::write(self, trace, &EventOptions::default(), output)
    }

    fn of_events(&self) -> Option<&dyn EventSink> {
        Some(self)
    }
}

impl EventSink for Perfetto {
    fn write(
        &self,
        trace: &Trace,
        options: &EventOptions,
        output: &mut dyn Write,
    ) -> io::Result<Report> {
        let mut report = Report::default();
        let mut output = Output {
            trace,
            options,
            to: output,
            buffer: Vec::with_capacity(2 * ENOUGH),
            sequence: 1,
            begins: FunctionMap::default(),
            end: Vec::new(),
            categories: BTreeMap::new(),
            of: ThreadId(0),
        };
        output.clocks()?;
        output.tracks()?;
        let threads: Vec<_> = records::threads(trace).collect();
        let mut current = None;
        let data_events = DataEvents::Selected(&options.filter);
        let met = each_record(trace, data_events, Order::ByThread, |record, bytes| {
            if current.replace(record.thread) != Some(record.thread) {
                output.thread(threads[record.thread])?;
            }
            report.calls += u64::from(matches!(record.what, What::Enter(_)));
            output.record(record, bytes)
        })?;
        for thread in threads {
            if let Some(runs) = trace.thread_runs(thread) {
                output.states(thread, &runs)?;
            }
        }
        output.to.write_all(&output.buffer)?;
        met.tell_of_processors(trace, &mut report);
        Ok(report)
    }
}

// === impl Output ===

impl Output<'_> {
    fn clocks(&mut self) -> io::Result<()> {
        let clock = self.trace.clock();
        let blocks = self.trace.blocks().iter();
        let first = blocks.map(|block| block.first).min();
        let at = |clock_id, timestamp| SnapshotClock {
            clock_id,
            timestamp: Some(timestamp),
        };
        let mut clocks = vec![at(
            MONOTONIC,
            first.map_or(0, |first| clock.monotonic_ns(first)),
        )];
        // Without an anchor the wall clock of the trace is unknown.
        if let Some(first) = first.filter(|_| !clock.anchors().is_empty()) {
            clocks.push(at(REALTIME, clock.wall_ns(first)));
        }
        self.packet(&TablePacket {
            clock_snapshot: Some(ClockSnapshot {
                clocks,
                primary_trace_clock: MONOTONIC,
            }),
            trusted_packet_sequence_id: self.sequence,
            sequence_flags: STATE_CLEARED,
            ..TablePacket::default()
        })
    }

    fn tracks(&mut self) -> io::Result<()> {
        let trace = self.trace;
        for process in trace.processes() {
            self.track(TrackDescriptor {
                uuid: PROCESSES + u64::from(process.id.0),
                process: Some(ProcessDescriptor {
                    pid: signed(process.pid),
                    cmdline: vec![process.executable.clone()],
                    process_name: process.command.clone(),
                }),
                ..TrackDescriptor::default()
            })?;
        }
        for thread in records::threads(trace) {
            let known = trace.thread(thread);
            let process = known.and_then(|known| trace.process(known.process));
            let uuid = THREADS + u64::from(thread.0);
            let Some((known, process)) = known.zip(process) else {
                // A thread without a process: a track with a name only.
                self.track(TrackDescriptor {
                    uuid,
                    name: format!("thread {}", KernelIds::of(trace, thread).tid),
                    ..TrackDescriptor::default()
                })?;
                continue;
            };
            self.track(TrackDescriptor {
                uuid,
                parent_uuid: Some(PROCESSES + u64::from(process.id.0)),
                thread: Some(ThreadDescriptor {
                    pid: signed(process.pid),
                    tid: known.tid.into(),
                    thread_name: known.name.clone(),
                }),
                ..TrackDescriptor::default()
            })?;
        }
        Ok(())
    }

    fn track(&mut self, track: TrackDescriptor) -> io::Result<()> {
        self.packet(&TablePacket {
            trusted_packet_sequence_id: self.sequence,
            track_descriptor: Some(track),
            ..TablePacket::default()
        })
    }

    /// Writes the states of a thread: with a processor, or without one.
    fn states(&mut self, thread: ThreadId, runs: &ThreadRuns) -> io::Result<()> {
        let uuid = STATES + u64::from(thread.0);
        self.track(TrackDescriptor {
            uuid,
            name: "processor".to_owned(),
            parent_uuid: Some(THREADS + u64::from(thread.0)),
            ..TrackDescriptor::default()
        })?;
        self.begin_sequence(uuid)?;
        for run in runs.runs() {
            let mut event = TrackEvent::of(BEGIN);
            event.name = match (run.state, run.processor) {
                (Some(RunState::Running), Some(processor)) => format!("on processor {processor}"),
                (Some(RunState::Running), None) => "on a processor".to_owned(),
                (Some(RunState::Ready), _) => "ready to run".to_owned(),
                (Some(RunState::Waiting), _) => "waits".to_owned(),
                (None, _) => "without a processor".to_owned(),
            };
            self.event(run.from_ns, event, None);
            put(&mut self.buffer, run.until_ns, &self.end);
            self.pass()?;
        }
        Ok(())
    }

    /// Begins the events of this thread.
    fn thread(&mut self, thread: ThreadId) -> io::Result<()> {
        self.of = thread;
        self.begin_sequence(THREADS + u64::from(thread.0))
    }

    /// Begins the events of a track.
    fn begin_sequence(&mut self, track_uuid: u64) -> io::Result<()> {
        self.sequence = self.sequence.saturating_add(1);
        self.end = TrackEvent::of(END).in_packet(self.sequence, None);
        self.packet(&TablePacket {
            trusted_packet_sequence_id: self.sequence,
            sequence_flags: STATE_CLEARED,
            trace_packet_defaults: Some(TracePacketDefaults {
                track_event_defaults: Some(TrackEventDefaults { track_uuid }),
                timestamp_clock_id: MONOTONIC,
            }),
            ..TablePacket::default()
        })
    }

    fn record(&mut self, record: &Record, bytes: &Bytes) -> io::Result<()> {
        let ns = record.ns;
        match record.what {
            What::Enter(args) => {
                let known = self.begins.entry(record.function);
                if args.is_empty() && known.sequence == self.sequence {
                    put(&mut self.buffer, ns, known.packet());
                } else {
                    self.begin(ns, record.function, args.as_slice());
                }
            }
            What::Leave(Ending::Normal, None) => put(&mut self.buffer, ns, &self.end),
            What::Leave(Ending::Normal, Some(result)) => {
                self.end(ns, annotation("result", Some(result), None));
            }
            What::Leave(Ending::TailExit, _) => self.end(ns, ended("tail exit")),
            What::Leave(Ending::Closed, _) => self.end(ns, ended("no exit seen")),
            What::Data(kind, data) => self.put_user_event(ns, kind, data, bytes),
            What::Lost(events) => {
                let lost = annotation("events", Some(events), None);
                self.instant(ns, "events lost".to_owned(), vec![lost]);
            }
        }
        self.pass()
    }

    /// Writes the begin of a call that is the first one of its function in its sequence, or has
    /// arguments.
    fn begin(&mut self, ns: u64, function: FunctionId, args: &[u64]) {
        let mut event = TrackEvent::of(BEGIN);
        let mut interned = None;
        match self.trace.function(function) {
            None => event.name = self.trace.function_name(function).into_owned(),
            Some(described) => {
                event.name_iid = u64::from(function.0) + 1;
                event.category_iid = Some(u64::from(described.module.0) + 1);
                let known = self.begins.entry(function);
                if known.sequence != self.sequence {
                    *known = Begin::new(self.sequence, event.clone());
                    interned = Some(self.intern(described));
                }
            }
        }
        for (number, arg) in (1..).zip(args) {
            let arg = annotation(&format!("arg{number}"), Some(*arg), None);
            event.debug_annotations.push(arg);
        }
        self.event(ns, event, interned);
    }

    fn end(&mut self, ns: u64, how: DebugAnnotation) {
        let mut event = TrackEvent::of(END);
        event.debug_annotations.push(how);
        self.event(ns, event, None);
    }

    /// Writes a user event as text. Bytes that are not UTF-8 are escaped.
    fn put_user_event(&mut self, ns: u64, kind: DataKind, data: DataRef, bytes: &Bytes) {
        let name = user_event_name(self.trace, self.of, kind);
        let of = (self.of, kind);
        let decoded = fields::decoded(self.options, self.trace, of, bytes.get(data));
        let decoded = decoded.filter(|decoded| !decoded.fields.is_empty());
        let mut annotations = Vec::new();
        if !fields::replace_data(kind, decoded.as_ref()) {
            let text = readable(bytes.get(data)).into_owned();
            annotations.push(annotation("data", None, Some(text)));
        }
        if let DataKind::Typed(number) = kind {
            annotations.push(annotation("type", Some(number.into()), None));
        }
        if data.is_cut() {
            annotations.push(annotation("size", Some(data.size()), None));
        }
        annotations.extend(decoded.as_ref().map(annotation_of_fields));
        self.instant(ns, name.into_owned(), annotations);
    }

    fn instant(&mut self, ns: u64, name: String, annotations: Vec<DebugAnnotation>) {
        let mut event = TrackEvent::of(INSTANT);
        event.name = name;
        event.debug_annotations = annotations;
        self.event(ns, event, None);
    }

    fn event(&mut self, ns: u64, event: TrackEvent, interned: Option<InternedData>) {
        let packet = event.in_packet(self.sequence, interned);
        put(&mut self.buffer, ns, &packet);
    }

    /// The name of a function, and the name of its module unless this sequence already has it.
    fn intern(&mut self, function: &Function) -> InternedData {
        let mut data = InternedData::default();
        let former = self.categories.insert(function.module, self.sequence);
        if former != Some(self.sequence) {
            data.event_categories.push(InternedName {
                iid: u64::from(function.module.0) + 1,
                name: self
                    .trace
                    .module(function.module)
                    .map_or("?", file_name)
                    .to_owned(),
            });
        }
        data.event_names.push(InternedName {
            iid: u64::from(function.id.0) + 1,
            name: function.name.clone(),
        });
        data
    }

    fn packet(&mut self, packet: &TablePacket) -> io::Result<()> {
        self.buffer.push(PACKET);
        packet
            .encode_length_delimited(&mut self.buffer)
            .map_err(io::Error::other)?;
        self.pass()
    }

    /// Passes the buffer on if it has enough bytes.
    fn pass(&mut self) -> io::Result<()> {
        if self.buffer.len() >= ENOUGH {
            self.to.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}

// === impl Begin ===

impl Begin {
    fn new(sequence: u32, event: TrackEvent) -> Self {
        let bytes = event.in_packet(sequence, None);
        let mut packet = [0; PREPARED];
        match (packet.get_mut(..bytes.len()), u8::try_from(bytes.len())) {
            (Some(to), Ok(len)) => {
                to.copy_from_slice(&bytes);
                Self {
                    sequence,
                    packet,
                    len,
                }
            }
            _ => Self::default(),
        }
    }

    fn packet(&self) -> &[u8] {
        let packet = self.packet.get(..usize::from(self.len));
        packet.unwrap_or_default()
    }
}

// === impl TrackEvent ===

impl TrackEvent {
    fn of(kind: i32) -> Self {
        Self {
            kind,
            ..Self::default()
        }
    }

    /// The packet of the event, without its time.
    fn in_packet(self, sequence: u32, interned_data: Option<InternedData>) -> Vec<u8> {
        let packet = EventPacket {
            trusted_packet_sequence_id: sequence,
            track_event: Some(self),
            interned_data,
            sequence_flags: NEEDS_STATE,
        };
        packet.encode_to_vec()
    }
}

/// Appends an event's packet: its time, and its prepared rest.
#[inline]
fn put(to: &mut Vec<u8>, ns: u64, rest: &[u8]) {
    let mut time = [0; varint::MAX_LEN];
    let len = varint::write(&mut time, ns);
    to.push(PACKET);
    varint::put(to, (1 + len + rest.len()) as u64);
    to.push(TIMESTAMP);
    to.extend_from_slice(&time[..len]);
    to.extend_from_slice(rest);
}

fn annotation(name: &str, number: Option<u64>, text: Option<String>) -> DebugAnnotation {
    DebugAnnotation {
        uint_value: number,
        string_value: text,
        name: name.to_owned(),
        ..DebugAnnotation::default()
    }
}

/// The whole fields of a user event, as a dictionary.
fn annotation_of_fields(decoded: &DecodedFields<'_>) -> DebugAnnotation {
    let entries = decoded.fields.iter().map(|(name, value)| {
        let entry = annotation(name, None, None);
        match value {
            FieldValue::Unsigned(value) => DebugAnnotation {
                uint_value: Some(*value),
                ..entry
            },
            FieldValue::Signed(value) => DebugAnnotation {
                int_value: Some(*value),
                ..entry
            },
            FieldValue::Float(value) => DebugAnnotation {
                double_value: Some(*value),
                ..entry
            },
            FieldValue::Text(_) | FieldValue::Bytes(_) => DebugAnnotation {
                string_value: Some(value.to_string()),
                ..entry
            },
        }
    });
    DebugAnnotation {
        dict_entries: entries.collect(),
        ..annotation("fields", None, None)
    }
}

fn ended(how: &str) -> DebugAnnotation {
    annotation("end", None, Some(how.to_owned()))
}

fn file_name(module: &Module) -> &str {
    module.path.rsplit('/').next().unwrap_or(&module.path)
}

fn signed(pid: u32) -> i32 {
    i32::try_from(pid).unwrap_or(i32::MAX)
}
