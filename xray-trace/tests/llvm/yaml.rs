//! Traces in YAML: LLVM's bytes, of every version; any equivalent YAML; damage.

use std::borrow::Cow;

use proptest::prelude::*;
use xray_trace::llvm::yaml::{Kind, Reader, Record, TraceHeader, Writer};
use xray_trace::llvm::{Error, Mode};

use crate::common::llvm_xray;

fn header(version: u16) -> TraceHeader {
    TraceHeader {
        version,
        log: 1,
        constant_tsc: true,
        nonstop_tsc: false,
        cycle_frequency: 3_900_000_000,
    }
}

fn record(kind: Kind, function: &'static str, args: &'static [u64]) -> Record<'static> {
    Record {
        record_type: 0,
        function_id: 1,
        function: Cow::Borrowed(function),
        args: Cow::Borrowed(args),
        cpu: 4,
        thread: 2,
        process: 0,
        kind,
        tsc: 9,
        data: Cow::Borrowed(b""),
    }
}

fn write(header: &TraceHeader, records: &[Record<'_>]) -> String {
    let mut writer = Writer::new(Vec::new(), header);
    for record in records {
        writer.record(record).unwrap();
    }
    String::from_utf8(writer.finish().unwrap()).unwrap()
}

fn read(text: &[u8]) -> Result<(TraceHeader, Vec<Record<'static>>), Error> {
    let reader = Reader::new(std::io::Cursor::new(text.to_vec()), Mode::Strict)?;
    let header = *reader.header();
    Ok((header, reader.collect::<Result<_, _>>()?))
}

fn salvage(text: &[u8]) -> (Vec<Record<'static>>, Vec<String>) {
    let mut reader = Reader::new(std::io::Cursor::new(text.to_vec()), Mode::Salvage).unwrap();
    let records = reader.by_ref().map(Result::unwrap).collect();
    let skipped = reader.skipped().kept().iter();
    (records, skipped.map(ToString::to_string).collect())
}

const SAMPLE: &str = "---
header:
  version:         1
  type:            1
  constant-tsc:    true
  nonstop-tsc:     false
  cycle-frequency: 3900000000
records:
  - { type: 0, func-id: 1, function: main, args: [ 67, 18446744073709551615 ], cpu: 4, thread: 2, kind: function-enter-arg, tsc: 9, data: '' }
  - { type: 0, func-id: 1, function: 'f(int)', cpu: 4, thread: 2, kind: function-exit, tsc: 9, data: '' }
...
";

fn sample() -> [Record<'static>; 2] {
    [
        record(Kind::EnterArg, "main", &[67, u64::MAX]),
        record(Kind::Exit, "f(int)", &[]),
    ]
}

#[test]
fn a_trace_is_written_and_read() {
    assert_eq!(write(&header(1), &sample()), SAMPLE);
    let (header, records) = read(SAMPLE.as_bytes()).unwrap();
    assert_eq!(header, self::header(1));
    assert_eq!(records, sample());
}

/// Upstream's `convert-roundtrip.yaml` and `convert-to-yaml.txt`: LLVM's output for a trace equals
/// ours.
#[test]
fn convert_roundtrip() {
    let mut records = Vec::new();
    for kind in [Kind::Enter, Kind::Exit, Kind::TailExit] {
        let mut record = record(kind, "1", &[]);
        record.process = 8;
        records.push(record);
    }
    records.push(record(Kind::EnterArg, "1", &[1, 2]));
    for kind in [Kind::Custom, Kind::Typed] {
        for data in [
            "text",
            "",
            "it's",
            "-",
            "3",
            "0x10",
            "null",
            "a\nb",
            "tab\tx",
            "\x01\x7f\x1b",
            "ä\u{a0}€😀",
            "a: b #c",
            " lead",
            "trail ",
            "true",
            "[x]",
            "1e5",
            ".5",
            "C:\\x/y",
            "\"q\"",
        ] {
            let mut record = record(kind, "1", &[]);
            record.data = Cow::Borrowed(data.as_bytes());
            records.push(record);
        }
    }
    let ours = write(&header(1), &records);
    let theirs = llvm_xray(&["convert", "-f", "yaml", "-sort=0"], ours.as_bytes()).unwrap();
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours, theirs);
    assert_eq!(read(ours.as_bytes()).unwrap().1, records);
}

#[test]
fn a_trace_without_records_is_what_llvm_prints() {
    let ours = write(&header(1), &[]);
    let theirs = llvm_xray(&["convert", "-f", "yaml"], ours.as_bytes()).unwrap();
    assert_eq!(ours, theirs);
    assert_eq!(read(ours.as_bytes()).unwrap().1, []);
}

#[test]
fn traces_of_every_version_are_read_back() {
    for version in 1..=5 {
        let text = write(&header(version), &sample());
        assert_eq!(
            read(text.as_bytes()).unwrap(),
            (header(version), sample().to_vec())
        );
    }
}

