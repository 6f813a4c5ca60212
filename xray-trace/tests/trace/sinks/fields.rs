//! The fields in the data of user events, in each format that has a place for them.

use serde_json::{Value, json};
use xray_trace::analysis::{Filter, Order, Shown, Tree, TreeLine};
use xray_trace::container::{BlockEncoder, Writer};
use xray_trace::event_format::{
    EventCondition, EventFilter, EventFormats, EventOptions, EventsOf, FieldComparison, Literal,
    Relation,
};
use xray_trace::model::{DataKind, EventType, ProcessId, ThreadId, Ticks, Trace};
use xray_trace::sink::{self, FORMATS, Format};

use super::readers::run;
use super::{Directory, export};
use crate::common::{Enter, Exit, anchor, call, function, module, process, push, thread};

/// The number of the type with the name `order`.
const ORDER: u16 = 8;

/// The data of an order.
fn order(id: u64, price: f64, symbol: &[u8; 4], delta: i16) -> Vec<u8> {
    let mut data = id.to_le_bytes().to_vec();
    data.extend(price.to_le_bytes());
    data.extend(symbol);
    data.extend(delta.to_le_bytes());
    data
}

/// A trace with three orders, the last one of which is cut, an event of another type, and a custom
/// event.
fn orders() -> Trace {
    let mut encoder = BlockEncoder::new(ThreadId(0));
    push(&mut encoder, call(1000, 0, Enter));
    for (at, kind, data) in [
        (2000, DataKind::Typed(ORDER), order(7, 0.5, b"AB\0\0", -3)),
        (
            3000,
            DataKind::Typed(ORDER),
            order(u64::MAX, 250.0, b"\"C,\\", 4),
        ),
        (4000, DataKind::Typed(ORDER), 9_u64.to_le_bytes().to_vec()),
        (5000, DataKind::Typed(9), b"nine".to_vec()),
        (6000, DataKind::Custom, b"hello".to_vec()),
    ] {
        assert_eq!(encoder.push_data(Ticks(at), kind, &data), 0);
    }
    push(&mut encoder, call(9000, 0, Exit));
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.add(&process(0)).unwrap();
    writer.add(&module(0, 0)).unwrap();
    writer.add(&function(0, 0, "talk")).unwrap();
    writer.add(&thread(0, 0)).unwrap();
    writer.add(&anchor(0, 7_000_000)).unwrap();
    writer.add(&anchor(3_000_000_000, 1_007_000_000)).unwrap();
    let named = EventType {
        process: ProcessId(0),
        number: ORDER,
        name: "order".to_owned(),
    };
    writer.add(&named).unwrap();
    writer.block(&encoder.finish().unwrap()).unwrap();
    Trace::read(writer.into_inner().as_slice()).unwrap()
}

fn of_order() -> EventsOf {
    EventsOf::Name("order".to_owned())
}

fn formats() -> EventFormats {
    let order = "id:u64,price:f64,symbol:str4,delta:i16";
    EventFormats::new(vec![
        (of_order(), order.parse().unwrap()),
        (EventsOf::Custom, "text:str".parse().unwrap()),
    ])
}

/// All events with their fields.
fn described() -> EventOptions {
    EventOptions {
        formats: formats(),
        filter: EventFilter::default(),
    }
}

/// The orders of a price above 100.
fn expensive() -> EventFilter {
    let formats = formats();
    let format = formats.described(&of_order()).unwrap().clone();
    let number = Literal::Integer(100);
    let comparison = FieldComparison::new(format, "price", Relation::Greater, number).unwrap();
    EventFilter::new(vec![
        EventCondition::of_type(of_order()).with_field(comparison),
    ])
}

/// The fields of the events that are described, in their order, with all numbers as numbers.
fn expected() -> [Value; 4] {
    [
        json!({"id": 7, "price": 0.5, "symbol": "AB", "delta": -3}),
        json!({"id": u64::MAX, "price": 250.0, "symbol": "\"C,\\", "delta": 4}),
        json!({"id": 9}),
        json!({"text": "hello"}),
    ]
}

