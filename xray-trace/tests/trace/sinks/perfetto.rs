//! Perfetto's trace, read with the messages that the project itself publishes, and by its trace processor where that can be
//! had: it is no part of the package, which fetches it when it is first used.

use serde_json::{Value, json};
use xray_trace::analysis::{Ending, Step, Steps};
use xray_trace::model::{DataKind, Trace};

use super::python::{python, say_not_tested};
use super::{NAMES, busy, count_of, export, rich};
use crate::common::{Enter, Exit, call, trace};

/// Reads a trace as the trace processor does: sequences, defaults, interned names, tracks.
const READ: &str = r#"
import json, sys
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

def known(message):
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.message_type:
            repeated = field.label == field.LABEL_REPEATED if hasattr(field, "label") else field.is_repeated
            for part in value if repeated else [value]:
                known(part)

trace = pb.Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())
known(trace)
tracks, states, events, clocks = {}, {}, [], None
for packet in trace.packet:
    sequence = packet.trusted_packet_sequence_id
    assert sequence
    if packet.sequence_flags & pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
        states[sequence] = {"names": {}, "categories": {}}
    state = states[sequence]
    if packet.HasField("clock_snapshot"):
        assert clocks is None
        clocks = packet.clock_snapshot
    if packet.HasField("trace_packet_defaults"):
        state["defaults"] = packet.trace_packet_defaults
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        assert track.uuid not in tracks
        assert not track.parent_uuid or tracks[track.parent_uuid].process.pid == track.thread.pid
        tracks[track.uuid] = track
    for name in packet.interned_data.event_names:
        state["names"][name.iid] = name.name
    for name in packet.interned_data.event_categories:
        state["categories"][name.iid] = name.name
    if packet.HasField("track_event"):
        event = packet.track_event
        assert packet.sequence_flags & pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        assert state["defaults"].timestamp_clock_id == clocks.primary_trace_clock == pb.BUILTIN_CLOCK_MONOTONIC
        thread = tracks[state["defaults"].track_event_defaults.track_uuid].thread
        name = state["names"][event.name_iid] if event.name_iid else event.name
        row = [thread.pid, thread.tid, pb.TrackEvent.Type.Name(event.type)[5:], name, packet.timestamp]
        for iid in event.category_iids:
            row.append(state["categories"][iid])
        for note in event.debug_annotations:
            row.append({note.name: note.uint_value if note.HasField("uint_value") else note.string_value})
        events.append(row)
names = [[t.thread.tid, t.thread.thread_name] if t.HasField("thread") else [t.process.pid, t.process.process_name] for t in tracks.values()]
print(json.dumps({"events": events, "tracks": names, "clocks": [[c.clock_id, c.timestamp] for c in clocks.clocks]}))
"#;

/// What the trace processor says: problems on import, slices by name, arguments.
const QUERY: &str = r#"
import json, sys
from perfetto.trace_processor import TraceProcessor
try:
    processor = TraceProcessor(trace=sys.argv[1])
except Exception as error:
    if "trace_processor_shell" not in str(error):
        raise
    print(json.dumps({"missing": str(error)}))
    sys.exit()
def rows(query, *columns):
    return [[getattr(row, column) for column in columns] for row in processor.query(query)]
print(json.dumps({
    "errors": rows("select name, value from stats where severity in ('error', 'data_loss') and value > 0", "name", "value"),
    "slices": rows("""select t.tid tid, s.name name, count(*) calls, sum(s.dur) dur from slice s
        join thread_track tt on s.track_id = tt.id join thread t using (utid)
        where s.dur >= 0 and s.category is not null group by 1, 2 order by 1, 2""", "tid", "name", "calls", "dur"),
}))
processor.close()
"#;

fn read(script: &str, trace: &Trace) -> Option<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.pftrace");
    std::fs::write(&path, export("perfetto", trace).0).unwrap();
    let text = python(script, &[&path])?;
    Some(serde_json::from_str(&text).unwrap())
}

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
                        row.push(json!("module-0.so"));
                    }
                    row.extend(open.arg.map(|arg| json!({ "arg": arg })));
                }
                Step::Leave(call) => {
                    row.extend([json!("SLICE_END"), json!(""), json!(call.end_ns)]);
                    match call.how {
                        Ending::Normal => {}
                        Ending::TailExit => row.push(json!({"end": "tail exit"})),
                        Ending::Closed => row.push(json!({"end": "no exit seen"})),
                    }
                }
                Step::Data(said) => {
                    let name = match said.kind {
                        DataKind::Custom => "custom event".to_owned(),
                        DataKind::Typed(number) => format!("typed event {number}"),
                    };
                    row.extend([json!("INSTANT"), json!(name), json!(said.ns)]);
                    let data = steps.data(&said);
                    let text = std::str::from_utf8(data).map(str::to_owned);
                    let text = text.unwrap_or_else(|_| data.escape_ascii().to_string());
                    row.push(json!({ "data": text }));
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
    let Some(read) = read(READ, &rich) else {
        return;
    };
    assert_eq!(read["events"], Value::Array(expected(&rich)));
    let tracks = json!([[4000, "demo"], [5000, "worker-0"], [5001, "worker-1"]]);
    assert_eq!(read["tracks"], tracks);
    let first = 7_000_300_u64;
    let wall = 1_700_000_000_000_000_000 + first;
    assert_eq!(read["clocks"], json!([[3, first], [1, wall]]));
}

#[test]
fn perfettos_own_messages_read_functions_without_a_name() {
    let trace = trace(&NAMES, &[&[call(5, 77, Enter), call(5, 77, Exit)]]);
    if let Some(read) = read(READ, &trace) {
        assert_eq!(read["events"], Value::Array(expected(&trace)));
    }
}

#[test]
fn the_trace_processor_counts_what_we_count() {
    let trace = trace(&NAMES, &[&busy(1000, 300), &busy(1500, 200)]);
    let Some(read) = read(QUERY, &trace) else {
        return;
    };
    if let Some(missing) = read.get("missing") {
        say_not_tested(&format!(
            "Perfetto's trace processor cannot be had: {missing}"
        ));
        return;
    }
    assert_eq!(read["errors"], json!([]));
    let mut slices = std::collections::BTreeMap::new();
    for step in Steps::of_threads(&trace).flatten() {
        if let Step::Leave(call) = step {
            let tid = trace.thread(call.open.thread).unwrap().tid;
            let name = trace.function_name(call.open.function).into_owned();
            let sum = slices.entry((tid, name)).or_insert((0, 0));
            *sum = (sum.0 + 1, sum.1 + call.duration_ns());
        }
    }
    let slices = slices.into_iter();
    let slices = slices.map(|((tid, name), (calls, ns))| json!([tid, name, calls, ns]));
    assert_eq!(read["slices"], Value::Array(slices.collect()));
}
