//! pprof's compressed profile: calls and self time of each stack of each thread.
//!
//! The messages are those of <https://github.com/google/pprof/blob/v0.0.0/proto/profile.proto>.
//! Only the fields that are written are declared here. A message may be written in pieces, so the
//! sink holds only the stacks of one thread.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::kernel_ids::KernelIds;
use super::left_out::LeftOut;
use super::stacks::{Node, StackTrie};
use super::{ProfileSink, Report, Sink};
use crate::analysis::{Step, Steps};
use crate::model::{FunctionId, Profile as Sums, ThreadId, Trace};

/// pprof's profile.
#[derive(Debug, Clone, Copy)]
pub struct Pprof;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    /// The functions' locations, innermost first.
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
    #[prost(int64, tag = "3")]
    number: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "8")]
    has_filenames: bool,
    #[prost(bool, tag = "9")]
    has_line_numbers: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
    #[prost(int64, tag = "5")]
    start_line: i64,
}

struct Output<'a> {
    trace: &'a Trace,
    to: GzEncoder<&'a mut dyn Write>,
    buffer: Vec<u8>,
    /// The texts that were written, with their numbers.
    strings: HashMap<String, i64>,
    /// The functions that were written, with the numbers of their locations.
    locations: HashMap<FunctionId, u64>,
}

// === impl Pprof ===

impl Sink for Pprof {
    fn name(&self) -> &'static str {
        "pprof"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["pb.gz", "pprof"]
    }

    fn about(&self) -> &'static str {
        "calls and self time by stack and thread, for pprof"
    }

    fn is_text(&self) -> bool {
        false
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        let (mut report, mut left_out) = (Report::default(), LeftOut::default());
        let mut output = Output::begin(trace, output)?;
        let mut stacks = StackTrie::default();
        for mut steps in Steps::of_threads(trace) {
            for step in &mut steps {
                left_out.see(&step);
                match step {
                    Step::Enter(open) => {
                        report.calls += 1;
                        stacks.enter(0, &open);
                    }
                    Step::Leave(call) => stacks.leave(&call),
                    Step::Data(_) | Step::Lost { .. } => {}
                }
            }
            report.leave_out_of_steps(&steps);
            let labels = output.labels(steps.thread())?;
            for node in stacks.nodes() {
                output.sample(&stacks, node, &labels)?;
            }
            stacks.clear();
        }
        output.to.finish()?;
        left_out.tell(&mut report);
        stacks.tell(&mut report);
        report.leave_out_unplaced(trace);
        report.leave_out_kernel_events(trace);
        Ok(report)
    }

    fn of_profile(&self) -> Option<&dyn ProfileSink> {
        Some(self)
    }
}

impl ProfileSink for Pprof {
    fn write(&self, profile: &Sums, output: &mut dyn Write) -> io::Result<Report> {
        let mut output = Output::begin(profile.tables(), output)?;
        let stacks = StackTrie::of_profile(profile, |thread| thread.0);
        let mut labelled = (u32::MAX, Vec::new());
        for node in stacks.nodes() {
            let (_, thread) = stacks.stack(node);
            if labelled.1.is_empty() || labelled.0 != thread {
                labelled = (thread, output.labels(ThreadId(thread))?);
            }
            output.sample(&stacks, node, &labelled.1)?;
        }
        output.to.finish()?;
        let mut report = Report::of_profile(profile);
        stacks.tell(&mut report);
        Ok(report)
    }
}

// === impl Output ===

impl<'a> Output<'a> {
    fn begin(trace: &'a Trace, output: &'a mut dyn Write) -> io::Result<Self> {
        let mut output = Self {
            trace,
            to: GzEncoder::new(output, Compression::fast()),
            buffer: Vec::new(),
            strings: HashMap::new(),
            locations: HashMap::new(),
        };
        output.head()?;
        Ok(output)
    }

