//! Logs in LLVM's YAML, and the two programs that read them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::common::{Ran, xrayctl_in};

/// An entry or an exit: thread, tick, function, `enter`, `exit` or `tail-exit`.
pub(crate) type Event = (u32, u64, i32, &'static str);

/// A directory with logs and an instrumentation map.
pub(crate) struct Files {
    dir: TempDir,
}

/// A log like those of LLVM's tests: version 1, because `llvm-xray` reads back no other version.
pub(crate) fn yaml(frequency: u64, events: &[Event]) -> String {
    let mut text = format!(
        "---\nheader:\n  version: 1\n  type: 0\n  constant-tsc: true\n  nonstop-tsc: true\n  cycle-frequency: {frequency}\nrecords:\n"
    );
    for (thread, tsc, function, kind) in events {
        writeln!(
            text,
            "  - {{ type: 0, func-id: {function}, cpu: 1, thread: {thread}, kind: function-{kind}, tsc: {tsc} }}"
        )
        .unwrap();
    }
    text + "...\n"
}

/// Calls of one thread, as `(begin, end, function)`, without nesting.
pub(crate) fn leaves(calls: impl IntoIterator<Item = (u64, u64, i32)>) -> Vec<Event> {
    let calls = calls.into_iter();
    calls
        .flat_map(|(begin, end, function)| {
            [
                (111, begin, function, "enter"),
                (111, end, function, "exit"),
            ]
        })
        .collect()
}

/// A small linear congruential generator: the same numbers in every run.
pub(crate) fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    }
}

/// Nested calls of the functions 1 to 3, each with another duration. Only function 3 calls nothing.
/// It has depth 2 at most, so there are no more stacks than llvm-xray prints.
pub(crate) fn nested(seed: u64) -> Vec<Event> {
    let mut number = numbers(seed);
    let mut events: Vec<Event> = Vec::new();
    let mut stack: Vec<i32> = Vec::new();
    let mut at = 1000;
    while events.len() < 120 || !stack.is_empty() {
        at += 1 + number(5000);
        let calls_nothing = stack.last() == Some(&3);
        let began = events.last().is_some_and(|event| event.3 == "enter");
        let ends = events.len() >= 120 || number(2) == 0;
        let (function, kind) = if calls_nothing || !began && ends && !stack.is_empty() {
            (stack.pop().unwrap(), "exit")
        } else {
            let function = if stack.len() < 2 {
                1 + i32::try_from(number(3)).unwrap()
            } else {
                3
            };
            stack.push(function);
            (function, "enter")
        };
        events.push((1, at, function, kind));
    }
    events
}

/// Nested calls of several threads, one thread after the other.
pub(crate) fn threads(number: u32, seed: u64) -> Vec<Event> {
    let of = |thread: u32| {
        let events = nested(seed + u64::from(thread)).into_iter();
        let later = u64::from(thread) * 10_000_000;
        events.map(move |(_, at, function, kind)| (thread, at + later, function, kind))
    };
    (1..=number).flat_map(of).collect()
}

/// Nested calls of several threads at the same time.
pub(crate) fn mixed(number: u32, seed: u64) -> Vec<Event> {
    let mut events = threads(number, seed);
    for (thread, at, ..) in &mut events {
        // No two events have the same time.
        *at = (*at - u64::from(*thread) * 10_000_000) * 16 + u64::from(*thread);
    }
    events.sort_by_key(|event| event.1);
    events
}

/// Entries and exits of four functions in one thread, paired or not.
pub(crate) fn unpaired(seed: u64) -> Vec<Event> {
    let mut number = numbers(seed);
    let mut at = 1000;
    let event = |_| {
        at += 1 + number(1000);
        let function = 1 + i32::try_from(number(4)).unwrap();
        let kind = ["enter", "enter", "exit", "tail-exit", "exit"];
        (1, at, function, kind[usize::try_from(number(5)).unwrap()])
    };
    (0..60).map(event).collect()
}

impl Files {
    /// Makes a directory with these logs and `map.yaml`, a map of eleven functions at the addresses
    /// 1 to 11.
    pub(crate) fn new(logs: &[(&str, String)]) -> Self {
        let files = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let mut map = "---\n".to_owned();
        for id in 1..12 {
            for (address, kind) in [(id, "enter"), (id + 1, "exit")] {
                writeln!(
                    map,
                    "- {{ id: {id}, address: 0x{address:X}, function: 0x{id:X}, kind: function-{kind}, always-instrument: true }}"
                )
                .unwrap();
            }
        }
        map += "...\n";
        fs::write(files.path().join("map.yaml"), map).unwrap();
        for (name, text) in logs {
            fs::write(files.path().join(name), text).unwrap();
        }
        files
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The result of `xrayctl`.
    pub(crate) fn ours(&self, args: &str) -> Ran {
        xrayctl_in(self.path(), args.split_whitespace())
    }

    /// The output of `xrayctl`, which must succeed.
    #[track_caller]
    pub(crate) fn ours_out(&self, args: &str) -> String {
        let ran = self.ours(args);
        assert_eq!(ran.code, 0, "{args}: {}", ran.err);
        ran.out
    }

    /// The result of `llvm-xray`.
    pub(crate) fn theirs(&self, args: &str) -> Ran {
        let output = Command::new("llvm-xray-19")
            .args(args.split_whitespace())
            .current_dir(self.path())
            .output();
        let output = output.unwrap_or_else(|error| {
            panic!("cannot run llvm-xray-19 ({error}): install the Debian package llvm-19")
        });
        Ran {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The output of `llvm-xray`, which must succeed.
    #[track_caller]
    pub(crate) fn theirs_out(&self, args: &str) -> String {
        let ran = self.theirs(args);
        assert_eq!(ran.code, 0, "llvm-xray {args}: {}", ran.err);
        ran.out
    }

    /// Checks that both print the same lines in the same order.
    #[track_caller]
    pub(crate) fn same(&self, args: &str) -> String {
        let ours = self.ours_out(&with_llvm_columns(args));
        assert_eq!(ours, self.theirs_out(args), "{args}");
        ours
    }

    /// Checks that both print the same lines. llvm-xray prints the lines of a graph in the order of
    /// a hash table.
    #[track_caller]
    pub(crate) fn same_lines(&self, args: &str) -> String {
        let ours = self.ours_out(&with_llvm_columns(args));
        assert_eq!(sorted(&ours), sorted(&self.theirs_out(args)), "{args}");
        ours
    }
}

/// The line for `xrayctl`, whose `account` prints llvm-xray's columns on request.
fn with_llvm_columns(args: &str) -> String {
    if args.starts_with("account ") {
        format!("{args} --columns llvm")
    } else {
        args.to_owned()
    }
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}
