//! LLVM's flight data recorder log, read by `llvm-xray`.

use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use xray_trace::analysis::{Ending, Filter, Step, Steps, account};
use xray_trace::container::Writer;
use xray_trace::llvm::Mode;
use xray_trace::llvm::yaml::{Kind, Reader};
use xray_trace::model::{DataKind, Event, EventBody, FunctionId, Ticks, Trace};
use xray_trace::sink::Report;

use super::{NAMES, busy, count_of, export, rich};
use crate::any_trace::any_trace;
use crate::common::{
    Enter, Exit, TailExit, call, call_of, call_with, lost, module, process, thread, trace,
};
use crate::runs::with_runs;

/// Runs `llvm-xray` on a log, and returns its output.
fn llvm_xray(log: &Path, args: &[&str]) -> String {
    let output = Command::new("llvm-xray-19").args(args).arg(log).output();
    let output = output.unwrap_or_else(|error| {
        panic!("cannot run llvm-xray-19 ({error}): install the Debian package llvm-19")
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "llvm-xray-19 {args:?}: {errors}"
    );
    // `llvm-xray` prints user events byte by byte.
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn fdr_file(dir: &tempfile::TempDir, trace: &Trace) -> (PathBuf, Report) {
    let path = dir.path().join("log.xray");
    let (bytes, report) = export("fdr", trace);
    std::fs::write(&path, bytes).unwrap();
    (path, report)
}

/// A record of `llvm-xray convert`: thread, process, counter, kind, function or type, arguments or
/// data, processor.
type YamlRecord = (u32, u32, u64, Kind, u32, String, u16);

/// The records that `llvm-xray convert` prints for a log.
fn converted(log: &Path) -> Vec<YamlRecord> {
    let yaml = llvm_xray(log, &["convert", "--sort=false", "-f", "yaml", "-o", "-"]);
    let reader = Reader::new(std::io::Cursor::new(yaml), Mode::Strict).unwrap();
    assert_eq!(reader.header().cycle_frequency, 1_000_000_000);
    let records = reader.map(|record| {
        let record = record.unwrap();
        let (number, rest) = match record.kind {
            // LLVM repeats the function and the type of the previous event.
            Kind::Custom => (0, text_of(&record.data)),
            Kind::Typed => (record.record_type.into(), text_of(&record.data)),
            _ => (
                record.function_id.cast_unsigned(),
                format!("{:?}", record.args),
            ),
        };
        let (thread, process, cpu) = (record.thread, record.process, record.cpu);
        (thread, process, record.tsc, record.kind, number, rest, cpu)
    });
    records.collect()
}

/// The part of a user event's data that `llvm-xray` prints: up to the first byte that is not text.
fn text_of(data: &[u8]) -> String {
    let text = String::from_utf8_lossy(data);
    text.split('\u{fffd}').next().unwrap_or_default().to_owned()
}

/// The same records, from the trace. `said` returns the text of a user event in the format, if the
/// format has it.
fn expected_records(
    trace: &Trace,
    user_event: impl Fn(&[u8]) -> Option<String>,
) -> Vec<YamlRecord> {
    let mut records = Vec::new();
    for mut steps in Steps::of_threads(trace) {
        let thread = trace.thread(steps.thread()).unwrap();
        let pid = trace.process(thread.process).unwrap().pid;
        let id = |function: FunctionId| {
            let known = trace.function(function)?;
            Some(known.module.0 << 24 | known.xray_id)
        };
        while let Some(step) = steps.next() {
            let (ticks, kind, number, rest) = match step {
                Step::Enter(open) => {
                    let Some(id) = id(open.function) else {
                        continue;
                    };
                    let kind = if !open.args.is_empty() {
                        Kind::EnterArg
                    } else {
                        Kind::Enter
                    };
                    (
                        open.start,
                        kind,
                        id,
                        format!("{:?}", open.args.first().as_slice()),
                    )
                }
                Step::Leave(call) => {
                    let Some(id) = id(call.open.function) else {
                        continue;
                    };
                    let tail = call.how == Ending::TailExit;
                    let kind = if tail { Kind::TailExit } else { Kind::Exit };
                    (call.end, kind, id, "[]".to_owned())
                }
                Step::Data(event) => {
                    let Some(text) = user_event(steps.data(&event)) else {
                        continue;
                    };
                    match event.kind {
                        DataKind::Custom => (event.ticks, Kind::Custom, 0, text),
                        DataKind::Kernel(_) => unreachable!("the trace has none"),
                        DataKind::Typed(number) => (event.ticks, Kind::Typed, number.into(), text),
                    }
                }
                Step::Lost { .. } => continue,
            };
            let cpu = steps.processor().unwrap_or(0);
            records.push((thread.tid, pid, ticks.0, kind, number, rest, cpu));
        }
    }
    records
}

/// Checks that `llvm-xray` finds the expected records. Returns whether all of them are in one order
/// of time. The order of threads with equal times is up to `llvm-xray`.
fn check_records(log: &Path, mut expected: Vec<YamlRecord>) -> bool {
    // `llvm-xray` rejects an empty log.
    if expected.is_empty() {
        return true;
    }
    let mut read = converted(log);
    let by_time = read.is_sorted_by_key(|record| record.2);
    read.sort_by_key(|record| record.0);
    expected.sort_by_key(|record| record.0);
    assert_eq!(read, expected);
    by_time
}

/// The text of a user event in a flight data recorder log, which cannot have empty ones.
fn in_a_flight_log(data: &[u8]) -> Option<String> {
    (!data.is_empty()).then(|| text_of(data))
}

#[test]
fn llvm_xray_reads_every_record_of_the_fdr_export() {
    let first = [
        call(1000, 0, Enter),
        call_with(1100, 1, 0xdead_beef),
        call(1200, 1, TailExit),
        call(1201, 2, Enter),
        call(1300, 2, Exit),
        // Longer than the greatest delta of a record.
        call(1300 + (1 << 31), 3, Enter),
        call(1300 + (1 << 40), 3, Exit),
        lost((1 << 40) + 2000, 9),
        call((1 << 40) + 2100, 0, Exit),
    ];
    let second = busy(500, 3000);
    let trace = trace(&NAMES, &[&first, &second]);
    let dir = tempfile::tempdir().unwrap();
    let (log, report) = fdr_file(&dir, &trace);
    check_records(&log, expected_records(&trace, in_a_flight_log));
    assert_eq!(report.calls, 4 + 1 + 6000);
    let left_out = report
        .left_out
        .iter()
        .map(|(_, count)| *count)
        .collect::<Vec<_>>();
    assert_eq!(left_out, [1, 1, 12_010, 9], "{:?}", report.left_out);
    assert_eq!(count_of(&report, "processors of records"), 12_010);
}

#[test]
fn llvm_xray_account_agrees_with_our_table() {
    let trace = trace(&NAMES, &[&busy(1000, 20_000)]);
    let dir = tempfile::tempdir().unwrap();
    let (log, report) = fdr_file(&dir, &trace);
    let unknown = count_of(&report, "processors of records");
    assert_eq!(
        (report.calls, unknown, report.left_out.len()),
        (40_001, 80_002, 1)
    );
    let csv = llvm_xray(&log, &["account", "-f", "csv", "-o", "-"]);
    check_account(&csv, &trace);
}

/// `account` needs all records in one order of time. Several threads go through YAML, which
/// `convert` sorts, and which is only read back as version 1.
#[test]
fn llvm_xray_account_agrees_for_several_threads() {
    let threads = (0..20)
        .map(|thread| busy(1000 + thread * 77, 100))
        .collect::<Vec<_>>();
    let slices = threads.iter().map(Vec::as_slice).collect::<Vec<_>>();
    let trace = trace(&NAMES, &slices);
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = fdr_file(&dir, &trace);
    let yaml = llvm_xray(&log, &["convert", "-f", "yaml", "-o", "-"]);
    let path = dir.path().join("log.yaml");
    std::fs::write(&path, yaml.replacen("version:         5", "version: 1", 1)).unwrap();
    check_account(
        &llvm_xray(&path, &["account", "-f", "csv", "-o", "-"]),
        &trace,
    );
}

fn basic_file(dir: &tempfile::TempDir, trace: &Trace) -> (PathBuf, Report) {
    let path = dir.path().join("log.basic");
    let (bytes, report) = export("basic", trace);
    std::fs::write(&path, bytes).unwrap();
    (path, report)
}

/// With records in one order of time, `account` accepts several threads.
#[test]
fn llvm_xray_account_agrees_on_the_basic_log_and_the_yaml_of_several_threads() {
    let threads = (0..20)
        .map(|thread| busy(1000 + thread * 77, 100))
        .collect::<Vec<_>>();
    let slices = threads.iter().map(Vec::as_slice).collect::<Vec<_>>();
    let trace = trace(&NAMES, &slices);
    for file in [basic_file, yaml_file] {
        let dir = tempfile::tempdir().unwrap();
        let (log, report) = file(&dir, &trace);
        let unknown = count_of(&report, "processors of records");
        let left_out = report.left_out.len();
        assert_eq!((report.calls, unknown, left_out), (4020, 8040, 1));
        check_account(
            &llvm_xray(&log, &["account", "-f", "csv", "-o", "-"]),
            &trace,
        );
    }
}

#[test]
fn yaml_has_events_of_the_programs_own() {
    let (bytes, report) = export("yaml", &rich());
    let text = String::from_utf8(bytes).unwrap();
    for expected in [
        "kind: custom-event, tsc: 2500",
        "type: 7",
        "args: [ 18446744073709551615 ]",
    ] {
        assert!(text.contains(expected), "{expected} is missing:\n{text}");
    }
    assert_eq!(count_of(&report, "not text"), 1, "{report:?}");
}

fn yaml_file(dir: &tempfile::TempDir, trace: &Trace) -> (PathBuf, Report) {
    let path = dir.path().join("log.yaml");
    let (bytes, report) = export("yaml", trace);
    std::fs::write(&path, bytes).unwrap();
    (path, report)
}

#[test]
fn the_basic_log_tells_what_it_leaves_out() {
    let (_, report) = export("basic", &rich());
    let counts = [
        "missing exits",
        "custom",
        "lost events",
        "an entry",
        "processors of records",
        "began before",
    ];
    let counts = counts.map(|words| count_of(&report, words));
    assert_eq!(
        (report.calls, counts),
        (5, [1, 4, 9, 0, 4, 1]),
        "{report:?}"
    );
}

#[test]
fn values_of_calls_that_are_left_out_are_not_counted_again() {
    let events = [
        call_of(1000, 0, Enter, &[1, 2]),
        // The trace does not have this function.
        call_of(1100, 99, Enter, &[3, 4, 5]),
        call_of(1200, 99, Exit, &[6]),
        call(1300, 0, Exit),
    ];
    let trace = trace(&NAMES, &[&events]);
    for format in ["fdr", "basic", "yaml"] {
        let (_, report) = export(format, &trace);
        let counts = ["arguments of calls after", "does not describe"];
        let counts = counts.map(|words| count_of(&report, words));
        assert_eq!((report.calls, counts), (1, [1, 1]), "{format}: {report:?}");
    }
}

#[test]
fn processors_are_said_and_those_that_are_not_are_reported() {
    let on = |ticks, cpu| Event {
        ticks: Ticks(ticks),
        body: EventBody::Cpu { cpu },
    };
    let events = [
        on(10, 3),
        call(1000, 0, Enter),
        on(1500, 700),
        call(2000, 1, Enter),
        call(3000, 1, Exit),
        // No record reflects the first of them.
        on(3001, 5),
        on(3002, 6),
        call(4000, 0, Exit),
        on(5000, 7),
    ];
    let trace = trace(&NAMES, &[&events]);
    let dir = tempfile::tempdir().unwrap();
    let (log, report) = fdr_file(&dir, &trace);
    assert_eq!(count_of(&report, "processors on which"), 2, "{report:?}");
    let dump = llvm_xray(&log, &["fdr-dump"]);
    let user_event = dump.lines().filter(|line| line.contains("CPU: id"));
    let expected = [
        "<CPU: id = 0, tsc = 10>",
        "<CPU: id = 3, tsc = 1000>",
        "<CPU: id = 700, tsc = 2000>",
        "<CPU: id = 6, tsc = 4000>",
    ];
    assert_eq!(user_event.collect::<Vec<_>>(), expected, "{dump}");
    let (_, report) = export("yaml", &trace);
    assert_eq!(count_of(&report, "processors on which"), 2, "{report:?}");
    let (_, report) = export("basic", &trace);
    assert_eq!(count_of(&report, "processors on which"), 2, "{report:?}");
    assert_eq!(count_of(&report, "processors above 255"), 2, "{report:?}");
}

/// Run times show the processor of each record in their time.
#[test]
fn processors_are_those_of_run_times() {
    let trace = with_runs();
    let dir = tempfile::tempdir().unwrap();
    let (log, report) = fdr_file(&dir, &trace);
    assert_eq!(count_of(&report, "processors of records"), 2, "{report:?}");
    let dump = llvm_xray(&log, &["fdr-dump"]);
    let changes = dump.lines().filter(|line| line.contains("CPU: id"));
    let expected = [
        "<CPU: id = 0, tsc = 100>",
        "<CPU: id = 3, tsc = 100>",
        "<CPU: id = 0, tsc = 950>",
    ];
    assert_eq!(changes.collect::<Vec<_>>(), expected, "{dump}");
    let (log, report) = export("basic", &trace);
    assert_eq!(count_of(&report, "processors of records"), 2, "{report:?}");
    let processors: Vec<u8> = log[32..].chunks(32).map(|record| record[2]).collect();
    assert_eq!(processors, [3, 3, 3, 3, 0, 0]);
    let (text, report) = export("yaml", &trace);
    assert_eq!(count_of(&report, "processors of records"), 2, "{report:?}");
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text.matches("cpu: 3,").count(), 4, "{text}");
}

fn check_account(csv: &str, trace: &Trace) {
    let table = account(trace, &Filter::default(), Default::default());
    assert_eq!(csv.lines().count(), table.rows.len() + 1, "{csv}");
    for row in &table.rows {
        let id = trace
            .function(row.subject.function().unwrap())
            .unwrap()
            .xray_id;
        let line = csv
            .lines()
            .find(|line| line.starts_with(&format!("{id},")))
            .unwrap();
        let fields = line.split(',').collect::<Vec<_>>();
        let ns = |at: usize| fields[at].parse::<f64>().unwrap() * 1e9;
        let durations = row.durations.unwrap();
        assert_eq!(fields[1].parse(), Ok(row.calls), "{line}");
        // `llvm-xray` prints seven digits.
        let near = |found: f64, ours: u64, tolerance: f64| {
            let off = (found - ours as f64).abs();
            assert!(
                off <= ours as f64 * tolerance + 1.0,
                "{found} and {ours}: {line}"
            );
        };
        near(ns(2), durations.min_ns, 1e-6);
        near(ns(3), durations.median_ns, 0.01);
        near(ns(5), durations.p99_ns, 0.01);
        near(ns(6), durations.max_ns, 1e-6);
        near(ns(7), row.total_ns, 1e-6);
    }
}

#[test]
fn functions_of_libraries_have_their_object_in_the_upper_bits() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.add(&process(0)).unwrap();
    for id in 0..18 {
        writer.add(&module(id, 0)).unwrap();
        writer.add(&crate::common::function(id, id, "f")).unwrap();
    }
    let mut great = crate::common::function(18, 0, "great");
    great.xray_id = 1 << 24;
    writer.add(&great).unwrap();
    writer.add(&thread(0, 0)).unwrap();
    let events = (0..20)
        .flat_map(|id| [call(0, id, Enter), call(0, id, Exit)])
        .collect::<Vec<_>>();
    for block in crate::common::blocks(0, &events, 100)
        .iter()
        .chain(&crate::common::blocks(5, &events, 100))
    {
        writer.block(block).unwrap();
    }
    let trace = Trace::read(writer.into_inner().as_slice()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (log, report) = fdr_file(&dir, &trace);
    let ids = converted(&log)
        .iter()
        .step_by(2)
        .map(|record| record.4)
        .collect::<Vec<_>>();
    let expected = (0..16)
        .map(|object| object << 24 | (object + 1))
        .collect::<Vec<_>>();
    assert_eq!(ids, expected);
    let left_out = report
        .left_out
        .iter()
        .map(|(_, count)| *count)
        .collect::<Vec<_>>();
    assert_eq!(
        (report.calls, left_out),
        (16, vec![3, 1, 40, 32]),
        "{:?}",
        report.left_out
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn llvm_xray_reads_the_logs_of_any_trace(trace in any_trace()) {
        let dir = tempfile::tempdir().unwrap();
        let (log, _) = fdr_file(&dir, &trace);
        check_records(&log, expected_records(&trace, in_a_flight_log));
        llvm_xray(&log, &["fdr-dump", "--verify"]);
        let (log, _) = basic_file(&dir, &trace);
        let mut expected = expected_records(&trace, |_| None);
        // The records of basic mode have 8 bits for the processor.
        expected.iter_mut().filter(|record| record.6 > 255).for_each(|record| record.6 = 0);
        prop_assert!(check_records(&log, expected));
        let (log, _) = yaml_file(&dir, &trace);
        let expected = expected_records(&trace, |data| Some(text_of(data)));
        prop_assert!(check_records(&log, expected));
    }
}
