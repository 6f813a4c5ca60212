//! `llvm-xray convert`: a log in another of LLVM's formats, or for the trace viewer of Chrome.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};

use xray_trace::llvm::yaml::{self, Kind};

use super::dense_map::DenseMap;
use super::failure::Failure;
use super::log::{Log, Order};
use super::names::Names;
use super::options::{Arguments, Command, Inputs, Opt, ValueKind};
use super::output::Output;
use super::record::{Record, Step};
use super::statistics;
use super::trie::{Node, NodeId, Trie};

pub(super) const COMMAND: Command = Command {
    name: "convert",
    about: "Trace Format Conversion",
    inputs: Inputs::Each(&["<xray log file>"]),
    options: &[
        Opt {
            name: "demangle",
            alias: "",
            value: ValueKind::Flag,
            about: "Demangle the names of functions (the default)",
        },
        Opt {
            name: "no-demangle",
            alias: "",
            value: ValueKind::Flag,
            about: "Do not demangle the names of functions",
        },
        Opt {
            name: "instr_map",
            alias: "m",
            value: ValueKind::Text("binary with xray_instr_map"),
            about: "The binary with the instrumentation map, or a separate map",
        },
        Opt {
            name: "output",
            alias: "o",
            value: ValueKind::Text("output file"),
            about: "The output file; - is standard output",
        },
        Opt {
            name: "output-format",
            alias: "f",
            value: ValueKind::OneOf(&["raw", "yaml", "trace_event"]),
            about: "The output format",
        },
        Opt {
            name: "sort",
            alias: "s",
            value: ValueKind::Flag,
            about: "Sort the records by their counters (the default)",
        },
        Opt {
            name: "symbolize",
            alias: "y",
            value: ValueKind::Flag,
            about: "Write names of functions instead of their numbers",
        },
    ],
};

/// The stacks of a trace for Chrome's viewer, with their ids. All threads share them.
#[derive(Debug, Default)]
struct Stacks {
    trie: Trie<u32>,
    /// The outermost functions.
    roots: HashMap<i32, NodeId>,
    by_id: DenseMap<u32, Option<NodeId>>,
}

/// A conversion.
struct Conversion<'a> {
    log: &'a Log,
    names: Option<&'a Names>,
}

pub(super) fn run(args: &Arguments) -> Result<(), Failure> {
    let names = Names::of_option(args.text("instr_map", ""))?;
    let names = if args.demangles() {
        names
    } else {
        names.with_symbols()
    };
    let output = Output::open(args.text("output", "-"))?;
    let input = args.input();
    let order = if args.flag_or("sort", true) {
        Order::Time
    } else {
        Order::File
    };
    let log = Log::load(input, order).map_err(|failure| {
        let input = input.to_string_lossy();
        failure.in_context(format!("Failed loading input file '{input}'."))
    })?;
    let conversion = Conversion {
        log: &log,
        names: args.flag("symbolize").then_some(&names),
    };
    output.write(|out| match args.word("output-format", "raw") {
        "yaml" => conversion.write_yaml(out),
        "trace_event" => conversion.write_trace_event(out),
        _ => conversion.write_basic(out),
    })
}

// === impl Conversion ===

