//! Events of kernel tracepoints between those of a program.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use xray_trace::analysis::{
    Filter, Notes, Open, Order, Shown, Step, Steps, Tree, TreeLine, Visitor,
};
use xray_trace::container::{
    HEADER_LEN, KernelEncoder, KernelPart, KernelRecord, KernelRecordKind, Payload, Writer,
};
use xray_trace::event_format::{
    EventCondition, EventOptions, EventsOf, FieldComparison, FieldValue, Literal, RecordedData,
    Relation, Tracepoint, TypeOfEvent,
};
use xray_trace::model::{
    DataKind, Event, EventBody, ProcessId, RecordingWindow, ThreadId, Ticks, Trace,
};
use xray_trace::sink::{self, Format};
use xray_trace::source;

use crate::common::{
    Enter, Exit, anchor, any_events, blocks, call, function, module, process, thread,
};

/// A tracepoint with an integer and a text.
fn wakeup() -> Tracepoint {
    let description = "common_pid:i32,comm:lenstr";
    Tracepoint::new("sched:sched_wakeup".to_owned(), description.to_owned())
}

fn data(pid: i32, comm: &str) -> Vec<u8> {
    let mut data = pid.to_le_bytes().to_vec();
    data.extend(u16::try_from(comm.len()).unwrap().to_le_bytes());
    data.extend(comm.as_bytes());
    data
}

/// The part with an event at each of these times. Their first field is their place in the list.
fn part(until: u64, times: &[u64]) -> KernelPart {
    let mut encoder = KernelEncoder::new(0);
    for (index, at_ns) in (0..).zip(times) {
        encoder.push(*at_ns, 5, &data(index, "a b"));
    }
    encoder.take(ThreadId(0), until)
}

/// A trace of one thread with these events. A tick is a nanosecond.
fn trace(events: &[Event], parts: &[KernelPart]) -> Trace {
    Trace::read(file(events, parts, &[(5, wakeup())]).as_slice()).unwrap()
}

fn file(events: &[Event], parts: &[KernelPart], tracepoints: &[(u16, Tracepoint)]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.add(&process(0)).unwrap();
    writer.add(&module(0, 0)).unwrap();
    for (id, name) in (0..).zip(["f", "g", "h", "i"]) {
        writer.add(&function(id, 0, name)).unwrap();
    }
    writer.add(&thread(0, 0)).unwrap();
    writer.add(&anchor(0, 0)).unwrap();
    writer.add(&anchor(1_000_000_000, 1_000_000_000)).unwrap();
    for (number, tracepoint) in tracepoints {
        writer.tracepoint(*number, tracepoint).unwrap();
    }
    for block in blocks(0, events, 3) {
        writer.block(&block).unwrap();
    }
    for part in parts {
        writer.kernel_events(part).unwrap();
    }
    let totals = writer.totals();
    writer.end(&totals).unwrap();
    writer.into_inner()
}

/// The steps of the thread as text. Kernel events have their first field.
fn steps(trace: &Trace) -> (Vec<String>, Notes) {
    let steps = Steps::of_threads(trace).next().unwrap();
    let mut steps = steps.with_kernel_events(trace);
    let mut shown = Vec::new();
    while let Some(step) = steps.next() {
        let line = match step {
            Step::Enter(open) => format!("{} enter {}", open.start.0, open.function.0),
            Step::Leave(call) => format!(
                "{} leave {} {:?}",
                call.end.0, call.open.function.0, call.how
            ),
            Step::Data(event) => {
                let data = steps.data(&event);
                let index = data.first_chunk().map(|bytes| i32::from_le_bytes(*bytes));
                format!(
                    "{} {:?} {} in {}",
                    event.ticks.0,
                    event.kind,
                    index.unwrap(),
                    event.depth
                )
            }
            Step::Lost { ticks, events } => format!("{} lost {events}", ticks.0),
        };
        shown.push(line);
    }
    (shown, steps.notes())
}