    /// Writes the part before the samples.
    fn head(&mut self) -> io::Result<()> {
        // The first text is empty, so that 0 means none.
        self.string("")?;
        let (calls, count) = (self.string("calls")?, self.string("count")?);
        let (time, unit) = (self.string("time")?, self.string("nanoseconds")?);
        let value = |kind, unit| ValueType { kind, unit };
        let clock = self.trace.clock();
        let blocks = self.trace.blocks();
        let first = blocks.iter().map(|block| block.first).min();
        let last = blocks.iter().map(|block| block.last).max();
        let span = first.zip(last).map_or(0, |(first, last)| {
            let end = clock.monotonic_ns(last);
            end.saturating_sub(clock.monotonic_ns(first))
        });
        let mut head = Profile {
            sample_type: vec![value(calls, count), value(time, unit)],
            time_nanos: signed(first.map_or(0, |first| clock.wall_ns(first))),
            duration_nanos: signed(span),
            default_sample_type: time,
            ..Profile::default()
        };
        for module in self.trace.modules() {
            let build_id = module.build_id.as_ref().map(ToString::to_string);
            head.mapping.push(Mapping {
                id: u64::from(module.id.0) + 1,
                memory_start: module.load_bias,
                filename: self.string(&module.path)?,
                build_id: self.string(&build_id.unwrap_or_default())?,
                has_functions: true,
                has_filenames: true,
                has_line_numbers: true,
            });
        }
        self.piece(&head)
    }

    /// The labels of all samples of a thread.
    fn labels(&mut self, thread: ThreadId) -> io::Result<Vec<Label>> {
        let known = self.trace.thread(thread);
        let process = known.and_then(|known| self.trace.process(known.process));
        let KernelIds { pid, tid } = KernelIds::of(self.trace, thread);
        let number = |key, number: u32| Label {
            key,
            number: number.into(),
            text: 0,
        };
        let text = |key, text| Label {
            key,
            text,
            number: 0,
        };
        Ok(vec![
            number(self.string("pid")?, pid),
            number(self.string("tid")?, tid),
            text(
                self.string("process")?,
                self.string(process.map_or("", |process| &process.command))?,
            ),
            text(
                self.string("thread")?,
                self.string(known.map_or("", |known| &known.name))?,
            ),
        ])
    }

    fn sample(&mut self, stacks: &StackTrie, node: &Node, labels: &[Label]) -> io::Result<()> {
        let (stack, _) = stacks.stack(node);
        let location_id = stack.into_iter().map(|function| self.location(function));
        let sample = Sample {
            location_id: location_id.collect::<io::Result<_>>()?,
            value: vec![signed(node.calls), signed(node.self_ns)],
            label: labels.to_vec(),
        };
        self.piece(&Profile {
            sample: vec![sample],
            ..Profile::default()
        })
    }

    /// The number of a function's location. The first call for a function writes the location.
    fn location(&mut self, id: FunctionId) -> io::Result<u64> {
        if let Some(number) = self.locations.get(&id) {
            return Ok(*number);
        }
        let number = self.locations.len() as u64 + 1;
        self.locations.insert(id, number);
        let trace = self.trace;
        let known = trace.function(id);
        let module = known.and_then(|known| trace.module(known.module));
        let source = known.and_then(|known| known.source.as_ref());
        let symbol = known.and_then(|known| known.symbol.as_deref());
        let line = source.map_or(0, |source| source.line.into());
        let function = Function {
            id: number,
            name: self.string(&trace.function_name(id))?,
            system_name: self.string(symbol.unwrap_or_default())?,
            filename: self.string(source.map_or("", |source| &source.file))?,
            start_line: line,
        };
        let address = module.zip(known).map_or(0, |(module, known)| {
            module.load_bias.wrapping_add(known.address.0)
        });
        let location = Location {
            id: number,
            mapping_id: module.map_or(0, |module| u64::from(module.id.0) + 1),
            address,
            line: vec![Line {
                function_id: number,
                line,
            }],
        };
        self.piece(&Profile {
            function: vec![function],
            location: vec![location],
            ..Profile::default()
        })?;
        Ok(number)
    }

    /// The number of a text. The first call for a text writes it.
    fn string(&mut self, text: &str) -> io::Result<i64> {
        if let Some(number) = self.strings.get(text) {
            return Ok(*number);
        }
        let number = signed(self.strings.len() as u64);
        self.strings.insert(text.to_owned(), number);
        self.piece(&Profile {
            string_table: vec![text.to_owned()],
            ..Profile::default()
        })?;
        Ok(number)
    }

    /// Writes some fields. Readers join all pieces.
    fn piece(&mut self, piece: &Profile) -> io::Result<()> {
        self.buffer.clear();
        piece.encode(&mut self.buffer).map_err(io::Error::other)?;
        self.to.write_all(&self.buffer)
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