impl Conversion<'_> {
    fn name(&self, function: i32) -> String {
        match self.names {
            Some(names) => names.name(function),
            None => function.to_string(),
        }
    }

    fn write_yaml(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut writer = yaml::Writer::new(out, &self.log.header);
        for record in &self.log.records {
            writer.record(&yaml::Record {
                record_type: record.record_type,
                function_id: record.function,
                function: self.name(record.function).into(),
                args: Cow::Borrowed(&record.args),
                cpu: record.cpu,
                thread: record.tid,
                process: record.pid,
                kind: record.kind,
                tsc: record.tsc,
                data: Cow::Borrowed(&record.data),
            })?;
        }
        writer.finish().map(|_| ())
    }

    /// Writes a basic log with the version of the header. It has neither arguments nor events.
    fn write_basic(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = &self.log.header;
        out.write_all(&header.version.to_le_bytes())?;
        out.write_all(&header.log.to_le_bytes())?;
        let flags = u32::from(header.constant_tsc) | u32::from(header.nonstop_tsc) << 1;
        out.write_all(&flags.to_le_bytes())?;
        out.write_all(&header.cycle_frequency.to_le_bytes())?;
        out.write_all(&[0; 16])?;
        for record in &self.log.records {
            let kind = match record.kind {
                Kind::Enter | Kind::EnterArg => 0,
                Kind::Exit => 1,
                Kind::TailExit => 2,
                Kind::Custom | Kind::Typed => continue,
            };
            let [cpu, _] = record.cpu.to_le_bytes();
            out.write_all(&record.record_type.to_le_bytes())?;
            out.write_all(&[cpu, kind])?;
            out.write_all(&record.function.to_le_bytes())?;
            out.write_all(&record.tsc.to_le_bytes())?;
            out.write_all(&record.tid.to_le_bytes())?;
            let pid = if header.version >= 3 { record.pid } else { 0 };
            out.write_all(&pid.to_le_bytes())?;
            out.write_all(&[0; 8])?;
        }
        Ok(())
    }

    fn write_trace_event(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut stacks = Stacks::default();
        let mut cursors = DenseMap::<u32, Option<NodeId>>::default();
        out.write_all(b"{\n  \"traceEvents\": [\n")?;
        let mut before = "";
        for record in &self.log.records {
            let cursor = cursors.entry(record.tid);
            match record.step() {
                Step::None => {}
                Step::Enter => {
                    let node = stacks.enter(*cursor, record.function);
                    *cursor = Some(node);
                    let frame = stacks.trie.node(node);
                    self.write_event(before, record, "B", frame, out)?;
                    before = ",\n";
                }
                Step::Exit => {
                    while let Some(node) = *cursor {
                        let frame = stacks.trie.node(node);
                        self.write_event(before, record, "E", frame, out)?;
                        before = ",\n";
                        *cursor = frame.parent;
                        if frame.function == record.function {
                            break;
                        }
                    }
                }
            }
        }
        out.write_all(b"\n  ],\n  \"displayTimeUnit\": \"ns\",\n  \"stackFrames\": {")?;
        let mut before = "\n";
        for (id, node) in stacks.by_id.iter() {
            let Some(node) = node.map(|node| stacks.trie.node(node)) else {
                continue;
            };
            let name = self.name(node.function);
            write!(out, "{before}    \"{id}\" : {{ \"name\" : \"{name}\"")?;
            if let Some(parent) = node.parent {
                let parent = stacks.trie.node(parent).data;
                write!(out, ", \"parent\": \"{parent}\"")?;
            }
            out.write_all(b" }")?;
            before = ",\n";
        }
        out.write_all(b"\n  }\n}\n")
    }

    fn write_event(
        &self,
        before: &str,
        record: &Record,
        phase: &str,
        frame: &Node<u32>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let header = &self.log.header;
        let micros = 1_000_000.0 / header.cycle_frequency as f64 * record.tsc as f64;
        let (pid, digits) = match header.version {
            3.. => (record.pid, 4),
            _ => (1, 3),
        };
        let (name, tid) = (self.name(frame.function), record.tid);
        let (time, frame) = (statistics::fixed(micros, digits), frame.data);
        write!(
            out,
            "{before}    {{ \"name\" : \"{name}\", \"ph\" : \"{phase}\", \"tid\" : \"{tid}\", \
             \"pid\" : \"{pid}\", \"ts\" : \"{time}\", \"sf\" : \"{frame}\" }}"
        )
    }
}

// === impl Stacks ===

impl Stacks {
    /// The node of a function with this caller.
    fn enter(&mut self, caller: Option<NodeId>, function: i32) -> NodeId {
        let known = match caller {
            Some(caller) => self.trie.callee(caller, function),
            None => self.roots.get(&function).copied(),
        };
        if let Some(node) = known {
            return node;
        }
        let id = u32::try_from(self.by_id.len()).unwrap_or(u32::MAX);
        let node = self.trie.add(function, caller, id);
        *self.by_id.entry(id) = Some(node);
        match caller {
            Some(caller) => self.trie.add_callee(caller, node),
            None => _ = self.roots.insert(function, node),
        }
        node
    }
}
