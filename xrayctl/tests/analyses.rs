//! Analyses of traces made by hand, compared with llvm-xray's numbers of such a trace.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use xray_trace::FileAddr;
use xray_trace::container::{BlockEncoder, Writer};
use xray_trace::model::{
    CallKind, ClockAnchor, Function, FunctionId, Module, ModuleId, Process, ProcessId, Thread,
    ThreadId, Ticks,
};

mod common;

use common::{small_trace, xrayctl, xrayctl_in};

use CallKind::{Enter, Exit, TailExit};

type Calls<'a> = &'a [(u64, u32, CallKind)];

/// Writes a trace of these threads into `dir`. A tick is a nanosecond. Functions have no names, as
/// in a log without a map.
fn trace(dir: &Path, name: &str, threads: &[Calls<'_>]) {
    let mut writer = Writer::new(File::create(dir.join(name)).unwrap()).unwrap();
    for ticks in [0, 1_000_000_000] {
        let anchor = ClockAnchor {
            ticks: Ticks(ticks),
            monotonic_ns: ticks,
            wall_ns: ticks,
        };
        writer.add(&anchor).unwrap();
    }
    let process = ProcessId(0);
    let described = Process {
        id: process,
        pid: 1,
        start_time_ticks: 1,
        command: "t".into(),
        executable: "/t".into(),
        host: None,
    };
    writer.add(&described).unwrap();
    let module = Module {
        id: ModuleId(0),
        process,
        path: "/t".into(),
        build_id: None,
        load_bias: 0,
        event_formats: Vec::new(),
    };
    writer.add(&module).unwrap();
    for id in 1..4 {
        let function = Function {
            id: FunctionId(id),
            module: ModuleId(0),
            xray_id: id,
            address: FileAddr(0),
            symbol: None,
            name: format!("#{id}"),
            source: None,
            sleds: 0,
        };
        writer.add(&function).unwrap();
    }
    for (thread, calls) in (1..).zip(threads) {
        let described = Thread {
            id: ThreadId(thread),
            process,
            tid: thread,
            name: "t".into(),
        };
        writer.add(&described).unwrap();
        let mut block = BlockEncoder::new(ThreadId(thread));
        for (ticks, function, kind) in *calls {
            block.push_call(Ticks(*ticks), FunctionId(*function), *kind, None);
        }
        writer.block(&block.finish().unwrap()).unwrap();
    }
    let totals = writer.totals();
    writer.end(&totals).unwrap();
}

/// Runs `xrayctl` in a directory with one trace. Returns the text of both outputs.
fn run(threads: &[Calls<'_>], args: &str) -> (String, String) {
    let dir = tempfile::tempdir().unwrap();
    trace(dir.path(), "t", threads);
    let ran = xrayctl_in(dir.path(), args.split_whitespace());
    assert_eq!(ran.code, 0, "{args}: {}", ran.err);
    (ran.out, ran.err)
}

/// The ids and the numbers of calls of `account`.
fn counts(out: &str) -> Vec<(u32, u64)> {
    let rows = out.lines().skip(1).map(|line| {
        let mut fields = line.split(',').map(|field| field.parse::<u64>());
        let id = u32::try_from(fields.next().unwrap().unwrap()).unwrap();
        (id, fields.next().unwrap().unwrap())
    });
    rows.collect()
}

/// llvm-xray has no such columns.
#[test]
fn the_table_sorts_by_self_time_and_name() {
    let calls: Calls<'_> = &[
        (0, 1, Enter),
        (10, 1, Exit),
        (20, 2, Enter),
        (25, 2, Exit),
        (30, 2, Enter),
        (32, 2, TailExit),
        (40, 3, Enter),
        (41, 3, Exit),
    ];
    for (sort, expected) in [("self", [3, 2, 1]), ("func", [1, 2, 3])] {
        let sorted = |order: &str| {
            let args = format!("account t --format=csv --sort={sort} --sortorder={order}");
            let found = counts(&run(&[calls], &args).0).into_iter();
            found.map(|(id, _)| id).collect::<Vec<_>>()
        };
        assert_eq!(sorted("asc"), expected, "{sort}");
        let first = sorted("dsc")[0];
        assert_eq!(first, expected[2], "{sort}");
    }
}

#[test]
fn stacks_of_two_traces_are_compared() {
    let first: Calls<'_> = &[(0, 1, Enter), (1, 2, Enter), (6, 2, Exit), (10, 1, Exit)];
    let second: Calls<'_> = &[(3, 1, Enter), (5, 2, Enter), (6, 2, Exit), (7, 1, Exit)];
    let threads = [first, second];
    let diff = "stack t --diff t -stack-format=flame";
    let (out, _) = run(&threads, diff);
    assert_eq!(out, "#1 8 8\n#1;#2 6 6\n");
    let (out, _) = run(&threads, &format!("{diff} --per-thread-stacks"));
    let first = "thread_1;#1 5 5\nthread_1;#1;#2 5 5\n";
    assert_eq!(out, format!("{first}thread_2;#1 3 3\nthread_2;#1;#2 1 1\n"));
    let (out, _) = run(&threads, "stack t --per-thread-stacks");
    assert!(out.starts_with("Thread 1:\n\nUnique Stacks: 1\n"), "{out}");
    assert!(out.contains("Sum: 0.000000005\n"), "{out}");
}

#[test]
fn flame_graphs_have_every_function_and_add_up() {
    let dir = tempfile::tempdir().unwrap();
    trace(
        dir.path(),
        "t",
        &[&[(0, 1, Enter), (10, 2, Enter), (40, 2, Exit), (100, 1, Exit)]],
    );
    for more in [&[][..], &["--icicle"], &["--diff", "t"]] {
        let args = [&["flame", "t", "-o", "t.svg"], more].concat();
        let ran = xrayctl_in(dir.path(), args);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let svg = std::fs::read_to_string(dir.path().join("t.svg")).unwrap();
        for title in [
            "all (100 ns, 100%",
            "#1 (100 ns, 100.00%",
            "#2 (30 ns, 30.00%",
        ] {
            assert!(svg.contains(title), "{more:?}: {title}: {svg}");
        }
    }
}

#[test]
fn account_counts_by_thread_process_and_module() {
    let dir = tempfile::tempdir().unwrap();
    let file = small_trace(dir.path());
    let file = file.to_str().unwrap();
    // id, calls, unfinished, total, self.
    for (by, expected) in [
        (
            "thread",
            &["4711,9,2,44999500,44999000,", "4712,2,1,50,50,"][..],
        ),
        ("process", &["4711,11,3,44999550,44999050,"]),
        ("module", &["0,3,1,44999550,44992348,", "1,8,2,6702,6702,"]),
    ] {
        let ran = xrayctl(["account", file, "--by", by, "-f", "csv"]);
        let found: Vec<_> = ran.out.lines().skip(1).collect();
        assert_eq!(found.len(), expected.len(), "{}", ran.out);
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{by}: {}", ran.out);
        }
    }
}