#[test]
fn kernel_events_have_their_place_between_calls() {
    let events = [
        call(100, 0, Enter),
        call(200, 1, Enter),
        call(300, 1, Exit),
        call(400, 0, Exit),
    ];
    let trace = trace(&events, &[part(600, &[50, 200, 250, 300, 399, 500])]);
    let (shown, _) = steps(&trace);
    // An event at the time of a kernel event comes after it.
    assert_eq!(
        shown,
        [
            "50 Kernel(5) 0 in 0",
            "100 enter 0",
            "200 Kernel(5) 1 in 1",
            "200 enter 1",
            "250 Kernel(5) 2 in 2",
            "300 Kernel(5) 3 in 2",
            "300 leave 1 Normal",
            "399 Kernel(5) 4 in 1",
            "400 leave 0 Normal",
            "500 Kernel(5) 5 in 0",
        ]
    );
    assert_eq!(trace.kernel_event_counts().get(&5), Some(&6));
    let TypeOfEvent::Kernel(tracepoint) = trace.type_of(ThreadId(0), DataKind::Kernel(5)) else {
        panic!("it is a kernel event");
    };
    assert_eq!(*tracepoint, wakeup());
    let data = data(7, "a b");
    let decoded = tracepoint.format().unwrap().decode(&data);
    assert_eq!(
        decoded.fields,
        [
            ("common_pid", FieldValue::Signed(7)),
            ("comm", FieldValue::Text(b"a b"))
        ]
    );
    let unknown = trace.type_of(ThreadId(0), DataKind::Kernel(6));
    assert_eq!(unknown, TypeOfEvent::Kernel(Tracepoint::UNKNOWN));
}

/// A call without an exit was last seen open at the event before, not at a kernel event.
#[test]
fn a_kernel_event_does_not_show_that_a_call_is_open() {
    let unwound = Event {
        ticks: Ticks(400),
        body: EventBody::Unwound { calls: 1 },
    };
    for last in [unwound, call(400, 0, Exit)] {
        let trace = trace(
            &[call(100, 0, Enter), call(200, 1, Enter), last],
            &[part(600, &[300, 450])],
        );
        let (shown, _) = steps(&trace);
        assert!(
            shown.contains(&"200 leave 1 Closed".to_owned()),
            "{shown:?}"
        );
    }
}

#[test]
fn a_window_has_the_kernel_events_of_its_time() {
    let events = [
        call(100, 0, Enter),
        call(200, 1, Enter),
        call(300, 1, Exit),
        call(900, 0, Exit),
    ];
    let times = [50, 150, 250, 299, 300, 500, 899, 950];
    let trace = trace(&events, &[part(1000, &times)]);
    for since in (0..1000).step_by(25) {
        for until in (since..1000).step_by(25) {
            let filter = Filter {
                since: Some(Ticks(since)),
                until: Some(Ticks(until)),
                ..Filter::default()
            };
            let lines = Tree::new(&trace, &filter, Shown::default(), Order::ByTime);
            let found: Vec<u64> = lines
                .filter(|line| matches!(line, TreeLine::Data { .. }))
                .map(|line| line.ticks().0)
                .collect();
            // A thread without an event or an open call in the window is not in it.
            let is_there = until > 100 && since <= 900;
            let within = |at: &u64| is_there && (since..until).contains(at);
            let expected: Vec<u64> = times.iter().copied().filter(within).collect();
            assert_eq!(found, expected, "{since} to {until}");
        }
    }
}

#[test]
fn rows_and_timelines_have_the_fields() {
    let trace = trace(
        &[call(100, 0, Enter), call(400, 0, Exit)],
        &[part(600, &[300])],
    );
    let export = |name: &str| {
        let Some(Format::File(sink)) = sink::by_name(name) else {
            panic!("{name} is no format of one file");
        };
        let mut output = Vec::new();
        let events = sink.of_events().unwrap();
        let report = events
            .write(&trace, &EventOptions::default(), &mut output)
            .unwrap();
        assert_eq!(report.left_out, [], "{name}");
        output
    };
    let rows = String::from_utf8(export("jsonl")).unwrap();
    let rows = rows
        .lines()
        .map(|row| serde_json::from_str::<Value>(row).unwrap());
    let row = rows
        .into_iter()
        .find(|row| row["event"] == "kernel")
        .unwrap();
    assert_eq!(row["event_type_name"], "sched:sched_wakeup");
    assert_eq!(
        row["fields"],
        serde_json::json!({"common_pid": 0, "comm": "a b"})
    );
    assert_eq!((&row["time_ns"], row.get("data")), (&300.into(), None));
    let chrome: Value = serde_json::from_slice(&export("chrome")).unwrap();
    let mut events = chrome["traceEvents"].as_array().unwrap().iter();
    let event = events
        .find(|event| event["name"] == "sched:sched_wakeup")
        .unwrap();
    assert_eq!(
        event["args"],
        serde_json::json!({"fields": {"common_pid": 0, "comm": "a b"}})
    );
    let perfetto = export("perfetto");
    let has = |text: &[u8]| perfetto.windows(text.len()).any(|window| window == text);
    assert!(has(b"sched:sched_wakeup") && has(b"common_pid") && has(b"a b"));
}

