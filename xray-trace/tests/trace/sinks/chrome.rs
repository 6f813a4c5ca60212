//! Chrome's trace_event JSON.

use proptest::prelude::*;
use serde_json::Value;
use xray_trace::container::Writer;
use xray_trace::model::{Process, Thread, Trace};

use super::{NAMES, export};
use crate::common::{
    Enter, Exit, anchor, any_events, blocks, call, call_with, file, function, lost, module,
    process, thread, trace,
};

pub(super) fn chrome(trace: &Trace) -> Vec<Value> {
    let (bytes, _) = export("chrome", trace);
    let json: Value = serde_json::from_slice(&bytes).unwrap();
    json["traceEvents"].as_array().unwrap().clone()
}

#[test]
fn chrome_events_have_names_exact_times_and_arguments() {
    let events = [
        call(1_234_567, 0, Enter),
        call_with(1_234_568, 1, 255),
        lost(1_300_000, 3),
        call(1_300_005, 0, Exit),
    ];
    let trace = trace(&["quote\"\\\n\u{1}", "b"], &[&events]);
    let (bytes, report) = export("chrome", &trace);
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.contains("\"ts\":1234.567,"), "{text}");
    assert!(text.contains("\"ts\":1300.000,"), "{text}");
    let events = chrome(&trace);
    assert_eq!(events[0]["args"]["name"], "demo");
    assert_eq!(events[1]["args"]["name"], "worker-0");
    assert_eq!(events[2]["name"], "quote\"\\\n\u{1}");
    assert_eq!(events[3]["args"]["arg1"], "0xff");
    assert_eq!(events[4]["args"]["end"], "no exit seen");
    assert_eq!(
        (&events[6]["ph"], &events[6]["args"]["events"]),
        (&"i".into(), &"3".into())
    );
    assert_eq!(
        (events[2]["pid"].as_u64(), events[2]["tid"].as_u64()),
        (Some(4000), Some(5000))
    );
    assert_eq!((report.calls, report.left_out[0].1), (2, 1));
}

#[test]
fn processes_and_threads_with_one_number_stay_apart() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for id in 0..2 {
        let described = Process {
            pid: 7,
            ..process(id)
        };
        writer.add(&described).unwrap();
    }
    writer.add(&module(0, 0)).unwrap();
    writer.add(&function(0, 0, "f")).unwrap();
    writer.add(&anchor(0, 0)).unwrap();
    for (id, process) in [(0, 0), (1, 0), (2, 1)] {
        let described = Thread {
            tid: 9,
            ..thread(id, process)
        };
        writer.add(&described).unwrap();
        for block in blocks(id, &[call(1, 0, Enter), call(2, 0, Exit)], 10) {
            writer.block(&block).unwrap();
        }
    }
    writer.add(&anchor(1000, 1000)).unwrap();
    let trace = Trace::read(writer.finish(&[]).unwrap().as_slice()).unwrap();
    let numbers = |phase: &str, what: &str| -> Vec<(u64, u64)> {
        let events = chrome(&trace).into_iter();
        let events = events.filter(|event| event["ph"] == phase && event["name"] == what);
        events
            .map(|event| {
                let number = |field: &str| event[field].as_u64().unwrap();
                (number("pid"), number("tid"))
            })
            .collect()
    };
    let free = (1 << 31) - 1;
    assert_eq!(numbers("B", "f"), [(7, 9), (7, free), (free, 9)]);
    assert_eq!(numbers("M", "thread_name"), numbers("B", "f"));
    assert_eq!(numbers("M", "process_name"), [(7, 7), (free, free)]);
    let (_, report) = export("chrome", &trace);
    assert_eq!(
        report.left_out,
        [
            (
                "pids of processes, replaced because another process has the same".to_owned(),
                1
            ),
            (
                "tids of threads, replaced because another thread of the process has the same"
                    .to_owned(),
                1
            ),
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn chrome_json_is_valid_and_nested_wherever_the_trace_is_cut(
        threads in proptest::collection::vec(any_events(0..40), 1..3),
        cut in any::<prop::sample::Index>(),
    ) {
        let slices = threads.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let whole = file(&NAMES, &slices);
        let cut = 16 + cut.index(whole.len() - 16);
        let trace = Trace::read(&whole[..cut]).unwrap();
        let mut depths = std::collections::HashMap::<u64, i64>::new();
        for event in chrome(&trace) {
            let depth = depths.entry(event["tid"].as_u64().unwrap()).or_default();
            match event["ph"].as_str().unwrap() {
                "B" => *depth += 1,
                "E" => *depth -= 1,
                _ => {}
            }
            prop_assert!(*depth >= 0);
        }
        prop_assert!(depths.values().all(|depth| *depth == 0));
    }
}
