//! `account-*.yaml`, and every field and order of the table.

use crate::support::{Event, Files, leaves, mixed, unpaired, yaml};

/// f1 calls f2, which ends in a sibling call of f3, so f2 has no exit.
const TAIL_CALL: [Event; 5] = [
    (111, 10000, 1, "enter"),
    (111, 10001, 2, "enter"),
    (111, 10002, 3, "enter"),
    (111, 10003, 3, "exit"),
    (111, 10004, 1, "exit"),
];

/// The ids and the numbers of calls of a table in CSV.
fn counts(out: &str) -> Vec<(i32, u64)> {
    let rows = out.lines().skip(1).map(|line| {
        let mut fields = line.split(',');
        let id = fields.next().unwrap().parse().unwrap();
        (id, fields.next().unwrap().parse().unwrap())
    });
    rows.collect()
}

#[test]
fn account_simple_case() {
    let calls = leaves([(10001, 10100, 1)]);
    let files = Files::new(&[("log", yaml(2_601_000_000, &calls))]);
    let out = files.same("account log -o - -m map.yaml");
    assert!(out.ends_with("0.000000  <invalid>:0:0: @(1)\n"), "{out}");
    let out = files.same("account log");
    assert!(out.ends_with("0.000000  (unknown): #1\n"), "{out}");
}

/// Two threads. The times of the second start from the begin again.
#[test]
fn account_simple_sorting() {
    let of_first = [(10001, 10100, 1), (10101, 10200, 1), (10201, 10300, 1)];
    let of_second = [(10001, 10002, 2), (10101, 10102, 2)];
    let mut calls = leaves(of_first);
    let of_second = leaves(of_second).into_iter();
    calls.extend(of_second.map(|(_, at, function, kind)| (222, at, function, kind)));
    let files = Files::new(&[("log", yaml(1, &calls))]);
    assert_eq!(
        counts(&files.same("account log -m map.yaml -f csv")),
        [(1, 3), (2, 2)]
    );
    for field in ["count", "min", "max", "sum"] {
        for order in ["", "-r asc", "-r dsc"] {
            let out = files.same(&format!(
                "account log -m map.yaml -f csv -s {field} {order}"
            ));
            let expected = match order {
                "-r dsc" => [(1, 3), (2, 2)],
                _ => [(2, 2), (1, 3)],
            };
            assert_eq!(counts(&out), expected, "{field} {order}");
        }
    }
}

#[test]
fn account_deduce_tail_call() {
    let files = Files::new(&[("log", yaml(0, &TAIL_CALL))]);
    let out = files.same("account log -o - -m map.yaml -d -f csv");
    assert_eq!(counts(&out), [(1, 1), (2, 1), (3, 1)]);
    for line in ["\n1,1,4.000", "\n2,1,3.000", "\n3,1,1.000"] {
        assert!(out.contains(line), "{out}");
    }
    let err = files.ours("account log -deduce-sibling-calls").err;
    assert!(
        err.contains("1 call without an exit, taken to have ended with the caller"),
        "{err}"
    );
}

/// llvm-xray leaves out f1 with f2. We leave out only f2, because the exit of f1 shows its end.
#[test]
fn account_keep_going() {
    let files = Files::new(&[("log", yaml(0, &TAIL_CALL))]);
    let theirs = files.theirs_out("account log -m map.yaml -k -f csv");
    assert_eq!(counts(&theirs), [(3, 1)]);
    for args in ["account log -m map.yaml -k -f csv", "account log -f csv"] {
        let ran = files.ours(args);
        assert_eq!(counts(&ran.out), [(1, 1), (3, 1)]);
        assert!(ran.err.contains("1 call without an exit"), "{}", ran.err);
    }
}

/// An exit without an entry is no error of ours: every attach to a running program can see some.
#[test]
fn account_empty_stack_error() {
    let files = Files::new(&[("log", yaml(0, &[(1, 10000, 1, "exit")]))]);
    assert_eq!(files.theirs("account log -m map.yaml -d").code, 1);
    let theirs = files.theirs("account log -m map.yaml -d -k");
    assert!(
        theirs.err.contains("Thread ID: 1\n  (empty stack)\n"),
        "{}",
        theirs.err
    );
    let ours = files.ours("account log -m map.yaml -d -k --columns llvm");
    assert_eq!((ours.code, ours.out), (0, theirs.out));
    let reported = "log: Found record {FuncId: \"@(1)\", ThreadId: \"1\", RecordType: \"Fn Exit\"} with no matching function entry, at tick 10000; its thread's stack: (empty stack)\n";
    assert!(ours.err.contains(reported), "{}", ours.err);
    let ours = files.ours("account log -d");
    let counted = "log: 1 exit of calls that began before the trace, or that had been left\n";
    assert!(
        ours.err.contains(counted) && !ours.err.contains("Found record"),
        "{}",
        ours.err
    );
    assert_eq!(ours.code, 0);
}