#[test]
fn yaml_in_any_style_is_read() {
    // As in upstream's `account-keep-going.yaml`, without optional fields, and in block style.
    let text = "#RUN: llvm-xray account %s
header:
  version: 1
  type: 0
  constant-tsc: yes
  nonstop-tsc: \"true\"
  cycle-frequency: 0xA
records:
- { type: 0, func-id: -1, cpu: 1,
    thread: 111, kind: function-enter, tsc: 10000 }
# half way
- type: 0
  func-id: 0x1
  cpu: 017
  kind: 'function-exit'
  tsc: 0b11
  args:
    - 5
  data: \"a\\nb\"
- {\"kind\": typed-event, \"tsc\": 1, \"cpu\": 0, \"type\": 7}
";
    let (header, records) = read(text.as_bytes()).unwrap();
    assert_eq!((header.version, header.cycle_frequency), (1, 10));
    assert_eq!(records.len(), 3);
    assert_eq!(
        (records[0].function_id, records[0].thread, records[0].tsc),
        (-1, 111, 10000)
    );
    assert_eq!(
        (records[1].cpu, records[1].tsc, &records[1].args[..]),
        (15, 3, &[5][..])
    );
    assert_eq!(records[1].data, &b"a\nb"[..]);
    assert_eq!((records[2].record_type, records[2].kind), (7, Kind::Typed));
}

#[test]
fn data_that_is_no_text_is_counted() {
    let mut record = record(Kind::Custom, "1", &[]);
    record.data = Cow::Borrowed(b"a\xff\xfeb");
    let mut writer = Writer::new(Vec::new(), &header(5));
    writer.record(&record).unwrap();
    assert_eq!(writer.altered(), 1);
    let text = writer.finish().unwrap();
    assert_eq!(
        read(&text).unwrap().1[0].data,
        "a\u{fffd}\u{fffd}b".as_bytes()
    );
}

#[track_caller]
fn check(from: &str, to: &str, (line, why): (usize, &str), saved: &[Record<'static>]) {
    let text = SAMPLE.replacen(from, to, 1);
    assert_ne!(text, SAMPLE);
    let message = read(text.as_bytes()).unwrap_err().to_string();
    assert!(
        message.starts_with(&format!("line {line}, column ")),
        "{message}"
    );
    assert!(message.ends_with(why), "{message}");
    let (records, skipped) = salvage(text.as_bytes());
    assert_eq!(records, saved, "{skipped:?}");
    assert!(skipped[0].ends_with(&message), "{skipped:?}");
}

#[test]
fn wrong_records_are_named_and_left_out_alone() {
    let [first, second] = sample();
    check(
        "tsc: 9",
        "tsc: nine",
        (9, "the field tsc has the invalid value \"nine\""),
        std::slice::from_ref(&second),
    );
    check(
        "function-exit",
        "function-left",
        (10, "the field kind has the invalid value \"function-left\""),
        std::slice::from_ref(&first),
    );
    check(
        "cpu: 4, ",
        "",
        (9, "the field cpu is missing"),
        std::slice::from_ref(&second),
    );
    check(
        "cpu: 4",
        "cpu: 70000",
        (9, "the field cpu has the invalid value \"70000\""),
        std::slice::from_ref(&second),
    );
    check(
        "cpu: 4",
        "colour: 4",
        (9, "a record has the unknown field \"colour\""),
        std::slice::from_ref(&second),
    );
}

#[test]
fn reading_goes_on_behind_what_is_no_yaml() {
    let text = SAMPLE.replacen(
        "{ type: 0, func-id: 1, function: main",
        "{ type: 0, ] \"",
        1,
    );
    assert!(
        read(text.as_bytes())
            .unwrap_err()
            .to_string()
            .contains("not YAML")
    );
    let (records, skipped) = salvage(text.as_bytes());
    assert_eq!(records, sample()[1..], "{skipped:?}");
}

#[test]
fn headers_that_are_none_are_refused() {
    let message = |text: &str| read(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(message(""), "the file is empty");
    assert_eq!(
        message("- { id: 1 }\n"),
        "line 1, column 1: expected a trace"
    );
    assert_eq!(
        message("records: []\n"),
        "line 1, column 1: expected the field header"
    );
    assert_eq!(
        message("header: { version: 1 }\n"),
        "line 1, column 22: the field type is missing"
    );
    assert_eq!(
        message("header: { version: 65536 }\n"),
        "line 1, column 20: the field version has the invalid value \"65536\""
    );
}

#[test]
fn a_trace_cut_at_any_byte_gives_what_stands_in_front() {
    let records = SAMPLE.find("  - {").unwrap();
    for len in records + 8..SAMPLE.len() {
        let text = &SAMPLE.as_bytes()[..len];
        let (saved, _) = salvage(text);
        assert_eq!(saved, sample()[..saved.len()]);
        let whole = SAMPLE[..len].matches(" }").count();
        assert_eq!(saved.len(), whole, "{len}");
    }
}

proptest! {
    #[test]
    fn records_come_back(
        data in ".{0,30}",
        function in "[ -~]{0,20}",
        args in proptest::collection::vec(any::<u64>(), 0..4),
        numbers in any::<(u16, i32, u16, u32, u32, u64)>(),
        kind in 0..6_usize,
    ) {
        let (record_type, function_id, cpu, thread, process, tsc) = numbers;
        let record = Record {
            record_type,
            function_id,
            function: Cow::Owned(function),
            args: Cow::Owned(args),
            cpu,
            thread,
            process,
            kind: Kind::ALL[kind],
            tsc,
            data: Cow::Owned(data.into_bytes()),
        };
        let text = write(&header(5), std::slice::from_ref(&record));
        prop_assert_eq!(read(text.as_bytes()).unwrap().1, [record]);
    }

    #[test]
    fn no_bytes_make_the_reader_fail_or_loop(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut text = SAMPLE.as_bytes().to_vec();
        for (at, byte) in changes {
            let at = at.index(text.len());
            text[at] = byte;
        }
        if let Ok(reader) = Reader::new(std::io::Cursor::new(text), Mode::Salvage) {
            prop_assert!(reader.map(Result::unwrap).count() < 100);
        }
    }
}
