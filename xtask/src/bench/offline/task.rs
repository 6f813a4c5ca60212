//! The commands that are measured, in the spelling of both programs. `runs.rs` runs them.

use std::ffi::OsString;
use std::path::Path;

/// A command that both programs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Account,
    Stack,
    Graph,
    Yaml,
    Chrome,
    /// `llvm-xray` has no such command.
    Perfetto,
}

// === impl Task ===

impl Task {
    pub(super) const ALL: [Task; 6] = [
        Task::Account,
        Task::Stack,
        Task::Graph,
        Task::Yaml,
        Task::Chrome,
        Task::Perfetto,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Task::Account => "account",
            Task::Stack => "stack",
            Task::Graph => "graph",
            Task::Yaml => "convert to YAML",
            Task::Chrome => "convert to Chrome JSON",
            Task::Perfetto => "convert to Perfetto",
        }
    }

    /// True if the command writes a file that grows with the number of events.
    pub(super) fn is_conversion(self) -> bool {
        match self {
            Task::Account | Task::Stack | Task::Graph => false,
            Task::Yaml | Task::Chrome | Task::Perfetto => true,
        }
    }

    /// The command line of xrayctl. Analyses print, conversions write `out`. A log needs the
    /// program for the names.
    pub(super) fn ours(
        self,
        xrayctl: &Path,
        program: Option<&Path>,
        input: &Path,
        out: &Path,
    ) -> Words {
        let words = Words::of(xrayctl);
        let words = match self {
            Task::Account => words.and(["account"]),
            Task::Stack => words.and(["stack"]),
            Task::Graph => words.and(["graph"]),
            Task::Yaml => words.and(["convert", "--to", "yaml"]),
            Task::Chrome => words.and(["convert", "--to", "chrome"]),
            Task::Perfetto => words.and(["convert", "--to", "perfetto"]),
        };
        let words = match program {
            Some(program) => words.and(["--instr_map"]).path(program),
            None => words,
        };
        let words = words.path(input);
        if self.is_conversion() {
            words.and(["--output"]).path(out)
        } else {
            words
        }
    }

    /// The command line of `llvm-xray`, if it has this command.
    pub(super) fn theirs(
        self,
        llvm_xray: &Path,
        program: &Path,
        input: &Path,
        out: &Path,
    ) -> Option<Words> {
        let words = Words::of(llvm_xray);
        let words = match self {
            Task::Account => words.and(["account"]),
            Task::Stack => words.and(["stack"]),
            Task::Graph => words.and(["graph"]),
            // Unlike xrayctl, it writes names only on request.
            Task::Yaml => words.and(["convert", "--symbolize", "--output-format=yaml"]),
            Task::Chrome => words.and(["convert", "--symbolize", "--output-format=trace_event"]),
            Task::Perfetto => return None,
        };
        let words = words.and(["--instr_map"]).path(program).path(input);
        Some(if self.is_conversion() {
            words.and(["--output"]).path(out)
        } else {
            words
        })
    }
}

/// A command line.
#[derive(Clone, Debug)]
pub(super) struct Words(pub(super) Vec<OsString>);

// === impl Words ===

impl Words {
    fn of(program: &Path) -> Self {
        Self(vec![program.into()])
    }

    pub(super) fn and<const N: usize>(mut self, words: [&str; N]) -> Self {
        self.0.extend(words.map(OsString::from));
        self
    }

    fn path(mut self, path: &Path) -> Self {
        self.0.push(path.into());
        self
    }
}
