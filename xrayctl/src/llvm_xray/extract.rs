//! `llvm-xray extract`: the instrumentation map of a file in YAML.

use xray_trace::instr_map::FunctionNames;

use super::failure::Failure;
use super::names;
use super::options::{Arguments, Command, Inputs, Opt, ValueKind};
use super::output::Output;

pub(super) const COMMAND: Command = Command {
    name: "extract",
    about: "Extract instrumentation maps",
    inputs: Inputs::Each(&["<input file>"]),
    options: &[
        Opt {
            name: "demangle",
            alias: "",
            value: ValueKind::Flag,
            about: "Demangle the names of functions (the default)",
        },
        Opt {
            name: "no-demangle",
            alias: "",
            value: ValueKind::Flag,
            about: "Do not demangle the names of functions",
        },
        Opt {
            name: "output",
            alias: "o",
            value: ValueKind::Text("output file"),
            about: "The output file; - is standard output",
        },
        Opt {
            name: "symbolize",
            alias: "s",
            value: ValueKind::Flag,
            about: "Write the names of functions",
        },
    ],
};

pub(super) fn run(args: &Arguments) -> Result<(), Failure> {
    let input = args.input();
    let map = names::read_map(input).map_err(|failure| {
        let input = input.to_string_lossy();
        failure.in_context(format!(
            "Cannot extract instrumentation map from '{input}'."
        ))
    })?;
    let names = if args.flag("symbolize") {
        names::forms(&map, args.demangles())
    } else {
        FunctionNames::None
    };
    let output = Output::open(args.text("output", "-"))?;
    output.write(|out| map.write_yaml(names, out))
}
