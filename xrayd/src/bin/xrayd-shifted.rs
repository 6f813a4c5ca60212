//! A daemon of another version, for tests: its memory in a target is laid out differently.

use std::process::ExitCode;

fn main() -> ExitCode {
    xrayd::program::main()
}
