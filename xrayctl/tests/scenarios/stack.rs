//! `stack-*.yaml`, and the stacks of any log.
//!
//! llvm-xray has sums in ticks, as we have for a log without a known frequency. We also have self
//! times. llvm-xray cannot tell which calls had callees if the events of threads are mixed.

use std::collections::BTreeMap;

use crate::support::{Event, Files, leaves, threads, yaml};

/// The form of one stack: its sum or its count, and its rows without the self times. In any order,
/// by thread.
fn stacks(out: &str, columns: usize) -> Vec<String> {
    let mut thread = "";
    let mut stacks = Vec::new();
    for line in out.lines() {
        if line.starts_with("Thread ") {
            thread = line;
        }
        let words: Vec<_> = line.split_whitespace().collect();
        match words.first() {
            Some(&("Sum:" | "Count:" | "Unique")) => {
                stacks.push(format!("{thread} {}", words.join(" ")));
            }
            Some(level) if level.starts_with('#') => {
                let stack = stacks.last_mut().unwrap();
                *stack += " ";
                *stack += &words[..columns].join(" ");
            }
            _ => {}
        }
    }
    stacks.sort();
    stacks
}

#[track_caller]
fn same(files: &Files, args: &str) {
    let (ours, theirs) = (files.ours_out(args), files.theirs_out(args));
    assert_eq!(stacks(&ours, 4), stacks(&theirs, 4), "{args}");
}

/// Folded stacks and their values.
fn folded(out: &str) -> BTreeMap<&str, u64> {
    let lines = out.lines().map(|line| line.rsplit_once(' ').unwrap());
    lines
        .map(|(stack, value)| (stack.trim_end_matches(';'), value.parse().unwrap()))
        .collect()
}

#[test]
fn stack_simple_case() {
    let calls = leaves([(10001, 10100, 1)]);
    let files = Files::new(&[("log", yaml(2_601_000_000, &calls))]);
    let out = files.ours_out("stack log");
    assert!(out.starts_with("\nUnique Stacks: 1\n"), "{out}");
    assert!(out.contains("\nSum: 0.000000038\n"), "{out}");
    assert!(
        files
            .theirs_out("stack log")
            .starts_with("\nUnique Stacks: 1\n")
    );
}

#[test]
fn stack_empty_case() {
    let files = Files::new(&[("log", yaml(2_601_000_000, &[]))]);
    let theirs = files.theirs("stack log");
    assert_eq!(
        (theirs.code, theirs.err.as_str()),
        (
            1,
            "llvm-xray: No instrumented calls were accounted in the input file.\n"
        )
    );
    for args in [
        "stack log",
        "stack log -all -stack-format=flame",
        "stack log -per-thread-stacks",
    ] {
        let ours = files.ours(args);
        let why =
            "xrayctl: nothing matched: no instrumented calls were accounted in the input file\n";
        assert_eq!(
            (ours.code, ours.out.as_str(), ours.err.as_str()),
            (3, "", why)
        );
    }
}

/// llvm-xray stops at an exit without an entry, unless `-k` is given, and then takes it for the
/// exit of all open calls. Here it ends no call.
#[test]
fn stack_keep_going() {
    let events = [
        (111, 10001, 1, "enter"),
        (111, 10301, 4, "exit"),
        (111, 10401, 1, "enter"),
        (111, 10501, 2, "enter"),
        (111, 10601, 3, "enter"),
        (111, 10701, 3, "exit"),
        (111, 10751, 2, "exit"),
        (111, 10775, 1, "exit"),
    ];
    let files = Files::new(&[("log", yaml(0, &events))]);
    let theirs = files.theirs("stack log");
    let found = "ound record {FuncId: \"#4\", ThreadId: \"111\", RecordType: \"Fn ";
    assert!(
        theirs.code == 1 && theirs.err.contains(found),
        "{}",
        theirs.err
    );
    assert!(
        files
            .theirs_out("stack -k log")
            .starts_with("\nUnique Stacks: 2\n")
    );
    let ours = files.ours("stack log");
    assert_eq!(ours.code, 0);
    assert!(!ours.err.contains(found), "{}", ours.err);
    let kept = files.ours("stack -k log");
    assert_eq!((kept.code, kept.out), (0, ours.out));
    let reported = "log: Found record {FuncId: \"#4\", ThreadId: \"111\", RecordType: \"Fn Exit\"} with no matching function entry, at tick 10301; its thread's stack: #1\n";
    assert!(kept.err.contains(reported), "{}", kept.err);
    // The number of lines is limited, and each is printed once. Both logs are one trace.
    let many: Vec<Event> = (0..50).map(|at| (1, at, 1, "exit")).collect();
    let files = Files::new(&[("log", yaml(0, &many)), ("other", yaml(0, &events))]);
    let err = files.ours("stack -k log other").err;
    let lines = err.matches("log and 1 more: Found record").count();
    assert_eq!(lines, 20, "{err}");
    let rest = "log and 1 more: and 31 more such records\n";
    assert!(err.contains(rest), "{err}");
}

