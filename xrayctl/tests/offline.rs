//! Operations without a daemon and without a process: reports, conversions, explanations, and usage
//! errors.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use xray_trace::container::{BlockEncoder, End, Writer};
use xray_trace::model::{
    CallKind, ClockAnchor, DutyWindow, FilterNote, FunctionId, ProcessId, Suppression, ThreadId,
    Ticks, Trace,
};

mod common;

use common::{command, small_trace, xrayctl};

#[track_caller]
fn check(args: &[&str], code: i32, err: &str) {
    let ran = xrayctl(args);
    assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
    assert!(ran.err.contains(err), "{args:?}: {}", ran.err);
    if code == 1 || code > 2 {
        assert_eq!(ran.err.lines().count(), 1, "{args:?}: {}", ran.err);
        assert!(ran.err.starts_with("xrayctl: "), "{args:?}: {}", ran.err);
    }
}

#[test]
fn reports_look_as_agreed() {
    let dir = tempfile::tempdir().unwrap();
    let trace = small_trace(dir.path());
    let trace = trace.to_str().unwrap();
    for (name, args) in [
        ("report.txt", &[][..]),
        (
            "report-table.txt",
            &["--table", "--sort", "calls", "--limit", "2"],
        ),
        (
            "report-tree.txt",
            &["--tree", "--interleave", "--unfold", "--limit", "5"],
        ),
        (
            "report-function.txt",
            &["--function", "ns::parse", "--color", "always"],
        ),
        ("report-worker.txt", &["--thread", "worker"]),
        ("report-window.txt", &["--since", "5us", "--until", "12us"]),
        (
            "report-slowest.txt",
            &["--slowest", "2", "--min-duration", "1us"],
        ),
        ("report-table-slowest.txt", &["--table", "--slowest", "1"]),
        ("report.json", &["--json"]),
    ] {
        let ran = xrayctl([&["report", trace], args].concat());
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{name}");
        let found = ran.out.replace(trace, "small.xtrace");
        check_golden(&Path::new("tests/golden").join(name), &found);
    }
}

