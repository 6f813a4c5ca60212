//! Logs and profiles of LLVM's own runtime, read by the commands. The answers agree with the
//! program's own counts, and with llvm-xray's where it can read the log.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

mod common;
#[path = "../../xray-trace/tests/llvm/logged.rs"]
mod logged;

use common::{Ran, small_trace, xrayctl};
use logged::{Threads, logs, program};

/// Calls, and their shortest, longest and summed durations in nanoseconds, by function id.
type Table = BTreeMap<u32, (u64, [f64; 3])>;

fn table(csv: &str) -> Table {
    let row = |line: &str| {
        let fields = line.split(',').collect::<Vec<_>>();
        let ns = |at: usize| fields[at].parse::<f64>().unwrap() * 1e9;
        let times = [ns(2), ns(6), ns(7)];
        (
            fields[0].parse().unwrap(),
            (fields[1].parse().unwrap(), times),
        )
    };
    csv.lines().skip(1).map(row).collect()
}

/// The output of `llvm-xray`, or its error.
fn llvm_xray(args: &[&str]) -> Result<String, String> {
    let output = Command::new("llvm-xray-19").args(args).output();
    let output = output.expect("llvm-xray-19 is installed");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

fn done(args: &[&str]) -> Ran {
    let ran = xrayctl(args);
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
    ran
}

fn one(logs: &[std::path::PathBuf]) -> &str {
    let [log] = logs else {
        panic!("not one log: {logs:?}");
    };
    log.to_str().unwrap()
}

/// Checks that our table of a log has the same calls as llvm-xray's. Times may differ by the
/// rounding of each call to a nanosecond.
fn compare(log: &str, theirs: &str) {
    let (ours, theirs) = (
        table(&done(&["account", log, "-f", "csv"]).out),
        table(theirs),
    );
    assert_eq!(
        ours.keys().collect::<Vec<_>>(),
        theirs.keys().collect::<Vec<_>>()
    );
    for (function, (calls, times)) in &ours {
        let (their_calls, their_times) = &theirs[function];
        assert_eq!(calls, their_calls, "#{function}");
        for (ours, theirs) in times.iter().zip(their_times) {
            // llvm-xray prints six digits behind the first.
            let allowed = 2.0 * *calls as f64 + theirs * 1e-6;
            assert!(
                (ours - theirs).abs() <= allowed,
                "#{function}: {ours} is not {theirs}"
            );
        }
    }
}

/// The calls of each function, by name. Checks that each function has its times.
fn named_calls(log: &str) -> BTreeMap<String, u64> {
    let program = program().to_str().unwrap();
    let args = ["account", log, "-m", program, "--format", "json"];
    let json: Value = serde_json::from_str(&done(&args).out).unwrap();
    let rows = json["rows"].as_array().unwrap().iter();
    let named = rows.map(|row| {
        let number = |key: &str| row[key].as_u64().unwrap();
        assert!(number("self_ns") <= number("total_ns"), "{row}");
        let name = row["name"].as_str().unwrap().to_owned();
        (name, number("calls"))
    });
    named.collect()
}

fn expected(threads: u64) -> BTreeMap<String, u64> {
    let calls = [("leaf(int)", 100 * threads), ("outer(long, int)", threads)];
    calls.map(|(name, calls)| (name.to_owned(), calls)).into()
}

#[test]
fn a_flight_data_recorder_log_is_counted_as_llvm_xray_does() {
    for events in ["0", "1"] {
        // llvm-xray fails with more than one thread.
        let (_dir, logs) = logs("xray-fdr", events, Threads::AtOnce(1));
        let log = one(&logs);
        compare(log, &llvm_xray(&["account", log, "-f", "csv"]).unwrap());
        assert_eq!(named_calls(log), expected(1));
    }
}

#[test]
fn a_log_of_threads_at_once_is_counted_as_llvm_xray_does_when_it_is_put_in_order() {
    let (dir, logs) = logs("xray-fdr", "1", Threads::AtOnce(4));
    let log = one(&logs);
    assert_eq!(named_calls(log), expected(4));
    // llvm-xray can count a YAML text of the log in which the version is 1.
    let text = llvm_xray(&["convert", "-f", "yaml", log]).unwrap();
    let ordered = dir.path().join("ordered.yaml");
    let text = text.replacen("version:         5", "version:         1", 1);
    std::fs::write(&ordered, text).unwrap();
    let ordered = ordered.to_str().unwrap();
    let theirs = llvm_xray(&["account", ordered, "-f", "csv"]).unwrap();
    compare(log, &theirs);
    compare(ordered, &theirs);
}

#[test]
fn a_basic_mode_log_is_counted_as_llvm_xray_does() {
    let (_dir, logs) = logs("xray-basic", "0", Threads::OneAfterTheOther);
    let log = one(&logs);
    compare(log, &llvm_xray(&["account", log, "-f", "csv"]).unwrap());
    assert_eq!(named_calls(log), expected(2));
}

#[test]
fn a_profile_answers_what_it_can() {
    let (dir, logs) = logs("xray-profiling", "0", Threads::AtOnce(3));
    let (log, program) = (one(&logs), program().to_str().unwrap());
    assert_eq!(named_calls(log), expected(3));

    let info = done(&["info", log, "-m", program, "--json"]);
    let info: Value = serde_json::from_str(&info.out).unwrap();
    let facts = ["format", "functions", "calls", "stacks"].map(|key| info[key].to_string());
    assert_eq!(facts, ["\"profile\"", "2", "303", "6"]);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let ago = now.unwrap().as_secs() - info["written_wall_ns"].as_u64().unwrap() / 1_000_000_000;
    assert!(ago < 3600, "{ago} s");
    assert_eq!(info["threads"].as_array().unwrap().len(), 3);
    let text = done(&["info", log, "-m", program]);
    assert!(
        text.out
            .starts_with("logged: 303 calls of 2 functions by 3 threads in 6 stacks, "),
        "{}",
        text.out
    );
    assert!(text.err.contains("times are in ticks"), "{}", text.err);

    let flame = [
        "--aggregate-threads",
        "--all-stacks",
        "--stack-format=flame",
        "--aggregation-type=count",
    ];
    let stack = done(&[&["stack", log, "-m", program][..], &flame].concat());
    assert_eq!(
        stack.out,
        "outer(long, int) 3\nouter(long, int);leaf(int) 300\n"
    );
    let trace = small_trace(dir.path());
    let both = [
        &["stack", log, trace.to_str().unwrap(), "-m", program][..],
        &flame,
    ]
    .concat();
    let both = done(&both).out;
    assert!(
        both.contains("(int) 300\n") && both.contains("work 2\n"),
        "{both}"
    );
    let svg = dir.path().join("p.svg");
    let svg = svg.to_str().unwrap();
    done(&["flame", log, "-m", program, "-o", svg]);
    assert!(std::fs::read_to_string(svg).unwrap().contains("leaf(int)"));
    for format in ["folded", "pprof", "callgrind", "speedscope", "csv"] {
        let out = dir.path().join(format);
        let out = out.to_str().unwrap();
        let ran = done(&["convert", log, "-m", program, "-o", out, "--to", format]);
        assert!(ran.out.contains(": 303 calls as "), "{}", ran.out);
        assert!(std::fs::metadata(out).unwrap().len() > 20);
    }
}

#[test]
fn a_profile_says_what_it_cannot_answer() {
    let (dir, logs) = logs("xray-profiling", "0", Threads::OneAfterTheOther);
    let log = one(&logs);
    let out = dir.path().join("out");
    for (args, code, why) in [
        (
            &["tree"][..],
            1,
            "has sums of calls but no events; account, ",
        ),
        (&["graph"], 1, "has sums of calls but no events"),
        (&["report"], 1, "has sums of calls but no events"),
        (
            &["convert", "--to", "chrome", "-o", out.to_str().unwrap()],
            2,
            "no events for chrome: give --to with one of speedscope,",
        ),
        (
            &["convert", "--to", "ctf", "-o", out.to_str().unwrap()],
            2,
            "no events for ctf",
        ),
        (&["account", "--since", "1s"], 2, "has no times of calls"),
        (&["stack", "--until", "1s"], 2, "has no times of calls"),
        (
            &["account", "--recursive-calls-only"],
            2,
            "--recursive-calls-only does not work",
        ),
        (
            &["account", "--columns", "llvm"],
            2,
            "--columns llvm does not work",
        ),
    ] {
        let ran = xrayctl([args, &[log]].concat());
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (code, ""),
            "{args:?}: {}",
            ran.err
        );
        assert!(ran.err.contains(why), "{args:?}: {}", ran.err);
        assert!(!out.exists(), "{args:?}");
    }
}
