//! Several files of a command: traces are shown as one, and profiles are added up.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

mod common;

use common::{small_trace, xrayctl, xrayctl_in};

fn golden(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../xray-trace/tests/golden/v1");
    format!("{folder}/{name}.xtrace")
}

/// The output of a command that succeeds.
#[track_caller]
fn out(command: &str, files: &[&str]) -> String {
    let words = command.split(' ').chain(files.iter().copied());
    let ran = xrayctl(words);
    assert_eq!(ran.code, 0, "{command}: {}", ran.err);
    ran.out
}

#[track_caller]
fn json(command: &str, files: &[&str]) -> Value {
    serde_json::from_str(&out(command, files)).unwrap()
}

/// A command that fails with this exit code and this text.
#[track_caller]
fn fails(command: &str, files: &[&str], code: i32, why: &str) {
    let words = command.split(' ').chain(files.iter().copied());
    let ran = xrayctl(words);
    assert_eq!(ran.code, code, "{command}: {}", ran.err);
    assert!(ran.err.contains(why), "{command}: {}", ran.err);
    assert_eq!(ran.out, "", "{command}");
}

/// Folded stacks with the number of their calls.
fn calls_of_stacks(files: &[&str]) -> BTreeMap<String, u64> {
    let command = "stack --aggregate-threads --all --stack-format=flame --aggregation-type=count";
    let out = out(command, files);
    let lines = out.lines().map(|line| line.rsplit_once(' ').unwrap());
    lines
        .map(|(stack, calls)| (stack.to_owned(), calls.parse().unwrap()))
        .collect()
}

/// Three traces, two of one boot, of golden files: the sums are the sums.
#[test]
fn several_traces_are_shown_as_one() {
    let files = ["calls", "processes", "lossless"].map(golden);
    let files = files.each_ref().map(String::as_str);
    let sums = |files: &[&str]| {
        let report = json("report --json --limit 0", files);
        let rows = report["table"]["rows"].as_array().unwrap().clone();
        let calls = rows.iter().map(|row| row["calls"].as_u64().unwrap());
        let trace = &report["trace"];
        let number = |key: &str| trace[key].as_u64().unwrap();
        let file = trace["file"].as_str().unwrap().to_owned();
        (
            calls.sum::<u64>(),
            number("events"),
            number("threads"),
            file,
        )
    };
    let alone = files.map(|file| sums(&[file]));
    let all = sums(&files);
    assert_eq!(all.0, alone.iter().map(|one| one.0).sum::<u64>());
    assert_eq!(all.1, alone.iter().map(|one| one.1).sum::<u64>());
    assert_eq!(all.2, alone.iter().map(|one| one.2).sum::<u64>());
    assert_eq!(all.3, format!("{} and 2 more", files[0]));
}

#[test]
fn stacks_and_edges_of_several_traces_are_added_up() {
    let files = ["calls", "processes"].map(golden);
    let files = files.each_ref().map(String::as_str);
    let mut expected = BTreeMap::new();
    for file in files {
        for (stack, calls) in calls_of_stacks(&[file]) {
            *expected.entry(stack).or_insert(0) += calls;
        }
    }
    assert_eq!(calls_of_stacks(&files), expected);
    // The name of a vertex, and the calls of all edges to it.
    let edges = |files: &[&str]| {
        let graph = json("graph --format json", files);
        let edges = graph["edges"].as_array().unwrap().clone();
        let mut calls = BTreeMap::<String, u64>::new();
        for edge in edges {
            let name = edge["callee"].as_str().unwrap().to_owned();
            *calls.entry(name).or_default() += edge["calls"].as_u64().unwrap();
        }
        calls
    };
    let mut expected = BTreeMap::new();
    for (name, calls) in files.iter().flat_map(|file| edges(&[file])) {
        *expected.entry(name).or_insert(0) += calls;
    }
    assert!(expected.values().sum::<u64>() > 0);
    assert_eq!(edges(&files), expected);
}

