//! Logs by LLVM's own runtime, in all three modes: the readers find the calls that the program
//! made.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};

use xray_trace::llvm::fdr::{Body, Events, FunctionKind, Reader};
use xray_trace::llvm::{Mode, basic, profile};

use crate::common::*;
use crate::logged::{Threads, logs};

#[test]
fn fdr_logs_tell_what_the_program_did() {
    for kinds in ["0", "1", "2"] {
        let (_dir, logs) = logs("xray-fdr", kinds, Threads::OneAfterTheOther);
        let [log] = &logs[..] else {
            panic!("{logs:?}");
        };
        let mut events = Events::new(File::open(log).unwrap(), Mode::Strict).unwrap();
        assert_eq!(events.header().version, 5);
        let (all, error) = rest(&mut events);
        assert!(error.is_none(), "{kinds}: {error:?}");
        let mut counts = BTreeMap::<&str, u32>::new();
        for event in &all {
            let what = match &event.body {
                Body::Call { kind, .. } => match kind {
                    FunctionKind::Enter => "enter",
                    FunctionKind::EnterArg => "enter with argument",
                    FunctionKind::Exit => "exit",
                    FunctionKind::TailExit => "tail exit",
                },
                Body::Argument(value) => {
                    assert_eq!(*value, 100);
                    "argument"
                }
                Body::Custom(data) => {
                    assert_eq!(data, b"hello");
                    "custom"
                }
                Body::Typed { event_type, data } => {
                    assert_eq!((*event_type, &data[..]), (0, &b"typed!"[..]));
                    "typed"
                }
            };
            *counts.entry(what).or_default() += 1;
        }
        let mut expected = BTreeMap::from([
            ("enter", 200),
            ("enter with argument", 2),
            ("argument", 2),
            ("exit", 202),
        ]);
        if kinds != "0" {
            expected.insert("custom", 20);
        }
        if kinds == "2" {
            // The runtime omits the last 16 bytes of each buffer for each typed event in it.
            assert_eq!(events.cut(), 2);
            assert!(
                counts["typed"] >= 18 && counts["enter"] >= 160,
                "{counts:?}"
            );
        } else {
            assert_eq!((counts, events.cut()), (expected, 0), "{kinds}");
        }
        let threads = all.iter().map(|event| event.tid).collect::<BTreeSet<_>>();
        assert_eq!(threads.len(), 2);
        let mut last = BTreeMap::new();
        for event in &all {
            assert!(last.insert(event.tid, event.tsc) <= Some(event.tsc));
        }
        if kinds != "2" {
            let bytes = fs::read(log).unwrap();
            let theirs = llvm_xray(&["fdr-dump"], &bytes).unwrap();
            let mut ours = Vec::new();
            let mut reader = Reader::new(&bytes[..], Mode::Strict).unwrap();
            while let Some(item) = reader.next().unwrap() {
                xray_trace::llvm::fdr::print(&item.record, &mut ours).unwrap();
                ours.push(b'\n');
            }
            assert_eq!(String::from_utf8(ours).unwrap(), theirs);
        }
    }
}

#[test]
fn basic_logs_tell_what_the_program_did() {
    let (_dir, logs) = logs("xray-basic", "0", Threads::OneAfterTheOther);
    let [log] = &logs[..] else {
        panic!("{logs:?}");
    };
    let reader = basic::Reader::new(File::open(log).unwrap(), Mode::Strict).unwrap();
    assert_eq!(reader.header().version, 3);
    let (mut enters, mut exits, mut arguments) = (0, 0, 0);
    for record in reader {
        match record.unwrap().1 {
            basic::Record::Function { kind, .. } => match kind {
                FunctionKind::Enter | FunctionKind::EnterArg => enters += 1,
                FunctionKind::Exit | FunctionKind::TailExit => exits += 1,
            },
            basic::Record::Argument { value, .. } => {
                assert_eq!(value, 100);
                arguments += 1;
            }
        }
    }
    assert_eq!((enters, exits, arguments), (202, 202, 2));
}

#[test]
fn profiles_tell_what_the_program_did() {
    let (_dir, logs) = logs("xray-profiling", "0", Threads::AtOnce(2));
    let mut paths = BTreeMap::<Vec<i32>, (u64, BTreeSet<u64>)>::new();
    for log in &logs {
        let mut reader = profile::Reader::new(File::open(log).unwrap(), Mode::Strict).unwrap();
        assert!(reader.header().is_some());
        while let Some(path) = reader.next().unwrap() {
            let known = paths.entry(path.functions.to_vec()).or_default();
            known.0 += path.calls;
            known.1.insert(path.block.thread);
        }
    }
    let depths = paths
        .iter()
        .map(|(path, (calls, threads))| (path.len(), *calls, threads.len()));
    // By depth: `outer`, and `leaf` below it.
    let mut depths = depths.collect::<Vec<_>>();
    depths.sort_unstable();
    assert_eq!(depths, [(1, 2, 2), (2, 200, 2)], "{paths:?}");
}
