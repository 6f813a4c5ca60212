//! Perfetto's trace, read with the messages that the Perfetto project publishes.

use serde_json::{Value, json};
use xray_trace::analysis::{Ending, Step, Steps};
use xray_trace::model::{DataKind, Trace};

use super::readers::read;
use super::{NAMES, count_of, export, rich};
use crate::common::{Enter, Exit, call, trace};
use crate::runs::with_runs;

const READ: &str = "perfetto_messages.py";

fn expected(trace: &Trace) -> Vec<Value> {
    let mut events = Vec::new();
    for mut steps in Steps::of_threads(trace) {
        let thread = trace.thread(steps.thread()).unwrap();
        let pid = trace.process(thread.process).unwrap().pid;
        while let Some(step) = steps.next() {
            let mut row = vec![json!(pid), json!(thread.tid)];
            match step {
                Step::Enter(open) => {
                    let name = trace.function_name(open.function);
                    row.extend([json!("SLICE_BEGIN"), json!(name), json!(open.start_ns)]);
                    if trace.function(open.function).is_some() {
                        row.push(json!("demo"));
                    }
                    let args = (1..).zip(open.args.as_slice());
                    row.extend(args.map(|(number, arg)| json!({ (format!("arg{number}")): arg })));
                }
                Step::Leave(call) => {
                    row.extend([json!("SLICE_END"), json!(""), json!(call.end_ns)]);
                    match call.how {
                        Ending::Normal => {
                            row.extend(call.result.map(|result| json!({ "result": result })))
                        }
                        Ending::TailExit => row.push(json!({"end": "tail exit"})),
                        Ending::Closed => row.push(json!({"end": "no exit seen"})),
                    }
                }
                Step::Data(user_event) => {
                    let name = match user_event.kind {
                        DataKind::Custom => "custom event".to_owned(),
                        DataKind::Kernel(_) => unreachable!("the trace has none"),
                        DataKind::Typed(number) => {
                            let name = trace.event_type(user_event.thread, number);
                            name.map_or_else(|| format!("typed event {number}"), str::to_owned)
                        }
                    };
                    row.extend([json!("INSTANT"), json!(name), json!(user_event.ns)]);
                    let data = steps.data(&user_event);
                    let text = std::str::from_utf8(data).ok();
                    let text = text.filter(|text| !text.contains('\0'));
                    let text = text.map_or_else(|| data.escape_ascii().to_string(), str::to_owned);
                    row.push(json!({ "data": text }));
                    if let DataKind::Typed(number) = user_event.kind {
                        row.push(json!({ "type": number }));
                    }
                    if user_event.data.is_cut() {
                        row.push(json!({ "size": user_event.data.size() }));
                    }
                }
                Step::Lost { ticks, events } => {
                    let ns = trace.clock().monotonic_ns(ticks);
                    row.extend([json!("INSTANT"), json!("events lost"), json!(ns)]);
                    row.push(json!({ "events": events }));
                }
            }
            events.push(Value::Array(row));
        }
    }
    events
}

#[test]
fn perfettos_own_messages_read_every_event() {
    let rich = rich();
    let (_, report) = export("perfetto", &rich);
    assert_eq!((report.calls, report.left_out.len()), (5, 3), "{report:?}");
    assert_eq!(count_of(&report, "processor"), 1);
    let Some(read) = read(READ, "perfetto", &rich) else {
        return;
    };
    assert_eq!(read["events"], Value::Array(expected(&rich)));
    let tracks = json!([[4000, "demo"], [5000, "worker-0"], [5001, "worker-1"]]);
    assert_eq!(read["tracks"], tracks);
    let first = 7_000_300_u64;
    let wall = 1_700_000_000_000_000_000 + first;
    assert_eq!(read["clocks"], json!([[3, first], [1, wall]]));
}

/// A thread with run times has a second track, with its states.
#[test]
fn perfettos_own_messages_read_the_states_of_threads() {
    let trace = with_runs();
    let Some(read) = read(READ, "perfetto", &trace) else {
        return;
    };
    let states = [
        (50, "on processor 3", 200),
        (200, "ready to run", 250),
        (250, "on processor 3", 400),
        (400, "waits", 600),
        (600, "on processor 3", 920),
    ];
    let mut events = expected(&trace);
    for (from, name, until) in states {
        let row = |kind, name, ns| json!([4000, 5000, kind, name, ns, { "track": "processor" }]);
        events.extend([row("SLICE_BEGIN", name, from), row("SLICE_END", "", until)]);
    }
    assert_eq!(read["events"], Value::Array(events));
    let tracks = json!([[4000, "demo"], [5000, "worker-0"], [0, "processor"]]);
    assert_eq!(read["tracks"], tracks);
}

#[test]
fn perfettos_own_messages_read_functions_without_a_name() {
    let trace = trace(&NAMES, &[&[call(5, 77, Enter), call(5, 77, Exit)]]);
    if let Some(read) = read(READ, "perfetto", &trace) {
        assert_eq!(read["events"], Value::Array(expected(&trace)));
    }
}
