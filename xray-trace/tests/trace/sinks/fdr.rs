//! LLVM's flight data recorder log, read by `llvm-xray`.

use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use xray_trace::analysis::{Filter, Step, Steps, account};
use xray_trace::container::Writer;
use xray_trace::model::{FunctionId, Trace};
use xray_trace::sink::Report;

use super::{NAMES, busy, count_of, export, rich};
use crate::common::{
    Enter, Exit, TailExit, any_events, call, call_with, lost, module, process, thread, trace,
};

/// Runs `llvm-xray` on a log and gives what it prints.
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
    String::from_utf8(output.stdout).unwrap()
}

fn fdr_file(dir: &tempfile::TempDir, trace: &Trace) -> (PathBuf, Report) {
    let path = dir.path().join("log.xray");
    let (bytes, report) = export("fdr", trace);
    std::fs::write(&path, bytes).unwrap();
    (path, report)
}

/// A record as `llvm-xray convert` shows it: id, kind, thread, counter, arguments.
type YamlRecord = (u32, String, u32, u64, Vec<u64>);

fn yaml_records(yaml: &str) -> Vec<YamlRecord> {
    let field = |line: &str, name: &str| {
        let rest = line.split_once(&format!(" {name}: "))?.1;
        Some(rest.split([',', '}']).next()?.trim().to_owned())
    };
    let records = yaml
        .lines()
        .filter(|line| line.contains("func-id:"))
        .map(|line| {
            let args = line
                .split_once("args: [")
                .map(|(_, rest)| rest.split(']').next().unwrap());
            let args = args
                .unwrap_or_default()
                .split(',')
                .filter_map(|arg| arg.trim().parse().ok());
            let number = |name| field(line, name).unwrap().parse::<u64>().unwrap();
            let id = number("func-id") as u32;
            let kind = field(line, "kind").unwrap();
            (
                id,
                kind,
                number("thread") as u32,
                number("tsc"),
                args.collect(),
            )
        });
    records.collect()
}

/// The same records, from the trace.
fn expected_records(trace: &Trace) -> Vec<YamlRecord> {
    use xray_trace::analysis::Ending;
    let mut records = Vec::new();
    for steps in Steps::of_threads(trace) {
        let tid = trace.thread(steps.thread()).unwrap().tid;
        let id = |function: FunctionId| trace.function(function).map(|known| known.xray_id);
        for step in steps {
            match step {
                Step::Enter(open) => {
                    let Some(id) = id(open.function) else {
                        continue;
                    };
                    let kind = if open.arg.is_some() { "-arg" } else { "" };
                    let args = open.arg.into_iter().collect();
                    records.push((id, format!("function-enter{kind}"), tid, open.start.0, args));
                }
                Step::Leave(call) => {
                    let Some(id) = id(call.open.function) else {
                        continue;
                    };
                    let kind = if call.how == Ending::TailExit {
                        "-tail"
                    } else {
                        ""
                    };
                    let kind = format!("function{kind}-exit");
                    records.push((id, kind, tid, call.end.0, Vec::new()));
                }
                Step::Data(_) | Step::Lost { .. } => {}
            }
        }
    }
    records
}

#[test]
fn llvm_xray_reads_every_record_of_the_fdr_export() {
    let first = [
        call(1000, 0, Enter),
        call_with(1100, 1, 0xdead_beef),
        call(1200, 1, TailExit),
        call(1201, 2, Enter),
        call(1300, 2, Exit),
        // Longer than a record's delta has room for.
        call(1300 + (1 << 31), 3, Enter),
        call(1300 + (1 << 40), 3, Exit),
        lost((1 << 40) + 2000, 9),
        call((1 << 40) + 2100, 0, Exit),
    ];
    let second = busy(500, 3000);
    let trace = trace(&NAMES, &[&first, &second]);
    let dir = tempfile::tempdir().unwrap();
    let (log, report) = fdr_file(&dir, &trace);
    let yaml = llvm_xray(&log, &["convert", "--sort=false", "-f", "yaml", "-o", "-"]);
    assert!(
        yaml.contains("cycle-frequency: 1000000000"),
        "{}",
        &yaml[..300]
    );
    let mut read = yaml_records(&yaml);
    let mut expected = expected_records(&trace);
    // Which thread comes first is the reader's affair.
    read.sort_by_key(|record| record.2);
    expected.sort_by_key(|record| record.2);
    assert_eq!(read.len(), expected.len());
    assert_eq!(read, expected);
    assert_eq!(report.calls, 4 + 1 + 6000);
    let left_out = report
        .left_out
        .iter()
        .map(|(_, count)| *count)
        .collect::<Vec<_>>();
    assert_eq!(left_out, [1, 1, 9], "{:?}", report.left_out);
}

