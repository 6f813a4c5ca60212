//! Comma-separated values (RFC 4180). A trace has a row for each event, after a row of column
//! names; fields without a meaning for an event are empty. A profile has a row for each stack of
//! each thread.

use std::io::{self, Write};

use super::events::{EachEvent, each_event, word};
use super::fields::{self, Integers};
use super::kernel_ids::KernelIds;
use super::per_function::PerFunction;
use super::stacks::StackTrie;
use super::text::Text;
use super::unpack_thread::Bytes;
use super::{EventSink, ProfileSink, Report, Sink};
use crate::event_format::EventOptions;
use crate::model::{
    CallKind, DataKind, Event, EventBody, Function, FunctionId, Profile, ThreadId, Trace,
};

/// Comma-separated values.
#[derive(Debug, Clone, Copy)]
pub struct Csv;

const NAMES: &str = "time_ns,pid,process,tid,thread,event,function_id,function,module,arguments,result,event_type,event_type_name,\
                     data,data_hex,size,processor,lost,unwound";

/// The last column if the data of events is described.
const NAME_OF_FIELDS: &str = ",fields";

const NAMES_OF_SUMS: &str = "pid,tid,calls,self_ticks,function_id,function,module,stack\r\n";

struct Output<'a> {
    trace: &'a Trace,
    options: &'a EventOptions,
    text: Text<'a>,
    /// The current thread.
    of: ThreadId,
    /// The fields that all events of the thread have.
    thread: String,
    /// The fields of functions.
    functions: PerFunction<String>,
}

// === impl Csv ===

impl Sink for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["csv"]
    }

    fn about(&self) -> &'static str {
        "every event as a row, for spreadsheets and databases"
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        EventSink::write(self, trace, &EventOptions::default(), output)
    }

    fn of_events(&self) -> Option<&dyn EventSink> {
        Some(self)
    }

    fn of_profile(&self) -> Option<&dyn ProfileSink> {
        Some(self)
    }
}

impl EventSink for Csv {
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
            thread: String::new(),
            functions: PerFunction::new(trace, |function| described(trace, function)),
        };
        output.text.put(NAMES);
        if fields::are_described(options, trace) {
            output.text.put(NAME_OF_FIELDS);
        }
        output.text.put("\r\n");
        let report = each_event(trace, &options.filter, &mut output)?;
        output.text.finish()?;
        Ok(report)
    }
}

impl ProfileSink for Csv {
    fn write(&self, profile: &Profile, output: &mut dyn Write) -> io::Result<Report> {
        let tables = profile.tables();
        let stacks = StackTrie::of_profile(profile, |thread| thread.0);
        let mut text = Text::new(output);
        text.put(NAMES_OF_SUMS);
        for node in stacks.nodes() {
            let (stack, thread) = stacks.stack(node);
            let KernelIds { pid, tid } = KernelIds::of(tables, ThreadId(thread));
            let (calls, ticks) = (node.calls, node.self_ns);
            let mut row = format!("{pid},{tid},{calls},{ticks}");
            match tables.function(node.function) {
                Some(function) => row.push_str(&described(tables, function)),
                None => row.push_str(&format!(",{},,", node.function.0)),
            }
            let names = stack.into_iter().rev();
            let names = names.map(|function| tables.function_name(function).replace(';', ":"));
            row.push(',');
            field(&mut row, &names.collect::<Vec<_>>().join(";"));
            text.put(&row);
            text.put("\r\n");
            text.pass()?;
        }
        text.finish()?;
        let mut report = Report::of_profile(profile);
        stacks.tell(&mut report);
        Ok(report)
    }
}

fn put_function(text: &mut Text<'_>, functions: &PerFunction<String>, function: FunctionId) {
    match functions.get(function) {
        Some(fields) => text.put(fields),
        None => {
            text.put(",");
            text.number(function.0);
            text.put(",,");
        }
    }
}

/// The three fields of a function, each with a comma before it.
fn described(trace: &Trace, function: &Function) -> String {
    let mut fields = format!(",{},", function.id.0);
    field(&mut fields, &function.name);
    fields.push(',');
    let module = trace.module(function.module);
    field(&mut fields, module.map_or("", |module| &module.path));
    fields
}

fn put_field(text: &mut Text<'_>, value: &str) {
    let mut quoted = String::new();
    field(&mut quoted, value);
    text.put(&quoted);
}

fn field(to: &mut String, text: &str) {
    if text.contains([',', '"', '\r', '\n']) {
        to.push('"');
        to.push_str(&text.replace('"', "\"\""));
        to.push('"');
    } else {
        to.push_str(text);
    }
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
        fields.push_str(&format!(",{pid},"));
        field(fields, process.map_or("", |process| &process.command));
        fields.push_str(&format!(",{tid},"));
        field(fields, known.map_or("", |known| &known.name));
        fields.push(',');
        Ok(())
    }

    fn event(&mut self, event: &Event, bytes: &Bytes) -> io::Result<()> {
        let text = &mut self.text;
        text.number(self.trace.clock().monotonic_ns(event.ticks));
        text.put(&self.thread);
        text.put(word(&event.body));
        match event.body {
            EventBody::Call {
                function,
                kind,
                values,
            } => {
                put_function(text, &self.functions, function);
                let (args, result) = match kind {
                    CallKind::Enter => (values.as_slice(), None),
                    CallKind::Exit | CallKind::TailExit => (&[][..], values.first()),
                };
                text.put(",");
                for (number, arg) in args.iter().enumerate() {
                    text.put(if number == 0 { "" } else { " " });
                    text.number(*arg);
                }
                text.put(",");
                if let Some(result) = result {
                    text.number(result);
                }
                text.put(",,,,,,,,");
            }
            EventBody::Data { kind, data } => {
                match data.function() {
                    Some(function) => put_function(text, &self.functions, function),
                    None => text.put(",,,"),
                }
                text.put(",,,");
                if let DataKind::Typed(event_type) = kind {
                    text.number(event_type);
                }
                text.put(",");
                if let Some(name) = self.trace.type_of(self.of, kind).name() {
                    put_field(text, name);
                }
                text.put(",");
                let bytes = bytes.get(data);
                let decoded = fields::decoded(self.options, self.trace, (self.of, kind), bytes);
                match std::str::from_utf8(bytes) {
                    _ if fields::replace_data(kind, decoded.as_ref()) => text.put(","),
                    Ok(text_of_data) => {
                        put_field(text, text_of_data);
                        text.put(",");
                    }
                    Err(_) => {
                        text.put(",");
                        text.hex(bytes);
                    }
                }
                text.put(",");
                if data.is_cut() {
                    text.number(data.size());
                }
                text.put(",,,");
            }
            EventBody::Cpu { cpu } => {
                text.put(",,,,,,,,,,,");
                text.number(cpu);
                text.put(",,");
            }
            EventBody::Lost { events } => {
                text.put(",,,,,,,,,,,,");
                text.number(events);
                text.put(",");
            }
            EventBody::Unwound { calls } => {
                text.put(",,,,,,,,,,,,,");
                text.number(calls);
            }
            EventBody::UnmatchedExit => text.put(",,,,,,,,,,,,,"),
        }
        if fields::are_described(self.options, self.trace) {
            text.put(",");
            if let EventBody::Data { kind, data } = event.body {
                let (of, bytes) = ((self.of, kind), bytes.get(data));
                if let Some(decoded) = fields::decoded(self.options, self.trace, of, bytes) {
                    let object = fields::json(&decoded, Integers::Numbers);
                    put_field(text, &String::from_utf8_lossy(&object));
                }
            }
        }
        text.put("\r\n");
        text.pass()
    }
}