/// With `-k` llvm-xray leaves out a log that it cannot read.
#[test]
fn stack_keep_going_without_a_log() {
    let calls = leaves([(10001, 10100, 1)]);
    let files = Files::new(&[("log", yaml(0, &calls))]);
    for args in ["stack log none", "stack none log"] {
        assert_eq!(files.ours(args).code, 1);
        assert_eq!(files.theirs(args).code, 1);
        let args = format!("{args} -k");
        same(&files, &args);
        let err = files.ours(&args).err;
        assert!(
            err.contains("cannot read none: No such file or directory"),
            "{err}"
        );
    }
}

#[test]
fn stack_multithread() {
    // The negative number of a function is its exit.
    let calls = |thread: u32, events: &[(u64, i32)]| -> Vec<Event> {
        let kind = |function| if function > 0 { "enter" } else { "exit" };
        let events = events.iter();
        events
            .map(|(at, function)| (thread, *at, function.abs(), kind(*function)))
            .collect()
    };
    let events = [
        calls(111, &[(10001, 1), (10100, 1), (10101, -1), (10301, -1)]),
        calls(111, &[(10401, 1), (10501, 2), (10601, 3)]),
        calls(111, &[(10701, -3), (10751, -2), (10775, -1)]),
        calls(123, &[(10401, 1), (10501, 2), (10701, 3)]),
        calls(123, &[(10801, -3), (10951, -2), (11075, -1)]),
        calls(200, &[(0, 2), (10, 3), (20, -3), (30, -2)]),
    ]
    .concat();
    let files = Files::new(&[("log", yaml(0, &events))]);
    same(&files, "stack -per-thread-stacks log");
    let out = stacks(&files.ours_out("stack -per-thread-stacks log"), 4);
    for stack in [
        "Thread 123: Unique Stacks: 1",
        "Thread 123: Sum: 100 #0 #1 1 674 #1 #2 1 450 #2 #3 1 100",
        "Thread 200: Count: 1 #0 #2 1 30 #1 #3 1 10",
    ] {
        assert!(out.contains(&stack.to_owned()), "{stack}: {out:?}");
    }
    let out = stacks(&files.ours_out("stack -aggregate-threads log"), 4);
    for stack in [
        " Unique Stacks: 3",
        " Sum: 200 #0 #1 3 1348 #1 #2 2 700 #2 #3 2 200",
        " Sum: 10 #0 #2 1 30 #1 #3 1 10",
        " Count: 1 #0 #1 3 1348 #1 #1 1 1",
    ] {
        assert!(out.contains(&stack.to_owned()), "{stack}: {out:?}");
    }
    // llvm-xray shows the callers of a stack that only one thread has with that thread's numbers.
    let theirs = files.theirs_out("stack -aggregate-threads log");
    let theirs = stacks(&theirs, 4).join("\n");
    assert_eq!(
        theirs.replace("#0 #1 2 674", "#0 #1 3 1348"),
        out.join("\n")
    );
}

/// llvm-xray's sums contain the sums of longer stacks. Flame graphs add them up themselves, so our
/// sums do not.
#[test]
fn every_folded_stack_is_llvm_xrays_without_what_it_called() {
    for (seed, number) in [(11, 1), (12, 3)] {
        let files = Files::new(&[("log", yaml(0, &threads(number, seed)))]);
        for how in ["", "-aggregate-threads"] {
            let args = format!("stack log -all-stacks {how} -stack-format=flame");
            let (ours, theirs) = (files.ours_out(&args), files.theirs_out(&args));
            let mut own = folded(&theirs);
            for (stack, sum) in folded(&theirs) {
                let (caller, _) = stack.rsplit_once(';').unwrap_or_default();
                if let Some(caller) = own.get_mut(caller) {
                    *caller -= sum;
                }
            }
            assert_eq!(folded(&ours), own, "{args}");
            let args = format!("stack log -all {how} -stack-format flame -aggregation-type=count");
            let (ours, theirs) = (files.ours_out(&args), files.theirs_out(&args));
            assert_eq!(folded(&ours), folded(&theirs), "{args}");
        }
        same(&files, "stack log -m map.yaml -per-thread-stacks");
        same(&files, "stack log log -m map.yaml --aggregate-threads");
    }
}
