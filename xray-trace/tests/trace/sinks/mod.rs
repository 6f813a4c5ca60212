//! Exported files are read by their readers, which find the same data.

mod callgrind;
mod chrome;
mod ctf;
mod fdr;
mod fields;
mod firefox;
mod html;
mod parquet;
mod perfetto;
mod pprof;
mod profiles;
mod readers;
mod rows;
mod speedscope;
mod stacks;
mod trace_processor;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use xray_trace::container::{Block, BlockEncoder, Writer};
use xray_trace::model::{DataKind, Event, EventType, ProcessId, ThreadId, Ticks, Trace};
use xray_trace::sink::{self, Folder, Format, Report};

use crate::common::{
    Enter, Exit, TailExit, anchor, call, call_of, function, lost, module, process, push, thread,
};

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// A program of three functions that runs for a second in each thread.
pub(super) fn busy(start: u64, rounds: u64) -> Vec<Event> {
    let mut events = vec![call(start, 0, Enter)];
    for round in 0..rounds {
        let at = start + 10_000 + round * 40_000;
        events.extend([
            call(at, 1, Enter),
            call(at + 1000 + round % 777, 2, Enter),
            call(at + 5000 + round % 1234, 2, Exit),
            call(at + 20_000 + round * 3, 1, Exit),
        ]);
    }
    events.push(call(start + 20_000 + rounds * 40_000, 0, Exit));
    events
}

/// A trace with everything in it: two threads, arguments, a result, a tail exit, user events, a
/// processor, a loss, a call without an exit, an exit without an entry, and a loss whose place is
/// unknown.
fn rich() -> Trace {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.add(&process(0)).unwrap();
    writer.add(&module(0, 0)).unwrap();
    for (id, name) in (0..).zip(NAMES) {
        writer.add(&function(id, 0, name)).unwrap();
    }
    writer.add(&anchor(0, 7_000_000)).unwrap();
    writer.add(&anchor(3_000_000_000, 1_007_000_000)).unwrap();
    let mut encoder = BlockEncoder::new(ThreadId(0));
    encoder.push_cpu(Ticks(900), 3);
    push(&mut encoder, call(1000, 0, Enter));
    push(&mut encoder, call_of(2000, 1, Enter, &[u64::MAX, 7]));
    encoder.push_data(Ticks(2500), DataKind::Custom, "hello,\n\"é\"".as_bytes());
    encoder.push_data(Ticks(2600), DataKind::Typed(7), b"\xff\x00");
    encoder.push_data(Ticks(2600), DataKind::Typed(8), b"8");
    encoder.push_data(Ticks(2600), DataKind::Custom, b"");
    push(&mut encoder, call(3000, 1, TailExit));
    push(&mut encoder, call(3000, 2, Enter));
    push(&mut encoder, call_of(3000, 2, Exit, &[5]));
    push(&mut encoder, lost(5000, 9));
    push(&mut encoder, call(6000, 0, Exit));
    let second: Block = {
        let mut encoder = BlockEncoder::new(ThreadId(1));
        push(&mut encoder, call(1500, 3, Enter));
        push(&mut encoder, call(1600, 4, Enter));
        push(&mut encoder, call(1_700_000_000, 4, Exit));
        push(&mut encoder, call(1_700_000_300, 3, Exit));
        encoder.finish().unwrap()
    };
    writer
        .add(&EventType {
            process: ProcessId(0),
            number: 8,
            name: "a \"type\"".to_owned(),
        })
        .unwrap();
    writer.add(&thread(0, 0)).unwrap();
    writer.add(&thread(1, 0)).unwrap();
    writer.block(&encoder.finish().unwrap()).unwrap();
    writer.block(&second).unwrap();
    writer.lost(ThreadId(1), 4).unwrap();
    Trace::read(writer.into_inner().as_slice()).unwrap()
}

/// A directory of files.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    file: Option<BufWriter<File>>,
}

impl Folder for Directory {
    fn begin(&mut self, name: &str) -> io::Result<()> {
        self.file = Some(BufWriter::new(File::create_new(self.path.join(name))?));
        Ok(())
    }

    fn current(&mut self) -> &mut (dyn Write + Send) {
        self.file.as_mut().unwrap()
    }
}

pub(crate) fn export_folder(name: &str, trace: &Trace, path: &Path) -> Report {
    let Some(Format::Folder(sink)) = sink::by_name(name) else {
        panic!("{name} is no format of several files");
    };
    std::fs::create_dir(path).unwrap();
    let mut directory = Directory {
        path: path.to_owned(),
        file: None,
    };
    sink.write(trace, &mut directory).unwrap()
}

