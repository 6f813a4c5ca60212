//! `cargo xtask soak`: the long versions of the tests that a short run cannot prove much by: sleds switched tens of
//! millions of times under load, attach and detach in a loop, threads that come and go by the hundred thousand, libraries
//! by the ten thousand.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use integration::workspace_dir;

use crate::shell::{cargo, execute, say};
use crate::test::install_missing;

/// Set to 1, long tests run at full length.
const SWITCH: &str = "XRAYD_SOAK";

/// Parts of the engine's tests that have a long version.
const LONG: &[&str] = &[
    "storm::",
    "threads::",
    "truth::",
    "registers::",
    "killed::",
    "libraries::",
];

/// A round that takes longer hangs.
const LIMIT: &str = "2h";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Begin another round until so many minutes have passed; one round at least
    #[arg(long, value_name = "N", default_value_t = 0)]
    minutes: u64,
    /// Run the tests whose names have one of these in them [default: all that have a long version]
    tests: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    install_missing(false)?;
    execute(cargo().args(["build", "--workspace"]))?;
    let tests: Vec<&str> = match arguments.tests.as_slice() {
        [] => LONG.to_vec(),
        tests => tests.iter().map(String::as_str).collect(),
    };
    let begun = Instant::now();
    let wanted = Duration::from_secs(arguments.minutes.saturating_mul(60));
    for round in 1.. {
        let mut test = Command::new("timeout");
        test.args(["--kill-after=10", LIMIT])
            .arg(cargo().get_program())
            .current_dir(workspace_dir());
        test.args([
            "test",
            "--release",
            "--package",
            "integration",
            "--test",
            "engine",
            "--",
        ])
        .args(&tests)
        .env(SWITCH, "1");
        execute(&mut test)?;
        say(&format!(
            "round {round} passed, {} s in all",
            begun.elapsed().as_secs()
        ))?;
        if begun.elapsed() >= wanted {
            break;
        }
    }
    Ok(())
}