/// The small trace with faults of the counter: it is set back, and it jumps while the machine is
/// suspended.
#[test]
fn a_counter_that_did_not_keep_time_is_reported_by_info_and_report() {
    const SECOND: u64 = 1_000_000_000;
    let dir = tempfile::tempdir().unwrap();
    let path = small_trace(dir.path());
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    let mut writer = Writer::going_on(file, End::default());
    // Two ticks are a nanosecond.
    for (second, ticks, wall) in [
        (100, 200, 100),
        (101, 202, 101),
        (102, 204, 102),
        (103, 10, 103),
        (104, 12, 104),
        (105, 134, 165),
        (106, 136, 166),
    ] {
        let anchor = ClockAnchor {
            ticks: Ticks(ticks * SECOND),
            monotonic_ns: second * SECOND,
            wall_ns: wall * SECOND,
        };
        writer.add(&anchor).unwrap();
    }
    let path = path.to_str().unwrap();
    for command in ["info", "report"] {
        let ran = xrayctl([command, path]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{command}");
        for line in [
            "the processor's counter did not keep time (1 fault): durations across such a moment are wrong; first at 102.0 s of CLOCK_MONOTONIC",
            "the machine was suspended (1 time): durations across such a moment are wrong; first at 104.0 s of CLOCK_MONOTONIC",
        ] {
            assert!(
                ran.out.lines().any(|said| said == line),
                "{command}: {}",
                ran.out
            );
        }
        let ran = xrayctl([command, path, "--json"]);
        let said: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let faults = said["trace"]["clock_faults"].as_array().unwrap();
        let kinds: Vec<_> = faults.iter().map(|fault| &fault["kind"]).collect();
        assert_eq!(kinds, ["backwards", "suspended"], "{command}");
    }
}

/// The small trace with calls that were left unrecorded: two functions were suppressed, and there
/// was a duty cycle and a filter.
fn restrained_trace(dir: &Path) -> PathBuf {
    let path = small_trace(dir);
    let trace = Trace::open(File::open(&path).unwrap()).unwrap();
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    let mut writer = Writer::going_on(file, End::default());
    let process = ProcessId(0);
    for (function, from, until, calls) in [
        (2, 2_000_000, None, 4_123_456),
        (3, 10_000_000, Some(30_000_000), 1_200),
        (3, 60_000_000, Some(70_000_000), 700),
    ] {
        let rest = Suppression {
            function: FunctionId(function),
            process,
            from: Ticks(from),
            until: until.map(Ticks),
            recorded: 1_000,
            calls,
        };
        writer.add(&rest).unwrap();
    }
    for from in [0, 20_000_000, 40_000_000, 60_000_000, 80_000_000] {
        let window = DutyWindow {
            process,
            from: Ticks(from),
            until: Ticks(from + 100_000),
            stands_for: 20_000_000,
        };
        writer.add(&window).unwrap();
    }
    for (since, filter) in [
        (None, "--min-duration 10us --module libfoo.so"),
        (Some(50_000_000), ""),
    ] {
        let note = FilterNote {
            process,
            since: since.map(Ticks),
            filter: filter.into(),
        };
        writer.add(&note).unwrap();
    }
    let end = Writer::going_on(writer.into_inner(), trace.totals().into());
    end.finish(&[]).unwrap();
    path
}

/// Every command that counts calls reports the unrecorded ones. Their estimated numbers are never
/// added to other numbers.
#[test]
fn a_trace_says_what_was_not_recorded_on_purpose() {
    let dir = tempfile::tempdir().unwrap();
    let trace = restrained_trace(dir.path());
    let trace = trace.to_str().unwrap();
    for (name, args) in [
        ("restrained-info.txt", &["info"][..]),
        ("restrained-info.json", &["info", "--json"]),
        ("restrained-report.txt", &["report", "--table"]),
        ("restrained-report.json", &["report", "--table", "--json"]),
        ("restrained-account.txt", &["account"]),
        ("restrained-llvm.txt", &["account", "--columns", "llvm"]),
        (
            "restrained-window.txt",
            &[
                "account", "--since", "5ms", "--until", "20ms", "--thread", "worker",
            ],
        ),
        ("restrained-account.json", &["account", "--format", "json"]),
        ("restrained-convert.txt", &["convert", "--to", "folded"]),
    ] {
        let ran = xrayctl([&args[..1], &[trace], &args[1..]].concat());
        assert_eq!(ran.code, 0, "{name}: {}", ran.err);
        let found = (ran.out + &ran.err).replace(trace, "small.xtrace");
        check_golden(&Path::new("tests/golden").join(name), &found);
    }
    // CSV has the same columns as for other traces.
    let csv = xrayctl(["account", trace, "--format", "csv"]).out;
    let whole = small_trace(dir.path());
    let whole = whole.to_str().unwrap();
    assert_eq!(csv, xrayctl(["account", whole, "--format", "csv"]).out);

    let trace = restrained_trace(dir.path());
    let again = dir.path().join("again.xtrace");
    let [trace, again] = [&trace, &again].map(|path| path.to_str().unwrap());
    check(&["convert", trace, "-o", again], 0, "");
    let [before, after] = [trace, again].map(|file| xrayctl(["info", file]).out);
    let restrained = |text: &str| {
        text.lines()
            .rev()
            .take(8)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(restrained(&before), restrained(&after));
}

#[test]
fn a_cut_trace_is_reported_up_to_the_cut_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read(small_trace(dir.path())).unwrap();
    let cut = dir.path().join("cut.xtrace");
    fs::write(&cut, &whole[..whole.len() - 40]).unwrap();
    let ran = xrayctl(["report", cut.to_str().unwrap(), "--table"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("the file was cut"), "{}", ran.out);
    assert!(ran.out.contains("ns::parse"), "{}", ran.out);
}

#[test]
fn a_file_that_is_no_trace_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.xtrace");
    fs::write(&bad, "no trace, but long enough for a header").unwrap();
    let bad = bad.to_str().unwrap();
    check(&["report", bad], 1, "not a trace");
    check(
        &["convert", bad, "-o", &format!("{bad}.json")],
        1,
        "not a trace",
    );
    assert!(!Path::new(&format!("{bad}.json")).exists());
    check(&["report", "/nonexistent"], 1, "cannot read /nonexistent");
}

#[test]
fn names_that_match_nothing_exit_with_3() {
    let dir = tempfile::tempdir().unwrap();
    let trace = small_trace(dir.path());
    let trace = trace.to_str().unwrap();
    check(
        &["report", trace, "--function", "nope"],
        3,
        "no function of the trace",
    );
    check(
        &["report", trace, "--thread", "nope"],
        3,
        "no thread of the trace",
    );
    for command in ["report", "tree", "account", "graph"] {
        for misspelt in ["ns::prase", "parse", "Ns::Pars"] {
            check(
                &[command, trace, "--function", misspelt],
                3,
                "(did you mean ns::parse?)",
            );
        }
    }
}

#[test]
fn usage_errors_exit_with_2_and_say_what_is_missing() {
    check(&["enable"], 2, "no functions are selected");
    check(
        &["disable", "--except-function", "f"],
        2,
        "no functions are selected",
    );
    check(
        &["enable", "--regex", "("],
        2,
        "invalid regular expression '('",
    );
    check(&["functions", "["], 2, "invalid glob");
    check(&["record"], 2, "required");
    check(&["explain", "luck"], 2, "the ids are ");
    check(
        &["account", "f", "--by", "thread", "--recursive-calls-only"],
        2,
        "works only with --by function",
    );
    check(&["tree", "f", "--diff", "g", "--json"], 1, "cannot read f");
    check(&["diff", "f", "g"], 1, "cannot read f");
    check(&["record", "1", "--glob", "["], 2, "invalid glob");
    check(&["record", "/bin/true"], 2, "xrayctl record -- /bin/true");
}

#[test]
fn a_daemon_that_does_not_answer_exits_with_5_and_nothing_else_steps_in() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("none.sock");
    let socket = socket.to_str().unwrap();
    for args in [
        &["ps"][..],
        &["doctor", "1"],
        &["record", "1"],
        &["status"],
        &["functions"],
        &["attach", "1"],
        &["enable", "--all"],
        &["disable", "--all"],
        &["detach", "--all"],
        &["snapshot", "-o", "/tmp/never-written.xtrace"],
    ] {
        check(
            &[&["--socket", socket], args].concat(),
            5,
            "no daemon answers at",
        );
    }
    let mut by_environment = command(["ps"]);
    let output = by_environment.env("XRAYD_SOCKET", socket).output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    // The socket of a dead daemon gives the same error.
    drop(std::os::unix::net::UnixListener::bind(socket).unwrap());
    check(&["--socket", socket, "ps"], 5, "no process listens");
}

