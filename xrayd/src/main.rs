//! The daemon.

use std::process::ExitCode;

fn main() -> ExitCode {
    xrayd::program::main()
}