fn export_with(name: &str, trace: &Trace, options: &EventOptions) -> Vec<u8> {
    let Some(Format::File(sink)) = sink::by_name(name) else {
        panic!("{name} is no format of one file");
    };
    let mut output = Vec::new();
    let sink = sink.of_events().unwrap();
    let report = sink.write(trace, options, &mut output).unwrap();
    assert_eq!((report.calls, report.left_out.len()), (1, 0), "{report:?}");
    output
}

fn json_lines(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.collect()
}

fn instants(bytes: &[u8]) -> Vec<Value> {
    let json: Value = serde_json::from_slice(bytes).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let instants = events.iter().filter(|event| event["ph"] == "i");
    instants.cloned().collect()
}

/// What a script finds in a file of this format.
fn found(script: &str, name: &str, trace: &Trace, options: &EventOptions) -> Option<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("demo.{name}"));
    std::fs::write(&path, export_with(name, trace, options)).unwrap();
    run(script, &[&path])
}

#[test]
fn formats_with_a_place_for_fields_write_the_same_without_descriptions() {
    let trace = orders();
    let mut names = Vec::new();
    for format in FORMATS.iter().filter(|format| format.has_fields()) {
        names.push(format.name());
        if matches!(format, Format::File(_)) {
            let with = export_with(format.name(), &trace, &EventOptions::default());
            assert!(with == export(format.name(), &trace).0, "{}", format.name());
        }
    }
    assert_eq!(names, ["chrome", "perfetto", "csv", "jsonl", "parquet"]);
}

#[test]
fn json_lines_have_fields_as_an_object() {
    let trace = orders();
    let mut rows = json_lines(&export_with("jsonl", &trace, &described()));
    let fields: Vec<_> = rows
        .iter_mut()
        .filter_map(|row| row.as_object_mut().unwrap().remove("fields"))
        .collect();
    assert_eq!(fields, expected());
    // Everything else is as without them.
    assert_eq!(rows, json_lines(&export("jsonl", &trace).0));
}

#[test]
fn csv_has_a_last_column_with_the_fields_in_json() {
    let text = String::from_utf8(export_with("csv", &orders(), &described())).unwrap();
    let mut lines = text.split_terminator("\r\n");
    assert!(lines.next().unwrap().ends_with(",unwound,fields"));
    let mut fields = Vec::new();
    for line in lines {
        // Only fields are quoted with braces.
        match line.split_once(",\"{") {
            Some((_, quoted)) => {
                let object = quoted.strip_suffix('"').unwrap().replace("\"\"", "\"");
                fields.push(serde_json::from_str::<Value>(&format!("{{{object}")).unwrap());
            }
            None => assert!(line.ends_with(','), "{line}"),
        }
    }
    assert_eq!(fields, expected());
}

#[test]
fn chrome_has_fields_as_arguments() {
    let events = instants(&export_with("chrome", &orders(), &described()));
    let fields: Vec<_> = events
        .iter()
        .map(|event| event["args"]["fields"].clone())
        .collect();
    let [first, mut second, third, custom] = expected();
    // Readers would round this number.
    second["id"] = u64::MAX.to_string().into();
    assert_eq!(fields, [first, second, third, Value::Null, custom]);
    assert_eq!(events[3]["args"]["data"], "nine");
}

#[test]
fn perfettos_own_messages_read_fields() {
    let trace = orders();
    let Some(read) = found("perfetto_messages.py", "perfetto", &trace, &described()) else {
        return;
    };
    let events = read["events"].as_array().unwrap().iter();
    let of_event = events.map(|row| row.as_array().unwrap().iter());
    let fields: Vec<_> = of_event
        .filter_map(|mut row| row.find_map(|part| part.get("fields")))
        .cloned()
        .collect();
    assert_eq!(fields, expected());
}

