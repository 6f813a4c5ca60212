//! `llvm-xray extract`: the instrumentation map of a file in YAML.

use xray_trace::instr_map::FunctionNames;

use super::failure::Failure;
use super::names;
use super::options::{Command, Given, Inputs, Opt, Takes};
use super::output::Output;

pub(super) const COMMAND: Command = Command {
    name: "extract",
    about: "Extract instrumentation maps",
    inputs: Inputs::Each(&["<input file>"]),
    options: &[
        Opt {
            name: "demangle",
            alias: "",
            takes: Takes::Flag,
            about: "Demangle the names of functions (the default)",
        },
        Opt {
            name: "no-demangle",
            alias: "",
            takes: Takes::Flag,
            about: "Do not demangle the names of functions",
        },
        Opt {
            name: "output",
            alias: "o",
            takes: Takes::Text("output file"),
            about: "The output file; - is standard output",
        },
        Opt {
            name: "symbolize",
            alias: "s",
            takes: Takes::Flag,
            about: "Write the names of functions",
        },
    ],
};

pub(super) fn run(given: &Given) -> Result<(), Failure> {
    let input = given.input();
    let map = names::read_map(input).map_err(|failure| {
        let input = input.to_string_lossy();
        failure.in_context(format!(
            "Cannot extract instrumentation map from '{input}'."
        ))
    })?;
    let names = if !given.flag("symbolize") {
        FunctionNames::None
    } else if given.flag("no-demangle") {
        FunctionNames::Symbols
    } else {
        FunctionNames::Demangled
    };
    let output = Output::open(given.text("output", "-"))?;
    output.write(|out| map.write_yaml(names, out))
}