#[test]
fn conversions_say_what_they_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let trace = small_trace(dir.path());
    let trace = trace.to_str().unwrap();
    let out = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (name, format) in [
        ("a.json", "chrome"),
        ("a.fdr", "fdr"),
        ("a.xray", "fdr"),
        ("a.xtrace", "xtrace"),
    ] {
        let ran = xrayctl(["convert", trace, "-o", &out(name)]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.out.contains(&format!(" as {format}, ")), "{}", ran.out);
        assert!(fs::metadata(out(name)).unwrap().len() > 0);
    }
    let again = xrayctl(["report", &out("a.xtrace"), "--json"]);
    let first = xrayctl(["report", trace, "--json"]);
    assert_eq!(again.out.replace("a.xtrace", "small.xtrace"), first.out);
    let ran = xrayctl([
        "convert",
        trace,
        "-o",
        &out("a.bin"),
        "--to",
        "chrome",
        "--json",
    ]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["format"], "chrome");
    assert!(json["left_out"].is_array());
    let chrome = fs::read(out("a.bin")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&chrome).unwrap();
}

#[test]
fn a_conversion_never_destroys_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let trace = small_trace(dir.path());
    let before = fs::read(&trace).unwrap();
    let trace_name = trace.to_str().unwrap();
    let link = dir.path().join("link.xtrace");
    fs::hard_link(&trace, &link).unwrap();
    check(
        &["convert", trace_name, "-o", trace_name, "--force"],
        2,
        "is an input",
    );
    check(
        &[
            "convert",
            trace_name,
            "-o",
            link.to_str().unwrap(),
            "--force",
        ],
        2,
        "is an input",
    );
    let other = dir.path().join("other.json");
    let other_name = other.to_str().unwrap();
    fs::write(&other, "precious").unwrap();
    check(
        &["convert", trace_name, "-o", other_name],
        1,
        "--force replaces it",
    );
    assert_eq!(fs::read(&other).unwrap(), b"precious");
    check(&["convert", trace_name, "-o", other_name, "--force"], 0, "");
    check(
        &["convert", trace_name, "-o", "x.unknown"],
        2,
        "give --to with one of xtrace, fdr, ",
    );
    check(
        &["convert", trace_name, "-o", "/nonexistent/x.json"],
        1,
        "cannot write",
    );
    // A directory is never replaced, even with `--force`.
    let folder = dir.path().join("other.ctf");
    let folder_name = folder.to_str().unwrap();
    check(&["convert", trace_name, "-o", folder_name], 0, "");
    let metadata = fs::read(folder.join("metadata")).unwrap();
    let again = ["convert", trace_name, "-o", folder_name, "--force"];
    check(&again, 1, "already exists");
    assert_eq!(fs::read(folder.join("metadata")).unwrap(), metadata);
    assert_eq!(fs::read(&trace).unwrap(), before);
}

