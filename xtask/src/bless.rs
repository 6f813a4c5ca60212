//! `cargo xtask bless`: the tests that compare with golden files write them anew. It commits
//! nothing. Read the difference before you do.

use anyhow::Result;

use crate::shell::say;
use crate::test::run_tests;

/// The environment variable for that. With 1, tests write their golden files instead of comparing
/// with them.
const SWITCH: &str = "XRAYD_BLESS";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Passed on to `cargo test`, for example `-p xray-trace`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    run_tests(&[(SWITCH, "1")], &arguments.rest)?;
    say("golden files are written; read them with `git diff`")
}