#[test]
fn formats_without_a_place_for_kernel_events_report_their_number() {
    let trace = trace(
        &[call(100, 0, Enter), call(400, 0, Exit)],
        &[part(600, &[300, 350])],
    );
    let left_out = ("events of kernel tracepoints".to_owned(), 2);
    for name in [
        "fdr",
        "basic",
        "yaml",
        "firefox",
        "folded",
        "pprof",
        "callgrind",
        "speedscope",
    ] {
        let Some(Format::File(sink)) = sink::by_name(name) else {
            panic!("{name} is no format of one file");
        };
        let report = sink.write(&trace, &mut Vec::new()).unwrap();
        assert!(report.left_out.contains(&left_out), "{name}: {report:?}");
    }
}

/// A recording of some functions has the kernel events of its own time alone, and a thread without
/// events has none.
#[test]
fn kernel_events_are_of_the_recording_and_of_threads_with_events() {
    let events = [call(100, 0, Enter), call(400, 0, Exit)];
    let (bytes, other) = (file(&events, &[], &[(5, wakeup())]), ThreadId(1));
    let mut writer = Writer::new(Vec::new()).unwrap();
    let window = RecordingWindow {
        process: ProcessId(0),
        since: Some(Ticks(200)),
        until: Some(Ticks(300)),
        earlier_exits: 0,
        later_events: 0,
        later_lost: 0,
    };
    writer.add(&window).unwrap();
    let of_thread = part(600, &[50, 200, 250, 300, 350]);
    writer.kernel_events(&of_thread).unwrap();
    let of_other = KernelPart {
        thread: other,
        ..of_thread
    };
    writer.kernel_events(&of_other).unwrap();
    let more = writer.into_inner().split_off(HEADER_LEN);
    let trace = Trace::read([bytes, more].concat().as_slice()).unwrap();
    assert_eq!(trace.kernel_event_counts().get(&5), Some(&3));
    let (shown, _) = steps(&trace);
    let kernel: Vec<_> = shown
        .iter()
        .filter(|line| line.contains("Kernel"))
        .collect();
    assert_eq!(
        kernel,
        [
            "200 Kernel(5) 1 in 1",
            "250 Kernel(5) 2 in 1",
            "300 Kernel(5) 3 in 1"
        ]
    );
}

/// A merged trace can have two descriptions of one tracepoint: of two kernels.
#[test]
fn a_condition_reads_the_fields_of_each_description() {
    let name = || "sched:sched_wakeup".to_owned();
    let later = Tracepoint::new(name(), "flags:u16,common_pid:i32".to_owned());
    let format = wakeup().format().unwrap().clone();
    let seven = Literal::Integer(7);
    let comparison = FieldComparison::new(format, "common_pid", Relation::Equal, seven).unwrap();
    let condition = EventCondition::of_type(EventsOf::Name(name())).with_field(comparison);
    let holds = |tracepoint: &Tracepoint, data: &[u8]| {
        condition.holds(TypeOfEvent::Kernel(tracepoint), RecordedData::whole(data))
    };
    assert!(holds(&wakeup(), &data(7, "")) && !holds(&wakeup(), &data(8, "")));
    assert!(holds(&later, &[1, 1, 7, 0, 0, 0]) && !holds(&later, &data(7, "ab")));
    let without = Tracepoint::new(name(), "flags:u16".to_owned());
    assert!(!holds(&without, &data(7, "")));
}

/// A description of a later version stays as it is.
#[test]
fn a_description_that_is_not_understood_is_kept() {
    let later = Tracepoint::new("a:b".to_owned(), "x:u128".to_owned());
    assert_eq!(later.format(), None);
    let bytes = file(&[call(100, 0, Enter)], &[], &[(5, later.clone())]);
    let trace = Trace::read(bytes.as_slice()).unwrap();
    let written = trace.write(Vec::new(), &[]).unwrap();
    let again = Trace::read(written.as_slice()).unwrap();
    assert!(again.tracepoints().eq([(5, &later)]));
}

#[test]
fn files_keep_kernel_events() {
    let mut encoder = KernelEncoder::new(700);
    encoder.push_lost(750, 9);
    encoder.push(800, 5, &data(1, ""));
    let parts = [part(600, &[50, 300]), encoder.take(ThreadId(0), 900)];
    let bytes = file(
        &[call(100, 0, Enter), call(400, 0, Exit)],
        &parts,
        &[(5, wakeup())],
    );
    let read = Trace::read(bytes.as_slice()).unwrap();
    let mut named = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut named, &bytes).unwrap();
    let opened = Trace::open(named.reopen().unwrap()).unwrap();
    for trace in [&read, &opened] {
        assert_eq!(
            (
                trace.kernel_event_counts().get(&5),
                trace.lost_kernel_events()
            ),
            (Some(&3), 9)
        );
        let written = trace.write(Vec::new(), &[]).unwrap();
        let again = Trace::read(written.as_slice()).unwrap();
        assert_eq!(steps(&again), steps(&read));
        assert!(again.tracepoints().eq([(5, &wakeup())]));
    }
}