#[test]
fn llvm_xray_account_agrees_with_our_table() {
    let trace = trace(&NAMES, &[&busy(1000, 20_000)]);
    let dir = tempfile::tempdir().unwrap();
    let (log, report) = fdr_file(&dir, &trace);
    assert_eq!(
        (report.calls, report.left_out.as_slice()),
        (40_001, [].as_slice())
    );
    let csv = llvm_xray(&log, &["account", "-f", "csv", "-o", "-"]);
    check_account(&csv, &trace);
}

/// `account` wants all records in one order of time. Several threads go through YAML, which `convert` sorts, and which
/// is only read back as version 1.
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

/// Records in one order of time: `account` takes several threads as they are.
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
        assert_eq!((report.calls, report.left_out), (4020, Vec::new()));
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
    assert_eq!(count_of(&report, "no text"), 1, "{report:?}");
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
        "that were not seen",
        "custom",
        "lost events",
        "an entry",
        "processor",
        "began before",
    ];
    let counts = counts.map(|words| count_of(&report, words));
    assert_eq!(
        (report.calls, counts),
        (5, [1, 3, 9, 0, 1, 1]),
        "{report:?}"
    );
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
        // Seven digits are printed.
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
    writer.process(&process(0)).unwrap();
    for id in 0..18 {
        writer.module(&module(id, 0)).unwrap();
        writer
            .function(&crate::common::function(id, id, "f"))
            .unwrap();
    }
    let mut great = crate::common::function(18, 0, "great");
    great.xray_id = 1 << 24;
    writer.function(&great).unwrap();
    writer.thread(&thread(0, 0)).unwrap();
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
    let yaml = llvm_xray(&log, &["convert", "-f", "yaml", "-o", "-"]);
    let ids = yaml_records(&yaml)
        .iter()
        .step_by(2)
        .map(|record| record.0)
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
        (16, vec![3, 1, 40]),
        "{:?}",
        report.left_out
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn llvm_xray_reads_the_fdr_export_of_any_trace(events in any_events(1..60)) {
        let trace = trace(&NAMES, &[&events]);
        let expected = expected_records(&trace);
        let dir = tempfile::tempdir().unwrap();
        let (log, report) = fdr_file(&dir, &trace);
        if expected.is_empty() {
            prop_assert_eq!(report.calls, 0);
        } else {
            let yaml = llvm_xray(&log, &["convert", "--sort=false", "-f", "yaml", "-o", "-"]);
            prop_assert_eq!(yaml_records(&yaml), expected);
        }
    }

    #[test]
    fn llvm_xray_reads_the_basic_log_and_the_yaml_of_any_trace(
        threads in proptest::collection::vec(any_events(1..60), 1..4),
    ) {
        let slices = threads.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let trace = trace(&NAMES, &slices);
        let mut expected = expected_records(&trace);
        let dir = tempfile::tempdir().unwrap();
        for log in [basic_file(&dir, &trace).0, yaml_file(&dir, &trace).0] {
            if expected.is_empty() {
                continue;
            }
            let yaml = llvm_xray(&log, &["convert", "--sort=false", "-f", "yaml", "-o", "-"]);
            let mut read = yaml_records(&yaml);
            prop_assert!(read.is_sorted_by_key(|record| record.3));
            read.sort_by_key(|record| record.2);
            expected.sort_by_key(|record| record.2);
            prop_assert_eq!(&read, &expected);
        }
    }
}