/// The count of the left-out data whose description contains these words.
fn count_of(report: &Report, words: &str) -> u64 {
    let line = report
        .left_out
        .iter()
        .find(|(what, _)| what.contains(words));
    line.map_or(0, |(_, count)| *count)
}

/// Runs a reader from Debian, and returns its output. Warnings are a failure.
fn run(command: &mut Command, package: &str) -> String {
    let program = command.get_program().to_owned();
    let output = command.env("LC_ALL", "C").output().unwrap_or_else(|error| {
        panic!("cannot run {program:?} ({error}): install the Debian package {package}")
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "{command:?}: {errors}"
    );
    String::from_utf8(output.stdout).unwrap()
}

fn export(name: &str, trace: &Trace) -> (Vec<u8>, Report) {
    let mut output = Vec::new();
    let Some(Format::File(sink)) = sink::by_name(name) else {
        panic!("{name} is no format of one file");
    };
    let report = sink.write(trace, &mut output).unwrap();
    (output, report)
}

#[test]
fn an_empty_trace_is_valid_everywhere() {
    let bytes = Writer::new(Vec::new()).unwrap().into_inner();
    let trace = Trace::read(bytes.as_slice()).unwrap();
    assert!(chrome::chrome(&trace).is_empty());
    assert_eq!(export("fdr", &trace).0.len(), 32);
    assert!(
        Trace::read(export("xtrace", &trace).0.as_slice())
            .unwrap()
            .blocks()
            .is_empty()
    );
}

#[test]
fn every_format_counts_calls_alike() {
    let rich = rich();
    for format in sink::FORMATS {
        let dir = tempfile::tempdir().unwrap();
        let report = match format {
            Format::File(_) => export(format.name(), &rich).1,
            Format::Folder(_) => export_folder(format.name(), &rich, &dir.path().join("folder")),
        };
        assert_eq!(report.calls, 5, "{}", format.name());
    }
}

#[test]
fn data_cut_by_a_limit_is_marked_or_counted() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.add(&process(0)).unwrap();
    writer.add(&module(0, 0)).unwrap();
    writer.add(&function(0, 0, "a")).unwrap();
    writer.add(&thread(0, 0)).unwrap();
    let mut encoder = BlockEncoder::new(ThreadId(0));
    push(&mut encoder, call(1000, 0, Enter));
    encoder.push_user_event(Ticks(1500), DataKind::Custom, None, 5000, b"beginning");
    push(&mut encoder, call(2000, 0, Exit));
    writer.block(&encoder.finish().unwrap()).unwrap();
    let trace = Trace::read(writer.into_inner().as_slice()).unwrap();
    for (format, mark) in [
        ("chrome", &b"\"data\":\"beginning\",\"size\":\"5000\""[..]),
        // The annotation's value, 5000, before its name.
        ("perfetto", b"\x18\x88\x27\x52\x04size"),
        ("firefox", b"\"data\":\"beginning\",\"size\":5000}"),
        ("csv", b",beginning,,5000,,,\r\n"),
        ("jsonl", b"\"size\":5000,\"data\":\"beginning\""),
    ] {
        let (bytes, report) = export(format, &trace);
        let marked = bytes.windows(mark.len()).any(|window| window == mark);
        assert!(marked, "{format}: {}", bytes.escape_ascii());
        assert_eq!(count_of(&report, "custom and typed"), 0, "{format}");
    }
    for format in ["fdr", "yaml"] {
        let (_, report) = export(format, &trace);
        assert_eq!(count_of(&report, "that a limit has cut"), 1, "{format}");
    }
    for format in ["basic", "speedscope", "folded", "pprof", "callgrind"] {
        let (_, report) = export(format, &trace);
        assert_eq!(count_of(&report, "custom and typed"), 1, "{format}");
    }
}

#[test]
fn formats_are_found_by_name_and_by_extension() {
    let check = |path: &str, expected: Option<&str>| {
        assert_eq!(
            sink::by_extension(Path::new(path)).map(|sink| sink.name()),
            expected,
            "{path}"
        );
    };
    check("a.xtrace", Some("xtrace"));
    check("dir.x/a.json", Some("chrome"));
    check("a.speedscope.json", Some("speedscope"));
    check(".json", None);
    check("a.firefox.json", Some("firefox"));
    check("a.pb.gz", Some("pprof"));
    check("a.gz", None);
    check("a.fdr", Some("fdr"));
    check("a.xray", Some("fdr"));
    check("a", None);
    check("a.txt", None);
    for sink in sink::FORMATS {
        assert_eq!(
            sink::by_name(sink.name()).map(|found| found.name()),
            Some(sink.name())
        );
    }
}