/// Each trace numbers its tracepoints by itself.
#[test]
fn merged_traces_have_the_kernel_events_of_all() {
    let name = "sched:sched_switch".to_owned();
    let switch = Tracepoint::new(name, "common_pid:i32".to_owned());
    let one = |number, tracepoint: &Tracepoint, at| {
        let mut encoder = KernelEncoder::new(0);
        encoder.push(at, number, &data(1, ""));
        let part = encoder.take(ThreadId(0), 500);
        let bytes = file(
            &[call(100, 0, Enter), call(400, 0, Exit)],
            &[part],
            &[(number, tracepoint.clone())],
        );
        Trace::read(bytes.as_slice()).unwrap()
    };
    let traces = [
        one(5, &wakeup(), 200),
        one(5, &switch, 300),
        one(9, &wakeup(), 350),
    ];
    let merged = source::merge(&traces).unwrap().trace;
    let named = |name: &str| {
        let mut tracepoints = merged.tracepoints();
        let (number, _) = tracepoints
            .find(|(_, tracepoint)| tracepoint.name == name)
            .unwrap();
        merged.kernel_event_counts().get(&number).copied()
    };
    assert_eq!(merged.tracepoints().count(), 2);
    assert_eq!(named("sched:sched_wakeup"), Some(2));
    assert_eq!(named("sched:sched_switch"), Some(1));
}

#[test]
fn a_damaged_part_is_read_up_to_the_damage() {
    let good = part(600, &[50, 300]);
    let mut bytes = good.events.load().unwrap().to_vec();
    // An event of a tracepoint whose number is too great.
    bytes.extend([1, 0x82, 0x80, 4, 0]);
    let damaged = KernelPart {
        events: Payload::from(bytes),
        ..good
    };
    let times: Vec<_> = damaged.records().map(|record| record.at_ns).collect();
    assert_eq!(times, [50, 300]);
}

/// Counts calls, and takes their order.
#[derive(Default)]
struct Seen(Vec<u64>);

impl Visitor for Seen {
    fn enter(&mut self, open: &Open) {
        self.0.push(open.start.0);
    }

    fn leave(&mut self, call: &xray_trace::analysis::Call) {
        self.0.push(call.end.0 << 1 | 1);
    }
}

proptest! {
    /// Without the kernel events, the steps are what they are without a tracepoint.
    #[test]
    fn calls_are_the_same_with_and_without_kernel_events(
        events in any_events(1..60),
        mut times in vec(0..3000_u64, 0..40),
    ) {
        times.sort_unstable();
        let plain = trace(&events, &[]);
        let with = trace(&events, &[part(u64::MAX >> 1, &times)]);
        let (expected, notes) = steps(&plain);
        let (all, all_notes) = steps(&with);
        let is_kernel = |line: &&String| line.contains("Kernel(");
        let calls: Vec<_> = all.iter().filter(|line| !is_kernel(line)).cloned().collect();
        prop_assert_eq!(calls, expected);
        prop_assert_eq!(all_notes, notes);
        let kernel: Vec<_> = all.iter().filter(is_kernel).collect();
        prop_assert_eq!(kernel.len(), times.len());
        for ((index, at), line) in (0..).zip(&times).zip(kernel) {
            let begin = format!("{at} Kernel(5) {index} in ");
            prop_assert!(line.starts_with(&begin), "{} {}", line, begin);
        }
        let visited = |trace: &Trace| {
            let mut seen = Seen::default();
            let steps = Steps::of_threads(trace).next().unwrap();
            steps.with_kernel_events(trace).visit(&mut seen);
            seen.0
        };
        prop_assert_eq!(visited(&with), visited(&plain));
    }

    #[test]
    fn any_bytes_can_be_read(bytes: Vec<u8>, from_ns: u64, len: u64) {
        let hostile = KernelPart {
            thread: ThreadId(0),
            from_ns,
            until_ns: from_ns.saturating_add(len),
            events: Payload::from(bytes),
        };
        let mut records = hostile.records();
        while let Some(KernelRecord { what, .. }) = records.next() {
            if let KernelRecordKind::Event { data, .. } = what {
                prop_assert_eq!(records.data(data).len(), data.1);
            }
        }
        let trace = trace(&[call(100, 0, Enter), call(400, 0, Exit)], &[hostile]);
        for steps in Steps::of_threads(&trace) {
            let mut steps = steps.with_kernel_events(&trace);
            while let Some(step) = steps.next() {
                if let Step::Data(event) = step {
                    prop_assert_eq!(steps.data(&event).len(), event.data.len());
                }
            }
        }
    }
}