/// A function that only one of the traces has is no error. A file that cannot be read is one.
#[test]
fn options_of_stack_apply_to_all_traces_together() {
    let dir = tempfile::tempdir().unwrap();
    small_trace(dir.path());
    let calls = golden("calls");
    let files = ["small.xtrace", &calls];
    let stacks = |options: &[&str]| {
        let mut words = vec!["stack", "--all", "--stack-format=flame"];
        words.extend_from_slice(options);
        words.extend_from_slice(&files);
        xrayctl_in(dir.path(), words)
    };
    let of_one = stacks(&["--aggregate-threads", "--function", "ns::next"]);
    assert_eq!(of_one.code, 0, "{}", of_one.err);
    assert_eq!(of_one.out, "ns::next() 750\n");
    let nowhere = stacks(&["--function", "nowhere"]);
    assert_eq!(nowhere.code, 3, "{}", nowhere.err);

    fs::write(dir.path().join("bad"), "neither").unwrap();
    let with_bad = ["stack", "small.xtrace", "bad", "-stack-format=flame"];
    let ran = xrayctl_in(dir.path(), with_bad);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("cannot read bad"), "{}", ran.err);
    let kept = xrayctl_in(dir.path(), with_bad.into_iter().chain(["-k"]));
    assert_eq!(kept.code, 0, "{}", kept.err);
    assert!(kept.err.contains("cannot read bad"), "{}", kept.err);
    let alone = xrayctl_in(dir.path(), ["stack", "small.xtrace", "-stack-format=flame"]);
    assert_eq!(kept.out, alone.out);
}

/// The trace `cut` does not have the rate of its counter.
#[test]
fn ticks_and_nanoseconds_are_not_merged() {
    let dir = tempfile::tempdir().unwrap();
    let (calls, cut) = (golden("calls"), golden("cut"));
    let svg = dir.path().join("out.svg");
    let flame = format!("flame -o {}", svg.display());
    for command in [
        "report",
        "tree",
        "graph",
        "account",
        "stack",
        "info",
        "convert --to folded",
        &flame,
    ] {
        let why = format!("cannot merge {cut}: its times are in ticks of a counter whose rate is");
        fails(command, &[&calls, &cut], 1, &why);
        let why = format!("cannot merge {calls}: its times are in nanoseconds, but the times of");
        fails(command, &[&cut, &calls], 1, &why);
    }
    assert!(!svg.exists());
    let twice = json("report --json", &[&cut, &cut]);
    assert_eq!(twice["trace"]["calibrated"], false);
    let stack = |files: &[&str]| xrayctl([&["stack", "-k"][..], files].concat());
    let kept = stack(&[&calls, &cut]);
    assert_eq!(kept.code, 0, "{}", kept.err);
    assert!(kept.err.contains("cannot merge"), "{}", kept.err);
    assert_eq!(kept.out, stack(&[&calls]).out);
}

/// Numbers of calls have no unit of time.
#[test]
fn stack_and_flame_add_no_ticks_to_nanoseconds() {
    let dir = tempfile::tempdir().unwrap();
    let (calls, profile) = (golden("calls"), golden("profile"));
    let ticks = dir.path().join("ticks.xrayprofile");
    let ticks = ticks.to_str().unwrap();
    out(&format!("convert -o {ticks}"), &[&profile]);
    let why = "give files of one unit, or show the numbers of calls alone with";
    let diff = format!("stack --diff {ticks}");
    for (command, files) in [
        ("stack", &[&*calls, ticks][..]),
        ("stack --aggregation-type=count", &[ticks, &*calls]),
        ("stack --all --stack-format=flame", &[ticks, &*calls]),
        (&*diff, &[&*profile]),
    ] {
        fails(command, files, 2, why);
    }
    let flame = format!("flame -o - --diff {ticks}");
    fails(&flame, &[&profile], 2, "cannot compare");
    let both: u64 = calls_of_stacks(&[ticks, &*calls]).values().sum();
    let alone = [&*calls, ticks].map(|file| calls_of_stacks(&[file]).values().sum::<u64>());
    assert_eq!(both, alone.iter().sum::<u64>());

    let stack = |files: &[&str]| xrayctl([&["stack", "-k"][..], files].concat());
    let kept = stack(&[&profile, ticks, &profile]);
    assert_eq!(kept.code, 0, "{}", kept.err);
    assert!(kept.err.contains("cannot add up"), "{}", kept.err);
    assert_eq!(kept.out, stack(&[&profile, &profile]).out);
}

#[test]
fn info_of_several_traces_adds_up_files_and_events() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log.bin");
    let log = log.to_str().unwrap();
    let files = ["calls", "processes"].map(golden);
    let [one, other] = files.each_ref().map(String::as_str);
    let info = |files: &[&str]| json("info --json", files);
    let (first, second, both) = (info(&[one]), info(&[other]), info(&[one, other]));
    let number = |info: &Value, path: &str| info.pointer(path).unwrap().as_u64().unwrap();
    for path in [
        "/bytes",
        "/events/entries",
        "/events/exits",
        "/trace/threads",
    ] {
        let sum = number(&first, path) + number(&second, path);
        assert_eq!(number(&both, path), sum, "{path}");
    }
    assert_eq!(
        (&both["format"], &both["version"]),
        (&first["format"], &first["version"])
    );
    assert_eq!(number(&both, "/clock/frequency"), 1_000_000_000);
    out(&format!("convert -f fdr -o {log}"), &[one]);
    let mixed = info(&[other, log]);
    assert_eq!(
        (&mixed["format"], &mixed["version"]),
        (&"mixed".into(), &Value::Null)
    );
    assert_eq!(info(&[log, log])["format"], "fdr");
}

