//! `graph-diff-simple.txt`, and every field of the changes.

use std::collections::BTreeMap;

use crate::support::{Files, leaves, mixed, yaml};

const FIELDS: [&str; 8] = ["none", "count", "min", "med", "90p", "99p", "max", "sum"];

/// The lines of a difference, with names in place of numbers. llvm-xray numbers them in the order
/// of a hash table.
fn named(dot: &str) -> Vec<String> {
    let mut names = BTreeMap::new();
    for line in dot.lines().filter(|line| line.contains(" -> ")) {
        let words: Vec<_> = line.split(' ').collect();
        let tooltip = line.split('"').nth(1).unwrap();
        let (caller, callee) = tooltip.split_once(" -> ").unwrap();
        names.insert(words[0], caller);
        names.insert(words[2], callee);
    }
    let line = |line: &str| {
        let words = line
            .split(' ')
            .map(|word| names.get(word).unwrap_or(&word).to_string());
        words.collect::<Vec<_>>().join(" ")
    };
    let mut lines: Vec<_> = dot.lines().map(line).collect();
    lines.sort();
    lines
}

#[track_caller]
fn same(files: &Files, args: &str) -> String {
    let ours = files.ours_out(args);
    assert_eq!(named(&ours), named(&files.theirs_out(args)), "{args}");
    ours
}

/// Nine functions take longer or shorter, the tenth is new, and the eleventh is gone.
#[test]
fn graph_diff_simple() {
    let functions = |other: u64, len: fn(u64) -> u64| {
        leaves((1..10).chain([other]).map(|id| {
            let begin = 9900 + 500 * id;
            (begin, begin + len(id), i32::try_from(id).unwrap())
        }))
    };
    let files = Files::new(&[
        ("A", yaml(1, &functions(11, |id| 10 * id))),
        ("B", yaml(1, &functions(10, |id| 140 - 12 * id))),
    ]);
    let none = same(&files, "graph-diff A B");
    assert_eq!(none.matches("color=\"black\"]").count(), 9, "{none}");
    for field in ["none", "count", "sum"] {
        for options in ["-e", "-c", "-v", "-b"] {
            same(&files, &format!("graph-diff A B {options} {field}"));
        }
        let out = same(
            &files,
            &format!("graph-diff A B -e {field} -c {field} -v {field} -b {field}"),
        );
        assert!(
            out.contains("[tooltip=\"F0 -> #10\" label=\"\" color=\"#00FF00\""),
            "{out}"
        );
        assert!(
            out.contains("[tooltip=\"F0 -> #11\" label=\"\" color=\"#FF0000\""),
            "{out}"
        );
        assert!(out.contains("[label=\"#11\" color=\"#FF0000\"]"), "{out}");
    }
    let out = files.ours_out("graph-diff A B -e sum -v sum");
    assert!(out.contains("\"F0 -> #2\" label=\"480.00%\""), "{out}");
    assert!(out.contains("[label=\"{#9|-64.44%}\""), "{out}");
}

#[test]
fn every_field_of_a_difference_is_llvm_xrays() {
    for (seed, threads) in [(7, 1), (8, 3)] {
        let files = Files::new(&[
            ("A", yaml(1_000_000_000, &mixed(threads, seed))),
            ("B", yaml(1_000_000_000, &mixed(threads, 10 * seed))),
        ]);
        for field in FIELDS {
            same(
                &files,
                &format!("graph-diff A B -edge-label={field} --edge-color {field} -k"),
            );
            same(
                &files,
                &format!("graph-diff A B --vertex-label={field} -vertex-color {field}"),
            );
            same(
                &files,
                &format!(
                    "graph-diff A B -e {field} -v={field} -d -k1 -k2 -d1 -d2 -vertex-label-trun=1"
                ),
            );
        }
    }
}

/// llvm-xray uses only the map of `graph`, which cannot be given here, and the `-k` of `graph`.
#[test]
fn each_side_of_a_difference_has_its_own_options() {
    let mut events = leaves([(10000, 10010, 1)]);
    let whole = yaml(1, &events);
    events.push((111, 10020, 2, "exit"));
    let files = Files::new(&[("A", whole), ("B", yaml(1, &events))]);
    let theirs = files.theirs_out("graph-diff A A -m map.yaml");
    assert!(theirs.contains("[tooltip=\"F0 -> #1\""), "{theirs}");
    for (maps, names) in [
        ("-m map.yaml", ["@(1)", "@(1)"]),
        ("--instr-map map.yaml", ["@(1)", "@(1)"]),
        ("-m1 map.yaml", ["@(1)", "#1"]),
        ("-instr-map-2=map.yaml", ["#1", "@(1)"]),
    ] {
        let out = files.ours_out(&format!("graph-diff A A {maps}"));
        for name in names {
            assert!(
                out.contains(&format!("[tooltip=\"F0 -> {name}\"")),
                "{maps}: {out}"
            );
        }
    }
    let reported = |args: &str| files.ours(args).err.matches("Found record").count();
    assert_eq!(reported("graph-diff A B"), 0);
    assert_eq!(reported("graph-diff A B -keep-going"), 1);
    assert_eq!(reported("graph-diff A B -k1"), 0);
    assert_eq!(reported("graph-diff A B --keep-going-2"), 1);
}
