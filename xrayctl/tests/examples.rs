//! The examples in the help of the commands that analyse traces print the text of the help.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::path::Path;

mod common;

use common::{small_trace, xrayctl, xrayctl_in};

const COMMANDS: [&str; 8] = [
    "info",
    "account",
    "diff",
    "stack",
    "tree",
    "graph",
    "graph-diff",
    "flame",
];

/// Runs a line of the help, in a directory with a small trace called `run.xtrace`.
fn run(line: &str, dir: &Path) -> String {
    let words = line.split('\'').enumerate().flat_map(|(at, part)| {
        // Every other part is quoted.
        let part = part.trim_matches(' ');
        if at % 2 == 1 {
            vec![part]
        } else {
            part.split_whitespace().collect()
        }
    });
    let ran = xrayctl_in(dir, words);
    assert_eq!(ran.code, 0, "{line}: {}", ran.err);
    ran.out
}

fn trimmed<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    lines.map(str::trim_end).collect()
}

#[test]
fn examples_in_the_help_print_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::rename(small_trace(dir.path()), dir.path().join("run.xtrace")).unwrap();
    let mut wrong = Vec::new();
    for name in COMMANDS {
        let help = xrayctl([name, "--help"]).out;
        let example = help.split("Example:\n  $ xrayctl ").nth(1);
        let example = example.unwrap_or_else(|| panic!("the help of {name} has no example"));
        let (line, rest) = example.split_once('\n').unwrap();
        let shown = rest.lines().take_while(|line| line.starts_with("  "));
        let shown = trimmed(shown.map(|line| &line[2..]));
        let found = run(line, dir.path());
        let found_lines = trimmed(found.lines());
        if shown != found_lines {
            wrong.push(format!("$ xrayctl {line}\n{found}"));
        }
    }
    assert!(wrong.is_empty(), "these print:\n{}", wrong.join("\n"));
}