#[test]
fn profiles_are_added_up_in_every_command_that_reads_them() {
    let dir = tempfile::tempdir().unwrap();
    let profile = golden("profile");
    let twice = [&*profile, &*profile];
    // The process and the thread of each row, and the calls.
    let rows = |files: &[&str], by: &str| {
        let account = json(&format!("account --format json --by {by}"), files);
        let rows = account["rows"].as_array().unwrap().clone();
        let key = |row: &Value, key: &str| row[key].as_u64().unwrap();
        let rows = rows.iter().map(|row| {
            (
                row["name"].to_string(),
                key(row, "calls"),
                key(row, "self_ns"),
                key(row, "max_ns"),
            )
        });
        rows.collect::<Vec<_>>()
    };
    for by in ["function", "thread", "process", "module"] {
        let expected = rows(&[&profile], by).into_iter();
        let expected = expected.map(|(name, calls, ns, max)| (name, 2 * calls, 2 * ns, max));
        assert_eq!(rows(&twice, by), expected.collect::<Vec<_>>(), "{by}");
    }
    let double = calls_of_stacks(&[&profile]).into_iter();
    let double: BTreeMap<_, _> = double.map(|(stack, calls)| (stack, 2 * calls)).collect();
    assert_eq!(calls_of_stacks(&twice), double);

    let (one, both) = (
        json("info --json", &[&profile]),
        json("info --json", &twice),
    );
    for key in ["bytes", "calls", "self_ns"] {
        assert_eq!(
            both[key].as_u64(),
            one[key].as_u64().map(|one| 2 * one),
            "{key}"
        );
    }
    assert_eq!(both["stacks"], one["stacks"]);
    assert_eq!(both["file"], format!("{profile} and 1 more"));

    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let sum = |text: &str| -> u64 {
        let values = text.lines().filter_map(|line| line.rsplit_once(' '));
        values.map(|(_, value)| value.parse::<u64>().unwrap()).sum()
    };
    out(
        &format!("convert --to folded -o {}", path("one")),
        &[&profile],
    );
    out(&format!("convert --to folded -o {}", path("both")), &twice);
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert_eq!(sum(&read("both")), 2 * sum(&read("one")));
    let flame = out(&format!("flame -o {}", path("both.svg")), &twice);
    let title = fs::read_to_string(path("both.svg")).unwrap();
    assert!(title.contains("profile.xtrace and 1 more"), "{flame}");
    out(&format!("report --html -o {}", path("both.html")), &twice);
    assert!(Path::new(&path("both.html")).exists());
}

#[test]
fn what_cannot_be_added_up_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (calls, profile) = (golden("calls"), golden("profile"));
    let ticks = dir.path().join("ticks.xrayprofile");
    let ticks = ticks.to_str().unwrap();
    out(&format!("convert -o {ticks}"), &[&profile]);
    let svg = dir.path().join("out.svg");
    let flame = format!("flame -o {}", svg.display());
    for command in ["account", "info", "convert --to folded", &flame] {
        let why = format!("{calls} is a trace and {profile} is a profile: give only traces");
        fails(command, &[&calls, &profile], 2, &why);
        fails(command, &[&profile, &calls], 2, &why);
        let why = "its times are in ticks of a counter whose rate is unknown, but the times of the";
        fails(command, &[&profile, ticks], 1, why);
    }
    assert!(!svg.exists());
    for command in ["report", "tree", "graph"] {
        let why = format!("{profile} is a profile, which has sums of calls but no events");
        fails(command, &[&profile, &profile], 1, &why);
        fails(command, &[&calls, &profile], 1, &why);
    }
    // `stack` adds up by the names of functions, so that it takes both.
    let mut expected = calls_of_stacks(&[&calls]);
    for (stack, calls) in calls_of_stacks(&[&profile]) {
        *expected.entry(stack).or_insert(0) += calls;
    }
    assert_eq!(calls_of_stacks(&[&calls, &profile]), expected);
}
