//! `xrayctl fdr-dump`: the same output as `llvm-xray`'s for the same log, and its reports of
//! damage.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::fs;
use std::path::Path;
use std::process::Command;

use xray_trace::llvm::Header;
use xray_trace::llvm::fdr::{FunctionKind, Record, Writer};
use xray_trace::llvm::header::LogType;

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use common::xrayctl;

/// Two buffers of one thread, with calls and an event.
fn log() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), Header::new(LogType::Fdr, 5, 1_000_000_000)).unwrap();
    for tsc in [100, 200] {
        let call = |kind, delta| Record::Function {
            kind,
            function: 7,
            delta,
        };
        for record in [
            Record::BufferExtents { size: 117 },
            Record::NewBuffer { tid: 12 },
            Record::WallTime {
                seconds: 1,
                micros: 20,
            },
            Record::Pid { pid: 11 },
            Record::NewCpu { cpu: 1, tsc },
            call(FunctionKind::EnterArg, 20),
            Record::CallArgument { value: 40002 },
            Record::CustomEventDelta {
                delta: 3,
                data: &b"event"[..],
            },
            call(FunctionKind::Exit, 34),
        ] {
            writer.record(&record).unwrap();
        }
    }
    writer.into_inner()
}

fn file(dir: &Path, bytes: &[u8]) -> String {
    let path = dir.join("log");
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_log_is_dumped_as_llvm_does() {
    let dir = tempfile::tempdir().unwrap();
    let log = file(dir.path(), &log());
    for (ours, theirs) in [(&[][..], &[][..]), (&["--verify"], &["-verify"])] {
        let ran = xrayctl([&["fdr-dump", &log], ours].concat());
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        let output = Command::new("llvm-xray-19")
            .args([&["fdr-dump", &log], theirs].concat())
            .output();
        let output = output.unwrap_or_else(|error| {
            panic!("cannot run llvm-xray-19 ({error}): install the Debian package llvm-19")
        });
        assert_eq!(ran.out, String::from_utf8(output.stdout).unwrap());
        assert!(ran.out.contains("<Function Exit: #7 delta = +34>\n"));
    }
}

#[test]
fn damage_is_reported_behind_what_could_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = log();
    // The first buffer's second call is of a kind that does not exist.
    bytes[32 + 16 + 109] |= 8;
    let log = file(dir.path(), &bytes);
    let reason = "record at offset 157: unknown function record kind 5";
    let ran = xrayctl(["fdr-dump", &log]);
    assert_eq!(ran.code, 1);
    assert_eq!(ran.err, format!("xrayctl: cannot read {log}: {reason}\n"));
    assert_eq!(ran.out.lines().count(), 8);
    let ran = xrayctl(["fdr-dump", "--salvage", &log]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(
        ran.err,
        format!("xrayctl: skipped 8 bytes from offset 157: {reason}\n")
    );
    assert_eq!(ran.out.lines().count(), 17);
}

#[test]
fn verify_refuses_records_in_a_wrong_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = log();
    // PIDEntry becomes WallClockTime.
    bytes[32 + 16 + 32] = 0x09;
    let log = file(dir.path(), &bytes);
    assert_eq!(xrayctl(["fdr-dump", &log]).code, 0);
    let ran = xrayctl(["fdr-dump", "--verify", &log]);
    assert_eq!(ran.code, 1);
    let why =
        "WallClockTime record at offset 80: invalid transition from WallClockTime to WallClockTime";
    assert!(ran.err.contains(why), "{}", ran.err);
}

#[test]
fn a_file_that_is_no_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = file(dir.path(), b"---\n");
    let ran = xrayctl(["fdr-dump", &log]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.err
            .contains("the file does not have the format FDR log: its first bytes are 2d 2d 2d 0a"),
        "{}",
        ran.err
    );
    assert_eq!(xrayctl(["fdr-dump", "/nonexistent"]).code, 1);
}
