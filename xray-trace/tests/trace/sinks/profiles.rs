//! Profiles of XRay's profiling mode: tables, stacks and files of a profile equal those of the
//! trace with the same calls, as far as a profile has the data.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek as _, Write as _};

use proptest::prelude::*;
use serde_json::Value;
use xray_trace::FileAddr;
use xray_trace::analysis::{
    AccountOptions, AccountRow, Filter, GroupBy, Siblings, Side, StackRoots, StackTrie, Step,
    Steps, Subject, account, account_profile,
};
use xray_trace::llvm::ByteOrder;
use xray_trace::llvm::profile::{BlockHeader, FileHeader, write_block, write_file_header};
use xray_trace::model::{Event, Profile, Trace};
use xray_trace::sink;
use xray_trace::source::{KnownFunction, OpenError, Options, open, open_profile};

use super::callgrind::{annotate, expected_edges};
use super::stacks::{expected, read_folded};
use super::{NAMES, export, pprof};
use crate::common::{Enter, Exit, call, trace};

fn options() -> Options {
    let known = |name: &str| KnownFunction {
        symbol: None,
        name: name.to_owned(),
        address: FileAddr(0),
        source: None,
        sleds: 2,
    };
    Options {
        functions: (1..).zip(NAMES.map(known)).collect(),
        objects: vec!["/usr/bin/demo".to_owned()],
        ..Options::default()
    }
}

