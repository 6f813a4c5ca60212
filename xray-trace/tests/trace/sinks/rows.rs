//! Formats with one row for each event: they contain every event with all its data.

use proptest::prelude::*;
use serde_json::{Value, json};
use xray_trace::model::{CallKind, DataKind, EventBody, Trace};

use super::readers::read;
use super::{NAMES, busy, export, rich};
use crate::any_trace::any_trace;
use crate::common::{any_events, trace};

/// Every event of a trace as JSON lines should have it.
pub(super) fn events_as_json(trace: &Trace) -> Vec<Value> {
    let mut rows = Vec::new();
    for (id, blocks) in trace.blocks_by_thread() {
        let thread = trace.thread(id).unwrap();
        let process = trace.process(thread.process).unwrap();
        for block in blocks {
            let mut events = block.events();
            while let Some(event) = events.next() {
                let event = event.unwrap();
                let mut row = json!({
                    "time_ns": trace.clock().monotonic_ns(event.ticks),
                    "pid": process.pid, "process": process.command,
                    "tid": thread.tid, "thread": thread.name,
                });
                let mut set = |name: &str, value: Value| row[name] = value;
                let mut place = None;
                match event.body {
                    EventBody::Call {
                        function,
                        kind,
                        values,
                    } => {
                        let called = match kind {
                            CallKind::Enter => "enter",
                            CallKind::Exit => "exit",
                            CallKind::TailExit => "tail-exit",
                        };
                        set("event", called.into());
                        place = Some(function);
                        match values.as_slice() {
                            [] => {}
                            args if kind == CallKind::Enter => set("arguments", args.into()),
                            values => set("result", values[0].into()),
                        }
                    }
                    EventBody::Data { kind, data } => {
                        place = data.function();
                        if data.is_cut() {
                            set("size", data.size().into());
                        }
                        match kind {
                            DataKind::Custom => set("event", "custom".into()),
                            DataKind::Kernel(_) => unreachable!("the trace has none"),
                            DataKind::Typed(event_type) => {
                                set("event", "typed".into());
                                set("event_type", event_type.into());
                                if let Some(name) = trace.event_type(id, event_type) {
                                    set("event_type_name", name.into());
                                }
                            }
                        }
                        match std::str::from_utf8(events.data(data)) {
                            Ok(text) => set("data", text.into()),
                            Err(_) => {
                                let bytes = events.data(data).iter();
                                let hex = bytes.map(|byte| format!("{byte:02x}"));
                                set("data_hex", hex.collect::<String>().into());
                            }
                        }
                    }
                    EventBody::Cpu { cpu } => {
                        set("event", "processor".into());
                        set("processor", cpu.into());
                    }
                    EventBody::Unwound { calls } => {
                        set("event", "unwound".into());
                        set("unwound", calls.into());
                    }
                    EventBody::UnmatchedExit => set("event", "unmatched-exit".into()),
                    EventBody::Lost { events } => {
                        set("event", "lost".into());
                        set("lost", events.into());
                    }
                }
                if let Some(function) = place {
                    set("function_id", function.0.into());
                    if let Some(function) = trace.function(function) {
                        set("function", function.name.clone().into());
                        let module = trace.module(function.module).unwrap();
                        set("module", module.path.clone().into());
                    }
                }
                rows.push(row);
            }
        }
    }
    rows
}

fn json_lines(trace: &Trace) -> Vec<Value> {
    let text = String::from_utf8(export("jsonl", trace).0).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.collect()
}

/// The rows of a CSV file as objects. The column decides between numbers and texts.
fn csv(trace: &Trace) -> Vec<Value> {
    let text = String::from_utf8(export("csv", trace).0).unwrap();
    let mut rows = Vec::new();
    let (mut row, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\r' if !quoted => {
                assert_eq!(chars.next(), Some('\n'));
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            _ => field.push(c),
        }
    }
    let names = rows.remove(0);
    let texts = [
        "process",
        "thread",
        "event",
        "function",
        "module",
        "event_type_name",
        "data",
        "data_hex",
    ];
    let object = |row: Vec<String>| {
        assert_eq!(row.len(), names.len(), "{row:?}");
        let fields = names.iter().zip(row).filter(|(_, value)| !value.is_empty());
        let fields = fields.map(|(name, value)| {
            let text = texts.contains(&name.as_str());
            let value = if text {
                value.into()
            } else if name == "arguments" {
                let numbers = value
                    .split(' ')
                    .map(|number| number.parse::<u64>().unwrap());
                numbers.collect::<Vec<_>>().into()
            } else {
                value.parse::<u64>().unwrap().into()
            };
            (name.clone(), value)
        });
        Value::Object(fields.collect())
    };
    rows.into_iter().map(object).collect()
}

#[test]
fn every_event_is_a_row() {
    let rich = rich();
    let rows = events_as_json(&rich);
    assert_eq!(json_lines(&rich), rows);
    // A table does not distinguish an empty text from no text.
    let mut fewer = rows;
    for row in &mut fewer {
        let row = row.as_object_mut().unwrap();
        row.retain(|_, value| value != "");
    }
    assert_eq!(csv(&rich), fewer);
    for format in ["csv", "jsonl"] {
        let (_, report) = export(format, &rich);
        let unplaced = ("lost events at an unknown place".to_owned(), 4);
        assert_eq!(
            (report.calls, report.left_out),
            (5, vec![unplaced]),
            "{format}"
        );
    }
}

/// DuckDB detects the types of JSON; in CSV it takes all fields as text.
#[test]
fn duckdb_reads_every_row() {
    let rich = rich();
    if let Some(found) = read("tables.py", "jsonl", &rich) {
        assert_eq!(found["events"], Value::Array(events_as_json(&rich)));
    }
    if let Some(found) = read("tables.py", "csv", &rich) {
        let mut rows = events_as_json(&rich);
        for row in &mut rows {
            let row = row.as_object_mut().unwrap();
            for value in row.values_mut() {
                let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
                let list = value.as_array();
                let list = list.map(|list| list.iter().map(text).collect::<Vec<_>>().join(" "));
                *value = list.unwrap_or_else(|| text(value)).into();
            }
            row.retain(|_, value| value != "");
        }
        assert_eq!(found["events"], Value::Array(rows));
    }
    let trace = trace(&NAMES, &[&busy(1000, 3000), &busy(1500, 200)]);
    for format in ["csv", "jsonl"] {
        if let Some(found) = read("tables.py", format, &trace) {
            let calls = json!([
                {"function": "a", "calls": 2},
                {"function": "b", "calls": 3200},
                {"function": "c", "calls": 3200},
            ]);
            assert_eq!(found["calls"], calls, "{format}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rows_hold_any_events(threads in proptest::collection::vec(any_events(0..60), 1..3)) {
        let slices = threads.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let names = ["a,b", "quote\"", "line\r\nend", "\u{1}tab\t\\", "é", NAMES[5], NAMES[6], " "];
        let trace = trace(&names, &slices);
        let rows = events_as_json(&trace);
        prop_assert_eq!(json_lines(&trace), rows.clone());
        prop_assert_eq!(csv(&trace), rows);
    }
    #[test]
    fn rows_hold_any_trace(trace in any_trace()) {
        let mut rows = events_as_json(&trace);
        prop_assert_eq!(json_lines(&trace), rows.clone());
        for row in &mut rows {
            let row = row.as_object_mut().unwrap();
            row.retain(|_, value| value != "");
        }
        prop_assert_eq!(csv(&trace), rows);
    }
}
