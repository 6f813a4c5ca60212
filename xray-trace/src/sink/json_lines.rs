//! JSON lines: an object for each event with all its data. Numbers are exact integers. It has no
//! tables: each object repeats names.

use std::io::{self, Write};

use super::events::{EachEvent, each_event, word};
use super::fields::{self, Integers};
use super::kernel_ids::KernelIds;
use super::per_function::PerFunction;
use super::text::{self, Text};
use super::unpack_thread::Bytes;
use super::{EventSink, Report, Sink};
use crate::event_format::EventOptions;
use crate::model::{CallKind, DataKind, Event, EventBody, Function, FunctionId, ThreadId, Trace};

/// JSON lines.
#[derive(Debug, Clone, Copy)]
pub struct JsonLines;

struct Output<'a> {
    trace: &'a Trace,
    options: &'a EventOptions,
    text: Text<'a>,
    /// The current thread.
    of: ThreadId,
    /// The fields that all events of the thread have.
    thread: Vec<u8>,
    /// The fields that all events of a function have.
    functions: PerFunction<Vec<u8>>,
}

// === impl JsonLines ===

impl Sink for JsonLines {
    fn name(&self) -> &'static str {
        "jsonl"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["jsonl", "ndjson"]
    }

    fn about(&self) -> &'static str {
        "every event as an object on its own line"
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        EventSink::write(self, trace, &EventOptions::default(), output)
    }

    fn of_events(&self) -> Option<&dyn EventSink> {
        Some(self)
    }
}

impl EventSink for JsonLines {
    fn write(
        &self,
        trace: &Trace,
        options: &EventOptions,
        output: &mut dyn Write,
    ) -> io::Result<Report> {
        let mut output = Output {
            trace,
            options,
            text: Text::new(output),
            of: ThreadId(0),
            thread: Vec::new(),
            functions: PerFunction::new(trace, |function| described(trace, function)),
        };
        let report = each_event(trace, &options.filter, &mut output)?;
        output.text.finish()?;
        Ok(report)
    }
}

fn put_function(text: &mut Text<'_>, functions: &PerFunction<Vec<u8>>, function: FunctionId) {
    match functions.get(function) {
        Some(fields) => text.bytes(fields),
        None => {
            text.put(",\"function_id\":");
            text.number(function.0);
        }
    }
}

/// A function's fields.
fn described(trace: &Trace, function: &Function) -> Vec<u8> {
    let mut fields = format!(",\"function_id\":{},\"function\":", function.id.0).into_bytes();
    text::json(&mut fields, &function.name);
    if let Some(module) = trace.module(function.module) {
        fields.extend_from_slice(b",\"module\":");
        text::json(&mut fields, &module.path);
    }
    fields
}

// === impl Output ===

impl EachEvent for Output<'_> {
    fn thread(&mut self, thread: ThreadId) -> io::Result<()> {
        self.of = thread;
        let KernelIds { pid, tid } = KernelIds::of(self.trace, thread);
        let known = self.trace.thread(thread);
        let process = known.and_then(|known| self.trace.process(known.process));
        let fields = &mut self.thread;
        fields.clear();
        fields.extend_from_slice(format!(",\"pid\":{pid},\"process\":").as_bytes());
        text::json(fields, process.map_or("", |process| &process.command));
        fields.extend_from_slice(format!(",\"tid\":{tid},\"thread\":").as_bytes());
        text::json(fields, known.map_or("", |known| &known.name));
        fields.extend_from_slice(b",\"event\":\"");
        Ok(())
    }

    fn event(&mut self, event: &Event, bytes: &Bytes) -> io::Result<()> {
        let text = &mut self.text;
        text.put("{\"time_ns\":");
        text.number(self.trace.clock().monotonic_ns(event.ticks));
        text.bytes(&self.thread);
        text.put(word(&event.body));
        text.put("\"");
        match event.body {
            EventBody::Call {
                function,
                kind,
                values,
            } => {
                put_function(text, &self.functions, function);
                match kind {
                    CallKind::Enter => {
                        for (number, arg) in (1..).zip(values.as_slice()) {
                            text.put(if number == 1 { ",\"arguments\":[" } else { "," });
                            text.number(*arg);
                        }
                        text.put(if values.is_empty() { "" } else { "]" });
                    }
                    CallKind::Exit | CallKind::TailExit => {
                        if let Some(result) = values.first() {
                            text.put(",\"result\":");
                            text.number(result);
                        }
                    }
                }
            }
            EventBody::Data { kind, data } => {
                if let Some(function) = data.function() {
                    put_function(text, &self.functions, function);
                }
                if data.is_cut() {
                    text.put(",\"size\":");
                    text.number(data.size());
                }
                if let DataKind::Typed(event_type) = kind {
                    text.put(",\"event_type\":");
                    text.number(event_type);
                }
                if let Some(name) = self.trace.type_of(self.of, kind).name() {
                    text.put(",\"event_type_name\":");
                    text.json(name);
                }
                let bytes = bytes.get(data);
                let of = (self.of, kind);
                let decoded = fields::decoded(self.options, self.trace, of, bytes);
                match std::str::from_utf8(bytes) {
                    _ if fields::replace_data(kind, decoded.as_ref()) => {}
                    Ok(data) => {
                        text.put(",\"data\":");
                        text.json(data);
                    }
                    Err(_) => {
                        text.put(",\"data_hex\":\"");
                        text.hex(bytes);
                        text.put("\"");
                    }
                }
                if let Some(decoded) = decoded {
                    text.put(",\"fields\":");
                    text.bytes(&fields::json(&decoded, Integers::Numbers));
                }
            }
            EventBody::Cpu { cpu } => {
                text.put(",\"processor\":");
                text.number(cpu);
            }
            EventBody::Unwound { calls } => {
                text.put(",\"unwound\":");
                text.number(calls);
            }
            EventBody::UnmatchedExit => {}
            EventBody::Lost { events } => {
                text.put(",\"lost\":");
                text.number(events);
            }
        }
        text.put("}\n");
        text.pass()
    }
}