#[test]
fn account_exit_mismatch_non_empty_stack_error() {
    let events = [
        (1, 10000, 1, "enter"),
        (1, 10001, 4, "exit"),
        (1, 10002, 1, "exit"),
    ];
    let files = Files::new(&[("log", yaml(0, &events))]);
    assert_eq!(files.theirs("account log -m map.yaml -d").code, 1);
    let theirs = files.theirs("account log -m map.yaml -d -k");
    assert!(
        theirs.err.contains("Thread ID: 1\n  #1\t@(1)\n"),
        "{}",
        theirs.err
    );
    let ours = files.ours("account log -m map.yaml -d -k --columns llvm");
    assert_eq!((ours.code, ours.out), (0, theirs.out));
    let reported = "{FuncId: \"@(4)\", ThreadId: \"1\", RecordType: \"Fn Exit\"} with no matching function entry, at tick 10001; its thread's stack: @(1)\n";
    assert!(ours.err.contains(reported), "{}", ours.err);
}

/// f3 calls itself, first within f2 and later without it.
#[test]
fn account_recursive_calls_only() {
    let mut at = 0;
    let events: Vec<Event> = "1+ 1- 2+ 2- 2+ 3+ 3+ 3- 3- 2- 3+ 3-"
        .split(' ')
        .map(|event| {
            at += 100_000_000;
            let kind = if event.ends_with('+') {
                "enter"
            } else {
                "exit"
            };
            (111, at, event[..1].parse().unwrap(), kind)
        })
        .collect();
    let files = Files::new(&[("log", yaml(2_601_000_000, &events))]);
    assert_eq!(
        counts(&files.ours_out("account log -m map.yaml -f csv")),
        [(1, 1), (2, 2), (3, 3)]
    );
    // In CSV, the times differ by parts of a nanosecond.
    files.same("account log -m map.yaml");
    let out = files.same("account -recursive-calls-only log -m map.yaml");
    assert!(
        out.contains("\n        3          2 [ 0.038447,  0.115340,"),
        "{out}"
    );
}

/// f2 did not call itself: its first call ended with f1.
#[test]
fn account_recursive_calls_only_tail_call_deduction() {
    let after = [(111, 10005, 2, "enter"), (111, 10006, 2, "exit")];
    let events = [&TAIL_CALL[..], &after].concat();
    let files = Files::new(&[("log", yaml(0, &events))]);
    let out = files.same("account -d log -m map.yaml");
    assert!(
        out.contains("\n        2          2 [ 1.000000,  3.000000,"),
        "{out}"
    );
    let out = files.same("account -d --recursive-calls-only log -m map.yaml");
    assert!(out.starts_with("Functions with latencies: 0\n"), "{out}");
}

/// llvm-xray has no order by names.
#[test]
fn every_order_of_the_table_is_llvm_xrays() {
    for (seed, threads) in [(1, 1), (2, 1), (3, 3)] {
        let files = Files::new(&[("log", yaml(1_000_000_000, &mixed(threads, seed)))]);
        for field in ["funcid", "count", "min", "med", "90p", "99p", "max", "sum"] {
            for more in [
                "",
                "--sortorder=dsc",
                "-r asc -p 2",
                "-r=dsc --top=1",
                "-p -1",
            ] {
                // Among several equal rows, the order may differ.
                let same = if field == "count" || field == "min" {
                    Files::same_lines
                } else {
                    Files::same
                };
                if !(field == "count" || field == "min") || !more.contains('p') {
                    same(
                        &files,
                        &format!("account log -m map.yaml -f csv -s {field} {more}"),
                    );
                    same(
                        &files,
                        &format!("account log --format=text --sort={field} {more}"),
                    );
                }
            }
        }
    }
}

/// With deduced sibling calls and `-k`, both count the same calls, whatever events are missing.
#[test]
fn calls_without_a_partner_are_counted_as_by_llvm_xray() {
    for seed in 0..30 {
        let files = Files::new(&[("log", yaml(1_000_000_000, &unpaired(seed)))]);
        files.same("account log -d -k -f csv");
        files.same("account log -d -k -f csv --recursive-calls-only");
    }
}
