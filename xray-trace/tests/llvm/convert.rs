//! `convert-*-to-yaml.txt` and `convert-with-*.txt`: for LLVM's sample logs our readers and our
//! writer produce the output of `llvm-xray convert`.

use std::borrow::Cow;
use std::process::Command;

use xray_trace::instr_map::{FunctionNames, InstrMap};
use xray_trace::llvm::Mode;
use xray_trace::llvm::basic::{self, Owner};
use xray_trace::llvm::fdr::{Body, Events, FunctionKind};
use xray_trace::llvm::header::LogType;
use xray_trace::llvm::yaml::{self, Kind, TraceHeader, Writer};

use FunctionKind::{Enter, EnterArg, Exit, TailExit};

use crate::common::llvm_xray;
use crate::samples::*;

/// The output of `llvm-xray convert -f yaml`, produced by our readers and our writer.
fn to_yaml(log: &[u8], name: impl Fn(i32) -> String) -> String {
    let mut records = Vec::<yaml::Record<'static>>::new();
    let mut push = |kind, function: i32, cpu, thread, process: Option<u32>, tsc| {
        let kind = match kind {
            Enter => Kind::Enter,
            EnterArg => Kind::EnterArg,
            Exit => Kind::Exit,
            TailExit => Kind::TailExit,
        };
        records.push(yaml::Record {
            record_type: 0,
            function_id: function,
            function: name(function).into(),
            args: Cow::Owned(Vec::new()),
            cpu,
            thread,
            process: process.unwrap_or(0),
            kind,
            tsc,
            data: Cow::Borrowed(b""),
        });
        records.len() - 1
    };
    let mut arguments = Vec::new();
    let mut last = 0;
    let header = match basic::Reader::new(log, Mode::Strict) {
        Ok(mut reader) => {
            for record in reader.by_ref() {
                match record.unwrap().1 {
                    basic::Record::Function {
                        kind,
                        cpu,
                        tsc,
                        owner,
                    } => {
                        let Owner { function, tid, pid } = owner;
                        last = push(kind, function, cpu.into(), tid, pid, tsc);
                    }
                    basic::Record::Argument { value, .. } => arguments.push((last, value)),
                }
            }
            *reader.header()
        }
        Err(_) => {
            let mut events = Events::new(log, Mode::Strict).unwrap();
            while let Some(event) = events.next().unwrap() {
                let (tid, pid) = (event.tid, event.pid.map(i32::cast_unsigned));
                match event.body {
                    Body::Call { kind, function } => {
                        let function = function.cast_signed();
                        let tid = tid.cast_unsigned();
                        last = push(kind, function, event.cpu, tid, pid, event.tsc);
                    }
                    Body::Argument(value) => arguments.push((last, value)),
                    Body::Custom(_) | Body::Typed { .. } => unreachable!("no such event"),
                }
            }
            *events.header()
        }
    };
    for (at, value) in arguments {
        // Old recorders marked an entry only by its argument.
        records[at].kind = Kind::EnterArg;
        records[at].args.to_mut().push(value);
    }
    let header = TraceHeader {
        version: header.version,
        log: u16::from(header.log == LogType::Fdr),
        constant_tsc: header.constant_tsc,
        nonstop_tsc: header.nonstop_tsc,
        cycle_frequency: header.cycle_frequency,
    };
    let mut writer = Writer::new(Vec::new(), &header);
    for record in &records {
        writer.record(record).unwrap();
    }
    String::from_utf8(writer.finish().unwrap()).unwrap()
}

/// Checks that our YAML equals llvm-xray's, and contains this record from upstream's test.
#[track_caller]
fn check(log: &[u8], record: &str) {
    let ours = to_yaml(log, |id| id.to_string());
    let theirs = llvm_xray(&["convert", "-f=yaml", "-o", "-"], log).unwrap();
    assert_eq!(ours, theirs);
    assert!(ours.contains(record), "{ours}");
}

/// The same with the names of functions from a map.
#[track_caller]
fn check_named(map: &[u8], options: &[&str], names: FunctionNames, expected: [&str; 3]) {
    let log = naive_log_simple();
    let functions = InstrMap::read(map).unwrap();
    let name = |id: i32| {
        let function = functions.function(id.cast_unsigned()).unwrap();
        names.of(function)
    };
    let ours = to_yaml(&log, name);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("map");
    std::fs::write(&file, map).unwrap();
    let args = ["convert", "-f=yaml", "-m", file.to_str().unwrap()];
    let theirs = llvm_xray(&[&args, options].concat(), &log).unwrap();
    assert_eq!(ours, theirs);
    // The names are not used unless an option requires them.
    let theirs = llvm_xray(&args, &log).unwrap();
    assert_eq!(to_yaml(&log, |id| id.to_string()), theirs);
    for (id, name) in (1..).zip(expected) {
        assert!(
            ours.contains(&format!("func-id: {id}, function: {name},")),
            "{ours}"
        );
    }
}