/// Two objects and a main program, numbered as by LLVM 20's runtime, in a log and in a trace of
/// ours.
#[test]
fn function_ids_of_several_modules_are_those_of_llvm_20() {
    let dir = tempfile::tempdir().unwrap();
    let call = |id: i64, at: u64| {
        let record = |kind, at| {
            format!(
                "  - {{ type: 0, func-id: {id}, function: f{id}, cpu: 0, thread: 5, process: 5, kind: function-{kind}, tsc: {at}, data: '' }}\n"
            )
        };
        record("enter", at) + &record("exit", at + 5)
    };
    let ids = [1, 16_777_217, 33_554_437, i64::from(-1_i32 << 24 | 9)];
    let records: String = ids
        .iter()
        .zip([10, 20, 30, 40])
        .map(|(id, at)| call(*id, at))
        .collect();
    let header = "---\nheader:\n  version: 1\n  type: 0\n  constant-tsc: true\n  nonstop-tsc: true\n  cycle-frequency: 1000000000\nrecords:\n";
    fs::write(
        dir.path().join("log.yaml"),
        format!("{header}{records}...\n"),
    )
    .unwrap();
    let ran = xrayctl_in(dir.path(), ["convert", "log.yaml", "-o", "log.xtrace"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for file in ["log.yaml", "log.xtrace"] {
        let ran = xrayctl_in(dir.path(), ["account", "-f", "csv", file]);
        let expected = [1, 16_777_217, 33_554_437, 0xff00_0009].map(|id| (id, 1));
        assert_eq!(counts(&ran.out), expected, "{file}");
        let graph = xrayctl_in(dir.path(), ["graph", file]).out;
        for id in [1_u32, 16_777_217, 33_554_437, 0xff00_0009] {
            let edge = format!("F0 -> F{id} [");
            assert_eq!(graph.matches(&edge).count(), 1, "{graph}");
        }
        let ran = xrayctl_in(dir.path(), ["convert", "--force", file, "-o", "again.yaml"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let again = fs::read_to_string(dir.path().join("again.yaml")).unwrap();
        let records_of = |text: &str| text.split_once("records:").unwrap().1.trim().to_owned();
        assert_eq!(
            records_of(&again),
            format!("{}\n...", records.trim()),
            "{file}"
        );
    }
}

/// The names of the functions in `account`'s table, in order.
fn named(out: &str) -> Vec<String> {
    let rows: serde_json::Value = serde_json::from_str(out).unwrap();
    let rows = rows["rows"].as_array().unwrap().iter();
    let mut names: Vec<_> = rows
        .map(|row| row["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// The map of a trace names the functions of its exports, which have numbers alone.
#[test]
fn the_map_of_a_trace_names_its_exports() {
    let dir = tempfile::tempdir().unwrap();
    let trace = small_trace(dir.path());
    let trace = trace.to_str().unwrap();
    let ok = |args: &[&str]| {
        let ran = xrayctl_in(dir.path(), args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        ran.out
    };
    let expected = named(&ok(&["account", "-f", "json", trace]));
    assert!(expected.iter().any(|name| !name.starts_with('#')));
    ok(&["extract", "--symbolize", trace, "-o", "map.yaml"]);
    for format in ["fdr", "basic"] {
        ok(&["convert", trace, "--to", format, "-o", format]);
        let numbered = named(&ok(&["account", "-f", "json", format]));
        assert!(
            numbered.iter().all(|name| name.starts_with('#')),
            "{numbered:?}"
        );
        let found = named(&ok(&["account", "-f", "json", "-m", "map.yaml", format]));
        assert_eq!(found, expected, "{format}");
    }
}

/// The maps of a program and its libraries, in the order of their numbers.
#[test]
fn each_library_of_a_log_can_have_a_map() {
    let dir = tempfile::tempdir().unwrap();
    let write = |file: &str, text: String| fs::write(dir.path().join(file), text).unwrap();
    for (file, name) in [("program", "main"), ("first", "one"), ("second", "two")] {
        let sled =
            "id: 1, address: 0x10, function: 0x10, kind: function-enter, always-instrument: true";
        write(
            file,
            format!("---\n- {{ {sled}, function-name: {name} }}\n...\n"),
        );
    }
    let record = |id: u32, kind, at| {
        format!(
            "  - {{ type: 0, func-id: {id}, cpu: 0, thread: 5, process: 5, kind: function-{kind}, tsc: {at}, data: '' }}\n"
        )
    };
    let calls = [1, 1 << 24 | 1, 2 << 24 | 1, 3 << 24 | 1].map(|id| {
        let at = id >> 20;
        record(id, "enter", at) + &record(id, "exit", at + 5)
    });
    let header = "---\nheader:\n  version: 1\n  type: 0\n  constant-tsc: true\n  nonstop-tsc: true\n  cycle-frequency: 1000000000\nrecords:\n";
    write("log.yaml", format!("{header}{}...\n", calls.concat()));
    let maps = ["-m", "program", "-m", "first", "-m", "second"];
    let account = ["account", "-f", "json", "log.yaml"];
    let ran = xrayctl_in(dir.path(), [&account[..], &maps].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(named(&ran.out), ["#50331649", "main", "one", "two"]);
}

/// A function of two processes has one id, and a vertex in each process.
#[test]
fn a_graph_of_two_processes_keeps_their_functions_apart() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(File::create(dir.path().join("t")).unwrap()).unwrap();
    for id in 0..2 {
        let process = ProcessId(id);
        let described = Process {
            id: process,
            pid: 7 + id,
            start_time_ticks: 1,
            command: "t".into(),
            executable: "/t".into(),
            host: None,
        };
        writer.add(&described).unwrap();
        let module = Module {
            id: ModuleId(id),
            process,
            path: "/t".into(),
            build_id: None,
            load_bias: 0x1000 * u64::from(id),
            event_formats: Vec::new(),
        };
        writer.add(&module).unwrap();
        let function = Function {
            id: FunctionId(id),
            module: ModuleId(id),
            xray_id: 3,
            address: FileAddr(0x100),
            symbol: None,
            name: "f".into(),
            source: None,
            sleds: 2,
        };
        writer.add(&function).unwrap();
        let described = Thread {
            id: ThreadId(id),
            process,
            tid: 7 + id,
            name: "t".into(),
        };
        writer.add(&described).unwrap();
        let mut block = BlockEncoder::new(ThreadId(id));
        block.push_call(Ticks(10), FunctionId(id), Enter, None);
        block.push_call(Ticks(20), FunctionId(id), Exit, None);
        writer.block(&block.finish().unwrap()).unwrap();
    }
    let totals = writer.totals();
    writer.end(&totals).unwrap();
    let graph = xrayctl_in(dir.path(), ["graph", "t"]).out;
    for line in [
        "F0 -> F3 [label=\"\"];",
        "F0 -> F3_2 [label=\"\"];",
        "F3 [label=\"f\"];",
        "F3_2 [label=\"f (2)\"];",
    ] {
        assert!(graph.lines().any(|found| found == line), "{graph}");
    }
    let ran = xrayctl_in(dir.path(), ["account", "-f", "csv", "t"]);
    assert_eq!(counts(&ran.out), [(3, 1), (3, 1)], "{}", ran.out);
}

/// Has one thread, because llvm-xray's account fails with more.
#[test]
fn account_and_graph_print_what_llvm_xray_prints() {
    let dir = tempfile::tempdir().unwrap();
    let calls: Vec<_> = (0..40_u64)
        .flat_map(|at| {
            let begin = at * 1000;
            [
                (begin, 1, Enter),
                (begin + 100 + at, 2, Enter),
                (begin + 300 + 3 * at, 2, Exit),
                (begin + 999, 1, Exit),
            ]
        })
        .map(|(ticks, function, kind)| (1000 + 100 * ticks, function, kind))
        .collect();
    trace(dir.path(), "t", &[&calls]);
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let ran = xrayctl(["convert", &path("t"), "-o", &path("t.fdr")]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for args in [
        "account -f csv",
        "account",
        "account -s max -r dsc -p 1",
        "graph -e sum -v count -c 99p -b max",
        "graph -e med -c min",
    ] {
        let words = |file| args.split(' ').chain([file]).collect::<Vec<_>>();
        let theirs = Command::new("llvm-xray-19")
            .args(words("t.fdr"))
            .current_dir(dir.path())
            .output();
        let theirs = theirs.expect("llvm-xray-19 is installed");
        assert!(theirs.status.success(), "{args}: {theirs:?}");
        let columns: &[_] = match args.starts_with("account") {
            true => &["--columns", "llvm"],
            false => &[],
        };
        let ours = xrayctl_in(dir.path(), [&words("t"), columns].concat()).out;
        let sorted = |text: &str| {
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let theirs = String::from_utf8(theirs.stdout).unwrap();
        assert_eq!(sorted(&ours), sorted(&theirs), "{args}");
    }
}

#[test]
fn a_tree_of_two_traces_has_the_calls_before_and_after() {
    let dir = tempfile::tempdir().unwrap();
    let before: Calls<'_> = &[(0, 1, Enter), (10, 2, Enter), (40, 2, Exit), (100, 1, Exit)];
    let after: Calls<'_> = &[
        (0, 1, Enter),
        (10, 3, Enter),
        (30, 3, Exit),
        (30, 3, Enter),
        (90, 3, Exit),
        (150, 1, Exit),
    ];
    trace(dir.path(), "a", &[before]);
    trace(dir.path(), "b", &[after]);
    let tree = |more: &str| {
        let args = format!("tree a --diff b {more}");
        let ran = xrayctl_in(dir.path(), args.split_whitespace());
        assert_eq!(ran.code, 0, "{args}: {}", ran.err);
        ran.out
    };
    let text = "    BEFORE       AFTER       CHANGE                CALLS  FUNCTION
    100 ns      150 ns       +50 ns               1 -> 1  #1
      0 ns       80 ns       +80 ns               0 -> 2    #3
     30 ns        0 ns       -30 ns               1 -> 0    #2
";
    assert_eq!(tree(""), text);
    let cut = tree("--limit 1");
    assert!(
        cut.ends_with("… 2 more lines; --limit 0 shows everything\n"),
        "{cut}"
    );

    let json: serde_json::Value = serde_json::from_str(&tree("--json --limit 2")).unwrap();
    assert_eq!(json["before"]["events"], 4);
    assert_eq!(json["after"]["events"], 6);
    let counts = |calls, total_ns, self_ns| serde_json::json!({"calls": calls, "unfinished": 0, "total_ns": total_ns, "self_ns": self_ns});
    let expected = serde_json::json!({
        "lines": [
            {"depth": 0, "function": "#1", "before": counts(1, 100, 70), "after": counts(1, 150, 70)},
            {"depth": 1, "function": "#3", "before": null, "after": counts(2, 80, 80)},
        ],
        "left_out": 1,
    });
    assert_eq!(json["tree"], expected);
    let json: serde_json::Value = serde_json::from_str(&tree("--json --depth 1")).unwrap();
    assert_eq!(json["tree"]["lines"].as_array().unwrap().len(), 1);
}

/// Twelve calls of function 1, each with a call of function 2 that takes so long, and one call of
/// function 3.
fn hashing(dir: &Path, name: &str, hash_ns: u64) {
    let mut calls = vec![(0, 3, Enter), (5, 3, Exit)];
    let mut at = 10;
    for _ in 0..12 {
        let end = at + 10 + hash_ns;
        calls.extend([(at, 1, Enter), (at + 10, 2, Enter), (end, 2, Exit)]);
        calls.push((end + 90, 1, Exit));
        at = end + 100;
    }
    trace(dir, name, &[&calls]);
}

#[test]
fn a_function_that_became_slower_stands_first() {
    let dir = tempfile::tempdir().unwrap();
    hashing(dir.path(), "a", 100);
    hashing(dir.path(), "b", 370);
    let diff = |args: &str| xrayctl_in(dir.path(), args.split_whitespace());
    let ran = diff("diff a b");
    let text = "RATIO  PER CALL   AFTER  CALLS  AFTER     CHANGE  FUNCTION
 3.70    100 ns  370 ns     12     12  +3.240 µs  #2
 2.35    200 ns  470 ns     12     12  +3.240 µs  #1

NOT COMPARED  CALLS  AFTER  CHANGE  FUNCTION
few calls         1      1    0 ns  #3
";
    assert_eq!(
        (ran.code, ran.out.as_str(), ran.err.as_str()),
        (0, text, "")
    );
    // Faster functions have the same place as slower ones.
    let ran = diff("diff b a --json --top 1 --function #1 --function #2");
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), 1);
    assert_eq!(json["rows"][0]["name"], "#2");
    assert_eq!(
        json["rows"][0]["per_call_ns"],
        serde_json::json!([370, 100])
    );
    assert_eq!(
        (&json["functions"], &json["compared"]),
        (&2.into(), &2.into())
    );
    let ran = diff("diff a b --min-calls 100");
    assert!(
        ran.out
            .starts_with("no function has enough calls in both files\n")
    );

    let header = "---\nheader:\n  version: 1\n  type: 0\n  constant-tsc: true\n  nonstop-tsc: true\n  cycle-frequency: 0\nrecords:\n";
    let record = |kind, at| {
        format!(
            "  - {{ type: 0, func-id: 1, function: f, cpu: 0, thread: 5, process: 5, kind: function-{kind}, tsc: {at}, data: '' }}\n"
        )
    };
    let log = format!("{header}{}{}...\n", record("enter", 1), record("exit", 9));
    fs::write(dir.path().join("ticks.yaml"), log).unwrap();
    let ran = diff("diff a ticks.yaml");
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.err.contains("times in nanoseconds"), "{}", ran.err);
}

/// The number of slow calls in each kind of report.
#[test]
fn the_slowest_calls_are_part_of_a_whole_report() {
    let dir = tempfile::tempdir().unwrap();
    hashing(dir.path(), "t", 100);
    for (args, expected) in [
        ("", Some(10)),
        ("--slowest 3", Some(3)),
        ("--slowest 99", Some(25)),
        ("--slowest 0", None),
        ("--table", None),
        ("--tree", None),
        ("--tree --slowest 2", Some(2)),
        ("--min-duration 150ns --slowest 99", Some(12)),
        ("--min-duration 1s", Some(0)),
        ("--function #3", Some(1)),
    ] {
        let line = format!("report t --json {args}");
        let ran = xrayctl_in(dir.path(), line.split_whitespace());
        assert_eq!(ran.code, 0, "{line}: {}", ran.err);
        let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let slowest = json["slowest"].as_array().map(Vec::len);
        assert_eq!(slowest, expected, "{line}");
        let lines = json["tree"]["lines"].as_array().map_or(0, Vec::len);
        if args.contains("150ns") {
            assert_eq!(lines, 12, "{line}");
        }
    }
}
