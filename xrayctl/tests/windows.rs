//! Commands on a part of a trace's time: they give the same answers with an index of time and
//! without, and read only a part of the file.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use xray_trace::container::{BlockEncoder, Writer};
use xray_trace::model::{CallKind, ClockAnchor, FunctionId, ThreadId, Ticks};

mod common;

use common::{command, small_trace, xrayctl};

/// Writes a trace without an index. Three threads do the same for 20 ms within one long call.
fn long_trace(dir: &Path) -> PathBuf {
    let path = dir.join("long.xtrace");
    let mut writer = Writer::new(File::create(&path).unwrap()).unwrap();
    for ticks in [0, 1_000_000_000] {
        let anchor = ClockAnchor {
            ticks: Ticks(ticks),
            monotonic_ns: ticks,
            wall_ns: ticks,
        };
        writer.add(&anchor).unwrap();
    }
    let mut blocks = [0, 1, 2].map(|thread| {
        let mut block = BlockEncoder::new(ThreadId(thread));
        block.push_call(Ticks(0), FunctionId(9), CallKind::Enter, None);
        block
    });
    for at in 0..200_000_u64 {
        let (ticks, leaf) = (at * 100, u32::try_from(at % 7).unwrap());
        for block in &mut blocks {
            let mut call = |after, function, kind| {
                block.push_call(Ticks(ticks + after), FunctionId(function), kind, None);
            };
            call(1, 8, CallKind::Enter);
            call(10, leaf, CallKind::Enter);
            call(40, leaf, CallKind::Exit);
            call(90, 8, CallKind::Exit);
            if block.encoded_len() > 16 << 10 {
                writer.block(&block.finish().unwrap()).unwrap();
            }
        }
    }
    for block in &mut blocks {
        writer.block(&block.finish().unwrap()).unwrap();
    }
    writer.end(&writer.totals()).unwrap();
    path
}

/// The same trace with an index.
fn indexed(trace: &Path) -> PathBuf {
    let path = trace.with_extension("indexed.xtrace");
    let ran = xrayctl(["convert".as_ref(), trace, "-o".as_ref(), &path]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    path
}

/// The output of a command, with the name of the trace replaced, and the bytes that the command
/// reads.
fn asked(trace: &Path, question: &str) -> (String, u64) {
    let mut words: Vec<_> = question.split(' ').collect();
    words.insert(1, trace.to_str().unwrap());
    let mut child = command(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let read = |from: Option<&mut dyn std::io::Read>| {
        let mut text = String::new();
        from.unwrap().read_to_string(&mut text).unwrap();
        text.replace(trace.to_str().unwrap(), "FILE")
    };
    let out = read(child.stdout.as_mut().map(|out| out as _));
    let err = read(child.stderr.as_mut().map(|err| err as _));
    // The kernel has this figure until the child is waited for.
    let pid = child.id();
    let id = Id::Pid(Pid::from_raw(pid.cast_signed()));
    waitid(id, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    let rchar = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    let bytes = rchar.unwrap().parse().unwrap();
    assert!(child.wait().unwrap().success(), "{question}: {err}");
    (out + &err, bytes)
}

const QUESTIONS: [&str; 12] = [
    "account --columns all",
    "account --by thread --format csv",
    "account --format json",
    "stack --all-stacks",
    "stack --stack-format flame --aggregation-type time",
    "graph",
    "graph --format json",
    "tree",
    "tree --interleave",
    "tree --depth 2 --min-duration 50ns",
    "flame -o -",
    "report --limit 10",
];

#[test]
fn an_index_changes_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    for (trace, since, until) in [
        (small_trace(dir.path()), "4us", "40us"),
        (long_trace(dir.path()), "10ms", "10.05ms"),
    ] {
        let indexed = indexed(&trace);
        for question in QUESTIONS {
            let question = format!("{question} --since {since} --until {until}");
            let (without, _) = asked(&trace, &question);
            let (with, _) = asked(&indexed, &question);
            assert_eq!(with, without, "{question}");
            assert!(!with.is_empty(), "{question}");
        }
    }
}

#[test]
fn a_short_window_takes_little_reading() {
    let dir = tempfile::tempdir().unwrap();
    let trace = long_trace(dir.path());
    let indexed = indexed(&trace);
    let len = fs::metadata(&indexed).unwrap().len();
    // The bytes that every program reads at its start.
    let (_, beginning) = asked(&trace, "account --help");
    for question in ["account", "stack", "graph", "tree"] {
        let question = format!("{question} --since 10ms --until 10.2ms");
        let percent = |trace| {
            let (_, bytes) = asked(trace, &question);
            100.0 * bytes.saturating_sub(beginning) as f64 / len as f64
        };
        let (part, half) = (percent(&indexed), percent(&trace));
        assert!(part < 10.0, "{question}: {part} % read");
        assert!(half > 40.0, "{question}: {half} % read without the index");
    }
}
