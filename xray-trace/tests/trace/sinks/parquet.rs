//! Parquet, read by DuckDB.

use proptest::prelude::*;
use serde_json::{Value, json};
use xray_trace::model::Trace;

use super::readers::run;
use super::rows::events_as_json;
use super::{NAMES, busy, export_folder, rich};
use crate::any_trace::any_trace;
use crate::common::{file, trace};

fn read(trace: &Trace) -> Option<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.parquet");
    let report = export_folder("parquet", trace, &path);
    let lost = trace.coverage().losses.len();
    assert_eq!(report.left_out.len(), lost, "{report:?}");
    run("tables.py", &[&path])
}

#[test]
fn duckdb_reads_every_event_and_every_function() {
    let rich = rich();
    let Some(read) = read(&rich) else { return };
    assert_eq!(read["events"], Value::Array(events_as_json(&rich)));
    let functions = read["functions"].as_array().unwrap();
    assert_eq!(functions.len(), NAMES.len());
    let function = json!({
        "function_id": 2, "xray_id": 3, "name": "c", "symbol": "_Zcv",
        "module": "/usr/bin/demo", "build_id": "abcd01", "address": 0x1080,
        "file": "src/demo.cc", "line": 12, "sleds": 2,
    });
    assert_eq!(functions[2], function);
}

#[test]
fn duckdb_counts_calls_in_many_row_groups() {
    let trace = trace(&NAMES, &[&busy(1000, 40_000), &busy(1500, 200)]);
    let Some(read) = read(&trace) else { return };
    let calls = json!([
        {"function": "a", "calls": 2},
        {"function": "b", "calls": 40_200},
        {"function": "c", "calls": 40_200},
    ]);
    assert_eq!(read["calls"], calls);
}

#[test]
fn duckdb_reads_an_empty_trace() {
    let empty = Trace::read(file(&[], &[]).as_slice()).unwrap();
    if let Some(read) = read(&empty) {
        assert_eq!(
            (&read["events"], &read["functions"]),
            (&json!([]), &json!([]))
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn duckdb_reads_any_trace(trace in any_trace()) {
        if let Some(read) = read(&trace) {
            let rows = events_as_json(&trace);
            prop_assert_eq!(&read["events"], &Value::Array(rows));
        }
    }
}