fn stored(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

/// The file that the runtime would have written: a block for each thread, with paths from the
/// innermost function outwards.
fn bytes(trace: &Trace, headed: bool, order: ByteOrder) -> Vec<u8> {
    let mut bytes = Vec::new();
    if headed {
        let header = FileHeader {
            timestamp: 77,
            pid: 4000,
        };
        write_file_header(&header, order, &mut bytes).unwrap();
    }
    for (number, steps) in (0..).zip(Steps::of_threads(trace)) {
        let thread = trace.thread(steps.thread()).unwrap().tid.into();
        let mut paths = BTreeMap::<Vec<i32>, (u64, u64)>::new();
        let mut stack = Vec::new();
        for step in steps {
            match step {
                Step::Enter(open) => {
                    let id = trace.function(open.function).unwrap().xray_id;
                    stack.insert(0, i32::try_from(id).unwrap());
                }
                Step::Leave(call) => {
                    let sum = paths.entry(stack.clone()).or_default();
                    *sum = (sum.0 + 1, sum.1 + call.self_ns);
                    stack.remove(0);
                }
                Step::Data(_) | Step::Lost { .. } => {}
            }
        }
        let paths = paths
            .iter()
            .map(|(path, (calls, ticks))| (&path[..], *calls, *ticks));
        write_block(BlockHeader { number, thread }, paths, order, &mut bytes).unwrap();
    }
    bytes
}

fn profile(trace: &Trace) -> Profile {
    let file = stored(&bytes(trace, true, ByteOrder::Little));
    open_profile(file, &options()).unwrap().profile
}

fn export_profile(name: &str, profile: &Profile) -> Vec<u8> {
    let mut output = Vec::new();
    let format = sink::by_name(name).unwrap();
    let report = format.of_profile().unwrap().write(profile, &mut output);
    let calls = profile.stacks().iter().map(|stack| stack.calls).sum();
    let report = report.unwrap();
    assert_eq!((report.calls, report.left_out), (calls, Vec::new()));
    output
}

/// Calls of one thread that begin and end: each step enters a function or leaves one.
fn any_calls() -> impl Strategy<Value = Vec<Event>> {
    proptest::collection::vec((0..12_u32, 0..1000_u64), 0..80).prop_map(|steps| {
        let (mut now, mut open, mut events) = (0, Vec::new(), Vec::new());
        for (function, after) in steps {
            now += after;
            match open.pop_if(|_| function >= 8) {
                Some(left) => events.push(call(now, left, Exit)),
                None => {
                    open.push(function % 8);
                    events.push(call(now, function % 8, Enter));
                }
            }
        }
        events.extend(open.into_iter().rev().map(|left| call(now + 5, left, Exit)));
        events
    })
}

fn any_trace() -> impl Strategy<Value = Trace> {
    proptest::collection::vec(any_calls(), 1..4).prop_map(|threads| {
        let slices = threads.iter().map(Vec::as_slice).collect::<Vec<_>>();
        trace(&NAMES, &slices)
    })
}

/// The figures of each subject in a table, by a number that both kinds of file have: calls, total,
/// self, sum.
fn rows(tables: &Trace, rows: &[AccountRow]) -> BTreeMap<u32, [u64; 4]> {
    let row = |row: &AccountRow| {
        let number = match row.subject {
            Subject::Function(id) => tables.function(id).unwrap().xray_id,
            Subject::Thread(id) => tables.thread(id).unwrap().tid,
            Subject::Process(id) => tables.process(id.unwrap()).unwrap().pid,
            Subject::Module(id) => id.unwrap().0,
        };
        (number, [row.calls, row.total_ns, row.self_ns, row.sum_ns])
    };
    rows.iter().map(row).collect()
}

/// Calls, total and self time of each stack, by its names.
fn by_path(stacks: &StackTrie) -> BTreeMap<Vec<&str>, [u64; 3]> {
    let nodes = stacks.nodes().iter().enumerate().map(|(at, node)| {
        let counts = node.counts[0];
        (
            stacks.path(at),
            [counts.calls, counts.total_ns, counts.self_ns],
        )
    });
    // Only stacks with functions. The threads above them have no calls.
    nodes.filter(|(_, counts)| counts[0] > 0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_table_is_that_of_the_trace(trace in any_trace()) {
        let profile = profile(&trace);
        let filter = Filter::default();
        for by in [GroupBy::Function, GroupBy::Thread, GroupBy::Process, GroupBy::Module] {
            let options = AccountOptions { by, ..AccountOptions::default() };
            let expected = account(&trace, &filter, options);
            let found = account_profile(&profile, &filter, by);
            prop_assert!(found.rows.iter().all(|row| row.durations.is_none()));
            prop_assert_eq!(rows(profile.tables(), &found.rows), rows(&trace, &expected.rows));
        }
    }

    #[test]
    fn the_table_of_some_functions_is_that_of_the_trace(trace in any_trace()) {
        let profile = profile(&trace);
        let options = AccountOptions::default();
        let filter = |trace| Filter {
            functions: Some(Filter::matching_functions(trace, "[a-c]").unwrap()),
            threads: Some(Filter::matching_threads(trace, "5000").unwrap()),
            ..Filter::default()
        };
        let expected = account(&trace, &filter(&trace), options);
        let tables = profile.tables();
        let found = account_profile(&profile, &filter(tables), options.by);
        prop_assert_eq!(rows(tables, &found.rows), rows(&trace, &expected.rows));
    }

    #[test]
    fn stacks_are_those_of_the_trace(trace in any_trace(), some in any::<bool>()) {
        let profile = profile(&trace);
        let filter = |tables| Filter {
            functions: some.then(|| Filter::matching_functions(tables, "b").unwrap()),
            ..Filter::default()
        };
        for roots in [StackRoots::Together, StackRoots::PerThread] {
            let (mut expected, mut found) = (StackTrie::default(), StackTrie::default());
            expected.add(&trace, &filter(&trace), Siblings::Closed, roots, Side::Before);
            found.add_profile(&profile, &filter(profile.tables()), roots, Side::Before);
            prop_assert_eq!(by_path(&found), by_path(&expected));
        }
    }

    #[test]
    fn folded_stacks_and_speedscope_have_what_the_trace_has(trace in any_trace()) {
        let profile = profile(&trace);
        let folded = |bytes| {
            let mut lines = read_folded(bytes);
            lines.sort();
            lines
        };
        let expected_lines = folded(export("folded", &trace).0);
        prop_assert_eq!(folded(export_profile("folded", &profile)), expected_lines);

        let json: Value = serde_json::from_slice(&export_profile("speedscope", &profile)).unwrap();
        let mut times = BTreeMap::<String, u64>::new();
        for thread in json["profiles"].as_array().unwrap() {
            let (samples, weights) = (&thread["samples"], &thread["weights"]);
            let weights = weights.as_array().unwrap().iter().map(|weight| weight.as_u64().unwrap());
            let weights = weights.collect::<Vec<_>>();
            prop_assert_eq!(thread["endValue"].as_u64(), Some(weights.iter().sum()));
            for (stack, weight) in samples.as_array().unwrap().iter().zip(weights) {
                let innermost = stack.as_array().unwrap().last().unwrap().as_u64().unwrap();
                let frame = &json["shared"]["frames"][usize::try_from(innermost).unwrap()];
                *times.entry(frame["name"].as_str().unwrap().to_owned()).or_default() += weight;
            }
        }
        let expected = expected(&trace).into_iter().filter(|(_, (_, ns))| *ns > 0);
        prop_assert_eq!(times, expected.map(|(name, (_, ns))| (name, ns)).collect());
    }
}

fn demo() -> Trace {
    let thread = |start: u64| {
        [
            call(start, 0, Enter),
            call(start + 10, 1, Enter),
            call(start + 20, 0, Enter),
            call(start + 120, 0, Exit),
            call(start + 150, 1, Exit),
            call(start + 1000, 0, Exit),
            call(start + 1000, 2, Enter),
            call(start + 1007, 2, Exit),
        ]
    };
    trace(&NAMES, &[&thread(100), &thread(300)])
}

#[test]
fn callgrind_annotate_and_pprof_agree() {
    let trace = demo();
    let profile = profile(&trace);
    assert_eq!(
        annotate(&export_profile("callgrind", &profile)),
        (expected(&trace), expected_edges(&trace))
    );
    let (stacks, _) = pprof::raw(&export_profile("pprof", &profile));
    assert_eq!(stacks, pprof::expected(&trace));
}

#[test]
fn csv_has_a_row_for_each_stack() {
    let text = String::from_utf8(export_profile("csv", &profile(&demo()))).unwrap();
    let rows = text.lines().collect::<Vec<_>>();
    assert_eq!(rows.len(), 1 + 2 * 4);
    assert!(
        rows.contains(&"4000,5001,1,100,0,a,/usr/bin/demo,a;b;a"),
        "{text}"
    );
}

#[test]
fn formats_of_events_have_no_place_for_sums() {
    let formats = sink::FORMATS.iter();
    let formats = formats.filter(|format| format.of_profile().is_some());
    let names = formats.map(sink::Format::name).collect::<Vec<_>>();
    assert_eq!(
        names,
        [
            "speedscope",
            "folded",
            "pprof",
            "callgrind",
            "profile",
            "csv"
        ]
    );
}

/// In the form for LLVM's loader, which reads one path from each block. A trace and the profile of
/// the same calls give the same file.
#[test]
fn a_profile_for_llvms_loader_is_read_back() {
    let trace = demo();
    let of_trace = export("profile", &trace).0;
    let original = profile(&trace);
    let sums = |profile: &Profile| {
        let path = |mut at: usize| {
            let mut path = Vec::new();
            loop {
                let stack = &profile.stacks()[at];
                path.push(profile.tables().function_name(stack.function).into_owned());
                match stack.caller {
                    Some(caller) => at = caller,
                    None => return path,
                }
            }
        };
        let stacks = profile.stacks().iter().enumerate();
        let sums = stacks.map(|(at, stack)| {
            let thread = profile.tables().thread(stack.thread).unwrap().tid;
            ((thread, path(at)), (stack.calls, stack.self_ns))
        });
        sums.collect::<BTreeMap<_, _>>()
    };
    assert_eq!(sums(&original).len(), 8);
    for bytes in [of_trace, export_profile("profile", &original)] {
        let blocks = xray_trace::llvm::profile::Reader::new(&*bytes, Default::default());
        let mut blocks = blocks.unwrap();
        let mut numbers = Vec::new();
        while let Some(path) = blocks.next().unwrap() {
            numbers.push(path.block.number);
        }
        assert_eq!(numbers, (0..8).collect::<Vec<_>>());
        let read = open_profile(stored(&bytes), &options()).unwrap().profile;
        assert_eq!(sums(&read), sums(&original));
    }
}

#[test]
fn both_layouts_and_byte_orders_say_the_same() {
    let trace = demo();
    let expected = profile(&trace);
    for (headed, order) in [
        (true, ByteOrder::Big),
        (false, ByteOrder::Little),
        (false, ByteOrder::Big),
    ] {
        let bytes = bytes(&trace, headed, order);
        assert!(matches!(
            open(stored(&bytes), &options()),
            Err(OpenError::Profile)
        ));
        let opened = open_profile(stored(&bytes), &options()).unwrap();
        assert_eq!(opened.profile.stacks(), expected.stacks());
        assert_eq!(opened.written_wall_ns, headed.then_some(77));
    }
}

#[test]
fn a_malformed_profile_is_refused() {
    let xtrace = export("xtrace", &demo()).0;
    let error = open_profile(stored(&xtrace), &options()).unwrap_err();
    assert!(matches!(error, OpenError::NoProfile), "{error}");
    let whole = bytes(&demo(), true, ByteOrder::Little);
    let error = open_profile(stored(&whole[..whole.len() - 3]), &options()).unwrap_err();
    assert!(matches!(error, OpenError::Llvm(_)), "{error}");
}

/// A path with as many functions as the most stacks: neither time nor memory grows with the square
/// of its length.
#[test]
fn a_deep_path_is_no_trouble_and_a_wide_profile_is_refused() {
    let path = |len: i32, first: i32| (first..first + len).collect::<Vec<_>>();
    let block = |paths: &[Vec<i32>]| {
        let mut bytes = Vec::new();
        let header = BlockHeader {
            number: 0,
            thread: 1,
        };
        let paths = paths.iter().map(|path| (&path[..], 1, 1));
        write_block(header, paths, ByteOrder::Little, &mut bytes).unwrap();
        bytes
    };
    let deep = open_profile(stored(&block(&[path(100_000, 1)])), &Options::default());
    let deep = deep.unwrap().profile;
    let table = account_profile(&deep, &Filter::default(), GroupBy::Function);
    assert_eq!((table.rows.len(), table.rows[0].calls), (1, 1));
    let folded = export_deep(&deep);
    assert!(folded < 100_000, "{folded} bytes");

    let wide = [path(1 << 19, 1), path(1 << 19, 1 << 20), path(1, 1 << 21)];
    let error = open_profile(stored(&block(&wide)), &Options::default()).unwrap_err();
    assert!(
        error.to_string().contains("more than 1048576 different"),
        "{error}"
    );
}

fn export_deep(profile: &Profile) -> usize {
    let mut output = Vec::new();
    let folded = sink::by_name("folded").unwrap();
    let report = folded.of_profile().unwrap().write(profile, &mut output);
    assert_eq!(report.unwrap().left_out.len(), 1);
    output.len()
}
