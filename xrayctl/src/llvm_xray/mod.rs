//! `llvm-xray` of LLVM 19: its command line, its numbers, its order of lines and its exit codes.
//!
//! Scripts and tests that were written for `llvm-xray` can run this program in its place. It
//! behaves as LLVM's tool does if it is called by that name (a link named `llvm-xray`, with or
//! without a version behind it), or as `xrayctl --as llvm-xray-19 …`. It then makes the mistakes of
//! LLVM's tool as well: the commands of [`cmd`](crate::cmd) answer the same questions correctly.
//!
//! Nothing here uses the trace model. A log is a list of records, as it is in LLVM's own library,
//! and each command follows the tool's algorithm step by step.
//!
//! | module | content |
//! |---|---|
//! | `options` | the options of the commands, and LLVM's rules for spelling them |
//! | `log`, `record`, `fdr` | the records of a log, of every format that `llvm-xray` reads |
//! | `names` | names and source lines of functions |
//! | `account`, `convert`, `extract`, `fdr_dump`, `graph`, `graph_diff`, `stack` | the commands |
//! | `trie` | call stacks of `stack` and `convert` |
//! | `dense_map`, `hash`, `sort` | the orders of LLVM's hash tables and of the C++ library's sort |
//!
//! `xrayctl/tests/llvm_xray.rs` compares both programs byte by byte, `cargo xtask upstream` runs
//! LLVM's own tests. docs/xrayctl.md lists what differs.

mod account;
mod convert;
mod dense_map;
mod extract;
mod failure;
mod fdr;
mod fdr_dump;
mod graph;
mod graph_diff;
mod hash;
mod log;
mod names;
mod options;
mod output;
mod record;
mod sort;
mod stack;
mod statistics;
mod trie;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use self::failure::Failure;
use self::options::{Arguments, Command, Request};
use self::output::Output;

/// The name of the tool and version that this module follows.
pub(crate) const NAME: &str = "llvm-xray-19";

/// The commands of the tool, in the order of its help.
const COMMANDS: [(&Command, Run); 7] = [
    (&account::COMMAND, account::run),
    (&convert::COMMAND, convert::run),
    (&extract::COMMAND, extract::run),
    (&fdr_dump::COMMAND, fdr_dump::run),
    (&graph::COMMAND, graph::run),
    (&graph_diff::COMMAND, graph_diff::run),
    (&stack::COMMAND, stack::run),
];

/// Runs a command with its options.
type Run = fn(&Arguments) -> Result<(), Failure>;

/// A call of the tool.
#[derive(Debug)]
pub(crate) struct Call {
    /// The name of the program in its messages.
    program: String,
    /// The path by which the program was called.
    path: String,
    args: Vec<OsString>,
}

// === impl Call ===

impl Call {
    /// The call, if these arguments of a process are one of `llvm-xray`.
    pub(crate) fn new(args: &[OsString]) -> Option<Self> {
        let (program, rest) = args.split_first()?;
        let name = Path::new(program).file_name()?.to_string_lossy();
        let path = program.to_string_lossy();
        let (program, path, args) = match rest {
            args if is_name(&name) => (&*name, &*path, args),
            [option, tool, args @ ..] if option == "--as" && tool == NAME => (NAME, NAME, args),
            [option, args @ ..] if is_joined(option) => (NAME, NAME, args),
            _ => return None,
        };
        Some(Self {
            program: program.to_owned(),
            path: path.to_owned(),
            args: args.to_vec(),
        })
    }

    /// Runs the command. Standard error has the reason of a failure.
    pub(crate) fn run(&self) -> ExitCode {
        match self.execute() {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                // Without standard error, only the exit code is left.
                let _ = failure.write(&self.program, &mut std::io::stderr().lock());
                failure.exit_code()
            }
        }
    }

    fn execute(&self) -> Result<(), Failure> {
        let commands = COMMANDS.map(|(command, _)| command);
        let Some((first, rest)) = self.args.split_first() else {
            return print(&options::overview(&self.program, &commands));
        };
        if let Some(text) = options::general(&self.program, first, &commands) {
            return print(&text);
        }
        let found = COMMANDS.iter().find(|(command, _)| first == command.name);
        let Some((command, run)) = found else {
            return Err(options::unknown_command(&self.path, first, rest));
        };
        match command.parse(&self.program, &self.path, rest)? {
            Request::Run(args) => run(&args),
            Request::Print(text) => print(&text),
        }
    }
}

fn print(text: &str) -> Result<(), Failure> {
    Output::standard().write(|out| out.write_all(text.as_bytes()))
}

/// Whether a program of this name is the tool, of any version.
fn is_name(name: &str) -> bool {
    let version = name.strip_prefix("llvm-xray");
    version.is_some_and(|version| match version.strip_prefix('-') {
        Some(number) => !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()),
        None => version.is_empty(),
    })
}

/// Whether this is the option with its value behind an equals sign.
fn is_joined(option: &OsStr) -> bool {
    let value = option.to_str().and_then(|text| text.strip_prefix("--as="));
    value == Some(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_the_tool_has_its_name_or_the_option_first() {
        let args = |text: &str| -> Vec<OsString> { text.split(' ').map(Into::into).collect() };
        for (text, expected) in [
            ("llvm-xray stack a", Some(2)),
            ("/usr/bin/llvm-xray-19 stack a", Some(2)),
            ("llvm-xray", Some(0)),
            ("xrayctl --as llvm-xray-19 stack a", Some(2)),
            ("xrayctl --as=llvm-xray-19 stack a", Some(2)),
            ("xrayctl --as llvm-xray stack a", None),
            ("xrayctl stack a", None),
            ("my-llvm-xray stack a", None),
            ("llvm-xray-new stack a", None),
            ("llvm-xray- stack a", None),
        ] {
            let call = Call::new(&args(text));
            assert_eq!(call.map(|call| call.args.len()), expected, "{text}");
        }
    }
}