/// Options and formats in the spelling of `llvm-xray`.
#[test]
fn a_conversion_takes_the_spelling_of_llvm_xray() {
    let dir = tempfile::tempdir().unwrap();
    let trace = small_trace(dir.path());
    let convert = |options: &[&str]| {
        let output = dir.path().join(options.concat());
        let ends = [trace.to_str().unwrap(), "-o", output.to_str().unwrap()];
        check(&[&["convert"], options, &ends].concat(), 0, "");
        fs::read(output).unwrap()
    };
    let ours = convert(&["--to=chrome"]);
    assert_eq!(convert(&["-f", "trace_event"]), ours);
    assert_eq!(convert(&["--output-format=trace_event"]), ours);
    let raw = convert(&["-f", "raw"]);
    assert_eq!(raw[..4], [3, 0, 0, 0]);
    assert_ne!(convert(&["-f", "chrome", "--no-demangle"]), ours);
}

/// The commands are listed, as by llvm-xray. The exit code is that of a usage error.
#[test]
fn no_subcommand() {
    let ran = xrayctl([""; 0]);
    assert_eq!((ran.code, ran.out.as_str()), (2, ""));
    assert!(
        ran.err.starts_with("Trace functions of running programs\n"),
        "{}",
        ran.err
    );
    for command in ["record", "account", "graph-diff", "fdr-dump"] {
        assert!(ran.err.contains(&format!("\n  {command} ")), "{}", ran.err);
    }
}

