//! Chrome's trace_event JSON.

use proptest::prelude::*;
use serde_json::Value;
use xray_trace::model::Trace;

use super::{NAMES, export};
use crate::common::{Enter, Exit, any_events, call, call_with, file, lost, trace};

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
