//! Logs by LLVM's own runtime, of all three modes: what the program did is what is read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;
use xray_trace::llvm::fdr::{Body, Events, FunctionKind, Reader};
use xray_trace::llvm::{Mode, basic, profile};

use crate::common::*;

/// Two threads, which have ended when the log is written: of others, basic mode may write nothing. In each, `outer` calls `leaf` a hundred times, with an event of its own now and then.
const PROGRAM: &str = r#"
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <xray/xray_interface.h>
#include <xray/xray_log_interface.h>

static size_t type;

[[clang::xray_always_instrument, gnu::noinline]] void leaf(int i) {
  asm volatile("" ::"r"(i) : "memory");
}
[[clang::xray_always_instrument, clang::xray_log_args(1), gnu::noinline]] void outer(long n, int events) {
  for (long i = 0; i < n; i++) {
    if (i % 10 == 0 && events > 0)
      __xray_customevent("hello", 5);
    if (i % 10 == 5 && events > 1)
      __xray_typedevent(type, "typed!", 6);
    leaf(int(i));
  }
}
int main(int argc, char **argv) {
  std::string options = "func_duration_threshold_us=0";
  if (!strcmp(argv[1], "xray-fdr"))
    options += ":buffer_size=4096";
  if (!strcmp(argv[1], "xray-profiling"))
    options = "no_flush=false";
  int events = atoi(argv[2]);
  type = __xray_register_event_type("a type");
  if (__xray_log_select_mode(argv[1]) != XRAY_REGISTRATION_OK) return 1;
  if (__xray_log_init_mode(argv[1], options.c_str()) != XRAY_LOG_INITIALIZED) return 2;
  __xray_patch();
  for (int i = 0; i < 2; i++)
    std::thread([&] { outer(100, events); }).join();
  if (__xray_log_finalize() != XRAY_LOG_FINALIZED) return 3;
  if (__xray_log_flushLog() != XRAY_LOG_FLUSHED) return 4;
  return 0;
}
"#;

/// The program, compiled once for all tests.
fn program() -> &'static Path {
    static PROGRAM_DIR: OnceLock<TempDir> = OnceLock::new();
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let dir = PROGRAM_DIR
            .get_or_init(|| tempfile::tempdir().unwrap())
            .path();
        fs::write(dir.join("logged.cpp"), PROGRAM).unwrap();
        // At -O1 the stack is not aligned as LLVM 19's trampoline for typed events needs it, which crashes.
        let output = Command::new("clang++-19")
            .current_dir(dir)
            .args([
                "-O2",
                "-fxray-instrument",
                "-fxray-instruction-threshold=1000000",
            ])
            .args([
                "-fxray-ignore-loops",
                "-fxray-modes=xray-basic,xray-fdr,xray-profiling",
            ])
            .args(["-pthread", "-o", "logged", "logged.cpp"])
            .output()
            .unwrap_or_else(|error| panic!("cannot run clang++-19: {error}"));
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        dir.join("logged")
    })
}

/// Runs the program in a mode, with events of one or both kinds, and gives its logs.
fn logs(mode: &str, events: &str) -> (TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let options = format!(
        "xray_logfile_base={}/log. patch_premain=false",
        dir.path().display()
    );
    let status = Command::new(program())
        .args([mode, events])
        .env("XRAY_OPTIONS", options)
        .status()
        .unwrap();
    assert!(status.success(), "{mode}: {status}");
    let entries = fs::read_dir(dir.path()).unwrap();
    let mut logs = entries
        .map(|entry| entry.unwrap().path())
        .collect::<Vec<_>>();
    logs.sort();
    (dir, logs)
}

#[test]
fn fdr_logs_tell_what_the_program_did() {
    for kinds in ["0", "1", "2"] {
        let (_dir, logs) = logs("xray-fdr", kinds);
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
            // Of each buffer the runtime leaves out the last 16 bytes for each typed event in it.
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
    let (_dir, logs) = logs("xray-basic", "0");
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
    let (_dir, logs) = logs("xray-profiling", "0");
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