#[test]
fn every_reason_is_explained() {
    let all = xrayctl(["explain", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&all.out).unwrap();
    let reasons = all["reasons"].as_array().unwrap();
    assert!(reasons.len() > 15);
    for reason in reasons {
        let ran = xrayctl(["explain", reason["id"].as_str().unwrap()]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.out.lines().count() > 1, "{}", ran.out);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let trace = small_trace(dir.path());
    for args in [
        &["report", trace.to_str().unwrap()][..],
        &["completions", "bash"],
        &["explain"],
    ] {
        let mut child = command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut err = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        assert_eq!(
            (child.wait().unwrap().code(), err.as_str()),
            (Some(0), ""),
            "{args:?}"
        );
    }
}

/// Prints every line of a long tree in JSON, with only a small part of it in memory at a time: a
/// tree that is ten times as long takes no more memory than its trace is larger.
#[test]
fn a_tree_in_json_is_written_as_it_is_made() {
    const CALLS: u64 = 200_000;
    let dir = tempfile::tempdir().unwrap();
    let short = long_trace(dir.path(), CALLS / 10);
    let (short_peak, short_text) = json_tree(&short);
    let long = long_trace(dir.path(), CALLS);
    let (long_peak, long_text) = json_tree(&long);
    let more_memory = long_peak.saturating_sub(short_peak);
    let more_text = long_text.len() - short_text.len();
    assert!(
        more_memory < more_text / 2,
        "{more_memory} more bytes of memory for {more_text} more bytes of text"
    );
    let report: serde_json::Value = serde_json::from_str(&long_text).unwrap();
    assert_eq!(
        report["tree"]["lines"].as_array().unwrap().len() as u64,
        CALLS
    );
    assert_eq!(report["tree"]["more"], false);
}

/// The most memory, in bytes, that `report --tree --json` of `trace` had when it was in the middle
/// of the tree, and all that it printed.
fn json_tree(trace: &Path) -> (usize, String) {
    let mut child = command(["report", "--tree", "--json", "--limit", "0"])
        .arg(trace)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while text.matches("\"kind\"").count() < 1000 {
        out.read_line(&mut text).unwrap();
    }
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM:"));
    let peak = peak.and_then(|line| line.split_whitespace().nth(1));
    let peak: usize = peak.unwrap().parse().unwrap();
    out.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    (peak * 1024, text)
}

/// As in `xrayctl report … | head -n 3`.
#[test]
fn a_reader_that_has_seen_enough_of_a_long_report_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let trace = long_trace(dir.path(), 20_000);
    for more in [&[][..], &["--json"]] {
        let mut child = command(["report", "--tree", "--unfold", "--limit", "0"])
            .args(more)
            .arg(&trace)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        for _ in 0..3 {
            out.read_line(&mut String::new()).unwrap();
        }
        drop(out);
        let ended = child.wait_with_output().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(
            (ended.status.code(), err.as_str()),
            (Some(0), ""),
            "{more:?}"
        );
    }
}

#[test]
fn colours_are_for_terminals_or_for_those_who_ask() {
    let dir = tempfile::tempdir().unwrap();
    let trace = small_trace(dir.path());
    let trace = trace.to_str().unwrap();
    let coloured = |args: &[&str]| xrayctl(args).out.contains('\u{1b}');
    assert!(!coloured(&["report", trace]));
    assert!(coloured(&["report", trace, "--color", "always"]));
    assert!(!coloured(&["report", trace, "--color", "never"]));
}

/// Writes a trace of one thread that calls one function this many times.
fn long_trace(dir: &Path, calls: u64) -> PathBuf {
    let path = dir.join("long.xtrace");
    let mut writer = Writer::new(File::create(&path).unwrap()).unwrap();
    for from in (0..calls).step_by(1000) {
        let mut block = BlockEncoder::new(ThreadId(0));
        for at in from..calls.min(from + 1000) {
            block.push_call(Ticks(10 * at), FunctionId(0), CallKind::Enter, None);
            block.push_call(Ticks(10 * at + 5), FunctionId(0), CallKind::Exit, None);
        }
        writer.block(&block.finish().unwrap()).unwrap();
    }
    let totals = writer.totals();
    writer.end(&totals).unwrap();
    path
}

/// Compares with a golden file; `XRAYD_BLESS=1` writes it anew.
#[track_caller]
fn check_golden(path: &Path, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("XRAYD_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        found,
        expected,
        "{} (XRAYD_BLESS=1 writes it anew)",
        path.display()
    );
}
