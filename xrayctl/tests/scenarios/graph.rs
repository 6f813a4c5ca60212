//! `graph-*.yaml`, and every field of edges and vertices.

use crate::support::{Files, leaves, mixed, unpaired, yaml};

const FIELDS: [&str; 8] = ["none", "count", "min", "med", "90p", "99p", "max", "sum"];

#[test]
fn graph_simple_case() {
    let calls = leaves([(10001, 10100, 1)]);
    let files = Files::new(&[("log", yaml(2_601_000_000, &calls))]);
    let expected = |label: &str| {
        format!("digraph xray {{\nF0 -> F1 [label=\"{label}\"];\nF1 [label=\"@(1)\"];\n}}\n")
    };
    let out = files.same("graph log -o - -m map.yaml");
    assert_eq!(out, expected(""));
    let out = files.same("graph log -o - -m map.yaml -e count");
    assert_eq!(out, expected("1"));
    for field in &FIELDS[2..] {
        let out = files.ours_out(&format!("graph log -o - -m map.yaml -e {field}"));
        // We have whole nanoseconds. llvm-xray has 3.806228e-08.
        assert_eq!(out, expected("3.800000e-08"), "{field}");
    }
}

#[test]
fn graph_color_simple_case() {
    let calls = leaves((1..10).map(|at| {
        let begin = 9900 + 100 * at;
        (begin, begin + 10 * at, i32::try_from(at).unwrap())
    }));
    let files = Files::new(&[("log", yaml(1, &calls))]);
    let out = files.same_lines("graph log -o - -m map.yaml -e sum -c sum");
    assert!(
        out.contains("F0 -> F9 [label=\"9.000000e+01\" color=\"#7F0000\"];"),
        "{out}"
    );
    let out = files.same_lines("graph log -o - -m map.yaml -v sum -b sum");
    assert!(
        out.contains("F1 [label=\"{@(1)|1.000000e+01}\" color=\"#FDC48D\"];"),
        "{out}"
    );
}

#[test]
fn graph_deduce_tail_call() {
    let events = [
        (111, 10000, 1, "enter"),
        (111, 10001, 2, "enter"),
        (111, 10002, 3, "enter"),
        (111, 10003, 3, "exit"),
        (111, 10004, 1, "exit"),
    ];
    let files = Files::new(&[("log", yaml(0, &events))]);
    for field in FIELDS {
        let out = files.same_lines(&format!("graph log -o - -m map.yaml -d -e {field}"));
        assert!(
            out.contains("F1 -> F2 [label=\"") && out.contains("F2 -> F3"),
            "{out}"
        );
    }
    // Without the option, llvm-xray fails. In our graph, the edge has no finished call.
    assert_eq!(files.theirs("graph log").code, 1);
    let ran = files.ours("graph log -e count");
    assert!(
        ran.out.contains("F1 -> F2 [label=\"0\" style=dashed];"),
        "{}",
        ran.out
    );
    assert!(
        ran.err.contains("log: 1 call without an exit"),
        "{}",
        ran.err
    );
}

/// llvm-xray crashes if a colour is asked for: it divides zero by zero.
#[test]
fn graph_zero_latency_calls() {
    let calls = leaves([(10000, 10000, 1)]);
    let files = Files::new(&[("log", yaml(2_601_000_000, &calls))]);
    let out = files.same("graph log -m map.yaml -e sum -v max");
    assert!(out.contains("F1 [label=\"{@(1)|0.000000e+00}\"];"), "{out}");
    let out = files.ours_out("graph log -m map.yaml -e sum -v max -c sum -b max");
    for line in [
        "F0 -> F1 [label=\"0.000000e+00\" color=\"#FFF7EC\"];",
        "F1 [label=\"{@(1)|0.000000e+00}\" color=\"#FFF7EC\"];",
    ] {
        assert!(out.contains(line), "{out}");
    }
}

/// Upstream has no test of this. llvm-xray prints the stack of every thread, and then reports that
/// there is no entry.
#[test]
fn graph_keep_going() {
    let events = [
        (1, 10000, 1, "enter"),
        (1, 10001, 4, "tail-exit"),
        (1, 10002, 1, "exit"),
    ];
    let files = Files::new(&[("log", yaml(0, &events))]);
    assert_eq!(files.theirs("graph log -m map.yaml").code, 1);
    files.same("graph log -m map.yaml -k -e sum");
    let ran = files.ours("graph log -m map.yaml -k -e sum");
    let reported = "{FuncId: \"@(4)\", ThreadId: \"1\", RecordType: \"Fn Tail Exit\"} with no matching function entry";
    assert!(ran.err.contains(reported), "{}", ran.err);
    let ran = files.ours("graph log -keep-going=false");
    assert_eq!(ran.code, 0);
    assert!(!ran.err.contains("Found record"), "{}", ran.err);
}

#[test]
fn every_field_of_a_graph_is_llvm_xrays() {
    for (seed, threads) in [(1, 1), (5, 4)] {
        let files = Files::new(&[("log", yaml(1_000_000_000, &mixed(threads, seed)))]);
        for field in FIELDS {
            files.same_lines(&format!("graph log -e {field} -v {field} -m map.yaml"));
            files.same_lines(&format!(
                "graph log -edge-label={field} -color-edges {field}"
            ));
            files.same_lines(&format!(
                "graph log --vertex-label {field} --color-vertices={field}"
            ));
            files.same_lines(&format!("graph log -c {field} -b {field} -k"));
        }
    }
}

/// Only our graphs have edges without a finished call.
#[test]
fn calls_without_a_partner_are_drawn_as_by_llvm_xray() {
    for seed in 0..30 {
        let files = Files::new(&[("log", yaml(1_000_000_000, &unpaired(seed)))]);
        let args = "graph log -d -k -e sum -v count";
        let ours = files.ours_out(args);
        let mut ours: Vec<_> = ours
            .lines()
            .filter(|line| !line.ends_with("style=dashed];"))
            .collect();
        let theirs = files.theirs_out(args);
        let mut theirs: Vec<_> = theirs.lines().collect();
        ours.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(ours, theirs, "{seed}");
    }
}