/// The program of upstream's sample, with names or without.
fn program(more: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let source = "#define TRACED [[clang::xray_always_instrument, gnu::noinline]]
        TRACED void bar() { asm volatile(\"\"); }
        TRACED void foo() { bar(); asm volatile(\"\"); }
        TRACED int main() { foo(); return 0; }";
    std::fs::write(dir.path().join("p.cc"), source).unwrap();
    let output = Command::new("clang++-19")
        .args([
            "-O2",
            "-fxray-instrument",
            "-fno-xray-link-deps",
            "p.cc",
            "-o",
            "p",
        ])
        .args(more)
        .current_dir(dir.path())
        .output();
    let output = output.unwrap_or_else(|error| {
        panic!("cannot run clang++-19 ({error}): install the Debian package clang-19")
    });
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    std::fs::read(dir.path().join("p")).unwrap()
}

#[test]
fn convert_with_yaml_instrmap() {
    let map = "---
- { id: 1, address: 0x41CA40, function: 0x41CA40, kind: function-enter, always-instrument: true }
- { id: 1, address: 0x41CA50, function: 0x41CA40, kind: tail-exit, always-instrument: true }
- { id: 2, address: 0x41CA70, function: 0x41CA70, kind: function-enter, always-instrument: true }
- { id: 3, address: 0x41CAA0, function: 0x41CAA0, kind: function-enter, always-instrument: true }
...
";
    let names = ["'@(41ca40)'", "'@(41ca70)'", "'@(41caa0)'"];
    let demangled = FunctionNames::Demangled;
    check_named(map.as_bytes(), &["-y"], demangled, names);
}

#[test]
fn convert_with_debug_syms() {
    let program = program(&["-g"]);
    let names = ["'bar()'", "'foo()'", "main"];
    check_named(&program, &["-y"], FunctionNames::Demangled, names);
    let symbols = ["_Z3barv", "_Z3foov", "main"];
    let options = ["--symbolize", "--no-demangle"];
    check_named(&program, &options, FunctionNames::Symbols, symbols);
}

/// A file without names. Upstream's file has only the map.
#[test]
fn convert_with_standalone_instrmap() {
    let program = program(&["-s"]);
    let map = InstrMap::read(&program).unwrap();
    let names = [1, 2, 3].map(|id| format!("'@({:x})'", map.function(id).unwrap().address.0));
    let names = [&*names[0], &*names[1], &*names[2]];
    check_named(&program, &["-y"], FunctionNames::Demangled, names);
}

#[test]
fn convert_to_yaml() {
    check(
        &naive_log_simple(),
        "  - { type: 0, func-id: 3, function: '3', cpu: 37, thread: 84697, kind: function-exit, tsc: 3315356841494828, data: '' }\n",
    );
}

#[test]
fn convert_basic_arg1_to_yaml() {
    check(
        &naive_with_arg1_entries(),
        "func-id: 2, function: '2', args: [ 1 ], cpu: 17, thread: 8715, kind: function-enter-arg, tsc: 22555670288335768,",
    );
}

#[test]
fn convert_basic_log_version3_to_yaml() {
    check(
        &basic_log_version_3(),
        "cpu: 7, thread: 25518, process: 25518, kind: function-exit, tsc: 2070769627197624,",
    );
}

#[test]
fn convert_basic_log_arg1_version3_to_yaml() {
    check(
        &basic_log_arg1_version_3(),
        "args: [ 67 ], cpu: 0, thread: 2590, process: 2590, kind: function-enter-arg, tsc: 2033505343905936,",
    );
}

/// The greatest id, a tail exit, and another processor.
#[test]
fn convert_fdr_to_yaml() {
    for record in [
        "func-id: 268435455, function: '268435455', cpu: 5, thread: 5, kind: function-exit, tsc: 7238225556407562,",
        "func-id: 5, function: '5', cpu: 5, thread: 5, kind: function-tail-exit, tsc: 7238225556407542,",
        "func-id: 6, function: '6', cpu: 6, thread: 5, kind: function-exit, tsc: 7238225556407755,",
    ] {
        check(&fdr_log_version_1(), record);
    }
}

#[test]
fn convert_fdr_arg1_to_yaml() {
    check(
        &fdr_log_arg1(),
        "args: [ 1 ], cpu: 49, thread: 14648, kind: function-enter-arg, tsc: 18828908666543318,",
    );
}

#[test]
fn convert_fdr_log_version3_to_yaml() {
    check(
        &fdr_log_version_3(),
        "func-id: 1, function: '1', cpu: 4, thread: 25190, process: 25190, kind: function-exit, tsc: 2069296377627032,",
    );
}

#[test]
fn convert_fdr_log_arg1_version3_to_yaml() {
    check(
        &fdr_log_arg1_version_3(),
        "args: [ 67 ], cpu: 6, thread: 2631, process: 2631, kind: function-enter-arg, tsc: 2034049739853430,",
    );
}
