//! Files of version 1 that earlier builds have written: every later reader has to open them, and to
//! find in them what it found before. Their bytes never change. A new kind of section gets a new
//! file.
//!
//! | file | written by |
//! |---|---|
//! | `calls` | `xrayctl record --all --args 2 --retval -- ./server 24` |
//! | `processes` | `xrayctl record --follow all --duty 3ms/20ms`, of a shell that runs two servers |
//! | `snapshot` | `xrayctl snapshot PID --last 30ms`, of a process in mode `flight` with a filter |
//! | `profile` | `xrayctl profile PID --glob 'shop::*' --duration 300ms` |
//! | `cut` | the first 2,200 bytes of `calls` |
//! | `kernel` | `xrayctl record PID --kernel sched:sched_switch,…`, of two threads that work and wait |
//! | `lossless` | `xrayctl record --ring-size 64KiB --lossless=100ms -- ./worker`, with run times |

use std::fs;
use std::path::PathBuf;

use xray_trace::analysis::{Filter, Waits};
use xray_trace::model::Trace;
use xray_trace::sink;
use xray_trace::source::{self, Options};

/// Each file with the CRC-32 of its bytes, and the format of its contents as text.
const FILES: [(&str, u32, &str); 6] = [
    ("calls", 0x674c_5140, "jsonl"),
    ("processes", 0xbd38_eaf5, "jsonl"),
    ("snapshot", 0x691b_fc5d, "jsonl"),
    ("profile", 0x086e_e761, "csv"),
    ("cut", 0x63c5_8e5c, "jsonl"),
    ("kernel", 0xadc7_7b78, "jsonl"),
];

#[test]
fn files_of_version_1_are_read_as_ever() {
    for (name, crc, format) in FILES {
        let path = path(name, "xtrace");
        let bytes = fs::read(&path).unwrap();
        assert_eq!(crc32fast::hash(&bytes), crc, "{name}: the file has changed");
        let found = String::from_utf8(as_text(&path, format)).unwrap();
        let golden = self::path(name, format);
        if std::env::var_os("XRAYD_BLESS").is_some() {
            fs::write(&golden, &found).unwrap();
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        let mut lines = found.lines().zip(expected.lines()).enumerate();
        let other = lines.find(|(_, (found, expected))| found != expected);
        assert!(
            found == expected,
            "{name}: {} and {} lines, the first other one is {other:?} (XRAYD_BLESS=1 writes the \
             text anew, if a new text is meant)",
            found.lines().count(),
            expected.lines().count()
        );
    }
}

/// No format for text has all of these.
#[test]
fn waits_and_run_times_of_version_1_are_read_as_ever() {
    let bytes = fs::read(path("lossless", "xtrace")).unwrap();
    assert_eq!(crc32fast::hash(&bytes), 0xc603_0305, "the file has changed");
    let trace = Trace::read(bytes.as_slice()).unwrap();
    let coverage = trace.coverage();
    let waits: Vec<_> = coverage.waits.iter().map(|wait| wait.waited).collect();
    assert_eq!(waits, [4_399_334]);
    let waits = Waits::new(&trace, &Filter::default()).unwrap();
    assert_eq!((waits.threads, waits.waited_ns), (1, 1_759_735));
    assert_eq!((trace.totals().calls, trace.totals().lost), (12_938, 0));
    assert_eq!(trace.context_switches(), 4);
}

/// The contents of a trace or a profile.
fn as_text(path: &PathBuf, format: &str) -> Vec<u8> {
    let file = || fs::File::open(path).unwrap();
    let sink = sink::by_name(format).unwrap();
    let mut text = Vec::new();
    match format {
        "csv" => {
            let opened = source::open_profile(file(), &Options::default()).unwrap();
            let sink = sink.of_profile().unwrap();
            sink.write(&opened.profile, &mut text).unwrap();
        }
        _ => {
            let opened = source::open(file(), &Options::default()).unwrap();
            let sink::Format::File(sink) = sink else {
                unreachable!("{format} is a file");
            };
            sink.write(&opened.trace, &mut text).unwrap();
        }
    }
    text
}

fn path(name: &str, extension: &str) -> PathBuf {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
    golden.join(name).with_extension(extension)
}