#[test]
fn the_trace_processor_has_an_argument_for_each_field() {
    let trace = orders();
    let first = json!({"id": 7, "price": 0.5, "symbol": "AB", "delta": -3});
    for (name, begin) in [("perfetto", "debug.fields."), ("chrome", "args.fields.")] {
        let Some(read) = found("trace_processor.py", name, &trace, &described()) else {
            return;
        };
        assert_eq!(read[0]["problems"], json!([]), "{name}");
        let slices = read[0]["slices"].as_array().unwrap().iter();
        let mut arguments = slices.filter_map(|slice| slice[9].as_object());
        let of_first = arguments.find(|arguments| arguments.keys().any(|key| key.contains(begin)));
        for (field, value) in first.as_object().unwrap() {
            let argument = &of_first.unwrap()[&format!("{begin}{field}")];
            assert_eq!(argument, value, "{name}: {field}");
        }
    }
}

#[test]
fn duckdb_reads_fields_of_parquet_as_json() {
    let trace = orders();
    for (options, fields, rows) in [
        (described(), expected().to_vec(), 7),
        (
            EventOptions {
                filter: expensive(),
                ..described()
            },
            vec![expected()[1].clone()],
            3,
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let Some(Format::Folder(sink)) = sink::by_name("parquet") else {
            panic!("parquet is no format of several files");
        };
        let mut directory = Directory {
            path: dir.path().to_owned(),
            file: None,
        };
        let sink = sink.of_events().unwrap();
        sink.write(&trace, &options, &mut directory).unwrap();
        drop(directory);
        let Some(read) = run("tables.py", &[dir.path()]) else {
            return;
        };
        let found = read["events"].as_array().unwrap();
        assert_eq!(found.len(), rows);
        let texts = found.iter().filter_map(|row| row.get("fields"));
        let objects: Vec<Value> = texts
            .map(|text| serde_json::from_str(text.as_str().unwrap()).unwrap())
            .collect();
        assert_eq!(objects, fields);
        // The query of the documents.
        let prices: Vec<_> = fields.iter().filter_map(|of| of.get("price")).collect();
        assert_eq!(read["prices"], json!(prices));
    }
}

#[test]
fn a_condition_selects_user_events_and_no_calls() {
    let trace = orders();
    let options = EventOptions {
        formats: EventFormats::default(),
        filter: expensive(),
    };
    let rows = json_lines(&export_with("jsonl", &trace, &options));
    let words: Vec<_> = rows.iter().map(|row| row["event"].clone()).collect();
    assert_eq!(words, ["enter", "typed", "exit"]);
    assert_eq!(rows[1]["time_ns"], 7_001_000);
    assert!(rows[1].get("fields").is_none());
    let events = instants(&export_with("chrome", &trace, &options));
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["name"], "order");
    let text = String::from_utf8(export_with("csv", &trace, &options)).unwrap();
    assert_eq!(text.matches("\r\n").count(), 4);
    assert!(!text.contains("fields"));
    if let Some(read) = found("perfetto_messages.py", "perfetto", &trace, &options) {
        assert_eq!(read["events"].as_array().unwrap().len(), 3);
    }
}

#[test]
fn the_tree_has_the_selected_user_events_alone() {
    let trace = orders();
    let lines = |user_events| {
        let filter = Filter {
            user_events,
            ..Filter::default()
        };
        let lines = Tree::new(&trace, &filter, Shown::default(), Order::ByThread);
        lines.collect::<Vec<_>>()
    };
    assert_eq!(lines(EventFilter::default()).len(), 7);
    let found = lines(expensive());
    assert!(
        matches!(
            found[..],
            [TreeLine::Begin(_), TreeLine::Data { .. }, TreeLine::End(_)]
        ),
        "{found:?}"
    );
    assert_eq!(found[1].ticks(), Ticks(3000));
    // Without user events in it, the call has one line.
    let none = EventFilter::new(vec![EventCondition::of_type(EventsOf::Number(1))]);
    let found = lines(none);
    assert!(matches!(found[..], [TreeLine::Leaf(_)]), "{found:?}");
}
